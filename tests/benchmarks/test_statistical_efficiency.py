"""The grid goes on where it was ended, and its report says what was seen and nothing else."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import efficiency_run, statistical_efficiency
from benchmarks.efficiency_report import Cell, cells, diverged, missing, refused, report, results_table, verdict
from benchmarks.efficiency_run import (
    DIVERGED,
    REFUSED,
    TRAINED,
    Epoch,
    RunResult,
    RunSettings,
    Speed,
    digest,
    measure_speed,
    read_result,
    train,
    write_result,
)
from benchmarks.statistical_efficiency import FAILED, INTERRUPTED, WRONG, Measure, grid, main, parse
from crossbow import Dataflow, Dataset
from crossbow.data.mnist import FILES
from crossbow.ops import InnerProduct
from crossbow.types import ConfigurationError, TaskError
from tests.combinations import one_in
from tests.support import Probe, pictures, training

TINY = ["--learners", "1", "2", "--batches", "4", "--seeds", "0", "1", "--max-epochs", "2"]


def network(*_: Any) -> Dataflow:
    return training(InnerProduct(number_of_outputs=10))


def write_idx(path: Path, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    shape = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + shape + array.tobytes())


@pytest.fixture
def mnist_directory(tmp_path: Path) -> Path:
    """Few images of MNIST's size, in its files."""
    data = pictures(16, 8, size=28)
    assert data.check is not None
    directory = tmp_path / "mnist"
    directory.mkdir()
    arrays = (data.train.images[:, 0], data.train.labels, data.check.images[:, 0], data.check.labels)
    for name, array in zip(FILES, arrays, strict=True):
        write_idx(directory / name.removesuffix(".gz"), array.astype(np.uint8))
    return directory


class Runs:
    """Runs with a small network in this process, and remembers which."""

    def __init__(self, data: Dataset, kills: int | None = None) -> None:
        """kills: after how many runs the program is ended, in the middle of the next."""
        self.data, self.kills = data, kills
        self.done: list[str] = []

    def __call__(self, settings: RunSettings, options: argparse.Namespace) -> None:
        if len(self.done) == self.kills:
            (options.output_directory / ".0123.partial").write_text('{"settings": {"rule"')
            raise KeyboardInterrupt
        write_result(options.output_directory, train(settings, self.data, network))
        self.done.append(str(settings))


