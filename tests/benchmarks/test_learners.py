from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import learners, report
from benchmarks.anatomy import AVERAGING, OUTSIDE, Row, share
from benchmarks.contest import Contest, Contestant, ContestError
from benchmarks.crossbow_runner import CrossbowRunner
from benchmarks.handover import handover
from benchmarks.networks import NETWORKS, dataset
from benchmarks.report import BARE, ONE, SELDOM, TORCH_ONE, TORCH_TWO, TWO, Outcome
from benchmarks.torch_runner import TorchRunner
from crossbow.dataflow.validate import infer_shapes, variables_of
from crossbow.runtime.device import available_cores
from crossbow.runtime.summary import MemorySummary

TORCH = importlib.util.find_spec("torch") is not None or "CROSSBOW_REQUIRE_TORCH" in os.environ


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "measured.json"
    options = [
        "--networks",
        "lenet-caffe",
        "--batches",
        "4",
        "--rounds",
        "2",
        "--seconds",
        "0.02",
        "--profile",
        "--no-torch",
    ]
    for many, threads in ((1, 2), (2, 1)):  # each of the processes would compile what they find now
        CrossbowRunner("lenet-caffe", 4, many, threads, "auto").close()
    assert learners.main([*options, "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "PyTorch was left out: --no-torch was given." in printed
    assert "| lenet-caffe" in printed
    assert "conv2.gradient" in printed
    measured = json.loads(path.read_text())
    assert {"processor", "cores", "versions", "date", "commit"} <= measured["machine"].keys()
    (outcome,) = measured["outcomes"]
    assert (outcome["network"], outcome["batch"]) == ("lenet-caffe", 4)
    assert outcome["memory"]["lower_bound"] <= outcome["memory"]["arena"] < outcome["memory"]["without_reuse"]
    for name in (ONE, TWO, SELDOM, BARE):
        assert len(outcome["rates"][name]) == 2
        assert min(outcome["rates"][name]) > 0
    operators = [row["operator"] for row in outcome["rows"]]
    assert operators[0] == OUTSIDE
    assert {"conv1", "ip1.gradient", "optimiser", "average", "wait ready", "signal merged"} <= set(operators)
    assert all(row["seconds"] > 0 for row in (*outcome["rows"], *outcome["alone"]))


@pytest.mark.skipif(not TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * net.large) for n, net in NETWORKS.items()])
@pytest.mark.parametrize("models", [1, 2])
def test_pytorch_trains(name: str, models: int) -> None:
    now = time.monotonic()
    assert TorchRunner(name, 4, models, 1).run(now + 0.01, now + 0.05) > 0


@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_networks_have_the_parameters_of_pytorchs(name: str) -> None:
    network = NETWORKS[name]
    batch = (2, *network.image_shape)
    graph = network.build().graph
    specs = variables_of(graph, batch, infer_shapes(graph, batch))
    assert sum(math.prod(spec.shape) for found in specs.values() for spec in found) == network.parameters
    few = replace(network, examples=30)
    assert dataset(few).train.images.shape == (30, *network.image_shape)


class Steady:
    """Runs for as long as it is told, without doing anything."""

    def __init__(self, rate: float, fails: str = "") -> None:
        if fails == "at the start":
            raise ValueError("no luck")
        self.rate, self.fails = rate, fails
        self.moments: list[tuple[float, float]] = []

    def run(self, begin: float, end: float) -> float:
        if self.fails == "in a round":
            raise ValueError("no luck")
        if self.fails == "for lack of memory":
            os.kill(os.getpid(), signal.SIGKILL)
        self.moments.append((begin, end))
        time.sleep(max(0.0, end - time.monotonic()))
        return self.rate

    def told(self) -> list[tuple[float, float]]:
        return self.moments

    def close(self) -> None: ...


@pytest.mark.slow
def test_contestants_take_turns_and_processes_run_together() -> None:
    contestants = [
        Contestant("one", Steady, {"rate": 5.0}),
        Contestant("pair", Steady, {"rate": 2.0}, processes=2),
    ]
    with Contest(contestants) as contest:
        assert contest.rounds(3, 0.005, 0.01) == {"one": [5.0] * 3, "pair": [4.0] * 3}
        ((one,), (left, right)) = (contest.teams[name].ask("told") for name in ("one", "pair"))
        assert contest.turns(2, "told") == {"one": [one] * 2, "pair": [left] * 2}
    assert left == right
    assert contest.others is None or contest.others >= 0
    stretches = sorted([*one, *left])
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(stretches))
    order = ["one" if stretch in one else "pair" for stretch in stretches]
    assert order == ["one", "pair", "one", "pair", "pair", "one", "one", "pair"]  # the first two only warm up


