"""Image folders as record files: the same images, labels and classes."""

from __future__ import annotations

import errno
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from crossbow.data import RecordFile, folder_records, image_folder, records
from crossbow.data.examples import Examples
from crossbow.data.folder_records import STAGING, convert_image_folder
from crossbow.types import DataError
from tests.data.picture_files import picture, write_folder
from tests.data.small_sets import read

PER_FILE = 8


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_records, "RECORDS_PER_FILE", PER_FILE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {f"{name}/{number}.jpg": picture(number, 20 + number, 30) for name in "abc" for number in range(10)}
    return write_folder(tmp_path / "images", {**files, "b/flat.png": picture(99, 9, 11, format="PNG")})


def record_files(paths: list[Path]) -> list[list[RecordFile]]:
    return [[RecordFile(each) for each in sorted(path.parent.glob(f"{path.stem}.records.*"))] for path in paths]


def test_every_image_is_in_one_record(folder: Path, tmp_path: Path) -> None:
    paths = convert_image_folder(folder, tmp_path / "out", check_fraction=0.2)
    assert [path.name for path in paths] == ["images-train.metadata", "images-test.metadata"]
    train, check = record_files(paths)
    assert [len(file) for file in train] == [8, 8, 8, 1]
    assert [len(file) for file in check] == [6]
    found = Counter((record.label, record.jpeg) for file in (*train, *check) for record in file)
    assert found == Counter(("abc".index(path.parent.name), path.read_bytes()) for path in folder.glob("*/*"))
    sizes = {(record.height, record.width) for file in (*train, *check) for record in file}
    assert sizes == {(9, 11), *((20 + number, 30) for number in range(10))}
    assert all(len(set(file.labels)) > 1 for file in train[:3]), "the classes are mixed"


def test_the_data_set_is_that_of_the_folder(folder: Path, tmp_path: Path) -> None:
    expected = image_folder(folder, image_size=8, check_fraction=0.2)
    data = records(*convert_image_folder(folder, tmp_path / "out", check_fraction=0.2), image_size=8)
    assert data.class_names == expected.class_names == ("a", "b", "c")
    assert isinstance(data.check, Examples)
    assert isinstance(expected.check, Examples)
    np.testing.assert_array_equal(data.check.labels, expected.check.labels)
    np.testing.assert_array_equal(read(data.check), read(expected.check))
    assert len(data.train) == len(expected.train)


def test_a_conversion_is_repeatable_and_replaces_an_older_one(folder: Path, tmp_path: Path) -> None:
    def content(directory: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in directory.glob("*.records.*")}

    train, check = convert_image_folder(folder, tmp_path / "one")
    convert_image_folder(folder, tmp_path / "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")
    other = tmp_path / "one" / "notes.txt"
    other.write_text("kept")
    for path in (*sorted(folder.glob("b/*"))[1:], *sorted(folder.glob("c/*"))[1:]):
        path.unlink()
    (only,) = convert_image_folder(folder, tmp_path / "one", check_fraction=0)
    assert only == train
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [
        *("images-train.classes", "images-train.metadata", "images-train.records.1", "images-train.records.2"),
        "notes.txt",
    ]
    assert not check.exists()


def test_an_image_that_cannot_be_decoded(folder: Path, tmp_path: Path) -> None:
    bad = folder / "a" / "4.jpg"
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(DataError, match=f"^{re.escape(str(bad))}: expected an intact JPEG file. Received: "):
        convert_image_folder(folder, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.metadata"))
    left_out: list[DataError] = []
    paths = convert_image_folder(folder, tmp_path / "out", on_bad_image=left_out.append)
    (error,) = left_out
    assert str(error).startswith(f"{bad}: ")
    assert sum(len(file) for files in record_files(paths) for file in files) == 30
    assert records(*paths).class_names == ("a", "b", "c")


def test_an_error_leaves_an_older_data_set_as_it_was(folder: Path, tmp_path: Path) -> None:
    convert_image_folder(folder, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    check = image_folder(folder).check
    assert check is not None
    last = Path(check.source(len(check) - 1))  # all other images have been written before
    last.write_bytes(b"")
    with pytest.raises(DataError, match=re.escape(str(last))):
        convert_image_folder(folder, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_new_files_are_kept_if_they_cannot_replace_older_ones(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, staging = tmp_path / "out", tmp_path / "out" / STAGING
    convert_image_folder(folder, out)
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if self.name == "images-train.records.1":
            raise OSError(errno.EACCES, "it is open elsewhere")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(DataError, match=f"^{re.escape(str(out))}: expected to replace its files by those in "):
        convert_image_folder(folder, out)
    assert not list(out.glob("*.metadata"))  # nothing looks complete
    assert {path.name for path in staging.iterdir()} >= {"images-train.records.1", "images-train.metadata"}
    monkeypatch.undo()
    monkeypatch.setattr(folder_records, "RECORDS_PER_FILE", PER_FILE)
    assert all(path.is_file() for path in convert_image_folder(folder, out))
    assert not staging.exists()


def test_what_a_killed_conversion_has_left_is_removed(folder: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "out" / STAGING
    hidden.mkdir(parents=True)
    (hidden / "images-train.records.9").write_bytes(b"older")
    convert_image_folder(folder, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert hidden.name not in names
    assert "images-train.records.9" not in names


def test_a_data_set_of_other_classes_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    convert_image_folder(folder, tmp_path / "out")
    (folder / "c").rename(folder / "d")
    with pytest.raises(DataError, match=r"images-train\.metadata: expected no data set, or one with the same classes"):
        convert_image_folder(folder, tmp_path / "out")
    assert records(tmp_path / "out" / "images-train.metadata").class_names == ("a", "b", "c")


def test_at_least_one_image_can_be_decoded(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", {"a/1.jpg": b"none"})
    with pytest.raises(DataError, match=r"expected at least one image that can be decoded\. Received: none"):
        convert_image_folder(folder, tmp_path / "out", check_fraction=0, on_bad_image=lambda error: None)


def test_the_output_is_not_in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for output in (".", "records", folder / "a"):
        with pytest.raises(DataError, match=f"^output: expected a directory outside of {re.escape(str(folder))}. "):
            convert_image_folder(folder, output)
    assert len(list(folder.iterdir())) == 3
    with pytest.raises(DataError, match="null"):
        convert_image_folder(folder, "a\0b")
    (folder.parent / "loop").symlink_to("loop")
    with pytest.raises(DataError, match="loop: expected a directory with a folder for each class"):
        convert_image_folder(folder.parent / "loop", folder.parent / "out")


def test_a_relative_path_stays_one(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train, _ = convert_image_folder("images", "out")
    assert train == Path("out/images-train.metadata")
    assert "examples     : out/images-train.records\n" in train.read_text()
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert len(records("elsewhere/images-train.metadata").train) > 0


def test_classes_of_another_number_have_no_names(folder: Path, tmp_path: Path) -> None:
    train, check = convert_image_folder(folder, tmp_path / "out")
    data = records(train, check, number_of_classes=7)
    assert (data.number_of_classes, data.class_names) == (7, None)
    assert records(f"{train.with_suffix('')}.records.*").class_names is None
    assert records(train, check, number_of_classes=3, ignored_label=2).class_names == ("a", "b", "c")
    train.with_suffix(".classes").write_text("a\nb\n")
    assert (records(train).number_of_classes, records(train).class_names) == (3, None)
    train.with_suffix(".classes").write_text("a\nb\nc\nd\n")
    assert (records(train).number_of_classes, records(train).class_names) == (4, ("a", "b", "c", "d"))
    train.with_suffix(".classes").unlink()
    assert records(train, check).class_names is None
