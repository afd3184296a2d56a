"""Metadata files: text files with lines `key : value` that describe a data set in batch-aligned files or records."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossbow.data.reading import read_at_most
from crossbow.files import check_readable, checked_path, file_error, write_whole
from crossbow.types import DataError, Shape, bytes_text

PAGE = 4096
"""Alignment of batches in bytes."""
LARGEST_METADATA = 1 << 20
"""Maximum size of a metadata file in bytes. Files of the original have about 400."""
LARGEST = 2**31 - 1
"""Maximum of the integers in a metadata file."""
MOST_PARTITIONS = 1_000_000
IMAGE_SHAPE = (3, 224, 224)
"""The shape in the metadata of record files."""

_FIRST, _LAST = "# Metadata file", "# EOF"
"""The first and the last line that the original writes. They need not be there, but the first promises the last."""

TYPES = {"int": np.dtype("<i4"), "float": np.dtype("<f4")}
"""Element types by name in a metadata file."""

_KEYS = (
    *("examples", "labels", "partitions", "elements", "batch size", "example shape", "label shape"),
    *("example type", "label type", "example pad", "label pad", "fill"),
)
_OPTIONAL = {"example pad": "0", "label pad": "0", "fill": None}
"""Defaults of the keys that may be missing."""


@dataclass(frozen=True)
class Metadata:
    """The content of a metadata file.

    examples, labels          prefixes of the files; file N, from 1, is `PREFIX.N`
    partitions                number of example files and of label files
    elements                  number of examples, including `fill`
    batch_size                examples per batch; divides `elements`
    example_shape, …_type     shape and element type of one example: "int" (int32) or "float" (float32)
    label_shape, …_type       the same of one label
    example_pad, label_pad    bytes of padding after each batch
    fill                      number of repeated examples that fill the last batch; None: not given
    """

    examples: str
    labels: str
    partitions: int
    elements: int
    batch_size: int
    example_shape: Shape
    label_shape: Shape
    example_type: str
    label_type: str
    example_pad: int = 0
    label_pad: int = 0
    fill: int | None = None

    @property
    def number_of_examples(self) -> int:
        """Number of examples without repetitions."""
        return self.elements - (self.fill or 0)

    @property
    def batches(self) -> int:
        return self.elements // self.batch_size

    def text(self) -> str:
        """The text of the file, byte for byte as the original writes it."""
        values = {
            key: _value_text(getattr(self, _field(key))) for key in _KEYS if getattr(self, _field(key)) is not None
        }
        lines = [f"{key:13}: {value}" for key, value in values.items()]
        return "\n".join([_FIRST, "#", *lines, _LAST, ""])


def _field(key: str) -> str:
    return key.replace(" ", "_")


def _value_text(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def tuple_bytes(shape: Shape, element_type: str) -> int:
    """Size of one example or label in bytes."""
    return math.prod(shape) * TYPES[element_type].itemsize


def pad_to_page(nbytes: int) -> int:
    """Bytes of padding after a batch of this size."""
    return -nbytes % PAGE


def check_prefix(prefix: str) -> None:
    """Raise DataError if a metadata file cannot represent this prefix of the files to write."""
    try:
        prefix.encode()
        is_text = True
    except UnicodeEncodeError:  # the name of a directory may have any bytes
        is_text = False
    is_line = prefix.splitlines() == [prefix] == [prefix.strip()]
    if not is_text or not is_line or ":" in prefix or prefix.startswith("#"):
        raise DataError(
            "output: expected a path without colons, line breaks or surrounding spaces, in UTF-8, as metadata files "
            f"require. Received: {prefix!r}"
        )


def metadata_of_records(prefix: Path, partitions: int, records: int) -> Metadata:
    """The metadata of record files, with the shape and types that the original states for ImageNet. Images in the files
    have any size."""
    return Metadata(
        examples=str(prefix),
        labels=str(prefix),
        partitions=partitions,
        elements=records,
        batch_size=1,
        example_shape=IMAGE_SHAPE,
        label_shape=(1,),
        example_type="float",
        label_type="int",
    )


def write_metadata(path: Path, metadata: Metadata) -> None:
    """Write a metadata file. Raises DataError if the format cannot represent a prefix."""
    for prefix in (metadata.examples, metadata.labels):
        check_prefix(prefix)
    write_whole(path, metadata.text().encode())


def read_metadata(path: str | os.PathLike[str]) -> Metadata:
    """Read a metadata file. Empty lines and lines that begin with # are ignored, and so is the case of keys. But if the
    first line is `# Metadata file`, there must be a line `# EOF`: without it, the file was cut off.

    Raises DataError with the file's name and the key, what was expected and what was received.
    """
    path = checked_path("read_metadata", path)
    check_readable(path, "a metadata file")
    try:
        with path.open("rb") as file:
            content = read_at_most(file, LARGEST_METADATA + 1)
    except (OSError, ValueError) as error:
        raise file_error(error, path, "a metadata file") from error
    if len(content) > LARGEST_METADATA:
        raise DataError(f"{path}: expected a metadata file of at most {bytes_text(LARGEST_METADATA)}. Received: more")
    try:
        text = content.decode("utf-8-sig")  # editors of Windows begin a text with a byte order mark
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a metadata file, UTF-8 text. Received: {error}") from error
    lines = [line.strip() for line in text.splitlines()]
    if lines[:1] == [_FIRST] and _LAST not in lines:
        last = next((line for line in reversed(lines) if line), "")
        raise DataError(
            f"{path}: expected the line {_LAST!r} at the end, as the first line is {_FIRST!r}. "
            f"Received: a file that ends with {last[:80]!r}, as if it were cut off"
        )
    values: dict[str, Any] = dict(_OPTIONAL)
    values.update(_read_lines(path, text))
    if missing := [key for key in _KEYS if key not in values]:
        raise DataError(f"{path}: expected the keys {', '.join(_KEYS)}. Received: none of {', '.join(missing)}")
    return _checked(path, values)


def _read_lines(path: Path, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split(":")]
        if len(parts) != 2 or not all(parts):
            raise DataError(f"{path}: expected `key : value` in line {number}. Received: {line[:80]!r}")
        key = parts[0].lower()
        if key not in _KEYS:
            raise DataError(f"{path}: expected one of the keys {', '.join(_KEYS)} in line {number}. Received: {key!r}")
        if key in found:
            raise DataError(f"{path}: expected the key {key!r} once. Received: another one in line {number}")
        found[key] = parts[1]
    return found


def _checked(path: Path, values: dict[str, Any]) -> Metadata:
    least = {"partitions": 1, "elements": 1, "batch size": 1, "example pad": 0, "label pad": 0, "fill": 0}
    for key, minimum in least.items():
        if values[key] is not None:
            values[key] = _integer(path, key, values[key], minimum)
    for key in ("example shape", "label shape"):
        values[key] = _shape(path, key, values[key])
    for key in ("example type", "label type"):
        if values[key] not in TYPES:
            raise DataError(f"{path}: expected {key} to be {' or '.join(TYPES)}. Received: {values[key]!r}")
    metadata = Metadata(**{_field(key): value for key, value in values.items()})
    if metadata.partitions > min(MOST_PARTITIONS, metadata.elements):
        raise DataError(
            f"{path}: expected partitions to be at most {min(MOST_PARTITIONS, metadata.elements):,}, and no more than "
            f"elements. Received: {metadata.partitions:,}"
        )
    if metadata.elements % metadata.batch_size:
        raise DataError(
            f"{path}: expected elements to be a multiple of batch size, {metadata.batch_size}. "
            f"Received: {metadata.elements}"
        )
    if metadata.fill is not None and metadata.fill >= metadata.batch_size:
        raise DataError(
            f"{path}: expected fill to be less than batch size, {metadata.batch_size}. Received: {metadata.fill}"
        )
    return metadata


def _integer(path: Path, key: str, text: str, minimum: int) -> int:
    value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,10}", text) else -1
    if not minimum <= value <= LARGEST:
        raise DataError(f"{path}: expected {key} to be an integer from {minimum} to {LARGEST}. Received: {text!r}")
    return value


def _shape(path: Path, key: str, text: str) -> Shape:
    sizes = text[1:-1].split(",") if text.startswith("[") and text.endswith("]") else []
    good = 1 <= len(sizes) <= 8 and all(re.fullmatch(r" *[0-9]{1,10} *", size) for size in sizes)
    shape = tuple(map(int, sizes)) if good else ()
    if not shape or min(shape) < 1 or math.prod(shape) > LARGEST:
        raise DataError(f"{path}: expected {key} to be sizes ≥ 1, as [3, 32, 32]. Received: {text!r}")
    return shape
