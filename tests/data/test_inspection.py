"""Summaries of files in Crossbow's formats, and every mistake that a complete check finds."""

from __future__ import annotations

import os
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.data import Dataset, Record, RecordFile, batch_files, inspection
from crossbow.data.batch_metadata import read_metadata
from crossbow.data.encoding import Encoding, encode
from crossbow.data.inspection import inspect, is_metadata, verify
from crossbow.types import DataError
from tests.data.hand_made_files import write_files
from tests.data.picture_files import NO_BOXES, picture, record, write_record_set
from tests.support import SECONDS, within


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_files(tmp_path)


def test_verify_finds_what_opening_does_not(path: Path) -> None:
    def spoil(name: str, offset: int, content: bytes) -> None:
        data = bytearray((path.parent / name).read_bytes())
        data[offset : offset + len(content)] = content
        (path.parent / name).write_bytes(data)

    spoil("train.examples.1", 4096 + 4000, b"\x07")
    spoil("train.examples.2", 4, struct.pack("<f", np.nan))
    spoil("train.labels.1", 0, struct.pack("<i", -1))
    spoil("train.labels.1", 4, struct.pack("<i", -3))
    spoil("train.labels.2", 4, struct.pack("<i", 11))
    found = list(verify(path))
    assert [problem.removeprefix(str(path.parent) + "/") for problem in found] == [
        "train.examples.1: expected zeros after batch 1. Received: 7 as byte 3984",
        "train.metadata: expected finite numbers in example 4. Received: nan",
        "train.metadata: expected integers ≥ 0 or -1, as before, in label 1. Received: -3",
        "train.metadata: expected the last batch to be filled with the first labels. Received: others",
    ]


@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_verify_notes_labels_to_ignore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """They are no errors: a data set of them can be used."""
    monkeypatch.setattr(inspection, "AT_ONCE", at_once)
    images, labels = np.zeros((4, 1, 2, 2), np.float32), np.zeros((4, 2, 2), np.int64)
    labels[1, 0, 0] = labels[3, 1] = -100
    (path,) = encode(Dataset((images, labels), ignored_label=-100), Encoding("some"), tmp_path, 2)
    notes: list[str] = []
    assert list(verify(path, note=notes.append)) == []
    assert notes == [f"{path}: 2 of 4 examples have the label -100, which needs ignored_label=-100 in batch_files"]
    assert batch_files(path, ignored_label=-100).number_of_classes == 1
    assert list(verify(path)) == []


def test_verify_notes_labels_without_a_name(path: Path) -> None:
    (path.parent / "train.classes").write_text("".join(f"{n}\n" for n in range(15)))
    notes: list[str] = []
    assert list(verify(path, note=notes.append)) == []
    assert notes == []
    (path.parent / "train.classes").write_text("one\ntwo\n")
    assert list(verify(path, note=notes.append)) == []
    expected = "the largest label is 14, but train.classes has only 2 names, which are therefore ignored"
    assert notes == [f"{path}: {expected}"]


def test_verify_checks_examples_of_integers(tmp_path: Path) -> None:
    """They may be negative, but training must not round them."""
    encode(Dataset((np.zeros((3, 2)), np.ones(3, np.float32))), Encoding("some"), tmp_path, 3)
    path = tmp_path / "some-train.metadata"
    path.write_text(path.read_text().replace("example type : float", "example type : int"))
    numbers = np.array([[-1, -(2**31)], [8, 2**24 + 1], [1 - 2**31, 3]], "<i4")
    (tmp_path / "some-train.examples.1").write_bytes(numbers.tobytes().ljust(4096, b"\0"))
    expected = "expected integers that float32 holds exactly (as all up to 2**24) in example"
    assert list(verify(path)) == [
        f"{path}: {expected} 1. Received: 16777217",
        f"{path}: {expected} 2. Received: -2147483647",
    ]


def test_verify_reports_a_damaged_first_example_with_the_others(path: Path) -> None:
    """It does not stop where opening a data set does."""
    data = bytearray((path.parent / "train.examples.1").read_bytes())
    data[0:4] = struct.pack("<f", 7)
    data[4096 + 4000] = 7
    (path.parent / "train.examples.1").write_bytes(data)
    found = [problem.removeprefix(str(path.parent) + "/") for problem in verify(path)]
    assert found == [
        "train.examples.1: expected zeros after batch 1. Received: 7 as byte 3984",
        "train.metadata: expected the last batch to be filled with the first examples. Received: others",
    ]
    with pytest.raises(DataError, match=r"another example than the first; `crossbow data verify` says more$"):
        inspect(path)


def test_no_fill_need_be_given(path: Path) -> None:
    path.write_text(re.sub(r"^fill .*\n", "", path.read_text(), flags=re.MULTILINE))
    assert "\nfill" not in path.read_text()
    assert list(verify(path)) == []


def test_inspect(path: Path) -> None:
    summary = inspect(path)
    assert summary["format"] == "metadata of batch-aligned files"
    assert (summary["batch size"], summary["elements"], summary["examples without fill"]) == (2, 6, 5)
    assert (summary["bytes of examples"], summary["bytes of labels"]) == (3 * 4096, 3 * 4096)


