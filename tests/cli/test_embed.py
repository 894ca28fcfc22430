"""``mila embed``: embeddings of texts, through arguments, pipes and files."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

import mila
from mila import BuildContext, RuntimeMode
from mila.cli.app import app
from mila.errors import DataError
from mila.generation.text import TextTokenizer
from mila.kernels.signatures import Array
from mila.models import ClipTextConfig, ClipTextEncoder, read_clip_text_folder
from mila.models.clip_embedding import EncodedText, TextEmbeddings, embed_texts, encode_text
from tests.cli.commands import mila_process
from tests.cli.terminal import Terminal

BEGIN, END = "<|startoftext|>", "<|endoftext|>"
LENGTH = 12
TEXTS = ["a photo of a cat", "a photo of a dog", "Stock market report, 1929!"]
#: More words than the model takes.
LONG = "a photo of a dog and a cat and a dog and a cat"


@lru_cache
def trained(ends: bool) -> tuple[str, int]:
    """``tokenizer.json`` with byte pairs, ends of words and lower case, as CLIP has it, and how many tokens it has."""
    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=150, end_of_word_suffix="</w>", show_progress=False)
    trained.train_from_iterator([*TEXTS, LONG] * 10, trainer)
    state = json.loads(trained.to_str())["model"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *state["vocab"], BEGIN, END]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    merges = [(one, other) for one, other in state["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=END, end_of_word_suffix="</w>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = trained.normalizer, trained.pre_tokenizer
    tokenizer.add_special_tokens([BEGIN, END])
    if ends:
        end, begin = ((token, vocabulary[token]) for token in (END, BEGIN))
        tokenizer.post_processor = processors.RobertaProcessing(end, begin, trim_offsets=False, add_prefix_space=False)
    return tokenizer.to_str(), len(vocabulary)


def write_clip(folder: Path, *, ends: bool = True, **fields: Any) -> Path:
    """A text encoder with random weights, and its tokenizer."""
    tokenizer, count = trained(ends)
    sizes: dict[str, Any] = {
        "embedding_dim": 12,
        "hidden_dim": 20,
        "num_layers": 2,
        "num_heads": 3,
        "projection_dim": 8,
    }
    config = ClipTextConfig(
        **({"vocab_size": count, "max_seq_len": LENGTH, "end_of_text_id": count - 1} | sizes | fields)
    )
    encoder = ClipTextEncoder("text", config, device="cpu", seed=4)
    encoder.build(BuildContext((1, LENGTH), RuntimeMode.INFERENCE, initialize_parameters=True))
    encoder.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer, "utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a projection that pools at the end of the text."""
    return write_clip(tmp_path_factory.mktemp("models") / "tiny")


def embedded(folder: Path, *arguments: str | Path, given: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["embed", str(folder), *map(str, arguments)], input=given)


def document(folder: Path, *arguments: str | Path, given: str | bytes | None = None) -> dict[str, Any]:
    result = embedded(folder, "--json", *arguments, given=given)
    assert (result.exit_code, result.stderr, result.stdout.count("\n")) == (0, "", 1), result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def expected(folder: Path, texts: list[str]) -> Array:
    """Each text by itself, in a network of the full length: batches and padding must not change it."""
    encoder = mila.from_pretrained(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH, pad_id=5)
    rows = []
    for text in texts:
        output = encoder.forward(np.array([tokenizer.encode(text).ids], np.int64))
        rows.append((output.pooled if output.embeds is None else output.embeds)[0].copy())
    return np.stack(rows)


# ---------------------------------------------------------------------- what is computed


