"""The benchmark of the time to an accuracy: selection, continuation, report, and both systems on small data."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, time_to_accuracy
from benchmarks.time_to_accuracy import TASKS, Contest, Point, Run, Setting, main, report, select, train_crossbow
from crossbow.data import synthetic
from crossbow.solver import Schedule
from crossbow.types import ConfigurationError, DataError

SETTING = Setting("lenet", "crossbow", 16, 0.02, 0, 2, 100.0, "measurement")


class Simulated(Contest):
    """Runs whose seconds are a function of batch size and learning rate."""

    def __init__(self) -> None:
        self.settings: list[Setting] = []

    def run(self, setting: Setting) -> Run:
        self.settings.append(setting)
        seconds = abs(math.log2(setting.batch / 32)) + abs(math.log2(setting.rate / 0.025)) + 2
        reached = Point(1.0, seconds, 0.995) if seconds <= setting.limit else Point(0.5, setting.limit, 0.9)
        return Run(setting, (Point(0.25, 0.5, 0.8), reached))


def test_the_fastest_setting_is_selected_and_others_are_cut_off() -> None:
    contest = Simulated()
    best = select(contest, "lenet", "pytorch", None, seed=3)
    expected = min(
        (abs(math.log2(batch / 32)) + abs(math.log2(rate / 0.025)), batch, rate)
        for batch, rates in TASKS["lenet"].rates["pytorch"].items()
        for rate in rates
    )
    assert (best.setting.batch, best.setting.rate) == expected[1:]
    assert {(s.seed, s.system, s.purpose) for s in contest.settings} == {(3, "pytorch", "selection")}
    assert len(contest.settings) == 15
    limits = [setting.limit for setting in contest.settings]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == pytest.approx(best.seconds, abs=1e-3)


class Trials(Contest):
    """Runs whose accuracy at the end is a function of batch size and learning rate; rates above 0.3 diverge."""

    def __init__(self) -> None:
        self.settings: list[Setting] = []

    def run(self, setting: Setting) -> Run:
        self.settings.append(setting)
        accuracy = 0.8 - 0.01 * abs(math.log2(setting.batch / 64)) - 0.01 * abs(math.log2(setting.rate / 0.2))
        return Run(setting, () if setting.rate > 0.3 else (Point(1.0, 10.0, 0.83), Point(3.0, 30.0, accuracy)))


def test_where_the_rate_decays_the_highest_accuracy_of_short_runs_is_selected() -> None:
    contest = Trials()
    best = select(contest, "resnet-20", "pytorch", None, seed=1)
    assert (best.setting.batch, best.setting.rate) == (64, 0.2)
    assert len(contest.settings) == 15
    assert {(setting.epochs, setting.limit) for setting in contest.settings} == {(3, 1e4)}


def test_the_rate_falls_to_zero_within_the_epochs_of_a_run() -> None:
    setting = Setting("resnet-20", "pytorch", 50, 0.1, 0, 4, 100.0, "selection")
    rate = Schedule(TASKS["resnet-20"].solver(setting), tasks_per_epoch=1000)
    assert [round(rate(task).rate, 4) for task in (99, 1000, 2000, 3000, 4000)] == [0.01, 0.0854, 0.05, 0.0146, 0.0]
    constant = Schedule(TASKS["lenet"].solver(SETTING), tasks_per_epoch=1000)
    assert {constant(task).rate for task in (0, 1000, 4000)} == {0.02}


def test_batches_to_select_from() -> None:
    contest = Simulated()
    select(contest, "lenet", "crossbow", [16], seed=0)
    assert {setting.batch for setting in contest.settings} == {16}
    with pytest.raises(DataError, match=r"expected batches of \[8, 16, 32, 64\] for crossbow\. Received: \[5\]"):
        select(contest, "lenet", "crossbow", [5], seed=0)


def test_seconds_to_the_target() -> None:
    points = (Point(0.5, 1.0, 0.98), Point(1.0, 2.0, 0.99), Point(1.5, 3.0, 0.97))
    assert Run(SETTING, points).seconds == 2.0
    assert Run(SETTING, points[:1]).seconds == math.inf


def test_the_report_compares_medians() -> None:
    runs = []
    for seed, (ours, theirs) in enumerate([(2.0, 6.0), (1.0, 8.0), (4.0, 7.0)]):
        for system, seconds in (("crossbow", ours), ("pytorch", theirs)):
            runs.append(Run(replace(SETTING, system=system, seed=seed), (Point(1.5, seconds, 0.991),)))
    text = report(runs)
    assert text.endswith("lenet to 99.0%: Crossbow 2.0 s, PyTorch 7.0 s, ratio 3.50")
    assert "| lenet   | crossbow |    16 | 0.02 |    0 |   1.50 |     2.0 |" in text


def test_a_run_with_a_file_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def train(module: str, name: str, options: list[str]) -> None:
        assert module == "benchmarks.time_to_accuracy"
        commands.append(options)
        run = Run(Setting(**json.loads(options[-1])), (Point(1.0, 3.0, 0.99),))
        (tmp_path / f"{name}.json").write_text(json.dumps(asdict(run)))

    monkeypatch.setattr(time_to_accuracy, "run_part", train)
    contest = Contest(tmp_path, tmp_path / "data")
    assert contest.run(SETTING) == contest.run(SETTING)
    assert len(commands) == 1
    assert commands[0][commands[0].index("--data-directory") + 1] == str(tmp_path / "data")
    (tmp_path / f"{SETTING.name}.json").write_text("{}")
    with pytest.raises(DataError, match=r"expected a run of this benchmark\. Received: 'setting'"):
        contest.run(SETTING)


@pytest.mark.slow
def test_a_run_that_fails_ends_the_contest_with_its_own_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    contest = Contest(tmp_path, tmp_path / "nowhere")
    with pytest.raises(SystemExit) as ended:
        contest.run(SETTING)
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        f"python -m benchmarks.time_to_accuracy: error: {tmp_path / 'nowhere'}: expected a directory"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--batches", "5"], "--batches: expected batches of [8, 16, 32, 64] for crossbow. Received: [5]"),
        (["--batches", "8"], "--batches: expected batches of [16, 32, 64, 128, 256] for pytorch. Received: [8]"),
        (["--batches", "0"], "--batches: expected an integer ≥ 1. Received: '0'"),
        (["--seeds", "-1"], "--seeds: expected an integer ≥ 0. Received: '-1'"),
    ],
)
def test_options_that_are_wrong_are_refused_before_the_first_run(
    given: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time_to_accuracy, "Contest", lambda output, data: pytest.fail("a run has begun"))
    with pytest.raises(SystemExit, match="2"):
        main(["--output", str(tmp_path), *given])
    assert message in capsys.readouterr().err


def test_missing_pytorch_is_said_before_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_to_accuracy, "Contest", lambda output, data: pytest.fail("a run has begun"))
    monkeypatch.setattr(machine, "has_torch", lambda: False)
    with pytest.raises(
        ConfigurationError, match=r"^expected PyTorch\. Received: it is not installed; half of the runs need it"
    ):
        main(["--output", str(tmp_path)])


def small(**changes: Any) -> time_to_accuracy.Task:
    data = synthetic((1, 28, 28), 10, training=640, check=1000)
    return replace(TASKS["lenet"], data=lambda directory: data, target=1.0, **changes)


@pytest.mark.slow
def test_crossbow_is_tested_every_quarter_of_an_epoch() -> None:
    points = train_crossbow(SETTING, small(), small().data(None))
    quarters = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2]
    assert [point.epoch for point in points] == quarters[: len(points)]
    assert len(points) == len(quarters) or points[-1].accuracy == 1
    assert all(earlier.seconds < later.seconds for earlier, later in itertools.pairwise(points))
    assert points[-1].accuracy > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("augmented", [False, True])
def test_pytorch_is_tested_every_quarter_of_an_epoch(augmented: bool) -> None:
    pytest.importorskip("torch", reason="PyTorch is for comparisons only")
    task = small(augmented=augmented)
    points = time_to_accuracy.train_torch(replace(SETTING, system="pytorch"), task, task.data(None))
    quarters = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2]
    assert [point.epoch for point in points] == quarters[: len(points)]
    assert len(points) == len(quarters) or points[-1].accuracy == 1
    assert points[-1].accuracy > 0.2  # 0.1 without training


@pytest.mark.slow
def test_the_whole_contest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(time_to_accuracy, "Contest", lambda output, data: Simulated())
    monkeypatch.setattr(time_to_accuracy, "require_torch", lambda why: None)
    assert main(["--output", str(tmp_path), "--seeds", "4", "5"]) == 0
    assert "lenet to 99.0%" in capsys.readouterr().out
    assert (tmp_path / "lenet.png").stat().st_size > 10_000