def records_of(tmp_path: Path) -> Path:
    """Five records in two files, with a wrong size in the second and no image in the fourth."""
    box = np.array([[0.25, 0.25, 0.5, 0.5]], np.float32)
    first = [Record(3, box, 12, 10, picture(0, 12, 10)), Record(5, NO_BOXES, 13, 10, picture(1, 12, 10))]
    second = [Record(3, NO_BOXES, 8, 20, picture(2, 8, 20)), Record(4, NO_BOXES, 12, 10, b"GIF89a")]
    return write_record_set(tmp_path, "some", [first, second])


def test_verify_decodes_all_images_of_records(tmp_path: Path) -> None:
    path = records_of(tmp_path)
    shown: list[tuple[int, int]] = []
    problems = [problem.removeprefix(f"{tmp_path}/") for problem in verify(path, lambda *done: shown.append(done))]
    assert problems[0] == "some.records.1: record 1: expected an image of 13 × 10 pixels. Received: 12 × 10"
    assert problems[1].startswith("some.records.2: record 1: expected an intact GIF file")
    assert len(problems) == 2
    assert shown == [(1, 4), (2, 4), (3, 4), (4, 4)]
    (problem,) = verify(tmp_path / "some.records.2")
    assert problem.endswith(problems[1].removeprefix("some.records.2"))


def test_a_record_that_cannot_be_read_does_not_end_the_check(tmp_path: Path) -> None:
    path = records_of(tmp_path)
    with (tmp_path / "some.records.1").open("r+b") as file:  # the label of record 0
        file.seek(8)
        file.write(b"\xff\xff\xff\xff")
    assert [problem.partition(": expected")[0] for problem in verify(path)] == [
        f"{tmp_path}/some.records.1: record 0",
        f"{tmp_path}/some.records.1: record 1",
        f"{tmp_path}/some.records.2: record 1",
    ]


def test_inspect_summarises_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, closed, close = records_of(tmp_path), list[RecordFile](), RecordFile.close
    monkeypatch.setattr(RecordFile, "close", lambda file: (closed.append(file), close(file)))
    summary = inspect(path)
    assert len(closed) == 2
    assert summary["format"] == "metadata of records"
    assert (summary["records"], summary["different labels"]) == (4, 3)
    assert summary["label"] == {"least": 3, "most": 5}
    assert summary["boxes"] == {"least": 0, "most": 1}
    assert summary["height"] == {"least": 8, "most": 13}
    assert summary["width"] == {"least": 10, "most": 20}
    assert summary["bytes of an image"]["least"] == 6
    parts = [tmp_path / "some.records.1", tmp_path / "some.records.2"]
    assert summary["bytes"] == sum(part.stat().st_size for part in parts)
    assert inspect(parts[1])["format"] == "records"
    assert inspect(parts[1])["label"] == {"least": 3, "most": 4}


def test_another_number_of_records_than_stated(tmp_path: Path) -> None:
    path = records_of(tmp_path)
    path.write_text(path.read_text().replace("elements     : 4", "elements     : 5"))
    for check in (inspect, lambda path: list(verify(path))):
        with pytest.raises(DataError, match=r"expected 5 records \(elements\) in 2 files\. Received: 4$"):
            check(path)


def test_what_is_neither_metadata_nor_records(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty: expected a metadata file or a record file\. Received: an empty file$"):
        inspect(tmp_path / "empty")
    with pytest.raises(DataError, match=r"nowhere: expected a metadata file or a record file\. Received: No such file"):
        list(verify(tmp_path / "nowhere"))
    (tmp_path / "text").write_bytes(b"abcd")
    (tmp_path / "records").write_bytes(b"\x01\x00\x00\x00")
    with pytest.raises(DataError, match=r": expected a metadata file or a record file\. Received: a directory$"):
        inspect(tmp_path)
    assert is_metadata(tmp_path / "text")
    assert not is_metadata(tmp_path / "records")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices are those of POSIX")
def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device")):
        for check in (inspect, lambda path: list(verify(path)), RecordFile, read_metadata):
            with pytest.raises(DataError) as caught:
                within(SECONDS, lambda path=path, check=check: check(path))
            assert re.fullmatch(rf"{path}: expected a [^.]* file\. Received: {kind}", str(caught.value))


def test_record_files_are_opened_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_record_set(tmp_path, "many", [[record(n)] for n in range(5)])
    opened, most = set[int](), 0
    system_open, system_close = os.open, os.close

    def noting(*arguments: Any) -> int:
        nonlocal most
        opened.add(descriptor := system_open(*arguments))
        most = max(most, len(opened))
        return descriptor

    monkeypatch.setattr(os, "open", noting)
    monkeypatch.setattr(os, "close", lambda descriptor: (opened.discard(descriptor), system_close(descriptor)))
    assert inspect(path)["records"] == 5
    assert (most, opened) == (1, set())


def test_large_data_sets_are_checked_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake has its number in the data set."""
    data = bytearray((path.parent / "train.examples.1").read_bytes())
    data[4096 + 8 : 4096 + 12] = struct.pack("<f", np.inf)
    (path.parent / "train.examples.1").write_bytes(data)
    monkeypatch.setattr(inspection, "AT_ONCE", 4)
    shown: list[tuple[int, int]] = []
    assert list(verify(path, lambda *done: shown.append(done))) == [
        f"{path}: expected finite numbers in example 3. Received: inf"
    ]
    assert shown == [(2, 5), (4, 5), (5, 5)]