@pytest.mark.parametrize(
    "fields",
    [{}, {"projection_dim": None}, {"end_of_text_id": None}, {"activation": "gelu", "projection_dim": 1}],
    ids=["projected", "pooled", "largest id", "one value"],
)
def test_embeddings_are_those_of_each_text_alone(fields: dict[str, Any], tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "model", **fields)
    texts = [*TEXTS, LONG, "", TEXTS[0]]
    raw = expected(folder, texts)
    norms = np.linalg.norm(raw, axis=1)
    unit = raw / norms[:, None]
    for batch in (1, 2, 16):
        found = document(folder, *texts, "--raw", "--batch-size", str(batch))
        np.testing.assert_allclose(found["embeddings"], raw, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["norms"], norms, rtol=1e-4)
        np.testing.assert_allclose(found["similarities"], unit @ unit.T, atol=1e-5)
    np.testing.assert_allclose(document(folder, *texts)["embeddings"], unit, rtol=1e-4, atol=1e-5)
    assert (found["is_projected"], found["is_normalized"]) == (fields.get("projection_dim", 8) is not None, False)
    assert (found["dimension"], found["is_truncated"]) == (raw.shape[1], [False, False, False, True, False, False])


def test_a_text_is_cut_before_its_end_token(folder: Path) -> None:
    tokenizer = TextTokenizer.from_folder(folder)
    config = ClipTextConfig(
        vocab_size=tokenizer.vocabulary, max_seq_len=LENGTH, end_of_text_id=tokenizer.vocabulary - 1
    )
    whole = tokenizer.encode(LONG)
    found = encode_text(tokenizer, LONG, config)
    assert (found.is_truncated, found.ids) == (True, (*whole[: LENGTH - 1], whole[-1]))
    assert encode_text(tokenizer, f"a {END} b", config).ids.count(config.end_of_text_id) == 2
    with pytest.raises(DataError, match="adds fewer than 2 tokens to a text, got 2"):
        encode_text(tokenizer, LONG, config.model_copy(update={"max_seq_len": 2}))


class Interleaved:
    """A tokenizer that puts a token between those of the text."""

    folder = Path("interleaved")

    def encode(self, text: str, *, add_special_tokens: bool = True, name: str = "text") -> list[int]:
        inner = [*range(1, len(text) + 1)]
        return [0, *(token for each in inner for token in (each, 99)), 100] if add_special_tokens else inner


def test_a_text_that_cannot_be_cut_is_refused() -> None:
    tokenizer: Any = Interleaved()
    config = ClipTextConfig(vocab_size=101, max_seq_len=LENGTH, end_of_text_id=100)
    assert encode_text(tokenizer, "abcde", config).ids == (0, 1, 99, 2, 99, 3, 99, 4, 99, 5, 99, 100)
    with pytest.raises(DataError, match=r"^interleaved: text 3: expected at most 12 tokens, got 14, .* be cut"):
        encode_text(tokenizer, "abcdef", config, "text 3")


def test_an_error_says_which_text_it_is_about(tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "model", ends=False, end_of_text_id=None)
    result = embedded(folder, given=f"{TEXTS[0]}\n\n{TEXTS[1]}\n")
    assert (result.exit_code, result.stderr) == (1, "mila: text 2: expected at least one token, got none\n")


def test_padding_is_never_the_largest_id(tmp_path: Path) -> None:
    """Under the rule of old models a pad token beyond the end token would be taken for the end."""
    folder = write_clip(tmp_path / "model", vocab_size=700, end_of_text_id=None)
    plain = document(folder, *TEXTS)
    fields = json.loads((folder / "config.json").read_text())
    for pad in (699, 10**6, 1):
        (folder / "config.json").write_text(json.dumps(fields | {"pad_token_id": pad}))
        assert document(folder, *TEXTS)["embeddings"] == plain["embeddings"]


def test_texts_that_do_not_fit_an_encoder_are_refused(folder: Path) -> None:
    encoder = read_clip_text_folder(folder).load(length=4)
    with pytest.raises(DataError, match="text 2: expected at most 4 tokens, got 5"):
        embed_texts(encoder, [EncodedText((1,), False), EncodedText((1,) * 5, False)])
    with pytest.raises(DataError, match="expected at least one, got none"):
        embed_texts(encoder, [])


