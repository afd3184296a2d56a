"""The benchmark of ranks that are lost at random moments: its report, what counts as a failure, a short run on Ray."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks import losses
from benchmarks.losses import Job, JobError, Losses, main, table

FOUND = Losses(
    "sma", kills=3, of_rank_0=1, of_nodes=1, joins=2, noticed=[0.5, 1.5], nodes_noticed=[2.0], pauses=[0.2, 0.4]
)


def test_the_report_has_medians_and_maxima() -> None:
    _, _, row, *goals = table([FOUND]).splitlines()
    assert "|".join(cell.strip() for cell in row.split("|")) == "|sma|3|1|1|0|2|1.0 (1.5)|2.0 (2.0)|0.3 (0.4)|no|"
    assert "a process is noticed within 1 s: 1 of 2 times" in goals
    assert "a join pauses the others within 2 s: 2 of 2 times" in goals
    assert "–" in table([Losses("sma")])


@pytest.mark.parametrize(("failure", "status"), [("", 0), ("it hung", 1)])
def test_a_failure_is_in_the_exit_status(
    failure: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def results(names: Sequence[str], kills: int, seed: int) -> Iterator[Losses]:
        assert (names, kills, seed) == (["sma", "easgd"], 7, 3)
        yield FOUND
        yield Losses("easgd", failure=failure)

    monkeypatch.setattr(losses, "results", results)
    assert main(["--rule", "sma,easgd", "--kills", "7", "--seed", "3"]) == status
    assert failure in capsys.readouterr().out


def test_an_unknown_rule(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rule", "sma,fastest"])
    assert "Received: 'fastest'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("ends", [False, True])
def test_a_job_that_hangs_or_ends_too_early(ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\nimport time\nprint('epoch 1', flush=True)\ntime.sleep({0 if ends else 60})\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr(losses, "LIMIT", 30.0)
    job = Job("unused", "sma", tmp_path)
    try:
        assert job.wait("epoch ") == "epoch 1\n"
        monkeypatch.setattr(losses, "LIMIT", 120.0 if ends else 0.1)
        with pytest.raises(JobError, match="the job ended with 0 after" if ends else "the newest lines"):
            job.wait(" left: ")
    finally:
        job.close()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'crossbow[ray]'")
def test_ranks_are_lost_and_join(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(losses, "NODES", 2)  # each takes seconds to start
    assert main(["--kills", "3", "--rule", "easgd"]) == 0, capsys.readouterr().out
