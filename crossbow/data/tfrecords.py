"""TFRecord files of `tf.train.Example` messages, read without TensorFlow.

A file is a sequence of frames, little-endian: length of the content (uint64), its checksum (uint32), the content, its
checksum. A checksum is a "masked" CRC-32C: rotated, plus a constant.

The content is a message in the wire format of Protocol Buffers: `Example` {1: `Features` {1: map from string to
`Feature`}}, where `Feature` has one of 1: `BytesList`, 2: `FloatList`, 3: `Int64List`, each {1: repeated value}.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from crossbow.data.crc32c import crc32c
from crossbow.data.reading import read_at_most
from crossbow.files import file_error
from crossbow.types import DataError, bytes_text

LARGEST_FRAME = 2**31 - 1
"""Maximum size of a frame's content in bytes, as of any Protocol Buffers message."""

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8

Feature = list[bytes] | list[int] | list[float]
"""The values of a feature, all of one type."""


def masked_checksum(content: bytes) -> int:
    """The checksum as TFRecord files store it: CRC-32C rotated right by 15 bits, plus a constant."""
    value = crc32c(content)
    return (((value >> 15) | (value << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def read_frames(path: Path, skip: int = 0) -> Iterator[tuple[bytes, int]]:
    """The contents of a file's frames after the first `skip`, each with the offset of the frame's end.

    For skipped frames, only the lengths are read and checked.

    Raises DataError with the file's name and the record's number from 0, also for a wrong checksum.
    """
    try:
        with path.open("rb") as file:
            number, size = 0, os.fstat(file.fileno()).st_size
            while (length := _read_length(file, path, number)) is not None:
                if number < skip:
                    if file.seek(length + _CHECKSUM.size, os.SEEK_CUR) > size:
                        raise _truncated(path, number)
                else:
                    yield _read_content(file, path, number, length), file.tell()
                number += 1
    except OSError as error:
        raise file_error(error, path, "a readable TFRecord file") from error


def _read_length(file: IO[bytes], path: Path, number: int) -> int | None:
    """The length of the next frame's content; None at the end of the file."""
    start = read_at_most(file, _LENGTH.size + _CHECKSUM.size)
    if not start:
        return None
    if len(start) < _LENGTH.size + _CHECKSUM.size:
        raise _truncated(path, number)
    _check(start[: _LENGTH.size], start[_LENGTH.size :], path, f"the length of record {number}")
    (length,) = _LENGTH.unpack_from(start)
    if length > LARGEST_FRAME:
        raise DataError(
            f"{path}: expected at most {bytes_text(LARGEST_FRAME)} in record {number}. Received: {length:,} bytes"
        )
    return int(length)


def _read_content(file: IO[bytes], path: Path, number: int, length: int) -> bytes:
    content = read_at_most(file, length)
    checksum = read_at_most(file, _CHECKSUM.size)
    if len(content) < length or len(checksum) < _CHECKSUM.size:
        raise _truncated(path, number)
    _check(content, checksum, path, f"record {number}")
    return content


def _check(content: bytes, stored: bytes, path: Path, what: str) -> None:
    (expected,) = _CHECKSUM.unpack(stored)
    if masked_checksum(content) != expected:
        raise DataError(
            f"{path}: expected the checksum {expected:08x} of {what}, as a TFRecord file states. "
            f"Received: {masked_checksum(content):08x}"
        )


def _truncated(path: Path, number: int) -> DataError:
    return DataError(f"{path}: expected all of record {number}. Received: the end of the file")


# Protocol Buffers

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def parse_example(content: bytes, where: str) -> dict[str, Feature]:
    """Parse a `tf.train.Example`: its features by name. Raises DataError, which begins with `where`."""
    features: dict[str, Feature] = {}
    try:
        for message in _messages(content, 1):
            for entry in _messages(message, 1):
                fields = list(_fields(entry))
                names = [value for number, wire, value in fields if (number, wire) == (1, _BYTES)]
                values = [value for number, wire, value in fields if (number, wire) == (2, _BYTES)]
                name = names[-1].decode() if names else ""
                features[name] = _feature(b"".join(values))
    except (ValueError, struct.error) as error:
        raise DataError(f"{where}: expected a tf.train.Example message. Received: {error}") from error
    return features


def _feature(content: bytes) -> Feature:
    kinds: dict[int, bytes] = {}
    for number, wire, value in _fields(content):
        if number in (1, 2, 3) and wire == _BYTES:
            kinds = {number: kinds.get(number, b"") + value}  # the last type counts; lists of one type are joined
    if not kinds:
        return []
    ((kind, values),) = kinds.items()
    if kind == 1:
        return _bytes_list(values)
    return _float_list(values) if kind == 2 else _int64_list(values)


def _bytes_list(content: bytes) -> list[bytes]:
    return list(_messages(content, 1))


def _float_list(content: bytes) -> list[float]:
    packed = b"".join(value for number, wire, value in _fields(content) if number == 1 and wire in (_BYTES, _FIXED32))
    if len(packed) % 4:
        raise ValueError(f"{len(packed)} bytes of float32")
    return np.frombuffer(packed, "<f4").tolist()  # type: ignore[no-any-return]


def _int64_list(content: bytes) -> list[int]:
    values: list[int] = []
    for number, wire, value in _fields(content):
        if number == 1 and wire == _VARINT:
            values.append(value)
        elif number == 1 and wire == _BYTES:
            position = 0
            while position < len(value):
                one, position = _varint(value, position)
                values.append(one)
    return [value - 2**64 if value >= 2**63 else value for value in values]


def _messages(content: bytes, wanted: int) -> Iterator[bytes]:
    """The values of a length-delimited field: messages, strings or bytes."""
    return (value for number, wire, value in _fields(content) if (number, wire) == (wanted, _BYTES))


def _fields(content: bytes) -> Iterator[tuple[int, int, Any]]:
    """(number, wire type, value) of each field: an integer if it is a varint, else bytes. Raises ValueError."""
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field of number 0")
        value: Any
        if wire == _VARINT:
            value, position = _varint(content, position)
        elif wire in (_FIXED64, _FIXED32, _BYTES):
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire)
            if size is None:
                size, position = _varint(content, position)
            if size > len(content) - position:
                raise ValueError(f"a field of {size} bytes where {len(content) - position} are left")
            value, position = content[position : position + size], position + size
        else:
            raise ValueError(f"a field of wire type {wire}")
        yield number, wire, value


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """Decode the varint at a position. Returns its value and the next position."""
    value = 0
    for shift in range(0, 70, 7):
        if position == len(content):
            raise ValueError("an integer that does not end")
        byte = content[position]
        value, position = value | (byte & 127) << shift, position + 1
        if byte < 128:
            return value & (2**64 - 1), position
    raise ValueError("an integer of more than ten bytes")
