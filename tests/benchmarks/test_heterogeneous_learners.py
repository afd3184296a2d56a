"""The benchmark of learners that are not equally fast."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import heterogeneous_learners
from benchmarks.heterogeneous_learners import AUTOMATIC, BOUND, FREE, DelayedRunner, Outcome, Seen, rules
from crossbow.synch import SSGD, SSP, AsynchronousSGD, Grouping, Rule


def outcome(rule: str, slowed: list[float], ahead: int = 9) -> Outcome:
    fast = [100.0] * len(slowed)
    seen_fast = [Seen([25.0] * 4, 1)] * len(slowed)
    seen_slowed = [Seen([25.0, 24.0, 26.0, 6.0], min(ahead, turn + 2)) for turn in range(len(slowed))]
    return Outcome(rule, 4, 4.0, fast, slowed, seen_fast, seen_slowed, 0.5)


@pytest.mark.parametrize(
    ("rule", "slowed", "ahead", "of_the_possible", "verdict"),
    [
        ("async", [81.25, 10.0, 90.0], 9, 1.0, "met"),
        ("gossip", [78.0, 78.0, 10.0], 9, 0.96, "met"),
        ("grouping", [77.0, 77.0, 81.0], 9, 0.9477, "MISSED"),
        ("ssp", [26.0] * 3, BOUND, 0.32, "met"),
        ("ssp", [26.0] * 3, BOUND - 1, 0.32, "MISSED"),
        ("ssp", [26.0] * 4, BOUND + 1, 0.32, "MISSED"),
        ("ssgd", [26.0] * 3, 0, 0.32, "–"),
        ("weed-out", [81.25] * 3, 9, 1.0, "–"),  # what the slow learner does is dropped
    ],
)
def test_verdicts(rule: str, slowed: list[float], ahead: int, of_the_possible: float, verdict: str) -> None:
    found = outcome(rule, slowed, ahead)
    assert found.possible == 0.8125
    assert found.of_the_possible == pytest.approx(of_the_possible, abs=1e-4)
    assert found.of_a_fast_one == pytest.approx(0.96)
    assert found.verdict == verdict


def test_the_table() -> None:
    (_, _, row) = heterogeneous_learners.table([outcome("async", [80.0, 70.0, 81.25])]).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["async", "≥ 0.95", "0.800 (0.700–0.812)", "0.985", "0.960", "4", "met"]


def test_every_rule_that_is_free_is_measured() -> None:
    measured = rules(4)
    assert set(FREE) < set(measured)
    assert isinstance(measured["grouping"], Grouping)
    assert measured["grouping"].groups == ((0, 1, 2), (3,))
    assert measured[AUTOMATIC] == Grouping()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "least", "most"), [(AsynchronousSGD(), BOUND + 1, 1000), (SSP(bound=BOUND), BOUND, BOUND), (SSGD(), 0, 1)]
)
def test_a_slow_learner(rule: Rule, least: int, most: int) -> None:
    """How far the others run ahead of it, over two turns."""
    runner = DelayedRunner(rule, [0.005, 0.005, 0.05])
    try:
        for _ in range(2):
            begin = time.monotonic()
            rate = runner.run(begin, begin + 0.5)
            assert rate > 0
    finally:
        runner.close()
    turns = runner.seen(2)
    assert sum(turns[-1].by_learner) == pytest.approx(rate)
    assert all(max(turn.by_learner) > 0 for turn in turns)  # where the machine is busy the slow one may do no task
    assert least <= turns[-1].ahead <= most


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "groups"), [(1, "0,1,2"), (4, "0,1/2")])
def test_groups_are_found_before_the_first_turn(slow: int, groups: str) -> None:
    runner = DelayedRunner(rules(3)[AUTOMATIC], [0.01, 0.01, 0.01 * slow])
    try:
        assert runner.groups() == groups
    finally:
        runner.close()


def test_groups_that_are_told_are_not_found() -> None:
    runner = DelayedRunner(rules(3)["grouping"], [0.001] * 3)
    try:
        assert runner.groups() == ""
        assert runner.times.ends == []
    finally:
        runner.close()


@pytest.mark.parametrize(
    "option",
    [["--learners", "1"], ["--rounds", "0"], ["--slowness", "0.5"], ["--delay", "0"], ["--seconds", "0"]],
    ids=str,
)
def test_bad_options(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        heterogeneous_learners.main(option)
    assert f"argument {option[0]}: expected " in capsys.readouterr().err


def test_the_benchmark_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def measured(label: str, rule: Rule, *settings: Any) -> Outcome:
        asked.append((label, rule, *settings))
        return dataclasses.replace(outcome(label, [81.25] * settings[3]), groups="0,1/2" if label == AUTOMATIC else "")

    monkeypatch.setattr(heterogeneous_learners, "measure", measured)
    path = tmp_path / "learners.json"
    arguments = ["--rules", AUTOMATIC, "ssgd", "--rounds", "2", "--json", str(path)]
    assert heterogeneous_learners.main(arguments) == 0
    assert asked == [(AUTOMATIC, Grouping(), 4, 0.05, 4.0, 2, 3.0), ("ssgd", SSGD(), 4, 0.05, 4.0, 2, 3.0)]
    printed = capsys.readouterr().out
    assert f"{AUTOMATIC}: 0.812 (0.812–0.812), groups 0,1/2\nssgd: 0.812 (0.812–0.812)\n" in printed
    assert f"| {AUTOMATIC} |" in printed
    assert "0.8125 of the tasks are possible" in printed
    assert "other programs: kept 0.50 processors busy" in printed
    assert [found["verdict"] for found in json.loads(path.read_text())["outcomes"]] == ["met", "–"]