def test_a_vector_without_length_stays_as_it_is() -> None:
    made = TextEmbeddings(np.array([[0, 0], [3, 4]], np.float32))
    assert made.normalized.tolist() == [[0, 0], [np.float32(0.6), np.float32(0.8)]]
    assert made.similarities().tolist() == [[0, 0], [0, pytest.approx(1)]]


# ---------------------------------------------------------------------- what is written


def test_a_table_of_texts_and_one_of_similarities(folder: Path) -> None:
    result = embedded(folder, *TEXTS, LONG)
    found = document(folder, *TEXTS, LONG)
    assert result.exit_code == 0
    assert "the model takes 12 tokens: cut 1 text, number 4" in result.stderr
    lines = result.stdout.splitlines()
    first = next(line for line in lines if TEXTS[0] in line)
    values = re.findall(r"-?\d+\.\d{4}", first)
    assert [float(value) for value in values] == pytest.approx(
        [found["norms"][0], *found["embeddings"][0][:4]], abs=1e-4
    )
    title = next(index for index, line in enumerate(lines) if "cosine similarity" in line)
    matrix = [line.split() for line in lines[title:] if re.match(r"\s*\d+\s+-?\d\.", line)]
    cosines = np.array([row[1:] for row in matrix], np.float64)
    np.testing.assert_allclose(cosines, found["similarities"], atol=1e-4)


def test_many_texts_are_compared_in_part_and_odd_ones_are_shown(folder: Path) -> None:
    result = embedded(folder, "-", given="".join(f"{number} [red]\x1b[2J:cat: {'x' * 60}\n" for number in range(14)))
    assert (result.exit_code, "the first 12 texts" in result.stdout) == (0, True)
    assert "13 [red]\\x1b[2J:cat: xxxxxxxxxxxx" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("arguments", [["-"], []])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_of_standard_input_are_texts(arguments: list[str], ending: str, folder: Path) -> None:
    given = ending.join([TEXTS[0], "", TEXTS[1]])
    found = document(folder, *arguments, given=given)
    assert found == document(folder, TEXTS[0], "", TEXTS[1])
    assert document(folder, *arguments, given=given + ending) == found


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("name", ["texts.npy", "texts.safetensors"])
def test_embeddings_are_saved(name: str, raw: bool, folder: Path, tmp_path: Path) -> None:
    options = ["--raw"] if raw else []
    file = tmp_path / name
    file.write_bytes(b"what was there before")
    result = embedded(folder, *TEXTS, "--output", file, *options)
    assert (result.exit_code, f"{file}: 3 embeddings of 8 values" in result.stderr) == (0, True)
    shown = document(folder, *TEXTS, *options)
    has_two = name.endswith(".safetensors")
    assert ("and their similarities" in result.stderr) == has_two
    saved = load_file(file) if has_two else {"embeddings": np.load(file)}
    assert set(saved) == ({"embeddings", "similarities"} if has_two else {"embeddings"})
    for each, array in saved.items():
        assert (array.dtype, array.tolist()) == (np.float32, shown[each])
    assert [each.name for each in tmp_path.iterdir()] == [name]
    found = document(folder, *TEXTS, "--output", file)
    assert (found["output"], "embeddings" in found, "similarities" in found) == (str(file), False, not has_two)


def test_many_texts_have_no_similarities_and_that_is_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\n".join(map(str, range(257)))
    note = "no similarities: JSON has those of at most 256 texts, a .safetensors file of at most 8,192"
    found = document(folder, given=lines)
    assert ("similarities" in found, len(found["embeddings"]), found["notes"]) == (False, 257, [note])
    file = tmp_path / "texts.safetensors"
    found = document(folder, "--output", file, given=lines)
    assert (load_file(file)["similarities"].shape, found["notes"]) == ((257, 257), [])
    monkeypatch.setattr("mila.cli.embed._COMPARED_IN_FILE", 256)
    result = embedded(folder, "--output", file, given=lines)
    assert (result.exit_code, f"note: {note}" in result.stderr, set(load_file(file))) == (0, True, {"embeddings"})


