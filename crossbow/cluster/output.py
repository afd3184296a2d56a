"""Output of a process that is one of several ranks: rank 0 prints, and the others print only errors."""

from __future__ import annotations

import io
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import TextIO

from crossbow.cluster.launch import launch_of
from crossbow.cluster.members import Rank
from crossbow.console import open_standard_streams

SECONDS_BEFORE_ERRORS = 1.0
"""Time that other ranks wait before they print their first error: usually rank 0 has the same error, and ends them."""


class PrefixedLines(io.TextIOBase):
    """A text stream with a prefix before every line."""

    def __init__(self, stream: TextIO, prefix: str, seconds: float = 0.0) -> None:
        """seconds: time to wait before the first line."""
        self._stream, self._prefix, self._begins = stream, prefix, True
        self._seconds = seconds

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return self._stream.encoding

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        seconds, self._seconds = self._seconds, 0.0
        time.sleep(seconds)
        lines = text.splitlines(keepends=True)
        self._stream.write("".join(self._prefix * self._begins_line(line) + line for line in lines))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def _begins_line(self, line: str) -> bool:
        begins, self._begins = self._begins, line.endswith("\n")
        return begins


class OutputOfFirst(io.TextIOBase):
    """A text stream that discards its input while this process is not rank 0."""

    def __init__(self, stream: TextIO, is_first: Callable[[], bool]) -> None:
        self._stream, self._is_first = stream, is_first

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return self._stream.encoding

    def write(self, text: str) -> int:
        return self._stream.write(text) if self._is_first() else len(text)

    def flush(self) -> None:
        self._stream.flush()


def mark_errors(own: Rank, seconds: float = SECONDS_BEFORE_ERRORS) -> None:
    """Prefix further lines of standard error with rank and host, except on rank 0, which often has the same error.

    seconds: time to wait before the first line.
    """
    if own.number and not isinstance(sys.stderr, PrefixedLines):
        sys.stderr = PrefixedLines(sys.stderr, _prefix(own), seconds)


def _prefix(own: Rank) -> str:
    return f"[rank {own.number} {own.host}] "


def arrange_output(is_first: Callable[[], bool], *, log_all: bool = False) -> None:
    """Let only rank 0 print, except errors. is_first: whether this process is rank 0. log_all: let all ranks print,
    each line with its rank and host."""
    launch = launch_of(os.environ)
    if launch.size == 1:
        return
    open_standard_streams()
    own = Rank(launch.rank, socket.gethostname())
    mark_errors(own)
    if launch.rank and not log_all:
        sys.stdout = OutputOfFirst(sys.stdout, is_first)
    else:
        # mpirun gives its processes a terminal, but its own output may be a file.
        sys.stdout = PrefixedLines(sys.stdout, _prefix(own) if log_all else "")
