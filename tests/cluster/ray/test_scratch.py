"""Directories of processes that were killed are removed by the next one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from crossbow.cluster.ray import scratch
from crossbow.cluster.ray.scratch import scratch_directory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no locks of directories")
HELD = """
import time
from crossbow.cluster.ray.scratch import scratch_directory
with scratch_directory("some-") as directory:
    print(directory, flush=True)
    time.sleep(100)
"""


@pytest.fixture(autouse=True)
def directory_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_directory_is_removed_at_the_end(tmp_path: Path) -> None:
    with scratch_directory("some-") as first, scratch_directory("some-") as second:
        (Path(first) / "folder").mkdir()
        assert {Path(first), Path(second)} == set(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_those_of_killed_processes_are_removed(tmp_path: Path) -> None:
    others = [tmp_path / "some-file", tmp_path / "another", tmp_path / "some-link"]
    others[0].touch()
    others[1].mkdir()
    others[2].symlink_to(others[1])
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            held = Path(process.stdout.readline().strip())
            assert held.parent == tmp_path
            (held / "folder").mkdir()
            with scratch_directory("some-"):
                assert held.exists(), "it is in use"
        finally:
            process.kill()
        assert process.wait() == -signal.SIGKILL
    with scratch_directory("some-") as directory:
        assert sorted(tmp_path.iterdir()) == sorted([*others, Path(directory)])


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the paths of descriptors, as Linux tells them")
@pytest.mark.parametrize("moment", ["before it is opened", "before it is locked"])
def test_a_new_directory_that_another_process_removes(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To which it looked abandoned."""
    removed: list[str] = []
    owner, name = (os, "open") if moment == "before it is opened" else (scratch, "locked")
    step, opened = getattr(owner, name), os.open

    def remove_first(given: Any, *more: Any, **options: Any) -> Any:
        if not removed:
            path = str(given) if name == "open" else os.readlink(f"/proc/self/fd/{given}")
            if "some-" in path:
                removed.append(path)
                monkeypatch.setattr(os, "open", opened)
                shutil.rmtree(path)
        return step(given, *more, **options)

    monkeypatch.setattr(owner, name, remove_first)
    with scratch_directory("some-") as directory:
        assert Path(directory).is_dir()
        assert removed
        assert removed != [directory]


def test_a_file_system_without_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scratch, "locked", lambda descriptor, wait: False)
    (tmp_path / "some-older").mkdir()
    with scratch_directory("some-") as directory:
        assert Path(directory).is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["some-older"]
