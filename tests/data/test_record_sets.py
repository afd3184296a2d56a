"""Data sets in record files: lists, patterns and metadata of files, and wrong ones."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import Dataset
from crossbow.data import RecordFile, image_folder, records, write_records
from crossbow.data.examples import Selection
from crossbow.data.images import Scratch
from crossbow.types import DataError
from tests.data.picture_files import picture, record, write_folder, write_record_set

SIZE = 8


def small(train: Any, check: Any = None, **options: Any) -> Dataset:
    return records(train, check, **{"image_size": SIZE, **options})


def write_files(directory: Path, files: int = 11) -> Path:
    """Files with records 0, 1, 2, …, two in each, and their metadata; label n of record n."""
    made = [[record(2 * n, label=2 * n), record(2 * n + 1, label=2 * n + 1)] for n in range(files)]
    return write_record_set(directory, "many", made)


def test_files_are_given_by_metadata_patterns_and_lists(tmp_path: Path) -> None:
    metadata = write_files(tmp_path)
    one, two, ten = (tmp_path / f"many.records.{n}" for n in (1, 2, 10))
    everything = list(range(22))
    for given, labels in (
        (metadata, everything),
        (str(metadata), everything),
        (tmp_path / "many.records.*", everything),
        (str(tmp_path / "many.records.1?"), [18, 19, 20, 21]),
        (two, [2, 3]),
        ([ten, one, two], [18, 19, 0, 1, 2, 3]),
        ([tmp_path / "many.records.[1-2]", ten], [0, 1, 2, 3, 18, 19]),
        ((path for path in (one, two)), [0, 1, 2, 3]),
    ):
        data = small(given)
        assert data.train.labels.tolist() == labels
        assert data.train.groups is not None
        assert data.train.groups.tolist() == [n // 2 for n in range(len(labels))]
    data = small(metadata, one)
    assert data.check is not None
    assert (data.number_of_classes, len(data.check), data.image_shape) == (22, 2, (3, SIZE, SIZE))
    assert records(metadata).image_shape == (3, 224, 224)


def test_swapped_metadata_are_refused_by_what_they_state(tmp_path: Path) -> None:
    train = write_record_set(tmp_path, "some-train", [[record(0)]])
    check = write_record_set(tmp_path, "some-test", [[record(1)]])
    contents = train.read_bytes(), check.read_bytes()
    check.write_bytes(contents[0])
    train.write_bytes(contents[1])
    with pytest.raises(
        DataError, match=r"^train: .*some-test\.records\.1' and .*some-train\.records\.1', as if the two"
    ):
        small(train, check)


def test_swapped_files_are_refused_by_their_names(tmp_path: Path) -> None:
    train = write_record_set(tmp_path, "some-train", [[record(0)]])
    check = write_record_set(tmp_path, "some-test", [[record(1)]])
    for first, second in ((check, train), (tmp_path / "some-test.records.*", str(tmp_path / "some-train.records.1"))):
        with pytest.raises(DataError, match=r"^train: expected the file for training.*as if the two were swapped$"):
            small(first, second)
        assert small(second, first).check is not None


def test_a_file_with_the_name_of_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "[a].records.1"
    write_records(path, [record(0)])
    assert len(small(path).train) == 1


def test_records_are_the_images_of_folders(tmp_path: Path) -> None:
    """The same examples, whatever stores them."""
    contents = [picture(n) for n in range(6)]
    folder = image_folder(
        write_folder(tmp_path / "folder", {f"a/{n}.jpg": content for n, content in enumerate(contents)}),
        image_size=SIZE,
        check_fraction=0,
    )
    path = write_record_set(tmp_path, "same", [[record(n) for n in (0, 1)], [], [record(n) for n in (2, 3, 4, 5)]])
    selection = Selection(np.array([5, 0, 2, 1]), np.array([1, 2, 3, 4]), 7)
    found, expected = (np.zeros((4, 3, SIZE, SIZE), np.uint8) for _ in range(2))
    folder.train.write_images(selection, expected)
    data = small(path)
    data.train.write_images(selection, found)
    np.testing.assert_array_equal(found, expected)
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [0, 0, 2, 2, 2, 2]


def test_no_file_stays_open(tmp_path: Path) -> None:
    """Sets have more files than a process may open."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("the open files are not in /proc")
    path = write_files(tmp_path)
    before = len(list(folder.iterdir()))
    data = small(path)
    data.train.write_images(Selection.of(np.arange(22)), np.zeros((22, 3, SIZE, SIZE), np.uint8))
    assert len(list(folder.iterdir())) == before


