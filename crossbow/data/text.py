"""Sequences of characters, each with the characters that follow, to train language models."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer
from crossbow.data.dataset import Dataset
from crossbow.files import checked_path, file_error, kind_of_file
from crossbow.types import DataError

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""A line feed, and the 95 printable characters of ASCII: 96 classes, numbered in this order."""
UNKNOWN = "?"
"""Replaces characters that are not in the alphabet."""


def encode(text: str, alphabet: str = ALPHABET) -> NDArray[np.int32]:
    """The index of each character in the alphabet: int32 (len(text),). Characters that it lacks become "?".

    Raises DataError if a character is unknown, and the alphabet has no "?".

    >>> encode("ab", "?ab"), encode("ax", "?ab")
    (array([1, 2], dtype=int32), array([1, 0], dtype=int32))
    """
    table = np.full(sys.maxunicode + 1, alphabet.find(UNKNOWN), np.int32)
    table[_code_points(alphabet)] = np.arange(len(alphabet))
    encoded: NDArray[np.int32] = table[_code_points(text)]
    if (encoded < 0).any():
        raise DataError(f"text: expected characters of {alphabet!r}. Received: {text[int(encoded.argmin())]!r}")
    return encoded


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def characters(text: str, length: int = 64, *, check_fraction: float = 0.1, alphabet: str = ALPHABET) -> Dataset:
    """A text as sequences of characters: int32 (N, length), and the characters that follow, (N, length), as labels.

    The label of a character is the next one. Sequences follow each other without overlap, and an incomplete sequence at
    the end is left out. The end of the text is for checks.

    length: number of characters in a sequence, ≥ 1.
    check_fraction: fraction of the sequences for checks, in [0, 1); 0 is none.
    alphabet: all characters, each once, numbered in this order; others become "?".

    Raises DataError for invalid values, and for a text that is too short for one sequence of each part.

    >>> data = characters("abcabcab", 3, check_fraction=0.5, alphabet="abc")
    >>> data.train.images.tolist(), data.train.labels.tolist(), len(data.check)
    ([[0, 1, 2]], [[1, 2, 0]], 1)
    """
    if not isinstance(text, str):
        raise DataError(f"text: expected a str. Received: {type(text).__name__}")
    if not isinstance(alphabet, str) or not alphabet or len(set(alphabet)) < len(alphabet):
        raise DataError(f"alphabet: expected different characters. Received: {alphabet!r}")
    if not is_integer(length) or length < 1:
        raise DataError(f"length: expected an integer ≥ 1. Received: {length!r}")
    if isinstance(check_fraction, bool) or not isinstance(check_fraction, int | float) or not 0 <= check_fraction < 1:
        raise DataError(f"check_fraction: expected a number in [0, 1). Received: {check_fraction!r}")
    encoded = encode(text, alphabet)
    count = max(0, len(encoded) - 1) // length
    check = max(1, round(count * check_fraction)) if check_fraction else 0
    if count <= check:
        needed = ((2 if check_fraction else 1) * length) + 1
        raise DataError(f"text: expected at least {needed:,} characters. Received: {len(encoded):,}")
    examples = encoded[: count * length].reshape(count, length)
    labels = encoded[1 : count * length + 1].reshape(count, length)
    parts = [(examples[part], labels[part]) for part in (slice(0, count - check), slice(count - check, None))]
    data = Dataset(parts[0], parts[1] if check else None, number_of_classes=len(alphabet))
    data.class_names = tuple(alphabet)
    return data


def text_files(path: str | os.PathLike[str], length: int = 64, *, check_fraction: float = 0.1) -> Dataset:
    """The text of a file, or of all files NAME.txt of a directory in the order of their names, as a data set of
    `characters`. Files are UTF-8 text.

    Raises DataError if there is no such file, if one cannot be read or is not UTF-8, and as `characters` does.
    """
    place = checked_path("text_files", path)
    files = [place] if kind_of_file(place) == "a file" else _text_files(place)
    texts = []
    for file in files:
        try:
            texts.append(file.read_text("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{file}: expected UTF-8 text. Received: other bytes at position {error.start:,}"
            ) from error
        except OSError as error:
            raise file_error(error, file, "a readable text file") from error
    try:
        return characters("\n".join(texts), length, check_fraction=check_fraction)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


def _text_files(directory: Path) -> list[Path]:
    try:
        found = sorted(file for file in directory.iterdir() if file.suffix.lower() == ".txt")
    except OSError as error:
        raise file_error(error, directory, "a text file, or a directory with files NAME.txt") from error
    if not found:
        raise DataError(f"{directory}: expected files NAME.txt. Received: none")
    return found


def topics(length: int = 64) -> Dataset:
    """The texts of Python's `help()` on topics of the language, as a data set of `characters`. They have about 460,000
    characters, and need no download.

    They differ between versions of Python. Raises DataError if this Python was installed without them, and for an
    invalid length.
    """
    try:
        from pydoc_data.topics import topics as texts
    except ImportError as error:
        raise DataError("the texts of help() are missing: expected Python's module pydoc_data") from error
    return characters("\n".join(texts[name] for name in sorted(texts)), length)
