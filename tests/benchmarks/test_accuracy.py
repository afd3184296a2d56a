"""The benchmark of the accuracy: continuation, report, picture, and both systems on small data."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import accuracy, machine
from benchmarks.accuracy import (
    Point,
    Run,
    Setting,
    epoch_seconds,
    main,
    read,
    read_speeds,
    report,
    train_crossbow,
    train_torch,
)
from crossbow import Dataset
from crossbow.data import synthetic
from crossbow.types import ConfigurationError, DataError

SETTING = Setting("crossbow", 0, epochs=2, batch=8, rate=0.1, weight_decay=5e-4)


def run(system: str, seed: int, *accuracies: float) -> Run:
    points = tuple(Point(value, 3.0 * (index + 1)) for index, value in enumerate(accuracies))
    return Run(replace(SETTING, system=system, seed=seed, epochs=len(points)), points)


def images(training: int = 32) -> Dataset:
    return synthetic((3, 32, 32), 10, training=training, check=16)


@pytest.mark.slow
def test_the_report_compares_the_medians_of_the_last_epochs() -> None:
    ours = [run("crossbow", seed, *[0.5] * 5, last) for seed, last in enumerate((0.9, 0.8, 0.91))]
    theirs = [run("pytorch", seed, *[0.6] * 5, last) for seed, last in enumerate((0.95, 0.89, 0.7))]
    text = report([*ours, *theirs])
    assert "| Crossbow, SMA, 2 learners | 2    |  50.00% |  91.00% |      18 |" in text
    assert "- PyTorch: 89.00% in the median of the seeds" in text
    assert "\n- difference: +1.00 points" in text
    assert "difference" not in report(ours)


@pytest.mark.slow
def test_both_systems_have_the_same_rate_at_the_same_epoch() -> None:
    solver = SETTING.solver
    assert (solver.policy, solver.decay_steps, solver.learning_rate_step_unit) == ("cosine", 2, "epochs")


def test_the_report_compares_the_seconds_to_the_target() -> None:
    ours, theirs = run("crossbow", 0, 0.8, 0.85, 0.9), run("pytorch", 0, 0.8, 0.84, 0.86)
    text = report([ours, theirs])
    assert "- Crossbow, SMA, 2 learners: 6 s to 85% in the median" in text
    assert text.endswith("- ratio of these seconds: 1.50")
    assert report([ours.at_speed(2.0), theirs.at_speed(7.0)]).endswith("- ratio of these seconds: 5.25")
    assert report([ours, run("pytorch", 0, 0.8, 0.84, 0.84)]).endswith("- PyTorch: 85% not reached in the median")


def test_seconds_of_an_epoch_are_of_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def train(setting: Setting, data: Dataset) -> list[Point]:
        sizes.append(len(data.train))
        assert setting.epochs == 2
        return [Point(0.5, 9.0), Point(0.5, 9.5)]

    monkeypatch.setitem(accuracy.TRAIN, "crossbow", train)
    assert epoch_seconds(replace(SETTING, epochs=40), images(300)) == pytest.approx(0.5 * 10)
    assert sizes == [30]


@pytest.mark.slow
def test_both_systems_train() -> None:
    pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    for train in (train_crossbow, train_torch):
        points = train(SETTING, images())
        assert len(points) == 2
        assert all(0 <= point.accuracy <= 1 for point in points)
        assert 0 < points[0].seconds < points[1].seconds


def test_missing_pytorch_is_said_before_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "run_part", lambda *given: pytest.fail("a run has begun"))
    monkeypatch.setattr(machine, "has_torch", lambda: False)
    with pytest.raises(ConfigurationError, match=r"it is not installed; without it, use --systems crossbow$"):
        main(["--output", str(tmp_path)])


@pytest.mark.parametrize(
    "given", ["--epochs 0", "--batch-size 0", "--learning-rate 0", "--weight-decay -1", "--seeds -1"]
)
def test_numbers_out_of_range_are_named(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(given.split())
    assert f"argument {given.split()[0]}: expected a" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_with_a_file_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def start(module: str, name: str, options: list[str]) -> None:
        assert module == "benchmarks.accuracy"
        commands.append(options)
        assert main(options) == 0

    monkeypatch.setattr(accuracy, "run_part", start)
    monkeypatch.setattr(accuracy, "describe_machine", dict)
    monkeypatch.setattr(accuracy, "cifar10", lambda directory: images())
    monkeypatch.setitem(accuracy.TRAIN, "crossbow", lambda setting, data: [Point(0.5, 1.0), Point(0.75, 2.0)])
    arguments = ["--output", str(tmp_path), "--systems", "crossbow", "--seeds", "0", "1", "--epochs", "2"]
    for _ in range(2):
        assert main(arguments) == 0
    assert [json.loads(command[-1])["seed"] for command in commands] == [0, 1]
    assert "75.00% in the median of the seeds" in capsys.readouterr().out
    assert (tmp_path / "resnet-20.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.slow
def test_measured_speeds_replace_the_seconds_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = iter([4.0, 8.0, 5.0, 9.0, 7.0, 7.0])

    def start(module: str, name: str, options: list[str], *, captured: bool) -> str:
        assert captured
        assert options[-2] == "--speed"
        return f"Crossbow: epoch 1\n{next(measured)}\n"

    for system in ("crossbow", "pytorch"):
        made = run(system, 0, 0.5, 0.9)
        (tmp_path / f"{made.setting.name}.json").write_text(json.dumps(asdict(made)))
    monkeypatch.setattr(accuracy, "run_part", start)
    monkeypatch.setattr(accuracy, "describe_machine", dict)
    monkeypatch.setattr(accuracy, "require_torch", lambda why: None)
    arguments = ["--output", str(tmp_path), "--seeds", "0", "--epochs", "2", "--batch-size", "8"]
    assert main([*arguments, "--speed-rounds", "3"]) == 0
    assert json.loads((tmp_path / "speeds.json").read_text()) == {"crossbow": [4, 5, 7], "pytorch": [8, 9, 7]}
    capsys.readouterr()
    assert main(arguments) == 0  # from the file
    text = capsys.readouterr().out
    assert "- Crossbow, SMA, 2 learners: 5.0 s an epoch" in text
    assert text.endswith("- ratio of these seconds: 1.60\n")


def test_damaged_speeds(tmp_path: Path) -> None:
    (tmp_path / "speeds.json").write_text('{"crossbow": ["fast"]}')
    with pytest.raises(DataError, match=r"speeds\.json: expected seconds of an epoch by system\. Received: could not"):
        read_speeds(tmp_path)


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"points": []}')
    with pytest.raises(DataError, match=r"run\.json: expected a run of this benchmark\. Received: 'setting'"):
        read(tmp_path / "run.json")
