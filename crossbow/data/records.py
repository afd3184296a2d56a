"""Record files: encoded images with label, bounding boxes and size. ImageNet is stored in this format.

A file contains the number of records (int32), then the records without gaps, all little-endian. A record is

    n       int32        length of the record in bytes, with n itself: 20 + 16 k + length of the image file
    label   int32        from 0
    k       int32        number of bounding boxes
    xmin    k × float32  relative to the width
    ymin    k × float32  relative to the height
    xmax    k × float32
    ymax    k × float32
    height  int32        pixels
    width   int32
    image   bytes        an image file; in the original's files, JPEG

This is the original's format (`scripts/datasets/imagenet/parse-records.py`, `clib-multigpu/image/record.c`).
"""

from __future__ import annotations

import contextlib
import operator
import os
import struct
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer
from crossbow.data.images import Scratch
from crossbow.files import check_readable, checked_path, file_error, file_to_fill
from crossbow.types import DataError

HEADER = 4
"""Number of bytes before the first record of a file."""
FIXED = 20
"""Number of bytes of a record without its boxes and its image."""
BOX = 16
"""Number of bytes of a box."""
RECORDS_PER_FILE = 2048
"""Number of records in each file of a converted data set, as in the original."""
LARGEST = 2**31 - 1
"""Maximum of the integers in a file, and therefore of the length of a record."""

_START = struct.Struct("<iii")
_SIZE = struct.Struct("<ii")

_SEEKING = threading.Lock()
"""Held while a file is read on a system without `pread`."""


@dataclass(frozen=True, eq=False)
class Record:
    """An encoded image with its label.

    label          class, from 0
    boxes          bounding boxes, float32 (k, 4): xmin, ymin, xmax, ymax, relative to the image's size
    height, width  size of the image in pixels, as the file states it
    jpeg           the bytes of the image file
    """

    label: int
    boxes: NDArray[np.float32]
    height: int
    width: int
    jpeg: bytes


