"""`crossbow predict`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from crossbow import cli
from crossbow.ops import EuclideanLoss, InnerProduct
from tests.data.picture_files import picture, write_folder
from tests.dataflow.networks import chain as connected
from tests.dataflow.networks import node
from tests.scripts.saved_models import NAMES, run
from tests.support import blobs, context


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    run(tmp_path)
    return tmp_path


def test_text_and_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An .npy file, and photographs in a folder."""
    write_folder(directory / "photos", {"a.jpg": picture(0), "b/c.png": picture(1, format="PNG")})
    sources = [str(directory / "images.npy"), str(directory / "photos")]
    assert cli.main(["predict", str(directory), *sources, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    files = [f"{sources[0]}[{number}]" for number in range(5)] + [
        f"{sources[1]}/{name}" for name in ("a.jpg", "b/c.png")
    ]
    assert [row["file"] for row in rows] == files
    probabilities = np.load(directory / "predictions.npy")
    for row, expected in zip(rows, probabilities, strict=False):
        # Seven images are divided into other parts than five.
        assert {each["class"]: each["probability"] for each in row["classes"]} == pytest.approx(
            dict(zip(NAMES, expected.tolist(), strict=True)), rel=1e-5
        )
        assert row["classes"] == sorted(row["classes"], key=lambda each: -each["probability"])
    assert cli.main(["predict", str(directory / "model.safetensors"), *sources, "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    best = int(probabilities[0].argmax())
    assert lines[0] == f"{files[0]}  {NAMES[best]} {probabilities[0, best]:.1%}"


def test_the_other_files_are_predicted(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(directory / "photos", {"a.jpg": picture(0), "b.jpg": picture(1), "c.jpg": picture(2)})
    (directory / "photos" / "b.jpg").write_bytes(b"bad")
    (directory / "empty").mkdir()
    sources = [str(directory / name) for name in ("photos", "bad.tif", "empty", "images.npy")]
    bad = [f"{sources[0]}/b.jpg", *sources[1:3]]
    assert cli.main(["predict", str(directory), *sources]) == 2
    printed = capsys.readouterr()
    good = [f"{sources[0]}/a.jpg", f"{sources[0]}/c.jpg", *(f"{sources[3]}[{number}]" for number in range(5))]
    assert [line.split("  ")[0] for line in printed.out.splitlines()] == good
    assert [line.split(": ")[2] for line in printed.err.splitlines()] == bad
    assert cli.main(["predict", str(directory), *sources, "--json"]) == 2
    assert [row["file"] for row in json.loads(capsys.readouterr().out)] == good


def test_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without probabilities, the output itself."""
    from crossbow import Dataflow, Dataset, SubGraph

    points = blobs().train.images
    head = connected(node("ip", InnerProduct(number_of_outputs=2)), node("loss", EuclideanLoss()))
    with context(Dataflow(SubGraph(head)), data=Dataset((points, points[:, :2]))) as running:
        running.save(tmp_path / "m")
        expected = running.predict(points[:3])
    np.save(tmp_path / "x.npy", points[:3])
    arguments = ["predict", str(tmp_path / "m"), str(tmp_path / "x.npy")]
    assert cli.main([*arguments, "--json"]) == 0
    assert [row["output"] for row in json.loads(capsys.readouterr().out)] == expected.tolist()
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/x.npy[0]  [")


@pytest.mark.parametrize(
    ("model", "file", "expected"),
    [
        ("none", "images.npy", "none: expected a saved model. Received: no such file"),
        ("images.npy", "images.npy", "images.npy: expected a saved model"),
        ("photos", "images.npy", "expected the directory of a run, with best.safetensors or model.safetensors"),
        (".", "none.png", "none.png: expected a readable image file"),
        (".", "model.safetensors", "model.safetensors: expected an image file"),
        (".", "predictions.npy", "predictions.npy: expected an array (N, 3, 8, 8) of uint8. Received: (5, 3)"),
    ],
)
def test_bad_input(directory: Path, model: str, file: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "photos").mkdir()
    assert cli.main(["predict", str(directory / model), str(directory / file), "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert printed.err.startswith("crossbow: error: ")
    assert printed.err.count("\n") == 1


def test_a_device_that_is_not_there(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", str(directory), str(directory / "images.npy"), "--device", "cuda:99"]) == 2
    assert "crossbow: error: " in capsys.readouterr().err
