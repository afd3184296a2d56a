"""Record files: written and read byte by byte, and every kind of damage."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import pickle
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.data import Record, RecordFile, write_records
from crossbow.data.images import Scratch
from crossbow.types import DataError

MODULE = importlib.import_module("crossbow.data.records")


def record_bytes(label: int, boxes: list[tuple[float, ...]], height: int, width: int, jpeg: bytes) -> bytes:
    """A record as the original's documentation lays it out."""
    content = struct.pack("<ii", label, len(boxes))
    for side in range(4):
        content += b"".join(struct.pack("<f", box[side]) for box in boxes)
    content += struct.pack("<ii", height, width) + jpeg
    return struct.pack("<i", 4 + len(content)) + content


def file_bytes(*records: bytes) -> bytes:
    return struct.pack("<i", len(records)) + b"".join(records)


FIRST = record_bytes(7, [(0.25, 0.0, 0.5, 1.0), (0.125, 0.5, 0.75, 0.875)], 480, 640, b"first image")
SECOND = record_bytes(999, [], 1, 2, b"second")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "crossbow-train.records.1"
    made.write_bytes(file_bytes(FIRST, SECOND))
    return made


def test_a_file_of_known_bytes(path: Path) -> None:
    with RecordFile(path) as file:
        assert len(file) == 2
        first, second = file
        assert (first.label, first.height, first.width, first.jpeg) == (7, 480, 640, b"first image")
        assert first.boxes.dtype == np.float32
        assert first.boxes.tolist() == [[0.25, 0.0, 0.5, 1.0], [0.125, 0.5, 0.75, 0.875]]
        assert (second.label, second.height, second.width, second.jpeg) == (999, 1, 2, b"second")
        assert second.boxes.shape == (0, 4)
        assert file[-1].label == 999
        assert file[np.int64(0)].label == 7
        assert file.nbytes == len(path.read_bytes())


def test_the_written_bytes_are_known(path: Path, tmp_path: Path) -> None:
    boxes = np.array([[0.25, 0.0, 0.5, 1.0], [0.125, 0.5, 0.75, 0.875]])
    records = [Record(7, boxes, 480, 640, b"first image"), Record(999, np.zeros((0, 4), np.float32), 1, 2, b"second")]
    write_records(tmp_path / "written", iter(records))
    assert (tmp_path / "written").read_bytes() == path.read_bytes()


def test_an_empty_file(tmp_path: Path) -> None:
    write_records(tmp_path / "empty", [])
    assert (tmp_path / "empty").read_bytes() == bytes(4)
    file = RecordFile(tmp_path / "empty")
    assert len(file) == 0
    assert list(file) == []
    with pytest.raises(IndexError):
        file[0]


coordinate = st.floats(0, 1, width=32)
one_record = st.tuples(
    st.integers(0, 2**31 - 1),
    st.lists(st.tuples(coordinate, coordinate, coordinate, coordinate), max_size=100),
    st.integers(1, 2**31 - 1),
    st.integers(1, 2**31 - 1),
    st.binary(max_size=50),
)


@given(st.lists(one_record, max_size=5))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, given_records: list[Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "records"
    write_records(path, (Record(label, np.array(boxes), *rest) for label, boxes, *rest in given_records))
    assert path.read_bytes() == file_bytes(*(record_bytes(*fields) for fields in given_records))
    with RecordFile(path) as file:
        assert len(file) == len(given_records)
        for record, (label, boxes, height, width, jpeg) in zip(file, given_records, strict=True):
            assert (record.label, record.height, record.width, record.jpeg) == (label, height, width, jpeg)
            assert record.boxes.tolist() == [list(box) for box in boxes]


def test_a_system_that_reads_only_at_a_position(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pread", raising=False)  # as on Windows
    file = RecordFile(path)
    assert [file[n].label for n in (1, 0, 1)] == [999, 7, 999]


def test_a_file_that_is_opened_for_each_record_is_closed_each_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, opened, closed = RecordFile(path, keep_open=False), list[int](), list[int]()
    system_open, system_close = os.open, os.close
    monkeypatch.setattr(os, "open", lambda *arguments: (opened.append(found := system_open(*arguments)), found)[1])
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(descriptor), system_close(descriptor)))
    assert [file[n].label for n in (1, 0, 1)] == [999, 7, 999]
    assert len(opened) == 3
    assert closed == opened


def test_the_header_alone(path: Path) -> None:
    header, size = RecordFile(path).header(0)
    assert (header.label, len(header.boxes), header.height, header.jpeg, size) == (7, 2, 480, b"", len(b"first image"))


def test_boxes_are_clipped_when_they_are_read(tmp_path: Path) -> None:
    outside = record_bytes(0, [(-0.5, -0.0, 1.5, 1e30)], 1, 1, b"")
    (tmp_path / "file").write_bytes(file_bytes(outside))
    assert RecordFile(tmp_path / "file")[0].boxes.tolist() == [[0.0, 0.0, 1.0, 1.0]]