@pytest.mark.slow
def test_contestants_apart_run_only_during_their_turns() -> None:
    contestants = [
        Contestant("one", Steady, {"rate": 5.0}),
        Contestant("pair", Steady, {"rate": 2.0}, processes=2),
    ]
    with Contest(contestants, apart=True) as contest:
        assert contest.teams == {}
        assert contest.rounds(2, 0.005, 0.01) == {"one": [5.0] * 2, "pair": [4.0] * 2}
        assert contest.teams == {}
        assert contest.ask("one", "told") == []  # a new process
        with contest.running("one") as team:
            assert list(contest.teams) == ["one"]
            (number,) = team.numbers
            team.measure(0.0, 0.01)
            assert len(contest.ask("one", "told")) == 1  # the same process
        assert contest.teams == {}
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


@pytest.mark.slow
def test_disturbed_rounds_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.contest.handover", lambda: 30e-9)
    with Contest([Contestant("one", Steady, {"rate": 1.0})], patience=60.0) as contest:
        others = iter([0.0, 1.5, 0.0, 0.02])  # listened, in the round, listened, in the round

        def processors(action: Callable[..., None], *arguments: Any) -> float:
            action(*arguments)
            return next(others)

        monkeypatch.setattr(contest, "_processors_of_others", processors)
        assert contest.rounds(1, 0.0, 0.01) == {"one": [1.0]}
        assert contest.others in (0.02, None)
        others = iter([0.0, 1.5, 0.0, 0.02])
        assert len(contest.ask("one", "told")) == 3  # the warm-up and both rounds
        contest.patience = 0.0
        others = iter([1.5, 0.7])
        assert contest.rounds(2, 0.0, 0.01) == {"one": [1.0, 1.0]}  # without patience whatever comes counts
        assert contest.others in (1.1, None)


@pytest.mark.slow
def test_rounds_on_cores_that_are_far_apart_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with Contest([Contestant("one", Steady, {"rate": 1.0})], patience=60.0) as contest:
        monkeypatch.setattr(contest, "_processors_of_others", lambda action, *arguments: (action(*arguments), 0.0)[1])
        nanoseconds = iter([220.0, 40.0, 210.0, 40.0, 50.0])  # listened twice, in the round, listened, in the round
        monkeypatch.setattr("benchmarks.contest.handover", lambda: next(nanoseconds) * 1e-9)
        assert contest.rounds(1, 0.0, 0.01) == {"one": [1.0]}
        assert contest.handovers == pytest.approx([50e-9])
        contest.patience = 0.0
        nanoseconds = iter([220.0, 40.0])
        contest.rounds(2, 0.0, 0.01)
        assert contest.handovers == pytest.approx([220e-9, 40e-9])  # without patience whatever comes counts


@pytest.mark.slow
def test_a_flag_gets_from_one_core_to_another() -> None:
    seconds = handover()
    assert (seconds is None) == (len(available_cores()) < 2)
    assert seconds is None or 1e-9 < seconds < 1


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["at the start", "in a round"])
def test_a_failing_contestant_ends_the_contest(fails: str) -> None:
    contestants = [Contestant("good", Steady, {"rate": 1.0}), Contestant("bad", Steady, {"rate": 1.0, "fails": fails})]
    with pytest.raises(ContestError, match=r"(?s)bad failed:.*ValueError: no luck"), Contest(contestants) as contest:
        contest.rounds(1, 0.0, 0.01)


@pytest.mark.slow
def test_a_contestant_that_is_killed_is_named() -> None:
    killed = Contestant("bad", Steady, {"rate": 1.0, "fails": "for lack of memory"})
    with Contest([killed]) as contest:
        for _ in range(2):  # it does not answer, and then it cannot be asked
            with pytest.raises(ContestError, match=r"^bad: its process was killed\. There may be too little memory"):
                contest.rounds(1, 0.0, 0.01)


