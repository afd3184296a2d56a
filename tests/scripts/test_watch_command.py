"""`crossbow watch`, of runs that have ended and of one that runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from crossbow import cli
from crossbow.monitors.status import StatusMonitor
from crossbow.runtime.monitor import Progress
from crossbow.runtime.results import LearnerRecord
from crossbow.scripts import watch_command
from tests.scripts.run_files import append_record, record, write_run

LEARNER = LearnerRecord(0, 0.75, 0.1, 0.05, 0.1, 1234.5, 0.00123)


def test_a_run_that_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [record(1, 0.5), replace(record(2, 0.75), learners=(LEARNER,))]
    run = write_run(tmp_path / "run", records)
    status = StatusMonitor(run / "progress.json", epochs=2)
    status.progress(Progress(2.0, 20, 4.0, 0.5, 20.0))
    status.close()
    assert cli.main(["watch", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "epoch 1/2  loss 0.5000  test loss 0.2500  test accuracy 50.00%  20 images/s  2.0 s",
        "epoch 2/2  loss 0.5000  test loss 0.2500  test accuracy 75.00%  20 images/s  4.0 s",
    ]
    assert lines[-2].split() == ["0", "75%", "10%", "5%", "10%", "1,234", "1.23e-03"]
    assert lines[-1] == "best test accuracy 75.00% in epoch 2"


def test_a_run_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Records are printed as they are logged, each once, and the last ones although the run has ended."""
    run = write_run(tmp_path / "run", [record(1, 0.5)])
    status = StatusMonitor(run / "progress.json")
    status.progress(Progress(1.0, 10, 2.0, 0.5, 20.0))
    seen: list[str] = []

    def sleep(seconds: float) -> None:
        seen.append(capsys.readouterr().out)
        assert len(seen) <= 3
        if len(seen) > 1:
            append_record(run, record(len(seen), 0.6))
        if len(seen) == 3:
            status.close()

    monkeypatch.setattr(watch_command.time, "sleep", sleep)
    assert cli.main(["watch", str(run)]) == 0
    seen.append(capsys.readouterr().out)
    assert [[line.split()[1] for line in text.splitlines() if line.startswith("epoch")] for text in seen] == [
        ["1"],
        [],
        ["2"],
        ["3"],
    ]


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", str(tmp_path)]) == 2
    assert "expected the output directory of a run, with log.jsonl" in capsys.readouterr().err
    run = write_run(tmp_path / "run", [])
    assert cli.main(["watch", str(run)]) == 0
    assert capsys.readouterr().out == "nothing was recorded\n"
    (run / "progress.json").write_text("{")
    assert cli.main(["watch", str(run)]) == 2
