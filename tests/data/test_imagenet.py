"""TFRecord files to record files: the same bytes whether or not the conversion was stopped in between."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crossbow.data import RecordFile, imagenet
from crossbow.data.batch_metadata import read_metadata
from crossbow.data.imagenet import convert_imagenet, record_of
from crossbow.data.images import JPEG
from crossbow.data.inspection import inspect, open_record_files
from crossbow.data.records import write_records
from crossbow.data.tfrecords import Feature
from crossbow.types import DataError
from tests.data.test_records import file_bytes, record_bytes
from tests.data.test_tfrecords import example, frame

PER_FILE = 4


def image(number: int) -> bytes:
    return JPEG + b" image %d" % number


def features(number: int) -> dict[str, Feature]:
    """Of image `number`, with number mod 3 boxes."""
    boxes = number % 3
    sides = {side: [(place + k + 1) / 16 for k in range(boxes)] for place, side in enumerate(imagenet.BOX_SIDES)}
    return {
        "image/height": [100 + number],
        "image/width": [200 + number],
        "image/colorspace": [b"RGB"],
        "image/class/label": [1 + number * 7 % 1000],
        "image/class/text": [b"a name"],
        **{f"image/object/bbox/{side}": values for side, values in sides.items() if values},
        "image/encoded": [image(number)],
    }


def expected_record(number: int) -> bytes:
    boxes = [tuple((place + k + 1) / 16 for place in range(4)) for k in range(number % 3)]
    return record_bytes(number * 7 % 1000, boxes, 100 + number, 200 + number, image(number))


def write_tfrecords(directory: Path, subset: str, counts: list[int]) -> Path:
    directory.mkdir(exist_ok=True, parents=True)
    number = 0
    for file, count in enumerate(counts):
        frames = (frame(example(features(number + n))) for n in range(count))
        (directory / f"{subset}-{file:05}-of-{len(counts):05}").write_bytes(b"".join(frames))
        number += count
    return directory


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eleven images in four files: three files of records."""
    monkeypatch.setattr(imagenet, "RECORDS_PER_FILE", PER_FILE)
    return write_tfrecords(tmp_path / "tfrecords", "train", [5, 1, 0, 5])


STATE = ".crossbow-train.conversion.json"
METADATA = """\
# Metadata file
#
examples     : {0}/crossbow-train.records
labels       : {0}/crossbow-train.records
partitions   : 3
elements     : 11
batch size   : 1
example shape: [3, 224, 224]
label shape  : [1]
example type : float
label type   : int
example pad  : 0
label pad    : 0
# EOF
"""


def check_output(output: Path) -> None:
    """Exactly these files with exactly these bytes."""
    names = [f"crossbow-train.records.{number}" for number in (1, 2, 3)]
    assert sorted(os.listdir(output)) == [STATE, *names, "imagenet-train.metadata"]
    for file, name in enumerate(names):
        numbers = range(11)[file * PER_FILE : (file + 1) * PER_FILE]
        assert (output / name).read_bytes() == file_bytes(*map(expected_record, numbers))
    assert (output / "imagenet-train.metadata").read_text() == METADATA.format(output)


def test_conversion(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "output"
    assert convert_imagenet(source, output) == [output / "imagenet-train.metadata"]
    check_output(output)
    assert convert_imagenet(source, output, "train") == [output / "imagenet-train.metadata"]
    check_output(output)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "train images" in printed.err


def test_both_subsets_in_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "RECORDS_PER_FILE", PER_FILE)
    write_tfrecords(tmp_path / "in" / "train", "train", [5, 1, 0, 5])
    write_tfrecords(tmp_path / "in" / "validation", "validation", [2])
    paths = convert_imagenet(tmp_path / "in", tmp_path / "out")
    assert [path.name for path in paths] == ["imagenet-train.metadata", "imagenet-test.metadata"]
    metadata = read_metadata(paths[1])
    assert metadata.examples == str(tmp_path / "out" / "crossbow-validation.records")
    assert (metadata.partitions, metadata.elements, metadata.fill) == (1, 2, None)
    assert [len(file) for file in open_record_files(paths[0], read_metadata(paths[0]))] == [4, 4, 3]
    assert inspect(paths[0])["records"] == 11
    assert inspect(paths[0])["boxes"] == {"least": 0, "most": 2}


class Stopped(BaseException):
    pass


