"""One process at a time uses a directory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossbow.runtime import directory_lock
from crossbow.runtime.directory_lock import DirectoryLock, check_unused, is_in_use
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
        with pytest.raises(DataError, match=f"Received: one that process {os.getpid()} uses"):
            DirectoryLock(directory)
        assert is_in_use(directory), "the refused one has not given the lock back"
    assert not is_in_use(directory)
    DirectoryLock(directory).close()


@pytest.mark.slow
def test_a_killed_process_has_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(DataError, match=f"process {other.pid} uses"):
            DirectoryLock(tmp_path)
        other.kill()
        other.wait()
    DirectoryLock(tmp_path).close()


def test_a_process_goes_on_with_the_run_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "run"
    with DirectoryLock(directory) as before:
        (directory / "model").write_text("")
        monkeypatch.setattr(directory_lock, "SECONDS_TO_SUCCEED", 0.01)
        with pytest.raises(DataError, match=f"process {os.getpid()} uses"):
            DirectoryLock(directory, before.mark)
    with DirectoryLock(directory, before.mark) as after:
        assert after.mark == before.mark
    with pytest.raises(DataError, match=r"expected the directory of the run that goes on, or none\. Received: another"):
        DirectoryLock(directory, "another mark")
    with DirectoryLock(directory) as new:
        assert new.mark != before.mark
    with DirectoryLock(tmp_path / "new", before.mark) as elsewhere:
        assert elsewhere.mark == before.mark


def test_it_waits_for_the_process_before(tmp_path: Path) -> None:
    before = DirectoryLock(tmp_path)
    threading.Timer(0.2, before.close).start()
    DirectoryLock(tmp_path, before.mark).close()


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"expected a directory to write to\. Received: a file"):
        DirectoryLock(tmp_path / "file")


@pytest.mark.parametrize(
    ("error", "locked"),
    [(None, True), (PermissionError(), False), (OSError(22, "a file system without locks"), True)],
)
def test_on_windows_the_first_byte_is_locked(
    error: OSError | None, locked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def locking(descriptor: int, mode: str, count: int) -> None:
        calls.append((os.lseek(descriptor, 0, os.SEEK_CUR), mode, count))
        if error is not None:
            raise error

    msvcrt = SimpleNamespace(LK_NBLCK="lock", locking=locking)
    monkeypatch.setattr(directory_lock, "msvcrt", msvcrt, raising=False)
    monkeypatch.setattr(directory_lock, "sys", SimpleNamespace(platform="win32"))
    (tmp_path / "lock").write_text("12 mark")
    with (tmp_path / "lock").open("a+") as file:
        assert directory_lock._lock(file) == locked
    assert calls == [(0, "lock", 1)]


def test_a_directory_that_must_not_be_in_use(tmp_path: Path) -> None:
    check_unused(tmp_path)
    with DirectoryLock(tmp_path), pytest.raises(DataError, match=rf"process {os.getpid()}"):
        check_unused(tmp_path)
    check_unused(tmp_path)