@pytest.fixture
def start(mnist_directory: Path, tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """Starts the program; its status, and the runs that it did."""
    data = statistical_efficiency.mnist(mnist_directory)

    def begin(*arguments: str, kills: int | None = None, measure: Measure | None = None) -> tuple[int, list[str]]:
        runs = Runs(data, kills)
        common = ["--data-directory", str(mnist_directory), "--output-directory", str(tmp_path / "out")]
        more = () if measure is None else (measure,)
        return main([*common, *TINY, "--rules", "sma", "ssgd", *arguments], runs, *more), runs.done

    return begin


Start = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time."""
    monkeypatch.setattr(statistical_efficiency, "write_pictures", lambda *_: [])


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_what_is_killed_goes_on_with_what_is_missing(start: Start, tmp_path: Path) -> None:
    status, first = start(kills=3)
    assert status == INTERRUPTED
    assert first == [  # rules in turns, the seeds one after the other
        "sma, batch 4, learners 1, seed 0",
        "ssgd, batch 4, learners 1, seed 0",
        "sma, batch 4, learners 2, seed 0",
    ]
    status, rest = start()
    assert (status, len(rest), set(first) & set(rest)) == (0, 5, set())
    assert start() == (0, [])
    found = [read_result(path) for path in (tmp_path / "out").glob("*.json")]
    assert len(found) == 8
    assert {result.status for result in found} == {TRAINED}


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_file_that_is_not_whole_is_run_again(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, done = start("--seeds", "0")
    first, second, third, _ = sorted((tmp_path / "out").glob("*.json"))
    first.write_text(first.read_text()[:50])
    second.write_text("[]")
    third.write_text(third.read_text().replace('"learners": 2', '"learners": 3').replace('"seed": 0', '"seed": 7'))
    capsys.readouterr()
    status, again = start("--seeds", "0")
    assert (status, len(done), len(again)) == (0, 4, 3)
    printed = capsys.readouterr().err
    assert f"left out: {first}: expected the result of a run. Received: " in printed
    assert f"left out: {third}: expected the settings of this name. Received: those of " in printed


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize(
    "option",
    [
        ["--learning-rate", "0.02"],
        ["--clip-gradient-norm", "2"],
        ["--momentum", "0.8"],
        ["--weight-decay", "0"],
        ["--target-accuracy", "0.98"],
        ["--further-epochs", "3"],
        ["--max-epochs", "7"],
        ["--variant", "original"],
        ["--devices", "cpu:0/2"],
        ["--threads-per-learner", "1"],
    ],
)
def test_other_settings_are_other_runs(option: list[str]) -> None:
    names = {settings.name for settings in grid(parse([]), "data")}
    assert len(names) == 4 * 4 * 3 * 3
    assert not names & {settings.name for settings in grid(parse(option), "data")}
    assert not names & {settings.name for settings in grid(parse([]), "others")}
    assert names == {settings.name for settings in grid(parse(["--seeds", "2", "0", "1", "0"]), "data")}


def test_small_batches_have_a_smaller_rate() -> None:
    options = parse(["--learning-rate", "0.04", "--batches", "8", "32", "128", "--seeds", "0", "--rules", "sma"])
    rates = {run.batch_size: run.solver["learning_rate"] for run in grid(options, "")}
    assert rates == {8: 0.004, 32: 0.016, 128: 0.04}


def test_gradients_may_be_left_as_they_are() -> None:
    limits = [grid(parse(["--clip-gradient-norm", limit]), "")[0].solver["clip_gradient_norm"] for limit in "02"]
    assert limits == [None, 2]


def test_the_rate_is_scaled_by_the_learners_for_ssgd_only() -> None:
    arguments = ["--scale-rate", "--learning-rate", "0.01", "--batches", "80", "--seeds", "0", "--learners", "1", "8"]
    rates = {(run.rule, run.learners): run.solver["learning_rate"] for run in grid(parse(arguments), "")}
    assert rates == {
        (rule, learners): 0.08 if (rule, learners) == ("ssgd", 8) else 0.01
        for rule in statistical_efficiency.RULE_NAMES
        for learners in (1, 8)
    }


def test_the_elastic_rules_draw_alike() -> None:
    options = parse(["--rules", "easgd", "--batches", "8", "--seeds", "0"])
    assert [run.rule_parameters["alpha"] for run in grid(options, "")] == [1 / 2, 1 / 2, 1 / 4, 1 / 8]


def test_the_average_model_has_a_momentum_under_sma_only() -> None:
    options = parse(["--base-momentum", "0.5", "--learners", "8", "--batches", "8", "--seeds", "0"])
    found = {run.rule: run.rule_parameters.get("base_momentum") for run in grid(options, "")}
    assert found == {"sma": 0.5, "ssgd": None, "easgd": None, "model-averaging": None}


# Training


def settings_of(
    rule: str = "sma", learners: int = 1, batch_size: int = 32, seed: int = 0, **others: Any
) -> RunSettings:
    cell = f"--rules {rule} --learners {learners} --batches {batch_size} --seeds {seed}"
    common = ["--max-epochs", "20", "--learning-rate", "0.2", "--clip-gradient-norm", "1000"]
    (settings,) = grid(parse([*cell.split(), *common]), "data")
    return dataclasses.replace(settings, **others)


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize(
    ("target", "further", "expected"), [(1e-9, 2, 3), (1e-9, 0, 1), (1e-9, 9, 5), (1.0, 2, 5)], ids=str
)
def test_a_run_ends_behind_its_target_or_at_its_end(target: float, further: int, expected: int) -> None:
    """With a target that the first test reaches, or with one that none does: then the tests' labels are random."""
    data = pictures(40, 40)
    assert data.check is not None
    if target == 1:
        np.random.default_rng(0).shuffle(data.check.labels)
    settings = settings_of(learners=2, batch_size=4, target=target, further_epochs=further, max_epochs=5)
    result = train(settings, data, network)
    assert len(result.epochs) == expected
    assert [epoch.seconds for epoch in result.epochs] == sorted({epoch.seconds for epoch in result.epochs})
    assert result.epochs_to_target == (1 if target < 1 else None)
    assert {"processor", "cores", "versions"} <= result.machine.keys()
    assert result.commit
    assert result.date


@pytest.mark.slow
def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = train(settings_of(batch_size=4, max_epochs=1, target=1.0), pictures(8, 4), network)
    write_result(tmp_path, result)
    (path,) = tmp_path.iterdir()
    read = read_result(path)
    assert json.dumps(dataclasses.asdict(read)) == json.dumps(dataclasses.asdict(result))


@pytest.mark.slow
def test_a_run_that_diverges_is_a_result() -> None:
    solver = {**settings_of().solver, "learning_rate": 1e30}
    with np.errstate(all="ignore"):
        result = train(settings_of(batch_size=4, solver=solver), pictures(), network)
    assert (result.status, result.epochs_to_target) == (DIVERGED, None)
    assert "loss" in result.sentence


def test_what_is_broken_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> None:
        raise TaskError("no luck", task=3, operator="conv1")

    monkeypatch.setattr(efficiency_run, "_train", breaks)
    with pytest.raises(TaskError, match="no luck"):
        train(settings_of(batch_size=4), pictures(), network)


def test_data_sets_are_told_apart() -> None:
    assert digest(pictures()) == digest(pictures())
    assert len({digest(pictures()), digest(pictures(seed=1)), digest(pictures(examples=23))}) == 3


# Speed


@pytest.mark.slow
def test_an_epoch_takes_as_long_as_its_tasks() -> None:
    """A tenth of the batch size makes ten times as many tasks an epoch. A task sleeps for longer than it computes, even
    on a busy machine, so that all take about the same time."""

    def sleeping(*_: Any) -> Dataflow:
        return training(Probe(action=lambda *_: time.sleep(0.02)), InnerProduct(number_of_outputs=10))

    data = pictures(400, 4)
    few, many = (measure_speed(settings_of(batch_size=batch), data, 0.5, sleeping) for batch in (40, 4))
    assert 10 * 0.02 < few.seconds < many.seconds / 4
    assert many.seconds > 100 * 0.02
    assert few.others is None or few.others >= 0
    assert few.commit
    assert few.date


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_speed_is_measured_in_turns_and_what_is_missing_of_it_later(start: Start, tmp_path: Path) -> None:
    measured: list[str] = []

    def measure(settings: RunSettings, options: argparse.Namespace) -> Speed:
        if len(measured) == 5:
            raise KeyboardInterrupt
        measured.append(str(settings))
        return Speed(0.5 * len(measured), 0.01 * len(measured), "abc", f"day {len(measured)}")

    cells_in_turn = [f"{rule}, batch 4, learners {k}, seed 0" for k in (1, 2) for rule in ("sma", "ssgd")]
    assert start("--speed-rounds", "2", measure=measure)[0] == INTERRUPTED
    assert measured == [*cells_in_turn, cells_in_turn[0]]
    del measured[:]
    assert start("--speed-rounds", "2", measure=measure)[0] == 0
    assert measured == cells_in_turn[1:]
    speeds = statistical_efficiency.read_speeds(tmp_path / "out")
    seconds = [[speed.seconds for speed in rounds] for rounds in speeds.values()]
    assert sorted(seconds) == [[0.5, 2.5], [1.0, 0.5], [1.5, 1.0], [2.0, 1.5]]
    text = (tmp_path / "out" / "report.md").read_text()
    assert "1.50 (0.50–2.50)" in text  # of the first: 0.5 and 2.5 s an epoch
    assert "- other programs, speeds: kept 0.03 processors busy (at worst 0.05)\n" in text
    assert "- commit, speeds: abc\n" in text
    assert "- date, speeds: day 1 to day 5\n" in text
    assert "Missing" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_speed_that_could_not_be_measured_is_missing(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    works = False

    def measure(settings: RunSettings, options: argparse.Namespace) -> Speed | None:
        return Speed(2.0) if works or (settings.rule == "sma" and settings.learners == 1) else None

    again = ["--seeds", "0", "--speed-rounds", "2"]
    assert start(*again, measure=measure)[0] == 0
    printed, text = capsys.readouterr(), (tmp_path / "out" / "report.md").read_text()
    assert "round 2: ssgd, batch 4, learners 2, seed 0: its speed could not be measured" in printed.err
    for line in ("sma, batch 4, speed: 2 learners: 2 of 2 rounds", "ssgd, batch 4, speed: all"):
        assert f"missing: {line}\n" in printed.out
        assert f"- {line}\n" in text
    (kept,) = json.loads((tmp_path / "out" / "speeds.json").read_text()).values()
    assert kept == [dataclasses.asdict(Speed(2.0))] * 2
    works = True
    start(*again, measure=measure)
    assert "missing" not in capsys.readouterr().out
    start("--speed-rounds", "3", "--budget", "0", "--report-only", "--seeds", "0")
    assert (
        "missing: sma, batch 4, speed: 1 learner: 1 of 3 rounds; 2 learners: 1 of 3 rounds" in capsys.readouterr().out
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_no_speed_is_measured_when_the_budget_is_spent(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(statistical_efficiency.time, "monotonic", lambda: now)
    start("--seeds", "0")

    def measure(settings: RunSettings, options: argparse.Namespace) -> Speed:
        nonlocal now
        now += 4.0
        return Speed(1.0)

    start("--seeds", "0", "--speed-rounds", "3", "--budget", "10", measure=measure)
    assert capsys.readouterr().err.count("the budget of 10 s is spent") == 1
    assert now == 12.0


@pytest.mark.slow
def test_a_process_says_how_fast_it_was(mnist_directory: Path) -> None:
    options = parse(["--data-directory", str(mnist_directory), "--speed-seconds", "0.1"])
    settings = settings_of(batch_size=4, data=digest(statistical_efficiency.mnist(mnist_directory)))
    speed = statistical_efficiency.measure_apart(settings, options)
    assert speed is not None
    assert speed.seconds > 0
    assert speed.date
    assert statistical_efficiency.measure_apart(dataclasses.replace(settings, data="others"), options) is None


@pytest.mark.parametrize("text", ["[1]", '{"a": [NaN]}', '{"a": [{"seconds": NaN}]}', '{"a": [{"second": 1}]}'])
def test_speeds_that_are_none_are_said(
    text: str, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "speeds.json").write_text(text)
    assert start("--budget", "0")[0] == WRONG
    assert "speeds.json: expected measured speeds by name. Received: " in capsys.readouterr().err


# Refused rules


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_refused_rule_is_kept_and_tried_again_when_asked(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing = True

    def context(*arguments: Any) -> Any:
        if refusing and arguments[0].rule == "ssgd":
            raise ConfigurationError("no such rule today")
        return made(*arguments)

    made = efficiency_run._context
    monkeypatch.setattr(efficiency_run, "_context", context)
    status, done = start("--seeds", "0")
    assert (status, len(done)) == (0, 4)
    assert "refused: ssgd, 2 runs: no such rule today" in capsys.readouterr().out
    refusing = False
    assert start("--seeds", "0") == (0, [])
    _, again = start("--seeds", "0", "--retry-refused")
    assert again == ["ssgd, batch 4, learners 1, seed 0", "ssgd, batch 4, learners 2, seed 0"]
    assert "Refused" not in (tmp_path / "out" / "report.md").read_text()


# The command line


def test_no_run_is_begun_when_the_budget_is_spent(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--budget", "0") == (0, [])
    printed = capsys.readouterr()
    assert "the budget of 0 s is spent" in printed.err
    assert "missing: sma, batch 4: all" in printed.out
    assert "0 of 8 runs trained" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.slow
def test_a_report_needs_no_data(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start("--rules", "sma", "--seeds", "0")
    capsys.readouterr()
    again = ["--output-directory", str(tmp_path / "out"), "--report-directory", str(tmp_path / "docs"), *TINY]
    assert main([*again, "--rules", "sma", "--report-only"]) == 0
    assert "missing: sma, batch 4: 2 of 4 (1 learner: seed 1; 2 learners: seed 1)" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "docs").iterdir()}
    assert names == {"report.md", "accuracy-sma.png", "epochs.png"}
    assert all((tmp_path / "docs" / name).stat().st_size > 100 for name in names)
    text = (tmp_path / "docs" / "report.md").read_text()
    assert all(f"]({name})" in text for name in names - {"report.md"})
    (path,) = (tmp_path / "out").glob("sma-learners-1-*.json")
    result = read_result(path)
    write_result(path.parent, dataclasses.replace(result, settings=dataclasses.replace(result.settings, data="others")))
    assert main([*again, "--report-only"]) == WRONG
    assert "expected results of one data set, or --data-directory" in capsys.readouterr().err


def test_a_run_without_a_result_is_a_failure(
    mnist_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data-directory", str(mnist_directory), "--output-directory", str(tmp_path / "out"), *TINY]
    assert main([*arguments, "--rules", "sma", "--seeds", "0"], lambda *_: None) == FAILED
    assert capsys.readouterr().err.count("failed, and left no result") == 2


def test_missing_data_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data-directory", str(tmp_path / "none"), "--output-directory", str(tmp_path)]) == WRONG
    assert "expected a directory with MNIST's four IDX files" in capsys.readouterr().err


def test_data_that_cannot_be_downloaded_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(directory: Path | None) -> Dataset:
        raise statistical_efficiency.DataError("no network: train on the digits")

    monkeypatch.setattr(statistical_efficiency, "mnist", fails)
    assert main(["--output-directory", str(tmp_path)]) == WRONG
    assert capsys.readouterr().err.endswith(
        "error: MNIST is missing, and could not be downloaded: name a directory that holds its four files with "
        "--data-directory\n"
    )


@pytest.mark.parametrize(
    "option",
    [
        ["--rules", "sgd"],
        ["--learners", "0"],
        ["--batches", "x"],
        ["--seeds", "-1"],
        ["--target-accuracy", "0"],
        ["--target-accuracy", "99"],
        ["--max-epochs", "0"],
        ["--budget", "nan"],
        ["--learning-rate", "0"],
    ],
    ids=str,
)
def test_bad_options(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(option)
    assert option[0] in capsys.readouterr().err


def test_a_bad_solver_is_said(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert start("--momentum", "1") == (WRONG, [])
    assert "momentum" in capsys.readouterr().err


# The processes


def command(mnist_directory: Path, output: Path, *more: str) -> list[str]:
    arguments = ["--data-directory", str(mnist_directory), "--output-directory", str(output), *TINY]
    return [sys.executable, "-m", "benchmarks.statistical_efficiency", *arguments, *more]


@pytest.mark.slow
def test_runs_have_processes_of_their_own(mnist_directory: Path, tmp_path: Path) -> None:
    options = ["--rules", "sma", "--learners", "2", "--seeds", "0"]
    done = subprocess.run(command(mnist_directory, tmp_path, *options), capture_output=True, text=True, check=True)
    assert "1 of 1: sma, batch 4, learners 2, seed 0" in done.stderr
    (path,) = tmp_path.glob("*.json")
    assert len(read_result(path).epochs) == 2


@pytest.mark.slow
def test_a_run_does_not_outlive_who_wanted_it(mnist_directory: Path, tmp_path: Path) -> None:
    options = ["--rules", "sma", "--learners", "1", "--seeds", "0", "--max-epochs", "1000000", "--target-accuracy", "1"]
    parent = subprocess.Popen(command(mnist_directory, tmp_path, *options), stderr=subprocess.PIPE, text=True)
    assert parent.stderr is not None
    with parent:
        assert "1 of 1" in parent.stderr.readline()
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        if not children.is_file():
            parent.kill()
            pytest.skip("this system does not say which processes a process has started")
        while not (child := children.read_text().split()):
            time.sleep(0.01)
        status = Path(f"/proc/{child[0]}/stat")
        parent.send_signal(signal.SIGKILL)
    patience = time.monotonic() + 60
    while _lives(status) and time.monotonic() < patience:
        time.sleep(0.05)
    alive = _lives(status)
    if alive:
        os.kill(int(child[0]), signal.SIGKILL)
    assert not alive
    assert not list(tmp_path.glob("*.json"))


def _lives(status: Path) -> bool:
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# The report, of made-up results


def made_up(settings: RunSettings, epochs: int | None, **others: Any) -> RunResult:
    """A run that reached the target in so many epochs, of a second each."""
    length = 20 if epochs is None else epochs + 2
    rows = [Epoch(0.99 if epochs is not None and n >= epochs else 0.9, float(n), 0.1) for n in range(1, length + 1)]
    return RunResult(settings, TRAINED, "", rows, epochs, 0.5, commit="abc", **others)


def cell(
    learners: int,
    epochs: Sequence[int | None],
    *,
    seeds: int = 3,
    rule: str = "sma",
    batch: int = 32,
    speeds: tuple[Speed, ...] = (),
) -> Cell:
    settings = tuple(settings_of(rule, learners, batch, seed) for seed in range(seeds))
    return Cell(settings, tuple(made_up(s, e) for s, e in zip(settings, epochs, strict=False)), speeds)


@pytest.mark.parametrize(
    ("one", "eight", "expected"),
    [
        ([5, 4, 9], [6, 20, 1], "met: … 8 learners reached 99 % after 6 epochs, 1 learner after 5"),
        ([5, 4, 9], [4, 3, None], "met: … 8 learners reached 99 % after 4 epochs, 1 learner after 5"),
        ([5, 4, 9], [7, 7, 1], "missed: … 8 learners reached 99 % after 7 epochs, 1 learner after 5"),
        ([5, 5, None], [4, None, None], "missed: … 8 learners did not reach 99 % in 20 epochs, 1 learner after 5"),
        ([5, None, None], [4, 4, 4], "not measured: … 1 learner did not reach 99 % in 20 epochs"),
        ([5, 4], [4, 4, 4], "not measured: … 1 learner, seed 2 missing"),
        ([5, 4, 3], [4], "not measured: … 8 learners, seeds 1, 2 missing"),
    ],
)
def test_the_check(one: list[int | None], eight: list[int | None], expected: str) -> None:
    others = [cell(1, [1, 1, 1], rule="ssgd"), cell(8, [20, 20, 20], batch=8)]
    claim = "with SMA at batch 32, 8 learners reach the accuracy of 1 within one more epoch (median of the seeds):"
    assert verdict([cell(1, one), cell(8, eight), *others]) == expected.replace("…", claim)


def test_the_check_is_not_measured_where_it_is_not_asked_for_or_refused() -> None:
    assert verdict([cell(1, [5, 5, 5])]).endswith("the grid has no run of 8 learners")
    eight = cell(8, [5, 5, 5])
    no = tuple(RunResult(settings, REFUSED, "no such rule today") for settings in eight.settings)
    found = verdict([cell(1, [5, 5, 5]), dataclasses.replace(eight, results=no)])
    assert found.startswith("not measured")
    assert found.endswith(": no such rule today")


def test_the_table() -> None:
    """Seconds to the target are epochs at the median speed."""
    one = cell(1, [5, 4, None], speeds=(Speed(2.0), Speed(4.0), Speed(3.0)))
    two = cell(2, [4, 3], speeds=(Speed(0.5),))
    rows = results_table([one, two, cell(4, [None]), cell(8, [])], "99 %").splitlines()
    found = [[part.strip() for part in row.split("|")[1:-1]] for row in rows[2:]]
    assert found == [
        ["sma", "32", "1", "3 of 3", "5 (4–∞)", "3.00 (2.00–4.00)", "15.0 (12.0–∞)", "99.00% (90.00%–99.00%)"],
        ["sma", "32", "2", "2 of 3", "3.5 (3–4)", "0.50", "1.8 (1.5–2.0)", "99.00%"],
        ["sma", "32", "4", "1 of 3", "∞", "–", "–", "90.00%"],
    ]


def test_a_median_by_epoch_is_of_all_seeds() -> None:
    medians = [accuracy.median for accuracy in cell(1, [2, 1, 3]).accuracies]
    assert medians == [0.9, 0.99, 0.99]  # the run that reached it after one epoch ended after three


def test_what_was_seen_is_grouped() -> None:
    options = parse(["--rules", "ssgd", "sma", "--learners", "2", "1", "--batches", "32", "8", "--seeds", "0", "1"])
    runs = grid(options, "data")
    results = {run.name: made_up(run, 3) for run in runs if run.batch_size == 32 and run.seed == 0}
    first, second = [run for run in runs if run.batch_size == 8 and run.rule == "sma"][:2]
    results[first.name] = RunResult(first, REFUSED, "no such rule today")
    results[second.name] = dataclasses.replace(made_up(second, None), status=DIVERGED, sentence="the loss became nan")
    grouped = cells(runs, results, {})
    assert [(c.rule, c.batch_size, c.learners) for c in grouped] == [
        (rule, batch, learners) for rule in ("ssgd", "sma") for batch in (8, 32) for learners in (1, 2)
    ]
    assert missing(grouped) == [
        "ssgd, batch 8: all",
        "ssgd, batch 32: 2 of 4 (1 learner: seed 1; 2 learners: seed 1)",
        "sma, batch 8: 2 of 4 (1 learner: seed 1; 2 learners: seed 1)",
        "sma, batch 32: 2 of 4 (1 learner: seed 1; 2 learners: seed 1)",
    ]
    assert refused(grouped) == ["sma, 1 run: no such rule today"]
    assert diverged(grouped) == [f"{second}: the loss became nan"]
    text = report(grouped, ["epochs.png"])
    assert "5 of 16 runs trained. The check is not measured: " in text
    busy = "kept 0.50 processors busy (at worst 0.50): not a quiet machine; "
    assert f"- other programs: {busy}with a barrier epochs do not depend on it\n" in text
    assert "without a barrier" not in text
    assert "measured by themselves" not in text
    assert "speed" not in text
    assert "- commit: abc" in text
    assert "- clip gradient norm: none\n" in text
    assert "## Test accuracy by epoch, batch 8" in text
    assert text.endswith("![epochs](epochs.png)\n")
    assert str(math.inf) not in text


def test_what_other_programs_did_to_runs_without_a_barrier_is_said_apart() -> None:
    free = cell(2, [5], rule="easgd")
    (run,) = free.results
    free = dataclasses.replace(free, results=(dataclasses.replace(run, others=1.5),))
    speeds = (Speed(1.0, 0.2, "abc", "day 2"), Speed(1.0, 0.04, "def", "day 2"))
    text = report([dataclasses.replace(cell(2, [5]), speeds=speeds), free], [])
    assert "- other programs: kept 0.50 processors busy (at worst 0.50): not a quiet machine; with a barrier" in text
    assert (
        "- other programs, runs without a barrier: kept 1.50 processors busy (at worst 1.50): not a quiet machine; "
        "without a barrier epochs depend on it\n"
    ) in text
    assert (
        "- other programs, speeds: kept 0.12 processors busy (at worst 0.20): not a quiet machine; seconds depend on "
        "it: measure again\n"
    ) in text
    assert "- commit, speeds: abc, def\n- date, speeds: day 2\n" in text
    assert "were measured by themselves" in text
    only = report([free], [])
    assert "- other programs, runs without a barrier: " in only
    assert "- other programs: " not in only


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "0.05; 0.005 with batch 8; 0.02 with batch 32"),
        ("--batches 128", "0.05"),
        ("--batches 8 4 32 128 256", "0.05; 0.0025 with batch 4; 0.005 with batch 8; 0.02 with batch 32"),
        ("--scale-rate --learners 1 8 --batches 80 128", "0.05, ssgd of 8 learners: 0.4"),
        (
            "--scale-rate --learners 1 8 --batches 8 128",
            "0.05, ssgd of 8 learners: 0.4; 0.005 with batch 8, ssgd of 8 learners: 0.04",
        ),
    ],
)
def test_the_report_says_the_learning_rates(arguments: str, expected: str) -> None:
    text = report(cells(grid(parse(arguments.split()), "data"), {}, {}), [])
    assert f"- learning rate: {expected}\n" in text
