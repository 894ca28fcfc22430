"""``mila inspect`` and ``mila compare`` of models on the hub: headers are read, and no values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from mila.errors import CheckpointError, ConfigurationError
from mila.planning import InspectionReport, compare, inspect
from mila.planning.comparison_report import TensorOutcome
from mila.planning.inspection_report import ContentKind, FindingKind
from tests.cli.commands import mila_here
from tests.cli.terminal import Terminal
from tests.models.clip_cases import CLIP_GOLDEN
from tests.models.folder_cases import GOLDEN
from tests.planning.hub_server import COMMIT, Fault, Hub
from tests.planning.stored_files import change_config, kinds, only, write

package: Any = pytest.importorskip("huggingface_hub")
constants: Any = pytest.importorskip("huggingface_hub.constants")

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MODELS = {"tests/sharded": GOLDEN / "llama_tied_llama3", "tests/single": GOLDEN / "gpt2_tied"}
WHERE = ("target", "kind", "place", "checked", "notes")


def without_place(report: InspectionReport) -> dict[str, Any]:
    return report.model_dump(exclude={*WHERE})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("check", [False, True])
def test_a_model_of_the_hub_is_described_like_its_folder(hub: Hub, name: str, check: bool) -> None:
    report, folder = inspect(f"hf://{name}", check=check), inspect(MODELS[name], check=check)
    assert without_place(report) == without_place(folder)
    assert (report.kind, report.place, report.checked) == (ContentKind.HUB, f"hf://{name}", False)
    assert kinds(report.notes).count(FindingKind.NOT_CHECKED) == check
    sizes = {file.name: file.stat().st_size for file in hub.folders[name].glob("*.safetensors")}
    assert {file.name: file.bytes for file in report.files} == sizes
    assert all(
        headers.get("Range") == "bytes=0-65535" for path, headers in hub.requests if path.endswith("safetensors")
    )


@pytest.mark.parametrize(
    ("name", "revision", "file", "kind"),
    [
        ("tests/single", "", SINGLE, ContentKind.SAFETENSORS),
        ("tests/sharded", "@v1", INDEX, ContentKind.INDEX),
        ("tests/sharded", "@refs/pr/1", "model-00002-of-00003.safetensors", ContentKind.SAFETENSORS),
        ("tests/single", f"@{COMMIT}", "config.json", ContentKind.CONFIG),
    ],
)
def test_one_file_of_a_model_is_described_by_itself(
    hub: Hub, name: str, revision: str, file: str, kind: ContentKind
) -> None:
    spec, path = f"hf://{name}{revision}/{file}", hub.folders[name] / file
    report = inspect(spec, check=True)
    assert without_place(report) == without_place(inspect(path, check=True))
    assert (report.kind, report.place) == (kind, spec)
    assert hub.requests[0][0] == f"/api/models/{name}/revision/{revision[1:] or 'main'}"
    assert "config.json" not in hub.sent or file == "config.json"


def test_what_needs_values_is_said_not_to_be_checked(hub: Hub) -> None:
    folder = hub.folders["tests/single"]
    tensors = load_file(folder / SINGLE)
    name = next(iter(tensors))
    tensors[name] = np.full_like(tensors[name], np.nan)
    write(folder / SINGLE, tensors)
    (folder / "tokenizer.json").write_text("no tokenizer")
    result = mila_here("inspect", "hf://tests/single", "--check")
    assert (result.exit_code, result.stderr) == (0, "")
    text = " ".join(result.stdout.split())
    for words in (
        "NaN and infinite values",
        "tensors with the same bytes",
        "ids of the tokenizer",
        "download the model",
    ):
        assert words in text
    assert text.startswith("hf://tests/single: model on the hub")
    assert text.endswith("No problems in what headers say; no value was read.")
    assert "NaN" not in mila_here("inspect", "hf://tests/single").stdout


def test_what_headers_tell_is_checked(hub: Hub) -> None:
    change_config(hub.folders["tests/single"], n_inner=15)
    (problem,) = inspect("hf://tests/single", check=True).problems
    assert problem.kind is FindingKind.NOT_LOADABLE
    assert problem.message.startswith("hf://tests/single: does not fit model: ")
    assert mila_here("inspect", "hf://tests/single", "--check").exit_code == 1
    assert mila_here("inspect", "hf://tests/single").exit_code == 0
    folder = hub.folders["tests/clip"] = hub.folders["tests/single"].parent / "clip"
    shutil.copytree(CLIP_GOLDEN / "projected", folder)
    assert inspect("hf://tests/clip", check=True).problems == []
    change_config(folder, hidden_size=30)
    assert kinds(inspect("hf://tests/clip", check=True).problems) == [FindingKind.NOT_LOADABLE]


def test_a_model_without_a_config_and_one_without_weights_are_shown(hub: Hub) -> None:
    (hub.folders["tests/single"] / "config.json").unlink()
    report = inspect("hf://tests/single", check=True)
    assert (report.config, report.stored_tensors) == (None, 28)
    words = "hf://tests/single: expected a model folder with config.json, got a folder without"
    assert [(each.kind, each.message) for each in report.problems] == [(FindingKind.NOT_LOADABLE, words)]
    assert inspect("hf://tests/single").problems == []
    for file in hub.folders["tests/sharded"].glob("model*"):
        file.unlink()
    report = inspect("hf://tests/sharded", check=True)
    assert (report.tensors, report.checked) == ([], True)
    assert only(report.notes, FindingKind.TARGET).message.startswith("neither model.safetensors nor its index")
    assert "expected weights in either" in only(report.problems, FindingKind.NOT_LOADABLE).message
    (hub.folders["tests/sharded"] / INDEX).write_bytes(b"{}")
    (hub.folders["tests/sharded"] / SINGLE).write_bytes(b"")
    assert only(inspect("hf://tests/sharded").notes, FindingKind.TARGET).message.endswith("; name one of them")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf://", "expected hf://owner/name or hf://owner/name@revision, and /file behind it"),
        ("hf://tests/single/text.txt", "expected a file whose name ends in .safetensors or .json, got 'text.txt'"),
        ("hf://tests/single/nofile", "expected a file whose name ends in .safetensors or .json, got 'nofile'"),
        ("hf://tests /single/x.json", "expected hf://owner/name"),
        ("hf://tests/single/other.safetensors", r"expected a file of the model, got none of that name; there are \["),
        ("hf://tests/single/model.gguf", "got a GGUF file; download it"),
        ("hf://tests/nothing", "expected a model on the hub, got none of that name"),
        ("hf://tests/gguf", r"expected config.json or safetensors, got GGUF files: \['a.gguf'\]; download one"),
        ("hf://tests/empty", "expected config.json or safetensors, got no files"),
    ],
)
def test_what_cannot_be_read_is_wrong_usage(hub: Hub, tmp_path: Path, spec: str, message: str) -> None:
    (hub.folders["tests/single"] / "model.gguf").write_bytes(b"GGUF")
    for name, files in (("gguf", ["a.gguf"]), ("empty", [])):
        hub.folders[f"tests/{name}"] = tmp_path / name
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_bytes(b"GGUF")
    with pytest.raises(ConfigurationError, match=message):
        inspect(spec)
    result = mila_here("inspect", spec)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_a_config_of_the_hub_is_held_against_rules(hub: Hub) -> None:
    change_config(hub.folders["tests/single"], n_embd=-1)
    (problem,) = inspect("hf://tests/single/config.json", check=True).problems
    assert problem.kind is FindingKind.NOT_LOADABLE
    assert problem.message.startswith("hf://tests/single/config.json: ")


def test_a_malformed_header_is_refused(hub: Hub) -> None:
    hub.faults[SINGLE] = Fault(body=b"<!DOCTYPE html>" * 5000)
    with pytest.raises(CheckpointError, match=f"^hf://tests/single/{SINGLE}: "):
        inspect("hf://tests/single")


def test_headers_are_counted(hub: Hub) -> None:
    seen: list[tuple[int, int]] = []
    inspect("hf://tests/sharded", on_header=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("command", ["inspect", "plan"])
def test_a_terminal_shows_how_many_headers_were_read(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    hub.faults["model-00003-of-00003.safetensors"] = Fault(silent=1.0)
    with Terminal(command, "hf://tests/sharded", columns=100, rows=60) as terminal:
        terminal.wait_for("reading")
        terminal.wait_for("67%")
        terminal.wait_for("model on the hub" if command == "inspect" else "tests/sharded: llama")
        assert terminal.finish() == 0


def test_offline_the_cache_is_read_with_its_values(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("config.json", SINGLE):
        package.hf_hub_download("tests/single", name, cache_dir=tmp_path / "cache")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for spec in ("hf://tests/single", f"hf://tests/single/{SINGLE}"):
        report = inspect(spec, check=True)
        assert (report.target, report.checked, report.stored_tensors) == (spec, True, 28)
        assert report.notes[0].message == "HF_HUB_OFFLINE is set: read from the cache of the hub"
    with pytest.raises(ConfigurationError, match="got the offline mode"):
        inspect("hf://tests/sharded")
    assert hub.requests == []


# ---------------------------------------------------------------------- compare


def test_a_model_of_the_hub_and_its_folder_are_the_same_but_for_values_that_nobody_looked_at(hub: Hub) -> None:
    report = compare("hf://tests/single", MODELS["tests/single"])
    assert (report.same, report.values_compared) == (True, False)
    assert report.counts == {TensorOutcome.SAME_HEADER: 28}
    assert report.notes == ["values were not compared: those of a model on the hub are not read"]
    assert (report.a.kind, report.b.kind) == (ContentKind.HUB, ContentKind.FOLDER)
    result = mila_here("compare", "hf://tests/single", MODELS["tests/single"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "The same (values not compared)." in result.stdout
    assert compare("hf://tests/single", MODELS["tests/single"], values=False).notes == []


def test_names_shapes_and_dtypes_that_differ_are_told(hub: Hub) -> None:
    folder = hub.folders["tests/single"]
    tensors = load_file(folder / SINGLE)
    first, second, third, *_ = tensors
    tensors[first] = tensors[first].astype(np.float16)
    tensors[second] = tensors[second][:1]
    tensors["more"] = tensors.pop(third)
    write(folder / SINGLE, tensors)
    report = compare("hf://tests/single", MODELS["tests/single"])
    assert {row.name: row.outcome for row in report.tensors} == {
        first: TensorOutcome.OTHER_DTYPE,
        second: TensorOutcome.OTHER_SHAPE,
        third: TensorOutcome.ONLY_IN_B,
        "more": TensorOutcome.ONLY_IN_A,
    }
    assert mila_here("compare", "hf://tests/single", MODELS["tests/single"]).exit_code == 1


def test_configs_of_the_hub_are_compared_in_what_they_mean(hub: Hub) -> None:
    config = hub.folders["tests/single"] / "config.json"
    raw = json.loads(config.read_text())
    config.write_text(json.dumps({key: value for key, value in raw.items() if key != "n_inner"} | {"n_inner": None}))
    assert compare("hf://tests/single/config.json", config).same
    report = compare("hf://tests/single", "hf://tests/sharded")
    assert report.effective_config is not None
    assert not report.same
