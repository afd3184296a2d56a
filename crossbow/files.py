"""Files: their names are checked, they are written whole or not at all, and what fails is said in a sentence."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import sys
from pathlib import Path

from crossbow.conf import shown
from crossbow.types import DataError

if sys.platform != "win32":
    import fcntl

_PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial")
"""The names of files that are being written. A file's own name may already be as long as names can be."""

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def checked_path(what: str, path: object) -> Path:
    """The path, with `~` expanded. Raises TypeError, which begins with `what`, unless it is a str or a `pathlib.Path`,
    and DataError where there is no such home directory."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise TypeError(f"{what}: expected a path, as a str or a pathlib.Path. Received: {shown(path)}")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise DataError(f"{what}: expected a path whose home directory exists. Received: {shown(name)}") from error


def reason(error: Exception) -> str:
    """What an exception says, on one line: the system's words, where it is the system's."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(text.split()) or type(error).__name__


def file_error(error: OSError | ValueError, path: Path, expected: str) -> DataError:
    """The error for a file that the system refuses (a ValueError is one of its name)."""
    where = getattr(error, "filename", None) or path
    return DataError(f"{where}: expected {expected}. Received: {reason(error)}")


def check_regular(path: Path) -> os.stat_result | None:
    """The status of the regular file to which the path leads, or None where there is no such file yet.

    Raises DataError where something else stands there, such as a directory, a device or a pipe, and OSError or
    ValueError where the system refuses the path.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise DataError(f"{path}: expected the name of a file to write. Received: {kind}")
    return status


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a regular file that is whole or not there: an older one is replaced at the end. Missing directories are
    made.

    A symbolic link stays, and the file to which it leads is written. An older file's permissions stay, and its owner
    where the system allows that. Files that killed writers have left unfinished in the same directory are removed.
    Raises DataError, which names the path, where it cannot be written.
    """
    path = checked_path("writing a file", path)
    try:
        older = check_regular(path)
        target = Path(os.path.realpath(path))  # or the link would be replaced
        make_directory(target.parent)
        _remove_abandoned(target.parent)
        _replace(target, data, older)
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected to write this file. Received: {reason(error)}") from error


def _replace(path: Path, data: bytes, older: os.stat_result | None) -> None:
    partial, descriptor = _new_partial(path.parent, 0o666 if older is None else 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if older is not None:
                _take_over(file.fileno(), older)
            os.fsync(file.fileno())
            if sys.platform != "win32":
                os.replace(partial, path)  # still locked, so that nobody takes it for abandoned
        if sys.platform == "win32":
            os.replace(partial, path)  # an open file has a fixed name there
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _take_over(descriptor: int, older: os.stat_result) -> None:
    """Give a new file the owner and the permissions of the one that it replaces."""
    if sys.platform != "win32":
        made = os.fstat(descriptor)
        if (made.st_uid, made.st_gid) != (older.st_uid, older.st_gid):
            with contextlib.suppress(OSError):  # only root may give files away
                os.fchown(descriptor, older.st_uid, older.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(older.st_mode))


def _new_partial(directory: Path, mode: int) -> tuple[Path, int]:
    """A new file to write into, its descriptor open and locked."""
    while True:
        partial = directory / f".{secrets.token_hex(8)}.partial"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        # Until it is locked, another writer may take it for abandoned.
        if not _locked(descriptor, wait=True) or partial.exists():
            return partial, descriptor
        os.close(descriptor)


def _locked(descriptor: int, *, wait: bool) -> bool:
    """Lock a file for as long as it stays open. Returns whether that was possible."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # another process has the lock, or the file system has no locks
        return False
    return True


def _remove_abandoned(directory: Path) -> None:
    """Remove what killed writers have left in the directory. The files of those that live are locked; where the system
    has no such locks, everything stays."""
    with os.scandir(directory) as entries:
        found = [entry.path for entry in entries if _PARTIAL.fullmatch(entry.name)]
    for path in found if sys.platform != "win32" else ():
        with contextlib.suppress(OSError):  # it has just been finished, or is another user's
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode) and _locked(descriptor, wait=False):
                    os.unlink(path)
            finally:
                os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make a directory to write to, with those above it, unless it is there. Raises DataError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        received = "a file" if isinstance(error, FileExistsError) else reason(error)
        raise DataError(f"{directory}: expected a directory to write to. Received: {received}") from error
