"""Functions for files: names are checked, writes are atomic, and an error is one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from crossbow.conf import shown
from crossbow.types import DataError

if sys.platform != "win32":
    import fcntl
    import resource

_PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial")
"""Names of files that are being written. They do not contain the target's name, which may have the maximum length."""

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}

SPARE_FILES = 32
"""Number of open files that a program needs besides its data, for loaded libraries, logs and saved models."""


def checked_path(what: str, path: object) -> Path:
    """The path, with `~` expanded. Raises TypeError, which begins with `what`, unless it is a str or a `pathlib.Path`,
    and DataError if it is empty, or the home directory does not exist."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise TypeError(f"{what}: expected a path, as a str or a pathlib.Path. Received: {shown(path)}")
    if not name:  # for example an unset variable of a shell; it would stand for the current directory
        raise DataError(f"{what}: expected a path. Received: an empty text")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise DataError(f"{what}: expected a path whose home directory exists. Received: {shown(name)}") from error


def reason(error: Exception) -> str:
    """An exception's message on one line; for system errors, the system's message."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(text.split()) or type(error).__name__


def is_full(error: OSError) -> bool:
    """Whether a disk, or the user's quota on it, is full. It may have room again later."""
    return error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


class Lines:
    """Appends lines to a file, each as a whole or not at all. While the disk is full, lines wait in memory."""

    def __init__(self, path: Path) -> None:
        self._path, self._waiting = path, b""

    @property
    def waiting(self) -> int:
        """Number of bytes that wait in memory."""
        return len(self._waiting)

    def add(self, lines: bytes) -> None:
        """Append lines, or keep them for later if the disk is full. Raises OSError for any other reason."""
        self._waiting += lines
        try:
            self.finish()
        except OSError as error:
            if not is_full(error):
                raise

    def finish(self) -> None:
        """Append the waiting lines. Raises OSError, also if the disk is full."""
        if not self._waiting:
            return
        with self._path.open("ab", buffering=0) as file:
            begin = file.tell()
            try:
                if file.write(self._waiting) < len(self._waiting):  # the disk had room for a part only
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(begin)
                raise
        self._waiting = b""


def file_error(error: OSError | ValueError, path: Path, expected: str) -> DataError:
    """The error for a file that the system rejects (with a ValueError if its name is invalid)."""
    where = getattr(error, "filename", None) or path
    return DataError(f"{where}: expected {expected}. Received: {reason(error)}")


def kind_of_file(path: Path) -> str | None:
    """The kind of file that the path leads to, such as "a file" or "a pipe"; None if there is none, or if the system
    does not allow to determine it."""
    try:
        return _kind(os.stat(path))
    except (OSError, ValueError):
        return None


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "something else")


def check_readable(path: Path, expected: str) -> None:
    """Raise DataError if the path leads to anything but a regular file: a pipe would block its reader, and a device may
    have no end. A missing file is not an error here, because opening it reports that."""
    if (kind := kind_of_file(path)) not in (None, "a file"):
        raise DataError(f"{path}: expected {expected}. Received: {kind}")


def check_regular(path: Path) -> os.stat_result | None:
    """The status of the regular file that the path leads to, or None if there is no such file yet.

    Raises DataError if the path leads to anything else, such as a directory, a device or a pipe, and OSError or
    ValueError if the system rejects the path.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: expected the name of a file to write. Received: {_kind(status)}")
    return status


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a regular file atomically, as `file_to_fill` does."""
    with file_to_fill(path) as file:
        file.write(data)


@contextlib.contextmanager
def file_to_fill(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file that is written atomically: it gets its name, and replaces an existing file, at the end of the block. If
    the block raises an exception, nothing changes. Missing directories are created.

    Symbolic links are followed. An existing file keeps its permissions and, if the system permits, its owner. Partial
    files of killed writers in the same directory are removed. Raises DataError, which names the path, if the file
    cannot be written. An OSError of the block that names no file is treated as an error of writing this file.
    """
    path = checked_path("writing a file", path)
    in_block = False
    try:
        older = check_regular(path)
        target = Path(os.path.realpath(path))  # so that a link is followed, not replaced
        make_directory(target.parent)
        _remove_abandoned(target.parent)
        with _replaced(target, older) as file:
            in_block = True
            yield file
            in_block = False
    except DataError:
        raise
    except (OSError, ValueError) as error:
        if in_block and (isinstance(error, ValueError) or error.filename is not None):
            raise  # an error of another file
        raise DataError(f"{path}: expected to write this file. Received: {reason(error)}") from error


@contextlib.contextmanager
def _replaced(path: Path, older: os.stat_result | None) -> Iterator[BinaryIO]:
    partial, descriptor = _new_partial(path.parent, 0o666 if older is None else 0o600)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            if older is not None:
                _take_over(file.fileno(), older)
            os.fsync(file.fileno())
            if sys.platform != "win32":
                os.replace(partial, path)  # still locked, so that it does not look abandoned
                _flush_directory(path.parent)
        if sys.platform == "win32":
            os.replace(partial, path)  # Windows cannot rename an open file
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _flush_directory(directory: Path) -> None:
    """Flush a directory to the disk, so that a new name in it survives a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot flush directories
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take_over(descriptor: int, older: os.stat_result) -> None:
    """Give a new file the owner and the permissions of the file that it replaces."""
    if sys.platform != "win32":
        made = os.fstat(descriptor)
        if (made.st_uid, made.st_gid) != (older.st_uid, older.st_gid):
            with contextlib.suppress(OSError):  # only root may give files away
                os.fchown(descriptor, older.st_uid, older.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(older.st_mode))


def _new_partial(directory: Path, mode: int) -> tuple[Path, int]:
    """A new file for writing, with its open and locked descriptor."""
    while True:
        partial = directory / f".{secrets.token_hex(8)}.partial"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        # Until the file is locked, it looks abandoned to other writers.
        if not locked(descriptor, wait=True) or partial.exists():
            return partial, descriptor
        os.close(descriptor)


def locked(descriptor: int, *, wait: bool) -> bool:
    """Lock a file until it is closed. Returns whether that was possible."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # another process has the lock, or the file system has no locks
        return False
    return True


def _remove_abandoned(directory: Path) -> None:
    """Remove partial files of killed writers from the directory. Files of running writers are locked; if the system
    does not support such locks, all files are kept."""
    with os.scandir(directory) as entries:
        found = [entry.path for entry in entries if _PARTIAL.fullmatch(entry.name)]
    for path in found if sys.platform != "win32" else ():
        with contextlib.suppress(OSError):  # the file has just been completed, or belongs to another user
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode) and locked(descriptor, wait=False):
                    os.unlink(path)
            finally:
                os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Create a directory for output, and its parents, unless it exists. Raises DataError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        received = "a file" if isinstance(error, FileExistsError) else reason(error)
        raise DataError(f"{directory}: expected a directory to write to. Received: {received}") from error


def make_room_for_files(count: int) -> tuple[int, int]:
    """Raise this process's limit of open files if `count` more files would exceed it, as far as the hard limit allows.

    Returns the number of open files that the process needs, and the limit. Windows has no such limit: (0, 0).
    """
    if sys.platform == "win32":
        return 0, 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit, largest = (sys.maxsize if number == resource.RLIM_INFINITY else number for number in (soft, hard))
    needed = _number_of_open_files() + count + SPARE_FILES
    if needed > limit:
        wanted = min(max(needed, limit + count), largest)  # leaves as many files as before to the rest of the program
        with contextlib.suppress(OSError, ValueError):  # some systems have a second, lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            limit = wanted
    return needed, limit


def _number_of_open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:  # the system does not list open files
        return 0
