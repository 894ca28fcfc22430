"""Text files become one sequence of tokens, the same on every machine, and split without a shared token."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mila.errors import ConfigurationError, DataError
from mila.training.corpus import DecodingErrors, TextCorpus, split_tokens, standard_library_sources
from mila.training.tokenization import ByteTokenizer, CharacterTokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three text files in two folders, one of them not UTF-8, and a file of another kind."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "one.txt").write_bytes(b"one\r\n")
    (tmp_path / "c.txt").write_bytes(b"two")
    (tmp_path / "a.txt").write_bytes(b"thr\xe9e")
    (tmp_path / "a.md").write_bytes(b"four")
    return tmp_path


@pytest.mark.parametrize(("errors", "expected"), [("skip", "one\r\n\ntwo"), ("replace", "thr\ufffde\none\r\n\ntwo")])
def test_files_come_in_the_order_of_their_paths_with_a_separator_between(
    folder: Path, errors: DecodingErrors, expected: str
) -> None:
    assert TextCorpus.from_folder(folder, errors=errors).text() == expected


def test_the_order_does_not_depend_on_how_the_paths_were_given(folder: Path) -> None:
    paths = (folder / "c.txt", folder / "b" / "one.txt")
    assert TextCorpus(paths) == TextCorpus(paths[::-1])
    assert [path.name for path, _ in TextCorpus(paths).documents()] == ["one.txt", "c.txt"]


def test_a_separator_of_its_own_marks_the_end_of_a_file(folder: Path) -> None:
    corpus = TextCorpus((folder / "c.txt", folder / "a.md"), separator="\0")
    assert corpus.tokens(ByteTokenizer()).tolist() == [*b"four", 0, *b"two"]
    tokenizer = CharacterTokenizer.from_text(corpus.text())
    assert corpus.tokens(tokenizer)[4] == tokenizer.encode("\0")[0]


def test_a_file_that_is_not_utf_8_is_named_with_the_place(folder: Path) -> None:
    with pytest.raises(DataError, match=r"a\.txt: expected UTF-8, got byte 0xE9 at offset 3"):
        TextCorpus.from_folder(folder).text()


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt: expected a readable text file, got: No such file"):
        TextCorpus((folder / "absent.txt",)).text()


def test_a_corpus_without_files_or_text_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="at least one text file"):
        TextCorpus(())
    with pytest.raises(DataError, match=r"expected files that match \*\.json, got none"):
        TextCorpus.from_folder(folder, "*.json")
    with pytest.raises(DataError, match="expected text in 1 files"):
        TextCorpus((folder / "a.txt",), errors="skip").text()


def test_an_unknown_treatment_of_errors_is_refused(folder: Path) -> None:
    wrong: Any = "ignore"
    with pytest.raises(ConfigurationError, match="expected strict, replace or skip, got 'ignore'"):
        TextCorpus((folder,), wrong)


@given(size=st.integers(2, 5000), fraction=st.floats(0.001, 0.999))
def test_a_split_holds_out_the_end_and_shares_no_token(size: int, fraction: float) -> None:
    tokens = np.arange(size, dtype=np.int32)
    expected = int(size * fraction)
    if expected == 0:
        with pytest.raises(DataError, match=f"got {size} tokens"):
            split_tokens(tokens, fraction)
        return
    split = split_tokens(tokens, fraction)
    assert split.validation.size == expected
    assert np.concatenate([split.training, split.validation]).tolist() == tokens.tolist()
    assert np.shares_memory(split.training, tokens)
    assert np.shares_memory(split.validation, tokens)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 2.0, float("nan")])
def test_a_fraction_that_leaves_a_part_empty_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigurationError, match="validation_fraction: expected a number between 0 and 1"):
        split_tokens(np.arange(10, dtype=np.int32), fraction)


def test_the_standard_library_is_a_corpus_on_every_machine() -> None:
    paths = standard_library_sources(maximum_bytes=500_000)
    library = Path(sysconfig.get_paths()["stdlib"])
    assert 400_000 < sum(path.stat().st_size for path in paths) <= 500_000
    assert paths == standard_library_sources(maximum_bytes=500_000)
    assert paths == standard_library_sources(maximum_bytes=1_000_000)[: len(paths)]
    assert all(path.suffix == ".py" and path.is_relative_to(library) for path in paths)
    assert len(TextCorpus(paths).text()) > 300_000


def test_the_standard_library_comes_without_installed_packages_and_tests() -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    folders = {part for path in standard_library_sources() for part in path.relative_to(library).parts[:-1]}
    assert folders.isdisjoint({"site-packages", "dist-packages", "test", "tests", "idle_test"})
    assert {"json", "collections"} <= folders
    assert set(standard_library_sources()) <= set(standard_library_sources(include_tests=True))


def test_a_limit_below_the_first_file_is_refused() -> None:
    with pytest.raises(DataError, match=r"expected \.py files of at most 1 bytes, got none"):
        standard_library_sources(maximum_bytes=1)
