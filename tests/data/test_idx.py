"""IDX files: every element type, gzipped or not, and many kinds of damage."""

from __future__ import annotations

import contextlib
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from crossbow.data import read_idx
from crossbow.types import DataError

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


EXAMPLE = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
BYTES = idx(EXAMPLE)


@given(
    st.sampled_from(sorted(CODES)).flatmap(
        lambda code: arrays.arrays(np.dtype(code), arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
    ),
    st.booleans(),
)
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, packed: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "array.idx"
    path.write_bytes(gzip.compress(idx(array), 1) if packed else idx(array))
    read = read_idx(path)
    assert read.dtype == array.dtype
    assert read.dtype.isnative
    np.testing.assert_array_equal(read, array)


def test_the_content_tells_whether_it_is_gzipped_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_bytes(BYTES)
    (tmp_path / "packed").write_bytes(gzip.compress(BYTES))
    for name in ("plain.gz", "packed"):
        np.testing.assert_array_equal(read_idx(str(tmp_path / name)), EXAMPLE)


PACKED = gzip.compress(BYTES)
DAMAGED = {
    # case: content, what the message says besides the file's name
    "empty": (b"", ["magic number", "0 bytes"]),
    "two bytes": (BYTES[:2], ["2 bytes"]),
    "wrong magic": (b"\x12\x34\x56\x78" + BYTES[4:], ["magic number", "12 34 56 78"]),
    "no zeros first": (b"\x01" + BYTES[1:], ["magic number", "01 00 08 03"]),
    "unknown type": (b"\0\0\x0a\x03" + BYTES[4:], ["08, 09, 0b, 0c, 0d, 0e", "00 00 0a 03"]),
    "little-endian magic": (b"\x03\x08\0\0" + BYTES[4:], ["03 08 00 00"]),
    "no dimensions": (b"\0\0\x08\0", ["at least one dimension"]),
    "truncated header": (BYTES[:10], ["16 bytes", "10 bytes", "truncated"]),
    "more dimensions than bytes": (b"\0\0\x08\xff" + BYTES[4:], ["255 dimensions", "truncated"]),
    "truncated": (BYTES[:-1], ["40 bytes", "(2, 3, 4)", "39 bytes", "truncated"]),
    "header only": (BYTES[:16], ["40 bytes", "16 bytes", "truncated"]),
    "trailing bytes": (BYTES + b"xyz", ["40 bytes", "43 bytes", "3 trailing bytes"]),
    "sizes beyond memory": (b"\0\0\x0e\x03" + b"\xff" * 12 + b"12345678", ["4294967295", "at most 1.0 GB"]),
    "text": (b"<!DOCTYPE html><title>404</title>", ["magic number", "3c 21 44 4f"]),
    "gzip of a truncated file": (gzip.compress(BYTES[:-1]), ["40 bytes", "39 bytes"]),
    "gzip of trailing bytes": (gzip.compress(BYTES + b"x"), ["1 trailing bytes"]),
    "gzip of nothing": (gzip.compress(b""), ["0 bytes"]),
    "truncated gzip": (PACKED[:-9], ["intact gzip"]),
    "gzip header only": (PACKED[:5], ["intact gzip"]),
    "gzip magic only": (PACKED[:2], ["intact gzip"]),
    "gzip with a wrong checksum": (PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:], ["intact gzip", "CRC"]),
    "gzip with a wrong length": (PACKED[:-4] + b"\xff\0\0\0", ["intact gzip"]),
    "gzip of another method": (PACKED[:2] + b"\x07" + PACKED[3:], ["intact gzip"]),
    "gzip with broken data": (PACKED[:12] + b"\xff\xff" + PACKED[14:], ["intact gzip"]),
    "gzip and garbage": (PACKED + b"garbage", ["intact gzip"]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_with_the_file(tmp_path: Path, case: str) -> None:
    content, says = DAMAGED[case]
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_idx(path)
    message = str(caught.value)
    for words in [str(path), "expected", "Received", *says]:
        assert words in message, message


@given(st.binary(max_size=64))
def test_any_bytes_are_an_array_or_a_data_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.idx"
    for prefix in (b"", b"\0\0\x08\x01", b"\x1f\x8b\x08\x00"):
        path.write_bytes(prefix + content)
        with contextlib.suppress(DataError):
            read_idx(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match="expected a readable IDX file") as caught:
            read_idx(path)
        assert str(path) in str(caught.value)
    with pytest.raises(TypeError, match=r"^read_idx: expected a path, .* Received: None$"):
        read_idx(None)  # type: ignore[arg-type]
