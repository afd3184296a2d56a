"""What mpirun prints when ranks end, in one sentence or none: Open MPI prints it as banners between lines of dashes."""

from __future__ import annotations

import re
from collections.abc import Callable

DASHES = b"-" * 74
MOST_LINES = 12
"""Banners about the ends of ranks have fewer lines. What is longer is something else."""
_CONSEQUENCES = re.compile(
    rb"prterun detected that one or more processes exited with non-zero status,"
    rb"|MPI_ABORT was invoked on rank \d+ in communicator "
    rb"|prterun has exited due to process rank \d+ with PID \d+ on node \S+ calling"
)
"""First lines of banners about ranks that have said themselves why they end."""
_KILLED = re.compile(rb"prterun noticed that process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (.*)\.")


class WithoutBanners:
    """Passes the standard error of mpirun on, as soon as it comes, without the banners about the ends of ranks."""

    def __init__(self, write: Callable[[bytes], object], say: Callable[[str], object]) -> None:
        """write: takes what is passed on. say: takes a sentence about a rank that a signal has ended."""
        self._write, self._say = write, say
        self._kept = b""
        """What may be a banner, or its beginning, from the beginning of a line."""
        self._in_line = False
        """Whether the last thing that was passed on is the beginning of a line."""

    def feed(self, content: bytes) -> None:
        """Take more of the output."""
        self._kept += content
        while self._kept and self._step():
            pass

    def end(self) -> None:
        """Take the end of the output."""
        self._pass_on(len(self._kept))

    def _step(self) -> bool:
        """Pass on, or drop, what is complete. Returns whether there was something."""
        line, newline, rest = self._kept.partition(b"\n")
        if self._in_line or not (line == DASHES if newline else DASHES.startswith(line)):
            self._pass_on(len(line) + len(newline))
            return True
        if not newline:
            return False  # it may become a line of dashes
        title, newline, _ = rest.partition(b"\n")
        if not newline:
            return False
        if not (_CONSEQUENCES.match(title) or title.startswith(b"prterun noticed that process rank ")):
            self._pass_on(len(DASHES) + 1)
            return True
        text, dashes, after = rest.partition(b"\n" + DASHES + b"\n")
        if text.count(b"\n") > MOST_LINES:
            self._pass_on(len(DASHES) + 1)
            return True
        if not dashes:
            return False
        self._kept = after
        if killed := _KILLED.match(text):
            rank, host, signal = (each.decode(errors="replace") for each in killed.groups())
            self._say(f"rank {rank} ({host}) was lost: its process was ended by signal {signal}")
        return True

    def _pass_on(self, count: int) -> None:
        content, self._kept = self._kept[:count], self._kept[count:]
        if content:
            self._write(content)
            self._in_line = not content.endswith(b"\n")