@pytest.mark.parametrize("index", [2, -3, 100])
def test_a_record_that_is_not_there(path: Path, index: int) -> None:
    with pytest.raises(IndexError, match=rf"expected a record from 0 to 1\. Received: {index}"):
        RecordFile(path)[index]


@pytest.mark.parametrize("index", ["a", 1.0, None])
def test_what_is_no_index(path: Path, index: Any) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        RecordFile(path)[index]


def test_closing(path: Path) -> None:
    file = RecordFile(path)
    file.close()
    file.close()
    with RecordFile(path) as other:
        assert len(other[0].boxes) == len(RecordFile(path)[0].boxes)
    for closed in (file, other):
        with pytest.raises(ValueError, match="closed"):
            closed[0]


def test_another_process_may_open_it_again(path: Path) -> None:
    again = pickle.loads(pickle.dumps(RecordFile(path)))
    assert again[1].label == 999


def test_threads_read_at_the_same_time(tmp_path: Path) -> None:
    write_records(tmp_path / "file", (Record(n, np.zeros((0, 4)), 1, 1, bytes([n]) * 1000) for n in range(100)))
    file, wrong = RecordFile(tmp_path / "file"), []

    def read(seed: int) -> None:
        for n in np.random.default_rng(seed).integers(0, 100, 300).tolist():
            if file[n].label != n or file[n].jpeg != bytes([n]) * 1000:
                wrong.append(n)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_file_of_more_than_2_gib(tmp_path: Path) -> None:
    """Of zeros that take no space, but for the lengths."""
    path, large = tmp_path / "file", 1_500_000_000
    with path.open("wb") as file:
        file.write(struct.pack("<i", 3))
        for label in range(2):
            start = file.tell()
            file.write(struct.pack("<iiiii", large, label, 0, 10, 20))
            file.seek(start + large)
        file.write(record_bytes(42, [(0, 0, 1, 1)], 3, 4, b"the last"))
    with RecordFile(path) as opened:
        assert opened.nbytes > 2**31
        last = opened[2]
        assert (last.label, last.jpeg, last.boxes.tolist()) == (42, b"the last", [[0, 0, 1, 1]])
        header, size = opened.header(1)
        assert (header.label, header.height, header.width, size) == (1, 10, 20, large - 20)


# Damage


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        list(RecordFile(path))
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(path), "expected", "Received: ", *parts):
        assert part in message, message


@pytest.mark.parametrize("records", [(FIRST, SECOND), (SECOND,), (FIRST,)], ids=["two", "one", "with boxes"])
def test_a_truncated_file_is_refused_at_every_byte(records: tuple[bytes, ...], tmp_path: Path) -> None:
    content = file_bytes(*records)
    for length in range(len(content)):
        (tmp_path / "file").write_bytes(content[:length])
        refused(tmp_path / "file")


def patched(content: bytes, offset: int, value: int) -> bytes:
    return content[:offset] + struct.pack("<i", value) + content[offset + 4 :]


WHOLE = file_bytes(FIRST, SECOND)
SECOND_AT = 4 + len(FIRST)
NAN = record_bytes(1, [(0, 0, 1, 1), (0, float("nan"), 1, 1)], 1, 1, b"")

DAMAGED = {
    "empty": (b"", ["begins with the number of records", "0 bytes"]),
    "negative number of records": (patched(WHOLE, 0, -1), ["number of records", "-1"]),
    "too many records": (patched(WHOLE, 0, 2**31 - 1), ["number of records", "2,147,483,647"]),
    "one record too many": (patched(WHOLE, 0, 3), ["record 2", "the end of the file"]),
    "one record too few": (patched(WHOLE, 0, 1), ["end after 1 records"]),
    "trailing byte": (WHOLE + b"x", ["end after 2 records"]),
    "short length": (patched(WHOLE, SECOND_AT, 19), ["record 1", "Received: 19"]),
    "negative length": (patched(WHOLE, 4, -5), ["record 0", "Received: -5"]),
    "length beyond the file": (patched(WHOLE, SECOND_AT, 2**31 - 1), ["record 1", "2,147,483,647"]),
    "negative number of boxes": (patched(WHOLE, 12, -1), ["number of boxes", "record 0", "-1"]),
    "more boxes than bytes": (patched(WHOLE, SECOND_AT + 8, 1), ["record 1", "boxes up to 0", "Received: 1"]),
    "boxes beyond all bounds": (
        patched(WHOLE, 12, 2**31 - 1),
        ["record 0", "number of boxes", "Received: 2,147,483,647"],
    ),
    "negative label": (patched(WHOLE, SECOND_AT + 4, -1), ["record 1", "a label from 0", "-1"]),
    "height of 0": (patched(WHOLE, SECOND_AT + 12, 0), ["record 1", "a height from 1", "Received: 0"]),
    "negative width": (patched(WHOLE, SECOND_AT + 16, -7), ["record 1", "a width from 1", "-7"]),
    "a coordinate that is no number": (file_bytes(NAN), ["record 0", "finite coordinates", "nan"]),
    "text": (b"# Metadata file\n", ["number of records"]),
}


