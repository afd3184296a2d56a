"""`crossbow data`: encode, rebatch, inspect, verify, imagenet, records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from crossbow import cli
from crossbow.data import BatchFiles, Dataset, Record, RecordFile, imagenet, write_records
from crossbow.data.encoding import Encoding, encode
from tests.data.picture_files import picture, write_folder
from tests.data.test_imagenet import write_tfrecords
from tests.data.test_images import encoded
from tests.data.test_mnist import small_files, write


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert cli.main(["data", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def fails(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[str, str]:
    """What is printed on standard output and on standard error."""
    assert cli.main(["data", *map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return printed.out, printed.err


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    return write(tmp_path / "mnist", small_files())


def test_encode_rebatch_inspect_verify(mnist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    printed = run(capsys, "encode", "mnist", "--data-directory", mnist, "--output", out, "--batch-size", "8")
    assert printed.splitlines() == [f"{out}/mnist-train.metadata", f"{out}/mnist-test.metadata"]
    size = ("--partition-size", "16384")
    again = run(
        capsys, "rebatch", f"{out}/mnist-train.metadata", "--output", tmp_path / "re", "--batch-size", "5", *size
    )
    files = BatchFiles(again.strip())
    assert (len(files), files.metadata.partitions, files.metadata.batch_size) == (12, 3, 5)
    summary = json.loads(run(capsys, "inspect", again.strip(), "--json"))
    assert summary["file"] == again.strip()
    assert (summary["elements"], summary["fill"], summary["examples without fill"]) == (15, 3, 12)
    assert summary["example shape"] == [1, 28, 28]
    text = run(capsys, "inspect", again.strip())
    assert "example shape          1 × 28 × 28\n" in text
    assert "examples without fill  12\n" in text
    assert run(capsys, "verify", again.strip()) == f"{again.strip()}: intact\n"


def test_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, none = tmp_path / "records", np.zeros((0, 4), np.float32)
    image = encoded()
    write_records(path, [Record(3, none, 13, 21, image), Record(5, np.ones((2, 4)), 13, 21, image)])
    summary = json.loads(run(capsys, "inspect", "--json", path))
    assert summary == {
        "file": str(path),
        "format": "records",
        "bytes": path.stat().st_size,
        "records": 2,
        "different labels": 2,
        "label": {"least": 3, "most": 5},
        "boxes": {"least": 0, "most": 2},
        "height": {"least": 13, "most": 13},
        "width": {"least": 21, "most": 21},
        "bytes of an image": {"least": len(image), "most": len(image)},
    }
    assert "boxes              from 0 to 2\n" in run(capsys, "inspect", path)
    assert run(capsys, "verify", path) == f"{path}: intact\n"
    write_records(path, [])
    assert json.loads(run(capsys, "inspect", "--json", path))["records"] == 0


def test_verify_lists_every_bad_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, none = tmp_path / "records", np.zeros((0, 4), np.float32)
    records = [Record(0, none, 13, 21, encoded()), Record(0, none, 13, 22, encoded()), Record(0, none, 1, 1, b"text")]
    write_records(path, records + [Record(0, none, 13, 21, encoded()[:-50])] * 30)
    out, err = fails(capsys, "verify", path)
    lines = out.splitlines()
    assert len(lines) == 20
    assert lines[0] == f"{path}: record 1: expected an image of 13 × 22 pixels. Received: 13 × 21"
    assert lines[1].startswith(f"{path}: record 2: expected an image file, JPEG")
    assert "truncated" in lines[2]
    assert f"{path}: expected no errors. Received: 32 errors" in err
    write_records(path, records[:2])
    assert f"{path}: expected no errors. Received: 1 error\n" in fails(capsys, "verify", path)[1]


def test_verify_prints_what_labels_to_ignore_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Dataset((np.zeros((4, 2), np.float32), np.array([0, -1, 1, -1])), ignored_label=-1)
    (path,) = encode(data, Encoding("some"), tmp_path, 2)
    note = f"{path}: 2 of 4 examples have the label -1, which needs ignored_label=-1 in batch_files"
    assert run(capsys, "verify", path) == f"{note}\n{path}: intact\n"


def test_imagenet(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "RECORDS_PER_FILE", 4)
    source = write_tfrecords(tmp_path / "in", "validation", [5, 1])
    out = run(capsys, "imagenet", "--tfrecords", source, "--output", tmp_path / "out", "--subset", "validation")
    assert out == f"{tmp_path}/out/imagenet-test.metadata\n"
    assert len(RecordFile(tmp_path / "out" / "crossbow-validation.records.2")) == 2
    assert json.loads(run(capsys, "inspect", "--json", out.strip()))["records"] == 6
    os.unlink(tmp_path / "out" / "crossbow-validation.records.2")
    assert "crossbow-validation.records.2" in fails(capsys, "inspect", out.strip())[1]
    write_records(tmp_path / "out" / "crossbow-validation.records.2", [])
    assert "expected 6 records (elements) in 2 files. Received: 4" in fails(capsys, "verify", out.strip())[1]


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for command in ("inspect", "verify"):
        assert "Received: an empty file" in fails(capsys, command, tmp_path / "empty")[1]
        assert "Received: No such file" in fails(capsys, command, tmp_path / "nowhere")[1]
        assert "Received: a directory" in fails(capsys, command, tmp_path)[1]


def test_options_that_make_no_sense(tmp_path: Path, mnist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def encode(dataset: str, *options: str | Path) -> str:
        return fails(capsys, "encode", dataset, "--output", tmp_path / "out", "--batch-size", "8", *options)[1]

    assert "--data-directory does nothing with digits" in encode("digits", "--data-directory", tmp_path)
    message = encode("mnist", "--data-directory", mnist, "--partition-size", "100")
    assert "expected a partition size of at least one batch, 28,672 bytes" in message
    assert not (tmp_path / "out" / "mnist-train.metadata").exists()
    for options in (
        ["--batch-size", "0"],
        ["--batch-size", "2147483648"],
        ["--batch-size", "8", "--partition-size", "0"],
    ):
        with pytest.raises(SystemExit):
            cli.main(["data", "encode", "mnist", "--output", "out", *options])
        assert "Received: " in capsys.readouterr().err


def test_image_folders_become_record_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {f"{name}/{number}.jpg": picture(number) for name in ("cat", "dog") for number in range(4)}
    folder, out = write_folder(tmp_path / "images", {**files, "dog/bad.jpg": b"none"}), tmp_path / "out"
    given = ("records", folder, "--output", out, "--check-fraction", "0.25")
    _, error = fails(capsys, *given)
    assert not list(out.glob("*.metadata"))
    assert f"{folder}/dog/bad.jpg: expected an image file" in error
    lines = run(capsys, *given, "--on-bad-record", "skip").splitlines()
    assert lines[0].startswith(f"left out: {folder}/dog/bad.jpg: expected an image file")
    assert lines[1:] == [f"{out}/images-train.metadata", f"{out}/images-test.metadata"]
    assert run(capsys, "verify", out / "images-train.metadata") == f"{out}/images-train.metadata: intact\n"
