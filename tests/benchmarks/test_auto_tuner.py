"""The benchmark of the auto-tuner."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import auto_tuner
from benchmarks.auto_tuner import AutoRunner, Outcome, Settled
from benchmarks.networks import NETWORKS
from crossbow.runtime import tuner
from crossbow.runtime.device import available_cores


def outcome(*chosen: tuple[int, float]) -> Outcome:
    rates = {1: [90.0, 100.0, 110.0], 2: [190.0, 200.0, 500.0], 3: [10.0, 192.0, 193.0]}
    return Outcome(8, rates, [Settled(learners, seconds, []) for learners, seconds in chosen])


@pytest.mark.parametrize(
    ("chosen", "share", "seconds", "verdict"),
    [
        ([(2, 4.0), (2, 30.0), (1, 5.0)], 1.0, 5.0, "met"),
        ([(3, 4.0), (3, 6.0), (1, 5.0)], 0.96, 5.0, "met"),
        ([(1, 4.0), (1, 6.0), (2, 5.0)], 0.5, 5.0, "MISSED"),
        ([(2, 4.0), (2, 11.0), (2, 12.0)], 1.0, 11.0, "MISSED"),
        ([(7, 4.0)], 0.96, 4.0, "met"),
    ],
)
def test_verdicts(chosen: list[tuple[int, float]], share: float, seconds: float, verdict: str) -> None:
    found = outcome(*chosen)
    assert (found.median_share, found.median_seconds, found.verdict) == (share, seconds, verdict)


def test_the_table() -> None:
    (_, _, row) = auto_tuner.table([outcome((2, 4.0), (2, 5.0), (3, 7.0))]).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["8", "100", "200", "192", "2 (2×), 3 (1×)", "1.000", "5.0 (7.0)", "met"]


@pytest.mark.slow
def test_a_tuner_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """More learners do not help here, whatever is measured: of two numbers, three pairs of windows, the lower stays."""
    monkeypatch.setattr(tuner, "WINDOW_SECONDS", 0.02)
    monkeypatch.setattr(tuner, "GAIN", 99.0)
    monkeypatch.setattr(tuner, "CHANGE", 99.0)  # other programs may change the throughput
    monkeypatch.setattr(auto_tuner, "STRETCH", 0.1)
    monkeypatch.setitem(NETWORKS, "few", replace(NETWORKS["lenet-caffe"], examples=1000))
    runner = AutoRunner("few", 16)
    try:
        settled = runner.settle()
    finally:
        runner.close()
    assert settled.learners == 1
    assert 0 < settled.seconds < auto_tuner.PATIENCE
    assert len(settled.decisions) == len(available_cores())  # each number down to one, and one more
    assert settled.decisions[-1].startswith("1 learners: 2 are ")


def test_the_benchmark_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measured(network: str, batch: int, most: int, rounds: int, seconds: float, patience: float) -> Outcome:
        asked.append(batch)
        return outcome((2, 4.0))

    monkeypatch.setattr(auto_tuner, "measure", measured)
    path = tmp_path / "tuner.json"
    assert auto_tuner.main(["--batches", "16", "8", "--json", str(path)]) == 0
    assert asked == [16, 8]
    assert "of the best" in capsys.readouterr().out
    assert [found["verdict"] for found in json.loads(path.read_text())["outcomes"]] == ["met", "met"]