class RecordFile:
    """Random access to the records of a file: `len(file)` and `file[i]`.

    Opening reads the lengths of all records and checks them against the length of the file; `file[i]` reads and checks
    one record. Boxes are clipped to [0, 1]. Several threads may read at the same time. The file is closed by `close`,
    at the end of a `with` block, or with the last reference.

    Raises DataError with the file's name, the record's number from 0, what was expected and what was received.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_open: bool = True) -> None:
        """keep_open: whether the file stays open. With False it is opened again for each record, because the number of
        open files is limited."""
        self.path = checked_path("RecordFile", path)
        check_readable(self.path, "a record file")
        descriptor = self._open()
        self._descriptor: int | None = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        self._labels = array("i")
        try:
            self._offsets = self._read_offsets(descriptor)
        except BaseException:
            self.close()
            raise
        if not keep_open:
            self.close()
            self._descriptor = None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Record:
        number = self._number(index)
        start = self._offsets[number]
        content = self._read(start, self._offsets[number + 1] - start)
        header = self._header(content, number, whole=True)
        return replace(header, jpeg=content[FIXED + BOX * len(header.boxes) :])

    def read(self, index: int, scratch: Scratch) -> tuple[Record, NDArray[np.uint8]]:
        """A record without its image file, and the bytes of that file, which may be in `scratch`."""
        number = self._number(index)
        start = self._offsets[number]
        content = scratch.array(self._offsets[number + 1] - start)
        count = 0
        with self._opened() as descriptor:
            while count < len(content) and (read := _read_into(descriptor, content[count:], start + count)):
                count += read
        header = self._header(content.data[:count], number, whole=True)
        return header, content[FIXED + BOX * len(header.boxes) : count]

    @property
    def labels(self) -> NDArray[np.int32]:
        """The labels of all records (N,), as they were when the file was opened. They are not checked."""
        return np.array(self._labels, np.int32)

    def header(self, index: int) -> tuple[Record, int]:
        """A record without its image file, and the length of that file. Only the beginning of the record is read."""
        number = self._number(index)
        start = self._offsets[number]
        length = self._offsets[number + 1] - start
        content = self._read(start, min(length, FIXED))
        if len(content) == FIXED:
            boxes = _START.unpack_from(content)[2]
            content += self._read(start + FIXED, min(length - FIXED, BOX * max(boxes, 0)))
        header = self._header(content, number)
        return header, length - FIXED - BOX * len(header.boxes)

    def _number(self, index: int) -> int:
        index = operator.index(index)
        number = index + (len(self) if index < 0 else 0)
        if not 0 <= number < len(self):
            raise IndexError(f"{self.path}: expected a record from 0 to {len(self) - 1}. Received: {index}")
        return number

    def __iter__(self) -> Iterator[Record]:
        return (self[number] for number in range(len(self)))

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[Path, bool], RecordFile], tuple[Path, bool]]:
        return _opened_again, (self.path, self._descriptor is not None)

    def __repr__(self) -> str:
        return f"RecordFile({str(self.path)!r}: {len(self):,} records)"

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self._close()

    @property
    def nbytes(self) -> int:
        """Length of the file."""
        return self._offsets[-1]

    def _read(self, start: int, count: int) -> bytes:
        """Read `count` bytes at `start`, or fewer at the end of the file."""
        pieces = []
        with self._opened() as descriptor:
            while count > 0 and (piece := _read_at(descriptor, count, start)):
                pieces.append(piece)
                start, count = start + len(piece), count - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The descriptor of the file, for reading. Raises DataError if the system fails to open or read the file."""
        kept = self._descriptor
        if kept is not None and not self._close.alive:
            raise ValueError(f"{self.path}: the record file is closed")
        descriptor = self._open() if kept is None else kept
        try:
            yield descriptor
        except OSError as error:
            raise file_error(error, self.path, "a readable record file") from error
        finally:
            if kept is None:
                os.close(descriptor)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except (OSError, ValueError) as error:
            raise file_error(error, self.path, "a record file") from error

    def _read_offsets(self, descriptor: int) -> array[int]:
        """Offsets of the records, and the end of the last record."""
        try:
            size = os.fstat(descriptor).st_size
        except OSError as error:
            raise file_error(error, self.path, "a record file") from error
        header = self._read(0, HEADER)
        if len(header) < HEADER:
            raise DataError(
                f"{self.path}: expected a record file, which begins with the number of records (4 bytes). "
                f"Received: {len(header)} bytes"
            )
        (count,) = struct.unpack("<i", header)
        if not 0 <= count <= (size - HEADER) // FIXED:
            raise DataError(
                f"{self.path}: expected a number of records from 0 to {(size - HEADER) // FIXED:,}, as fit into "
                f"{size:,} bytes. Received: {count:,}"
            )
        offsets = array("q", [HEADER])
        for number in range(count):
            offsets.append(offsets[-1] + self._read_length(number, offsets[-1], size))
        if offsets[-1] != size:
            raise DataError(
                f"{self.path}: expected the file to end after {count:,} records, at byte {offsets[-1]:,}. "
                f"Received: {size:,} bytes"
            )
        return offsets

    def _read_length(self, number: int, offset: int, size: int) -> int:
        start = self._read(offset, _START.size)
        if len(start) < _START.size:
            raise DataError(
                f"{self.path}: expected record {number} at byte {offset:,}. Received: the end of the file, at {size:,}"
            )
        length, label, boxes = _START.unpack(start)
        self._labels.append(label)
        if boxes < 0:
            raise DataError(f"{self.path}: expected a number of boxes ≥ 0 in record {number}. Received: {boxes}")
        least, most = FIXED + BOX * boxes, size - offset
        if least > most:
            raise DataError(
                f"{self.path}: expected a number of boxes up to {(most - FIXED) // BOX:,} in record {number}, as fit "
                f"into the rest of the file, {most:,} bytes. Received: {boxes:,}"
            )
        if not least <= length <= most:
            raise DataError(
                f"{self.path}: expected a length from {least:,} bytes ({boxes} boxes) to {most:,} bytes (the rest of "
                f"the file) of record {number}. Received: {length:,}"
            )
        return int(length)

    def _header(self, content: bytes | memoryview, number: int, *, whole: bool = False) -> Record:
        """Parse the beginning of a record. The lengths are checked again, because the file may have changed.

        whole: whether `content` must be the whole record.
        """
        expected = self._offsets[number + 1] - self._offsets[number]
        length, label, boxes = _START.unpack_from(content) if len(content) >= FIXED else (0, 0, 0)
        end = FIXED + BOX * boxes
        is_cut = len(content) < (expected if whole else min(end, expected))
        if is_cut or length != expected or not 0 <= boxes <= (expected - FIXED) // BOX:
            received = f"{len(content):,} bytes" if is_cut else f"{length:,} bytes and {boxes} boxes"
            raise DataError(
                f"{self.path}: expected {expected:,} bytes in record {number}, as when the file was opened. "
                f"Received: {received}"
            )
        coordinates = np.frombuffer(content, "<f4", 4 * boxes, _START.size)
        height, width = _SIZE.unpack_from(content, end - _SIZE.size)
        check_fields(f"{self.path}: record {number}", label, coordinates, height, width)
        limited = np.clip(coordinates.reshape(4, boxes).T, 0, 1).astype(np.float32, order="C")
        return Record(label, limited, height, width, b"")


