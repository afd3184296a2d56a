"""IDX files, the format of MNIST: a magic number, the dimensions, the elements."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from crossbow.data.reading import LARGEST_ARRAY, PIECE, Readable, read_at_most
from crossbow.files import check_readable, checked_path
from crossbow.types import Array, DataError, Shape, bytes_text

_GZIP_MAGIC = b"\x1f\x8b"
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""Element type by the third byte of the magic number."""


def read_idx(path: str | os.PathLike[str]) -> Array:
    """The array in an IDX file, which may be gzipped (detected by its content, not its name).

    The file consists of two zero bytes, a byte for the element type, a byte d for the number of dimensions, d sizes
    (uint32), and the elements in row-major order; everything is big-endian. The array is returned in native byte order.
    For a file of bytes it is read-only, because it shares memory with the file's content.

    Raises DataError with the file's name, what was expected and what was received.
    """
    path = checked_path("read_idx", path)
    check_readable(path, "a readable IDX file")
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == _GZIP_MAGIC
            content, header, shape, dtype = _read(gzip.GzipFile(fileobj=raw) if packed else raw, path)
    except (EOFError, struct.error, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: expected an intact gzip file. Received: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: expected a readable IDX file. Received: {error.strerror or error}") from error
    return np.frombuffer(content, dtype=dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _read(file: Readable, path: Path) -> tuple[bytes, int, Shape, np.dtype[Any]]:
    """The content of a file, the length of its header in bytes, and the shape and the type that the header states."""
    content = read_at_most(file, 4)
    if len(content) < 4:
        raise DataError(f"{path}: expected an IDX file (a magic number of 4 bytes). Received: {len(content)} bytes")
    zeros, code, dimensions = struct.unpack_from(">HBB", content)
    if zeros != 0 or code not in _TYPES:
        raise DataError(
            f"{path}: expected the magic number of an IDX file (00 00, then the type: "
            f"{', '.join(f'{known:02x}' for known in _TYPES)}). Received: {content[:4].hex(' ')}"
        )
    if dimensions == 0:
        raise DataError(f"{path}: expected an IDX file with at least one dimension. Received: none")
    header = 4 + 4 * dimensions
    content += read_at_most(file, header - 4)
    if len(content) < header:
        raise DataError(
            f"{path}: expected a header of {header} bytes for {dimensions} dimensions. "
            f"Received: {len(content)} bytes, a truncated file"
        )
    shape, dtype = struct.unpack_from(f">{dimensions}I", content, 4), np.dtype(_TYPES[code])
    expected = header + math.prod(shape) * dtype.itemsize
    what = f"{expected} bytes for shape {shape} of {dtype.newbyteorder('=')}"
    if expected > LARGEST_ARRAY:
        raise DataError(f"{path}: expected at most {bytes_text(LARGEST_ARRAY)}. Received: a header for {what}")
    content += read_at_most(file, expected - header + PIECE)
    received = len(content)
    if received != expected:
        trouble = "a truncated file" if received < expected else f"{received - expected} trailing bytes or more"
        raise DataError(f"{path}: expected {what}. Received: {received} bytes, {trouble}")
    return content, header, shape, dtype
