"""A lock on the directory of a run, so that no two processes write to it at the same time."""

from __future__ import annotations

import contextlib
import os
import sys
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
"""The file that is locked. It has the number of the process that holds the lock, and stays when the lock is gone."""


class DirectoryLock:
    """Holds the lock of a directory until `close`, or until the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Create the directory if necessary. Raises DataError if another process has the lock, which is named, or if
        the directory cannot be written to."""
        self._directory, self._created = directory, not directory.exists()
        make_directory(directory)
        try:
            self._file = (directory / NAME).open("a+", encoding="ascii")
        except OSError as error:
            raise file_error(error, directory, "a directory to write to") from error
        if not _lock(self._file):
            used = _used(directory, self._file)
            self._file.close()
            raise used
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back. A directory that the lock has created, and that is still empty, is removed."""
        if self._created and os.listdir(self._directory) == [NAME]:
            with contextlib.suppress(OSError):  # something was written to it meanwhile
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
    """Lock an open file until it is closed. Returns whether that was possible."""
    try:
        if sys.platform == "win32":
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError | PermissionError)  # others: a file system without locks
    return True


def _used(directory: Path, file: IO[str]) -> DataError:
    """The error that names the process that has locked the file of a directory."""
    number = ""
    with contextlib.suppress(OSError, ValueError):
        file.seek(0)
        number = file.read().strip()
    owner = f"process {number}" if number else "another process"
    return DataError(f"{directory}: expected a directory that no run is using. Received: one {owner} is using")