@pytest.mark.parametrize(("killed", "status"), [([], 0), ([8], 1)], ids=str)
def test_what_cannot_be_measured_is_left_out(
    killed: list[int],
    status: int,
    outcome: Outcome,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure(network: str, batch: int, *_: Any, **__: Any) -> Outcome:
        if batch in killed:
            raise ContestError("bad: its process was killed")
        return replace(outcome, batch=batch)

    monkeypatch.setattr(learners, "measure", measure)
    assert learners.main(["--networks", "lenet-caffe", "--batches", "8", "16", "--no-torch"]) == status
    printed = capsys.readouterr()
    assert ("lenet-caffe, batch 8: bad: its process was killed\n" in printed.err) == bool(killed)
    assert printed.out.count("\n| ") > 4


@pytest.fixture
def outcome() -> Outcome:
    rates = {
        ONE: [50.0, 60.0, 55.0],
        TWO: [200.0, 100.0, 190.0],
        SELDOM: [250.0, 100.0, 200.0],
        BARE: [200.0, 125.0, 190.0],
        TORCH_ONE: [100.0, 100.0, 100.0],
        TORCH_TWO[0]: [100.0, 100.0, 190.0],
        TORCH_TWO[1]: [190.0, 140.0, 190.0],
    }
    rows = [Row(OUTSIDE, "", 1.0), Row("conv1", "jit", 6.0), Row("wait", "w", 1.0), Row("average", "a", 2.0)]
    memory = MemorySummary(vector=4_000_000, arena=900_000, lower_bound=800_000, without_reuse=2_000_000)
    return Outcome("lenet-original", 8, "onednn", rates, rows, memory, 10e9, 0.01, (), rows)


def test_ratios_are_paired(outcome: Outcome) -> None:
    assert outcome.torch_two == TORCH_TWO[1]
    (one, two) = outcome.comparisons()
    assert one == (TORCH_ONE, report.Spread(1.9, 1.0, 2.0), 2.3)
    assert astuple(two[1]) == pytest.approx((1.0, 100 / 140, 200 / 190))
    assert astuple(outcome.cost(TWO, SELDOM)) == pytest.approx((0.05, 0.0, 0.2))
    assert share(outcome.rows, AVERAGING) == pytest.approx(0.3)


def test_large_networks_leave_contestants_out(outcome: Outcome) -> None:
    """All of them together would not fit into memory."""
    names = [made.name for made in learners.contestants("resnet-50", 8, "auto", torch=True, profile=False)]
    assert names == [ONE, TWO, TORCH_ONE, *TORCH_TWO]
    rates = {name: rate for name, rate in outcome.rates.items() if name in names}
    few = replace(outcome, network="resnet-50", rates=rates)
    cells = [cell.strip() for cell in report.shares_table([few]).splitlines()[2].split("|")[1:-1]]
    assert (cells[4], cells[6]) == ("–", "–")
    assert report.verdicts([few]) == [
        "met: resnet-50, batch 8: 1.90 × PyTorch 1 × 2 (target 1.3)",
        "MISSED: resnet-50, batch 8: 1.00 × PyTorch 2 × 1, processes (target 1.3)",
    ]


def test_targets(outcome: Outcome) -> None:
    assert report.verdicts([outcome]) == [
        "MISSED: lenet-original, batch 8: 1.90 × PyTorch 1 × 2 (target 2.3)",
        "MISSED: lenet-original, batch 8: 1.00 × PyTorch 2 × 1, processes (target 1.6)",
    ]
    elsewhere = replace(outcome, batch=64)  # nowhere slower
    assert report.verdicts([elsewhere]) == [
        "met: lenet-original, batch 64: 1.90 × PyTorch 1 × 2 (target 1.0)",
        "met: lenet-original, batch 64: 1.00 × PyTorch 2 × 1, processes (target 1.0)",
    ]


def test_what_averaging_moves(outcome: Outcome) -> None:
    """Half of z written, half of two replicas and all of z read: 2 + 4 + 4 MB; at 10 GB/s that is 1 ms of 10 s."""
    assert report.averaging_bytes(outcome) == 10_000_000
    cells = [cell.strip() for cell in report.memory_table([outcome]).splitlines()[2].split("|")[1:-1]]
    assert cells == [
        *("lenet-original", "8", "4.00 MB", "0.90 MB", "0.80 MB", "2.00 MB", "10.00 MB", "10.0 GB/s", "0.0%"),
    ]


def test_a_machine_that_is_not_quiet_is_called_so(outcome: Outcome) -> None:
    assert report.disturbance([outcome]) == "kept 0.01 processors busy (at worst 0.01)"
    disturbed = report.disturbance([outcome, replace(outcome, others=1.03)])
    assert disturbed == "kept 0.52 processors busy (at worst 1.03): NOT A QUIET MACHINE, measure again"
    assert report.disturbance([replace(outcome, others=None)]) == "not known"


def test_how_near_cores_were_is_said(outcome: Outcome) -> None:
    near = replace(outcome, handovers=[25e-9, 50e-9, 30e-9])
    assert report.distance([near]) == "a flag gets from one core to another in 30 (25–50) ns"
    assert report.distance([outcome]) == "not known"
    assert report.distance([near, replace(outcome, handovers=[2e-7])]).endswith(": FAR APART in 1 of 4 rounds")


def test_tables(outcome: Outcome) -> None:
    assert " 55 (50–60) " in report.rates_table([outcome])
    assert "1.90 (1.00–2.00)" in report.shares_table([outcome])
    lines = report.profile_table(outcome).splitlines()
    assert lines[-1].split("|")[1].strip() == "all"
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    "options", [["--batches", "0"], ["--seconds", "nan"], ["--rounds", "x"], ["--networks", "vgg"]]
)
def test_bad_options(options: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        learners.main(options)
    assert options[0] in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, received in ((tmp_path, "a directory"), ("x" * 300, "File name too long")):
        with pytest.raises(SystemExit):
            learners.main(["--json", str(path)])
        assert capsys.readouterr().err.endswith(f"expected the name of a file to write. Received: {received}\n")
