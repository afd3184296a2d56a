"""The benchmark of decoding and preprocessing: what it runs, and what it makes of the turns."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks import input as benchmark
from benchmarks.input_files import HEIGHT, WIDTH, made_photographs, photographs
from benchmarks.input_runners import FASTEST, PRESET, CrossbowRunner, Turn
from crossbow.data import decode_image, sequence
from crossbow.types import DataError

pytest.importorskip("simplejpeg", reason="simplejpeg, of the extra zoo, is not installed")
MISSING = [name for name in ("torch", "torchvision") if importlib.util.find_spec(name) is None]
SMALL = ["--images", "6", "--batch", "2", "--size", "16", "--rounds", "1", "--seconds", "0.02"]


def cells(text: str) -> list[list[str]]:
    """The cells of all rows of tables that begin with a pipeline."""
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines()]
    return [row for row in rows if row[0].startswith(("Crossbow", "PyTorch"))]


@pytest.mark.slow
def test_crossbow_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(benchmark, "has_torch", lambda: False)
    assert benchmark.main(SMALL) == 0
    out = capsys.readouterr().out
    assert "6 JPEG files made, " in out
    found = cells(out)
    assert [row[:2] for row in found] == [
        *(["Crossbow, folders", "1"], ["Crossbow, folders", "2"]),
        *(["Crossbow, records", "1"], ["Crossbow, records", "2"]),
        ["Crossbow, folders, 2", "Crossbow, folders, 1"],
        ["Crossbow, records, 2", "Crossbow, records, 1"],
    ]
    assert all(float(row[3]) > 0 for row in found[:4])


@pytest.mark.slow  # torchvision takes seconds to import, and its workers to start
@pytest.mark.skipif(bool(MISSING), reason=f"not installed, of torch and torchvision: {', '.join(MISSING)}")
def test_beside_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, content in enumerate(made_photographs(3)):
        (tmp_path / f"{number}.JPG").write_bytes(content)
    assert benchmark.main([*SMALL, "--directory", str(tmp_path)]) == 0
    found = cells(capsys.readouterr().out)
    assert len(found) == 8 + 6
    assert {row[0] for row in found[:4]} == {f"PyTorch, {PRESET}", f"PyTorch, {FASTEST}"}
    assert [row[4] for row in found[8:]] == ["2.5", "1.8", "1.8"] * 2


def test_ratios_are_computed_round_by_round() -> None:
    turns = {(pipeline, threads): [Turn(100, 1.0, 1.0)] * 3 for pipeline in benchmark.TORCH for threads in (1, 2)}
    for pipeline in (benchmark.FOLDERS, benchmark.RECORDS):
        turns[pipeline, 1] = [Turn(200, 1.0, 1.0), Turn(100, 1.0, 1.0), Turn(400, 2.0, 2.0)]
        turns[pipeline, 2] = [Turn(300, 1.0, 1.5), Turn(400, 1.0, 0.8), Turn(500, 1.0, 1.0)]
    first, _, third = benchmark.ratios(turns)[:3]
    assert first[2:] == ("4.00 (3.00–5.00)", "5.00 (2.00–5.00)", "2.5")
    assert third[1:] == ("Crossbow, folders, 1", "2.50 (1.50–4.00)", "2.50 (1.00–5.00)", "1.8")


@pytest.mark.slow
def test_a_runner_loads_the_training_order() -> None:
    data = sequence([(np.full((1, 6, 6), n, np.uint8), n) for n in range(10)])
    runner = CrossbowRunner(data.train, batch=5, threads=2)
    try:
        turns = [runner.run(0.01) for _ in range(2)]
    finally:
        runner.close()
    assert all(turn.images % 5 == 0 and turn.images > 0 and turn.seconds >= 0.01 for turn in turns)
    images, labels = runner._loader.images, runner._loader.labels
    assert images.shape[:2] == labels.shape == (4, 5)
    assert (images[:, :, 0, 0, 0] == labels).all()


def test_made_photographs_have_the_size_of_photographs() -> None:
    (content,) = made_photographs(1)
    assert decode_image(content).shape == (3, HEIGHT, WIDTH)
    assert 50_000 < len(content) < 100_000


def test_a_directory_without_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="expected a directory with JPEG files"):
        photographs(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["--directory", str(tmp_path / "nowhere")])
    assert "nowhere: expected a directory with JPEG files. Received: none" in capsys.readouterr().err


def test_a_damaged_photograph_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (content,) = made_photographs(1)
    (tmp_path / "a.jpg").write_bytes(content)
    assert photographs(tmp_path) == [content]
    (tmp_path / "b.jpg").write_bytes(content[:2000])
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["--directory", str(tmp_path)])
    assert f"error: {tmp_path / 'b.jpg'}: expected an intact JPEG file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        *((name, "0", "an integer ≥ 1") for name in ("--images", "--batch", "--size", "--rounds")),
        ("--seconds", "0", "a number > 0"),
        ("--patience", "-1", "a number ≥ 0"),
        ("--batch", "7", "at most the number of images, 6"),
    ],
)
def test_numbers_that_are_wrong(option: str, value: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main([*SMALL, option, value])
    assert f"{option}: expected {expected}. Received: " in capsys.readouterr().err


class Scripted:
    """A contestant whose turns were disturbed as given."""

    def __init__(self, *others: float) -> None:
        self.others = [0.0, *others]  # the first turn is a warm-up

    def run(self, seconds: float) -> Turn:
        return Turn(len(self.others), 1.0, 1.0, self.others.pop(0))

    def close(self) -> None: ...


def test_disturbed_rounds_are_repeated() -> None:
    def numbers(rounds: int, patience: float) -> list[int]:
        runner = Scripted(0.5, 0.0, 0.3, 0.05, 0.0)
        made = benchmark.measure({("scripted", 1): runner}, rounds, 0.0, patience)
        return [5 - one.turns["scripted", 1].images for one in made]

    assert numbers(2, 0) == [0, 1]
    assert numbers(2, 60) == [1, 3]
    assert numbers(1, 60) == [1]
