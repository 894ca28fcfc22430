"""``mila import`` as a user runs it."""

from __future__ import annotations

from pathlib import Path

from mila.cli.failures import REFUSED, USAGE
from tests.cli.commands import documents, mila_here, mila_process
from tests.gguf.tiny_models import file_bytes, rotary_model


def test_import_writes_a_folder_and_says_what_it_is(tmp_path: Path) -> None:
    file, out = tmp_path / "model.gguf", tmp_path / "out"
    file.write_bytes(file_bytes(rotary_model(dtype="<f2")))
    result = mila_process("import", file, out, "--dtype", "bfloat16")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{out}: llama, 26,944 parameters",
        "weights: 53,888 bytes of bfloat16, from F16 (15), F32 (5)",
    ]
    assert {each.name for each in out.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}


def test_import_prints_json(tmp_path: Path) -> None:
    file, out = tmp_path / "model.gguf", tmp_path / "out"
    metadata, tensors = rotary_model()
    file.write_bytes(file_bytes((metadata | {"tokenizer.ggml.pre": "default"}, tensors)))
    result = mila_here("import", file, out, "--json")
    assert result.exit_code == 0
    (document,) = documents(result.stdout)
    notes = document.pop("notes")
    assert document == {
        "folder": str(out),
        "architecture": "llama",
        "model_type": "llama",
        "dtype": "float32",
        "parameter_count": 26_944,
        "weight_bytes": 4 * 26_944,
        "tensor_types": {"F32": 20},
    }
    assert len(notes) == 1
    assert "default" in notes[0]


def test_import_refuses_in_one_line(tmp_path: Path) -> None:
    file, out = tmp_path / "model.gguf", tmp_path / "out"
    file.write_bytes(b"<html>not found</html>")
    result = mila_here("import", file, out)
    assert result.exit_code == REFUSED
    assert result.stderr.startswith(f"mila: {file}: expected a GGUF file")
    assert result.stderr.count("\n") == 1
    assert mila_here("import", file, out, "--dtype", "int8").exit_code == USAGE
    assert mila_here("import", tmp_path / "none.gguf", out).exit_code == REFUSED
    assert not out.exists()
