"""What mpirun prints when ranks end, in one sentence or none: Open MPI prints it as banners between lines of dashes."""

from __future__ import annotations

import re
from collections.abc import Callable

DASHES = b"-" * 74
MOST_LINES = 12
"""Banners about the ends of ranks have fewer lines. What is longer is something else."""
_ABORTED = re.compile(
    rb"MPI_ABORT was invoked on rank \d+ in communicator "
    rb"|prterun has exited due to process rank \d+ with PID \d+ on node \S+ calling"
)
"""Of a rank that has said why it ends all."""
_KILLED = re.compile(
    rb"prterun noticed that process rank (\d+) with PID \d+ on node\s+(\S+)\s+exited\s+on\s+signal\s+(.*)\."
)
_FAILED = re.compile(
    rb"prterun detected that one or more processes exited with non-zero status,.*"
    rb"Process name:\s+\[[^]]*,(\d+)\]\s+Exit code:\s+(\d+)\s*",
    re.DOTALL,
)
_BEGINNING = re.compile(rb"prterun noticed that |prterun detected that |prterun has exited due to |MPI_ABORT was ")


class WithoutBanners:
    """Passes the standard error of mpirun on, as soon as it comes, without the banners about the ends of ranks."""

    def __init__(self, write: Callable[[bytes], object], say: Callable[[str], object]) -> None:
        """write: takes what is passed on. say: takes a sentence about a rank that has ended without a word."""
        self._write, self._say = write, say
        self._kept = b""
        """What may be a banner, or its beginning, from the beginning of a line."""
        self._in_line = False
        """Whether the last thing that was passed on is the beginning of a line."""
        self._silent = True
        """Whether nothing was passed on."""

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
            self._pass_on(self._kept.find(b"\n-") + 1 or len(self._kept))  # up to the next line that may be of dashes
            return True
        title, is_whole, _ = rest.partition(b"\n")
        if not is_whole:
            return False
        text, dashes, after = rest.partition(b"\n" + DASHES + b"\n")
        if dashes and text.count(b"\n") <= MOST_LINES and self._replace(text):
            self._kept = after
            return True
        if dashes or rest.count(b"\n") > MOST_LINES or not _BEGINNING.match(title):
            self._pass_on(len(line) + 1)
            return True
        return False

    def _replace(self, text: bytes) -> bool:
        """Say in a sentence what a banner says, unless it is known. Returns False for a banner that stays."""
        if killed := _KILLED.fullmatch(text):
            rank, host, signal = (each.decode(errors="replace") for each in killed.groups())
            self._say(f"rank {rank} ({host}) was lost: its process was ended by signal {signal}")
        elif failed := _FAILED.fullmatch(text):
            if self._silent:
                rank, status = (each.decode() for each in failed.groups())
                self._say(f"rank {rank} has ended with exit status {status}")
        elif not _ABORTED.match(text):
            return False
        return True

    def _pass_on(self, count: int) -> None:
        content, self._kept = self._kept[:count], self._kept[count:]
        if content:
            self._write(content)
            self._in_line, self._silent = not content.endswith(b"\n"), False