def _read_at(descriptor: int, count: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, min(count, LARGEST), offset)
    with _SEEKING:  # Windows
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, min(count, LARGEST))


def _read_into(descriptor: int, memory: NDArray[np.uint8], offset: int) -> int:
    """Read from a file at an offset into memory. Returns the number of bytes read."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [memory.data], offset)
    content = _read_at(descriptor, len(memory), offset)
    memory[: len(content)] = np.frombuffer(content, np.uint8)
    return len(content)


def check_fields(where: str, label: int, boxes: NDArray[np.float32], height: int, width: int) -> None:
    """Raise DataError, which begins with `where`, if the label or a size is out of range or a coordinate not finite."""
    if not 0 <= label <= LARGEST:
        raise DataError(f"{where}: expected a label from 0 to {LARGEST}. Received: {label}")
    for name, size in (("height", height), ("width", width)):
        if not 1 <= size <= LARGEST:
            raise DataError(f"{where}: expected a {name} from 1 to {LARGEST} pixels. Received: {size}")
    finite = np.isfinite(boxes)
    if not finite.all():
        raise DataError(f"{where}: expected finite coordinates of boxes. Received: {boxes[~finite][0]}")


def _opened_again(path: Path, keep_open: bool) -> RecordFile:
    """Open a file again for a copy of a RecordFile, usually in another process."""
    return RecordFile(path, keep_open=keep_open)


def write_records(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Write a record file atomically: an existing file is replaced at the end.

    Boxes are not clipped. The records may come from a generator; only one is in memory at a time.

    Raises DataError if the format cannot represent a record, with its number from 0, or if the file cannot be written.
    """
    try:
        records = iter(records)
    except TypeError as error:
        raise DataError(
            f"write_records: expected a list of records, or another iterable. Received: {type(records).__name__}"
        ) from error
    with file_to_fill(path) as file:
        file.write(bytes(HEADER))
        count = 0
        for record in records:
            if count == LARGEST:
                raise DataError(f"{path}: expected at most {LARGEST:,} records. Received: more")
            file.write(record_bytes(record, f"{path}: record {count}"))
            count += 1
        file.seek(0)
        file.write(struct.pack("<i", count))


def record_bytes(record: Record, where: str = "record") -> bytes:
    """The bytes of a record in a file. Raises DataError, which begins with `where`."""
    if not isinstance(record, Record):
        raise DataError(f"{where}: expected a Record. Received: {type(record).__name__}")
    for name in ("label", "height", "width"):
        if not is_integer(getattr(record, name)):
            raise DataError(f"{where}: expected {name} to be an integer. Received: {getattr(record, name)!r}")
    if not isinstance(record.jpeg, bytes | bytearray | memoryview):
        raise DataError(f"{where}: expected jpeg to be bytes. Received: {type(record.jpeg).__name__}")
    try:
        with np.errstate(over="ignore"):  # infinity is refused below
            boxes = np.asarray(record.boxes, dtype="<f4")
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where}: expected boxes of numbers (k, 4). Received: {type(record.boxes).__name__}"
        ) from error
    if boxes.size == 0 and boxes.ndim <= 2:
        boxes = boxes.reshape(0, 4)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise DataError(f"{where}: expected boxes of shape (k, 4). Received: shape {boxes.shape}")
    check_fields(where, record.label, boxes, record.height, record.width)
    jpeg = bytes(record.jpeg)
    length = FIXED + BOX * len(boxes) + len(jpeg)
    if length > LARGEST:
        raise DataError(f"{where}: expected at most {LARGEST:,} bytes. Received: {length:,}")
    start = _START.pack(length, record.label, len(boxes))
    return start + boxes.T.tobytes() + _SIZE.pack(record.height, record.width) + jpeg