def test_a_process_prints_nothing_but_the_tables(folder: Path) -> None:
    result = mila_process("embed", folder, *TEXTS, "--threads", "1")
    assert (result.returncode, result.stderr) == (0, "")
    assert "cosine similarity" in result.stdout


# ---------------------------------------------------------------------- what is refused


def test_what_cannot_be_written_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    for name, code in (("texts.csv", 2), ("texts", 2), ("none/texts.npy", 1)):
        result = embedded(tmp_path / "no model", "a", "--output", tmp_path / name)
        assert (result.exit_code, "expected a f" in result.stderr) == (code, True), result.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [(b"", "expected texts, one a line, got nothing"), (b"ab\xff\n", "expected UTF-8, got byte 0xff at 2")],
)
def test_standard_input_that_holds_no_texts(given: bytes, message: str, folder: Path) -> None:
    result = embedded(folder, given=given)
    assert (result.exit_code, message in result.stderr) == (1, True)


def test_a_terminal_without_texts(folder: Path) -> None:
    with Terminal("embed", folder) as terminal:
        terminal.wait_for("texts are missing")
        assert terminal.finish() == 2


def test_a_tokenizer_that_does_not_end_texts_is_refused(tmp_path: Path) -> None:
    result = embedded(write_clip(tmp_path / "model", ends=False), TEXTS[0])
    assert (result.exit_code, "the token where the model pools" in result.stderr) == (1, True)


def test_folders_of_other_models_and_without_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    result = embedded(tmp_path, "a")
    assert (result.exit_code, "expected the model type clip_text_model" in result.stderr) == (1, True)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    result = embedded(tmp_path, "a")
    assert (result.exit_code, "got no tokenizer" in result.stderr) == (1, True)
    result = CliRunner().invoke(app, ["generate", str(folder), "a"])
    assert (result.exit_code, "and `mila embed`" in result.stderr) == (1, True)


def test_a_field_can_be_ignored(tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "frobnicate": 1}))
    refused = embedded(folder, "a")
    assert (refused.exit_code, "frobnicate" in refused.stderr) == (1, True)
    assert embedded(folder, "a", "--ignore-fields", "frobnicate").exit_code == 0


# ---------------------------------------------------------------------- against transformers


@pytest.mark.parity
@pytest.mark.parametrize("end", [None, 550], ids=["largest id", "end of text"])
def test_tokens_and_embeddings_are_those_of_transformers(end: int | None, tmp_path: Path) -> None:
    """Its own tokenizer of CLIP, saved into the folder, cuts and pads there."""
    torch_clip = pytest.importorskip("tests.models.torch_clip", reason="transformers is not installed")
    transformers = pytest.importorskip("transformers")
    folder = write_clip(tmp_path / "model", end_of_text_id=end)
    state = json.loads((folder / "tokenizer.json").read_text())["model"]
    merges = [(one, other) for one, other in state["merges"]]
    tokenizer = transformers.CLIPTokenizer(vocab=state["vocab"], merges=merges, model_max_length=LENGTH)
    tokenizer.save_pretrained(folder)
    texts = [*TEXTS, LONG, "", "  Two   spaces, ünïcödé\t\u65e5\u672c \U0001f600"]
    given = tokenizer(texts, truncation=True, padding=True, return_tensors="np")
    lengths = given["attention_mask"].sum(axis=1)
    model, _ = torch_clip.load_clip_model(folder)
    outputs = torch_clip.outputs_of(model, given["input_ids"], given["attention_mask"])
    found = document(folder, *texts, "--raw")
    assert found["tokens"] == lengths.tolist()
    np.testing.assert_allclose(found["embeddings"], outputs["embeds"], atol=1e-5)
    config = read_clip_text_folder(folder).config
    own = [encode_text(TextTokenizer.from_folder(folder), text, config).ids for text in texts]
    assert own == [tuple(row[:length]) for row, length in zip(given["input_ids"].tolist(), lengths, strict=True)]