@pytest.mark.parametrize("stop", range(11))
def test_stopped_at_any_record_and_started_again(
    source: Path, tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "output"
    converted: list[int] = []

    def stopping(parsed: Any, where: str) -> Any:
        converted.append(0)
        if len(converted) == stop + 1:
            raise Stopped
        return record_of(parsed, where)

    with monkeypatch.context() as patch:
        patch.setattr(imagenet, "record_of", stopping)
        with pytest.raises(Stopped):
            convert_imagenet(source, output)
    assert not (output / "imagenet-train.metadata").exists()
    for path in output.glob("crossbow-*"):
        assert len(RecordFile(path)) == PER_FILE
    converted.clear()
    (output / "crossbow-train.records.9").write_bytes(b"of a conversion of more files")
    (output / "crossbow-train.records.copy").write_bytes(b"nobody else's")
    monkeypatch.setattr(imagenet, "record_of", lambda *args: converted.append(0) or record_of(*args))
    convert_imagenet(source, output)
    (output / "crossbow-train.records.copy").unlink()
    check_output(output)
    finished = max(0, stop - 1) // PER_FILE * PER_FILE  # a file is finished when the next record was looked at
    assert len(converted) == 11 - finished


def stated(directory: Path) -> dict[str, tuple[int, int]]:
    """The files, and what changes when one is written."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in directory.iterdir()}


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """File and number of each record that is converted."""
    found: list[str] = []
    monkeypatch.setattr(imagenet, "record_of", lambda parsed, where: found.append(where) or record_of(parsed, where))
    return found


def test_what_is_finished_stays(source: Path, tmp_path: Path, converted: list[str]) -> None:
    output = tmp_path / "output"
    convert_imagenet(source, output)
    before = stated(output)
    converted.clear()
    assert convert_imagenet(source, output) == [output / "imagenet-train.metadata"]
    assert converted == []
    assert stated(output) == before
    (output / "imagenet-train.metadata").unlink()
    convert_imagenet(source, output)
    assert converted == []
    check_output(output)


def test_an_interruption_in_the_second_subset_leaves_the_first(
    source: Path, tmp_path: Path, converted: list[str]
) -> None:
    output = tmp_path / "output"
    write_tfrecords(source, "validation", [5, 2])
    intact = (source / "validation-00001-of-00002").read_bytes()
    (source / "validation-00001-of-00002").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"validation-00001-of-00002: expected"):
        convert_imagenet(source, output)
    before = stated(output)
    (source / "validation-00001-of-00002").write_bytes(intact)
    converted.clear()
    paths = convert_imagenet(source, output)
    assert [path.name for path in paths] == ["imagenet-train.metadata", "imagenet-test.metadata"]
    assert [Path(where.partition(":")[0]).name for where in converted] == [
        *["validation-00000-of-00002"] * 5,  # from the beginning, because a file of this subset has changed
        *["validation-00001-of-00002"] * 2,
    ]
    assert {name: state for name, state in stated(output).items() if "train" in name} == {
        name: state for name, state in before.items() if "train" in name
    }


@pytest.mark.parametrize("change", ["a byte more", "a later time", "another name", "records per file"])
def test_what_is_finished_is_converted_again_if_it_was_made_of_other_files(
    source: Path, tmp_path: Path, converted: list[str], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "output"
    last, count = source / "train-00003-of-00004", 11
    if change == "records per file":  # one file of fewer records than it could hold
        monkeypatch.setattr(imagenet, "RECORDS_PER_FILE", 12)
    convert_imagenet(source, output)
    (output / "crossbow-train.records.4").write_bytes(b"of a conversion of more files")
    if change == "a byte more":
        status = last.stat()
        last.write_bytes(last.read_bytes() + frame(example(features(11))))
        os.utime(last, ns=(status.st_atime_ns, status.st_mtime_ns))
        count = 12
    elif change == "a later time":
        os.utime(last, (1, 1))
    elif change == "another name":
        for path in source.iterdir():
            path.rename(source / f"{path.name[:-5]}00005")
        (source / "train-00004-of-00005").write_bytes(b"")
    else:
        monkeypatch.setattr(imagenet, "RECORDS_PER_FILE", PER_FILE)
    converted.clear()
    (path,) = convert_imagenet(source, output)
    assert len(converted) == count
    assert [len(file) for file in open_record_files(path, read_metadata(path))] == [4, 4, count - 8]
    if count == 11:
        check_output(output)


def test_finished_files_that_were_moved_get_metadata_of_their_place(
    source: Path, tmp_path: Path, converted: list[str]
) -> None:
    convert_imagenet(source, tmp_path / "older")
    (tmp_path / "older").rename(tmp_path / "output")
    converted.clear()
    convert_imagenet(source, tmp_path / "output")
    assert converted == []
    check_output(tmp_path / "output")


CHILD = """
import os, signal, sys
from crossbow.data import imagenet
imagenet.RECORDS_PER_FILE = 4
write, done = imagenet.write_records, []

def write_records(path, records):
    def dying():
        for number, record in enumerate(records):
            if len(done) == 1 and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield record
    write(path, dying())
    done.append(path)

imagenet.write_records = write_records
imagenet.convert_imagenet(*sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX's")
def test_killed_and_started_again(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    done = subprocess.run([sys.executable, "-c", CHILD, str(source), str(output)], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    visible = [name for name in os.listdir(output) if not name.startswith(".")]
    assert visible == ["crossbow-train.records.1"]
    assert any(name.endswith(".partial") for name in os.listdir(output))
    convert_imagenet(source, output)
    check_output(output)


@pytest.mark.parametrize(
    "change", ["the input", "an output", "an output's bytes", "an output's length", "the state", "a foreign state"]
)
def test_what_has_changed_is_converted_again(source: Path, tmp_path: Path, change: str) -> None:
    output = tmp_path / "output"
    older = write_tfrecords(tmp_path / "older", "train", [9, 9])
    (older / "train-00001-of-00002").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"train-00001-of-00002: expected"):
        convert_imagenet(older, output)
    assert (output / "crossbow-train.records.2").exists()
    state = output / STATE
    if change == "an output":
        (output / "crossbow-train.records.1").unlink()
    elif change == "an output's bytes":
        (output / "crossbow-train.records.2").write_bytes(b"damaged")
    elif change == "an output's length":
        (output / "crossbow-train.records.2").write_bytes(file_bytes(expected_record(4)))
    elif change == "the state":
        state.write_bytes(b"{")
    elif change == "a foreign state":
        state.write_bytes(b'{"version": 2}')
    (output / "crossbow-train.records.77").write_bytes(b"older")
    if change.startswith("an output's"):
        with pytest.raises(DataError, match=r"train-00001-of-00002: expected"):
            convert_imagenet(older, output)
        assert len(RecordFile(output / "crossbow-train.records.2")) == PER_FILE
    convert_imagenet(source, output)
    check_output(output)


def test_files_of_other_inputs_are_written_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion of others ends when their first file is complete, before that is noted."""
    output, converted = tmp_path / "output", list[str]()
    older = write_tfrecords(tmp_path / "older", "train", [9, 9])
    (older / "train-00001-of-00002").write_bytes(b"damaged")

    def stopping(path: Path, records: Any) -> None:
        write_records(path, records)
        raise Stopped

    monkeypatch.setattr(
        imagenet, "record_of", lambda parsed, where: converted.append(where) or record_of(parsed, where)
    )
    for given, error in ((older, DataError), (source, Stopped), (older, DataError)):
        converted.clear()
        with monkeypatch.context() as patch:
            if given is source:
                patch.setattr(imagenet, "write_records", stopping)
            with pytest.raises(error):
                convert_imagenet(given, output)
    assert len(converted) == 9


# Bad input


def test_directories_without_the_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"TFRecord files named train-00000-of-… or validation.*Received: none"):
        convert_imagenet(tmp_path, tmp_path / "output")
    with pytest.raises(DataError, match=r"nowhere: expected a directory of TFRecord files"):
        convert_imagenet(tmp_path / "nowhere", tmp_path / "output")
    for subset in ("test", ["train"]):
        with pytest.raises(
            DataError, match=rf"^subset: expected train or validation\. Received: {re.escape(repr(subset))}$"
        ):
            convert_imagenet(tmp_path, tmp_path / "output", subset)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_an_output_that_metadata_cannot_name_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, converted: list[str]
) -> None:
    for name in ("a:b", "a\udcff"):
        with pytest.raises(DataError, match=r"^output: expected a path without colons.*Received: '.*train\.records'$"):
            convert_imagenet(source, tmp_path / name)
    assert converted == []
    assert [path.name for path in tmp_path.iterdir()] == ["tfrecords"]


def test_a_file_that_is_missing_or_of_another_set(source: Path, tmp_path: Path) -> None:
    shutil.copy(source / "train-00000-of-00004", source / "train-00000-of-00005")
    with pytest.raises(DataError, match=r"files train-\*-of-0000[45]\. Received: 5, where .* is missing or of another"):
        convert_imagenet(source, tmp_path / "output")
    (source / "train-00000-of-00005").unlink()
    (source / "train-00002-of-00004").unlink()
    with pytest.raises(
        DataError, match=r"expected 4 files train-\*-of-00004\. Received: 3, where train-00002-of-00004"
    ):
        convert_imagenet(source, tmp_path / "output")


def test_a_total_of_any_size_is_compared_with_what_was_found(tmp_path: Path) -> None:
    total = "99999999999"
    (tmp_path / f"train-00000000000-of-{total}").write_bytes(b"")
    with pytest.raises(
        DataError,
        match=rf"expected 99,999,999,999 files train-\*-of-{total}\. "
        rf"Received: 1, where train-00000000001-of-{total} is missing",
    ):
        convert_imagenet(tmp_path, tmp_path / "output")


def test_files_without_records(tmp_path: Path) -> None:
    write_tfrecords(tmp_path / "in", "train", [0, 0])
    with pytest.raises(DataError, match=r"expected from 1 to 2,147,483,647 records\. Received: 0"):
        convert_imagenet(tmp_path / "in", tmp_path / "out")


def changed(**new: Feature | None) -> Iterator[dict[str, Feature]]:
    given = features(2) | {
        "image/" + name.replace("__", "/"): values for name, values in new.items() if values is not None
    }
    for name, values in new.items():
        if values is None:
            del given["image/" + name.replace("__", "/")]
    yield given


WRONG = {
    "no label": (changed(class__label=None), "one int of image/class/label. Received: 0 values"),
    "the background": (changed(class__label=[0]), "image/class/label from 1 to 1,000. Received: 0"),
    "a class too many": (changed(class__label=[1001]), "image/class/label from 1 to 1,000. Received: 1001"),
    "an enormous label": (changed(class__label=[5 * 10**9]), "from 1 to 1,000. Received: 5000000000"),
    "two labels": (changed(class__label=[1, 2]), "one int of image/class/label. Received: 2 values"),
    "a label of text": (changed(class__label=[b"1"]), "one int of image/class/label. Received: 1 values"),
    "no image": (changed(encoded=None), "one bytes of image/encoded. Received: 0 values"),
    "an empty image": (changed(encoded=[b""]), "image file as image/encoded. Received: 0 bytes beginning with none"),
    "a text": (changed(encoded=[b"hello"]), "image file as image/encoded. Received: 5 bytes beginning with 68 65 6c"),
    "no height": (changed(height=None), "one int of image/height"),
    "a height of 0": (changed(height=[0]), "height from 1 to 2147483647 pixels. Received: 0"),
    "a width too large": (changed(width=[2**31]), "width from 1 to 2147483647 pixels. Received: 2147483648"),
    "one side too few": (changed(object__bbox__xmin=[0.5]), "as many numbers.*Received: [1, 2, 2, 2]"),
    "a side of integers": (changed(object__bbox__xmin=[0, 1]), "numbers of image/object/bbox/xmin"),
    "a side of NaN": (changed(object__bbox__xmin=[0.5, math.nan]), "finite coordinates of boxes. Received: nan"),
}


@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG)
def test_wrong_features_are_named(given: Iterator[dict[str, Feature]], message: str) -> None:
    with pytest.raises(DataError) as caught:
        record_of(next(given), "file: record 3")
    first, _, second = message.partition(".*")
    assert str(caught.value).startswith("file: record 3: expected ")
    assert first in str(caught.value)
    assert second in str(caught.value)


@pytest.mark.parametrize("start", [b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBP", b"BM" + bytes(8)])
def test_images_that_are_no_jpeg_files(start: bytes) -> None:
    """ImageNet has a PNG file under the name of a JPEG file."""
    assert record_of(next(changed(encoded=[start + b" image"])), "file: record 3").jpeg == start + b" image"


def test_a_wrong_value_is_reported_with_its_tfrecord_file(tmp_path: Path) -> None:
    given = [features(0), features(1) | {"image/height": [0]}]
    (tmp_path / "train-00000-of-00001").write_bytes(b"".join(frame(example(one)) for one in given))
    with pytest.raises(DataError, match=r"train-00000-of-00001: record 1: expected a height from 1"):
        convert_imagenet(tmp_path, tmp_path / "out")
    assert not list((tmp_path / "out").glob("crossbow*"))
