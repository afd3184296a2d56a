"""The progress of training in a file, written and read."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from crossbow import DataError
from crossbow.monitors.status import SILENT_SECONDS, StatusMonitor, read_status
from crossbow.runtime.results import LearnerRecord
from tests.monitors.records import progress, record

LEARNERS = (LearnerRecord(0, 0.75, 0.1, 0.05, 0.1, 1234.5, 0.00123), LearnerRecord(1, 0.5, 0.25, 0.25, 0, 1000.0, None))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "progress.json"
    monitor = StatusMonitor(path, epochs=3, seconds=60.0)
    assert read_status(path) is None
    monitor.close()
    assert not path.exists(), "training has not begun"
    shown = replace(progress(100), loss=0.5, learners=LEARNERS, doing=("computing", "waiting"))
    monitor.progress(shown)
    status = read_status(path)
    assert status is not None
    assert (status.running, status.epochs, status.seconds, status.progress) == (True, 3, 60.0, shown)
    monitor.progress(progress(200))
    assert read_status(path) == status, "once a second"
    monitor.record(record(2))
    monitor.close()
    status = read_status(path)
    assert status is not None
    assert status.progress is not None
    assert (status.running, status.progress.tasks) == (False, 200)
    assert "NaN" not in path.read_text()
    assert os.listdir(path.parent) == ["progress.json"]


def test_a_killed_process_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    StatusMonitor(path).progress(progress())
    content = json.loads(path.read_text())
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)

    def running(**changes: object) -> bool:
        path.write_text(json.dumps({**content, **changes}))
        status = read_status(path)
        assert status is not None
        return status.running

    assert running()
    assert not running(process=int(ended.stdout))
    assert running(process=int(ended.stdout), machine="elsewhere"), "the file is new"
    os.utime(path, (0, time.time() - SILENT_SECONDS - 1))
    status = read_status(path)
    assert status is not None
    assert not status.running


def test_a_full_disk_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress.json"
    StatusMonitor(path).progress(progress())
    before = path.read_text()

    def full(self: Path, text: str, **options: object) -> int:
        self.write_bytes(b"{")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        StatusMonitor(path, epochs=7).progress(progress())
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["progress.json"]
    StatusMonitor(path, epochs=7).progress(progress())
    assert path.read_text() != before


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    for text in ("{", "[]", '{"running": true}'):
        path.write_text(text)
        with pytest.raises(DataError, match=r"progress\.json: expected the progress of training"):
            read_status(path)
    (tmp_path / "directory").mkdir()
    with pytest.raises(DataError, match=r"directory: expected to write the progress of training"):
        StatusMonitor(tmp_path / "directory").progress(progress())
    assert sorted(os.listdir(tmp_path)) == ["directory", "progress.json"]
