"""A lock on the directory of a run, so that no two processes write to it at the same time."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from crossbow.files import file_error, make_directory
from crossbow.types import DataError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = ".lock"
"""The file that is locked. It contains the number of the process that holds the lock and a mark of the run, and remains
when the lock is released."""
SECONDS_TO_SUCCEED = 10.0
"""Time for a process that has left a run to release the lock."""


class DirectoryLock:
    """Holds the lock of a directory until `close`, or until the process ends in any way."""

    def __init__(self, directory: Path, succeeds: str = "") -> None:
        """Create the directory if necessary. succeeds: the mark of a run that another process has begun and left, and
        that this process continues. Raises DataError, with the other process, if the directory is locked; and if it
        cannot be written, or belongs to a different run."""
        self._directory, self._created = directory, not directory.exists()
        make_directory(directory)
        try:
            self._file = (directory / NAME).open("a+", encoding="ascii")
        except OSError as error:
            raise file_error(error, directory, "a directory to write to") from error
        deadline = time.monotonic() + (SECONDS_TO_SUCCEED if succeeds else 0.0)
        while not _lock(self._file):
            if time.monotonic() >= deadline:
                used = _used(directory, self._file)
                self._file.close()
                raise used
            time.sleep(0.05)
        self._check(succeeds)
        self.mark = succeeds or secrets.token_hex(8)
        """A text that identifies the run, also in another process that continues it."""
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} {self.mark}\n")
        self._file.flush()

    def _check(self, succeeds: str) -> None:
        """Raise DataError if the directory belongs to a different run than the continued one."""
        if not succeeds:
            return
        words = _words(self._file)
        empty = not words and os.listdir(self._directory) == [NAME]
        if not (empty or words[1:] == [succeeds]):
            self._file.close()
            raise DataError(
                f"{self._directory}: expected the directory of the run that goes on, or none. Received: another run's; "
                "the hosts need a common file system, or another --output-directory"
            )

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock. A directory that was created for it, and that is still empty, is removed."""
        if self._created and os.listdir(self._directory) == [NAME]:
            with contextlib.suppress(OSError):  # a file was written to it meanwhile
                (self._directory / NAME).unlink()
                self._directory.rmdir()
        self._file.close()


def check_unused(directory: Path) -> None:
    """Raise DataError, which names the process, if a process holds the lock of a directory."""
    with contextlib.suppress(OSError), (directory / NAME).open("r+", encoding="ascii") as file:
        if not _lock(file):
            raise _used(directory, file)


def is_in_use(directory: Path) -> bool:
    """Whether a process holds the lock of a directory."""
    try:
        with (directory / NAME).open("r+", encoding="ascii") as file:
            return not _lock(file)
    except OSError:
        return False


def _lock(file: IO[str]) -> bool:
    """Lock an open file until it is closed. Returns whether it could be locked."""
    try:
        if sys.platform == "win32":
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError | PermissionError)  # other errors: a file system without locks
    return True


def _words(file: IO[str]) -> list[str]:
    """The number of the process, and the mark of its run; nothing if they cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        file.seek(0)
        return file.read().split()
    return []


def _used(directory: Path, file: IO[str]) -> DataError:
    """The error that names the process that has locked the file of a directory."""
    words = _words(file)
    owner = f"process {words[0]}" if words else "another process"
    return DataError(f"{directory}: expected a directory that no run is using. Received: one that {owner} uses")
