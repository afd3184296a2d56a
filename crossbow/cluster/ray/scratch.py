"""Directories of Ray's processes. Each is removed when its process ends or, if that was killed, by the next process."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crossbow.files import locked

DIRECTORY_ONLY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
"""Flags that allow only directories to be opened, not files or symbolic links. Windows, which cannot open directories,
has none."""


@contextmanager
def scratch_directory(prefix: str) -> Iterator[str]:
    """A new directory for temporary files, which is removed at the end. Directories with the same prefix whose
    processes were killed are removed now."""
    with contextlib.suppress(OSError):
        for older in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            _remove_abandoned(older)
    while True:
        # Until the directory is locked, it looks abandoned to other processes.
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as directory, _lock(directory):
            if os.path.isdir(directory):
                yield directory
                return


@contextmanager
def _lock(directory: str) -> Iterator[None]:
    """Lock a directory, if it exists and the system supports that. The lock ends with this process."""
    descriptor = None
    with contextlib.suppress(OSError):  # it has just been removed, or Windows cannot open directories
        descriptor = os.open(directory, os.O_RDONLY)
        locked(descriptor, wait=True)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _remove_abandoned(directory: Path) -> None:
    """Remove a directory, unless a process has locked it or the file system has no locks."""
    with contextlib.suppress(OSError):  # another process has just removed it, or it is no directory
        descriptor = os.open(directory, os.O_RDONLY | DIRECTORY_ONLY)
        try:
            if locked(descriptor, wait=False):
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(descriptor)