def test_a_file_that_is_opened_for_each_record(tmp_path: Path) -> None:
    write_files(tmp_path, 1)
    with RecordFile(tmp_path / "many.records.1", keep_open=False) as file:
        assert [item.label for item in file] == [0, 1]
        assert file.labels.tolist() == [0, 1]
    assert file[1].jpeg == picture(1)


@pytest.mark.parametrize("keep_open", [True, False])
def test_a_pickled_file_is_opened_in_the_same_way(tmp_path: Path, keep_open: bool) -> None:
    write_files(tmp_path, 1)
    with RecordFile(tmp_path / "many.records.1", keep_open=keep_open) as file:
        copy = pickle.loads(pickle.dumps(file))
    assert copy[1].jpeg == picture(1)
    copy.close()
    if keep_open:
        with pytest.raises(ValueError, match="the record file is closed"):
            copy[1]
    else:
        assert copy[1].jpeg == picture(1)


@pytest.mark.parametrize("pread", [True, False], ids=["preadv", "without preadv"])
def test_records_are_read_to_given_memory(tmp_path: Path, pread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pread:
        monkeypatch.delattr("os.preadv", raising=False)
        monkeypatch.delattr("os.pread", raising=False)
    boxes = np.array([[0.25, 0, 0.5, 1]], np.float32)
    write_records(tmp_path / "one", [record(0, label=4), record(1, label=7, boxes=boxes)])
    file, scratch = RecordFile(tmp_path / "one"), Scratch()
    memory = scratch.array(20_000)
    for index, label, expected in ((0, 4, []), (1, 7, boxes.tolist())):
        header, content = file.read(index, scratch)
        assert (header.label, header.boxes.tolist(), header.jpeg) == (label, expected, b"")
        assert content.tobytes() == file[index].jpeg == picture(index)
        assert np.shares_memory(content, memory)
    with pytest.raises(IndexError, match="expected a record from 0 to 1"):
        file.read(2, scratch)
    file.close()
    with pytest.raises(ValueError, match="the record file is closed"):
        file.read(0, scratch)


# Bad input


def test_files_that_are_missing(tmp_path: Path) -> None:
    metadata = write_files(tmp_path, 2)
    with pytest.raises(DataError, match=r"nowhere: expected a record file\. Received: No such file"):
        small([tmp_path / "many.records.1", tmp_path / "nowhere"])
    with pytest.raises(DataError, match=r"none\*: expected a pattern of paths of record files\. Received: one that no"):
        small(tmp_path / "none*")
    with pytest.raises(DataError, match=r"^train: expected at least one record\. Received: none in 0 files$"):
        small([])
    (tmp_path / "many.records.2").unlink()
    with pytest.raises(DataError, match=r"many\.metadata: expected the file many\.records\.2"):
        small(metadata)


def test_files_without_records(tmp_path: Path) -> None:
    write_records(tmp_path / "empty", [])
    write_records(tmp_path / "one", [record(0)])
    assert len(small([tmp_path / "empty", tmp_path / "one"]).train) == 1
    with pytest.raises(DataError, match=r"^check: expected at least one record\. Received: none in 1 files$"):
        small(tmp_path / "one", tmp_path / "empty")


def test_metadata_of_other_files(tmp_path: Path) -> None:
    path = write_files(tmp_path, 1)
    path.write_text(path.read_text().replace("labels       : many.records", "labels       : many.labels"))
    with pytest.raises(DataError, match=r"many\.metadata: expected a metadata file of record files, .*batch-aligned"):
        small(path)


def test_a_wrong_number_of_records(tmp_path: Path) -> None:
    path = write_files(tmp_path, 2)
    path.write_text(path.read_text().replace(": 4", ": 5"))
    with pytest.raises(DataError, match=r"many\.metadata: expected 5 records \(elements\) in 2 files\. Received: 4"):
        small(path)


def test_labels_out_of_range(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    write_records(path, [record(0, label=1), record(1, label=4), record(2, label=2)])
    assert small(path).number_of_classes == 5
    assert small(path, number_of_classes=9).number_of_classes == 9
    assert small(path, ignored_label=4).number_of_classes == 3
    with pytest.raises(DataError, match=r"^y_train: expected 0 ≤ label < 4\. Received: 4 \(.*labels: record 1\)$"):
        small(path, number_of_classes=4)
    with path.open("r+b") as file:  # the label of record 0
        file.seek(8)
        file.write(struct.pack("<i", -3))
    with pytest.raises(DataError, match=r"labels: expected a label ≥ 0 in record 0\. Received: -3$"):
        small(path)


@pytest.mark.parametrize(("given", "received"), [(5, "5"), ([5], "5"), ([None], "None"), (b"a", "b'a'")])
def test_what_is_no_path(given: Any, received: str) -> None:
    with pytest.raises(TypeError, match=rf"^train: expected a path, .*\. Received: {received}$"):
        small(given)
