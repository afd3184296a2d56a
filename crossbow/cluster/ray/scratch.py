"""Directories of Ray's processes, which are removed with the processes, also of those that were killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing tells whether a directory is in use
    fcntl = None  # type: ignore[assignment]


@contextmanager
def scratch_directory(prefix: str) -> Iterator[str]:
    """A new directory for temporary files, which is removed at the end. Those with the same prefix whose processes were
    killed are removed now."""
    with contextlib.suppress(OSError):
        for older in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            _remove_abandoned(older)
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
        if fcntl is not None:
            stack.enter_context(_locked(directory))  # until this process ends
        yield directory


@contextmanager
def _locked(directory: str | Path) -> Iterator[None]:
    """Lock a directory. Raises OSError if another process has locked it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(directory: Path) -> None:
    """Remove a directory that no process has locked."""
    if fcntl is None or not directory.is_dir():
        return
    with contextlib.suppress(OSError), _locked(directory):  # another user's cannot be removed
        shutil.rmtree(directory, ignore_errors=True)