@pytest.mark.parametrize(("content", "parts"), DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    (tmp_path / "file").write_bytes(content)
    refused(tmp_path / "file", *parts)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_any_wrong_byte_gives_a_record_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(WHOLE[:place] + bytes([value]) + WHOLE[place + 1 :])
    with contextlib.suppress(DataError):
        list(RecordFile(path))


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "null\0"):
        with pytest.raises(DataError, match=r"expected a (readable )?record file"):
            RecordFile(path)
    with pytest.raises(TypeError, match="expected a path"):
        RecordFile(5)  # type: ignore[arg-type]


def test_a_disk_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    file = RecordFile(path)
    monkeypatch.setattr(importlib.import_module("crossbow.data.records"), "_read_into", fail)
    with pytest.raises(DataError, match=r"expected a readable record file\. Received: Input/output error"):
        file.read(0, Scratch())


def test_a_file_that_changes_while_it_is_open(path: Path) -> None:
    file = RecordFile(path)
    os.truncate(path, SECOND_AT + 10)
    assert file[0].label == 7
    with pytest.raises(DataError, match="record 1, as when the file was opened"):
        file[1]
    for length in (SECOND_AT + 20, len(WHOLE) - 1):  # in its image
        path.write_bytes(WHOLE[:length])
        for read in (file.__getitem__, lambda number: file.read(number, Scratch())):
            with pytest.raises(DataError) as caught:
                read(1)
            assert str(caught.value) == (
                f"{path}: expected 26 bytes in record 1, as when the file was opened. "
                f"Received: {length - SECOND_AT} bytes"
            )
        assert file.header(1)[1] == len(b"second")
    path.write_bytes(patched(WHOLE, 4, len(FIRST) - 1))
    for read in (file.__getitem__, file.header):
        with pytest.raises(DataError, match="record 0, as when the file was opened"):
            read(0)


# What cannot be written

NO_BOXES = np.zeros((0, 4), np.float32)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("text", "expected a Record. Received: str"),
        (Record(-1, NO_BOXES, 1, 1, b""), "expected a label from 0"),
        (Record(2**31, NO_BOXES, 1, 1, b""), "expected a label from 0"),
        (Record(1.5, NO_BOXES, 1, 1, b""), "expected label to be an integer"),  # type: ignore[arg-type]
        (Record(1, NO_BOXES, 0, 1, b""), "expected a height from 1"),
        (Record(1, NO_BOXES, 1, 2**31, b""), "expected a width from 1"),
        (Record(1, np.zeros(4, np.float32), 1, 1, b""), "expected boxes of shape (k, 4). Received: shape (4,)"),
        (Record(1, np.zeros((2, 3)), 1, 1, b""), "expected boxes of shape (k, 4). Received: shape (2, 3)"),
        (Record(1, np.array([["a"] * 4]), 1, 1, b""), "expected boxes of numbers"),
        (Record(1, np.full((1, 4), np.inf), 1, 1, b""), "expected finite coordinates"),
        (Record(1, NO_BOXES, 1, 1, "text"), "expected jpeg to be bytes. Received: str"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_written_leaves_the_older_file(path: Path, record: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        write_records(path, [Record(0, NO_BOXES, 1, 1, b""), record])
    assert f"{path}: record 1: {message}" in str(caught.value)
    assert path.read_bytes() == WHOLE
    assert os.listdir(path.parent) == [path.name]


def test_what_has_no_records(path: Path) -> None:
    with pytest.raises(
        DataError, match=r"^write_records: expected a list of records, or another iterable\. Received: Record$"
    ):
        write_records(path, Record(0, NO_BOXES, 1, 1, b""))  # type: ignore[arg-type]
    assert path.read_bytes() == WHOLE


def test_a_failing_generator_leaves_nothing(tmp_path: Path) -> None:
    def records() -> Iterator[Record]:
        yield Record(0, NO_BOXES, 1, 1, b"x" * 100_000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(tmp_path / "file", records())
    assert os.listdir(tmp_path) == []


def test_a_file_may_be_written_from_itself(path: Path) -> None:
    write_records(path, RecordFile(path))
    assert path.read_bytes() == WHOLE


def test_the_largest_numbers_of_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of records, and of the bytes of a record, which count themselves."""
    made = Record(1, np.zeros((1, 4), np.float32), 2, 2, b"image")
    length = len(record_bytes(1, [(0.0, 0.0, 0.0, 0.0)], 2, 2, b"image"))
    monkeypatch.setattr(MODULE, "LARGEST", length)
    write_records(tmp_path / "file", [made])
    monkeypatch.setattr(MODULE, "LARGEST", length - 1)
    with pytest.raises(DataError, match=rf"record 0: expected at most {length - 1} bytes\. Received: {length}$"):
        write_records(tmp_path / "file", [made])
    monkeypatch.setattr(MODULE, "record_bytes", lambda *_: b"")
    monkeypatch.setattr(MODULE, "LARGEST", 2)
    write_records(tmp_path / "file", [made] * 2)
    with pytest.raises(DataError, match=r"expected at most 2 records\. Received: more$"):
        write_records(tmp_path / "file", [made] * 3)
