"""One process at a time uses a directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossbow.runtime.directory_lock import DirectoryLock, is_in_use
from crossbow.types import DataError

HOLD = """
import sys
from pathlib import Path
from crossbow.runtime.directory_lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_second_one_is_refused_with_the_process(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    assert not is_in_use(directory)
    with DirectoryLock(directory):
        assert is_in_use(directory)
        with pytest.raises(DataError, match=f"Received: one process {os.getpid()} is using"):
            DirectoryLock(directory)
        assert is_in_use(directory), "the refused one has not given the lock back"
    assert not is_in_use(directory)
    DirectoryLock(directory).close()


def test_a_killed_process_has_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(DataError, match=f"process {other.pid} is using"):
            DirectoryLock(tmp_path)
        other.kill()
        other.wait()
    DirectoryLock(tmp_path).close()


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"expected a directory to write to\. Received: a file"):
        DirectoryLock(tmp_path / "file")
