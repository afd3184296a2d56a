"""Sequences of characters, and the characters that follow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import DataError
from crossbow.data import characters, text_files, topics
from crossbow.data.text import ALPHABET, encode


def test_each_label_is_the_next_character() -> None:
    text = "the quick brown fox jumps over the lazy dog"
    data = characters(text, 5, check_fraction=0.25)
    assert data.check is not None
    assert (len(data.train), len(data.check)) == (6, 2)
    assert data.number_of_classes == 96
    found = []
    for part in (data.train, data.check):
        for x, y in zip(np.asarray(part.images), np.asarray(part.labels), strict=True):
            assert x[1:].tolist() == y[:-1].tolist()
            found += x.tolist()
    assert "".join(ALPHABET[int(index)] for index in found) == text[:40]
    assert data.class_names is not None
    assert "".join(data.class_names) == ALPHABET


@pytest.mark.parametrize("fraction", [0, 0.0, 0.01])
def test_a_part_for_checks_is_not_empty_unless_it_is_not_wanted(fraction: float) -> None:
    data = characters("abcdefg", 3, check_fraction=fraction)
    assert (len(data.train), len(data.check or ())) == ((1, 1) if fraction else (2, 0))


def test_other_characters_become_question_marks() -> None:
    assert encode("a√b\U0001f600\n").tolist() == [ALPHABET.index(character) for character in "a?b?\n"]


def test_the_texts_of_help() -> None:
    data = topics()
    assert data.image_shape == data.label_shape == (64,)
    assert len(data.train) > 1000
    text = "".join(ALPHABET[int(index)] for index in np.asarray(data.train.images[:200]).ravel())
    assert "statement" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((b"abc", 1), "text: expected a str. Received: bytes"),
        (("abcd", 0), r"length: expected an integer ≥ 1\. Received: 0"),
        (("abcd", 2.0), r"length: expected an integer ≥ 1\. Received: 2\.0"),
        (("abcd", 1, 1.0), r"check_fraction: expected a number in \[0, 1\)\. Received: 1\.0"),
        (("abcd", 1, "half"), r"check_fraction: expected a number in \[0, 1\)\. Received: 'half'"),
        (("abcd", 2), "text: expected at least 5 characters. Received: 4"),
        (("ab", 2, 0), "text: expected at least 3 characters. Received: 2"),
        (("abcd", 1, 0.1, "abca"), "alphabet: expected different characters. Received: 'abca'"),
        (("abcd", 1, 0.1, "abc"), "text: expected characters of 'abc'. Received: 'd'"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], message: str) -> None:
    text, length, *rest = arguments
    given = dict(zip(("check_fraction", "alphabet"), rest, strict=False))
    with pytest.raises(DataError, match=message):
        characters(text, length, **given)


def test_files_of_text(tmp_path: Path) -> None:
    (tmp_path / "b.TXT").write_text("cabc", "utf-8")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfabcab")
    (tmp_path / "notes").write_bytes(b"\xff")
    expected = characters("abcab\ncabc", 4, check_fraction=0)
    found = text_files(tmp_path, 4, check_fraction=0)
    np.testing.assert_array_equal(found.train.labels, expected.train.labels)
    assert found.train[0][0].tolist() == encode("abca").tolist()
    assert text_files(str(tmp_path / "b.TXT"), 3, check_fraction=0).train[0][1].tolist() == encode("abc").tolist()


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ({}, "", r": expected files NAME\.txt\. Received: none"),
        ({}, "missing", r"missing: expected a text file, or a directory with files NAME\.txt\. Received: No such file"),
        ({"a.txt": b"abc\xffd"}, "", r"a\.txt: expected UTF-8 text\. Received: other bytes at position 3"),
        ({"a.txt": b"abc"}, "a.txt", r"a\.txt: text: expected at least 129 characters\. Received: 3"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, files: dict[str, bytes], path: str, message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        text_files(tmp_path / path)


def test_a_python_without_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match=r"expected Python's module pydoc_data"):
        topics()
