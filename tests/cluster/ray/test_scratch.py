"""Directories of processes that were killed are removed by the next one."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from crossbow.cluster.ray.scratch import scratch_directory

HELD = """
import sys, time
from crossbow.cluster.ray.scratch import scratch_directory
with scratch_directory("some-") as directory:
    print(directory, flush=True)
    time.sleep(100)
"""


def test_a_directory_is_removed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_directory("some-") as first, scratch_directory("some-") as second:
        (Path(first) / "folder").mkdir()
        assert {Path(first), Path(second)} == set(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_those_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = [tmp_path / "some-file", tmp_path / "another"]
    others[0].touch()
    others[1].mkdir()
    command = [sys.executable, "-c", HELD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(tmp_path)}) as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        (held / "folder").mkdir()
        with scratch_directory("some-"):
            assert held.exists(), "it is in use"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    with scratch_directory("some-") as directory:
        assert sorted(tmp_path.iterdir()) == sorted([*others, Path(directory)])
