"""Files: their names are checked, they are written whole or not at all, and what fails is said in a sentence."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from crossbow.conf import shown
from crossbow.types import DataError


def checked_path(what: str, path: object) -> Path:
    """The path. Raises TypeError, which begins with `what`, where it is none: a text or a `pathlib.Path`."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise TypeError(f"{what}: expected a path, as a str or a pathlib.Path. Received: {shown(path)}")
    return Path(name)


def reason(error: Exception) -> str:
    """What an exception says, on one line: the system's words, where it is the system's."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(text.split()) or type(error).__name__


def file_error(error: OSError | ValueError, path: Path, expected: str) -> DataError:
    """The error for a file that the system refuses (a ValueError is one of its name)."""
    where = getattr(error, "filename", None) or path
    return DataError(f"{where}: expected {expected}. Received: {reason(error)}")


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that is whole or not there: an older one is replaced at the end. Missing directories are made.

    Raises DataError, which names the path, where it cannot be written.
    """
    path = checked_path("writing a file", path)
    try:
        if not path.name or path.is_dir():
            raise DataError(f"{path}: expected the name of a file to write. Received: a directory")
        make_directory(path.parent)
        _replace(path, data)
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected to write this file. Received: {reason(error)}") from error


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")  # the file's own name may be as long as names can be
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def make_directory(directory: Path) -> None:
    """Make a directory to write to, with those above it, unless it is there. Raises DataError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        received = "a file" if isinstance(error, FileExistsError) else reason(error)
        raise DataError(f"{directory}: expected a directory to write to. Received: {received}") from error
