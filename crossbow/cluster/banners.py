"""Replaces the banners of Open MPI's mpirun about ranks that have ended and hosts that it cannot reach, which stand
between lines of dashes, by one sentence or none."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

DASHES = b"-" * 60, b"-" * 74
"""The lines around a banner."""
MOST_LINES = 16
"""Maximum number of lines of a banner that is replaced. Longer text is something else."""
_ABORTED = re.compile(
    rb"MPI_ABORT was invoked on rank \d+ in communicator "
    rb"|prterun has exited due to process rank \d+ with PID \d+ on node \S+ calling"
)
"""Banner about a rank that has already printed why it ends all ranks."""
_KILLED = re.compile(
    rb"prterun noticed that process rank (\d+) with PID \d+ on node\s+(\S+)\s+exited\s+on\s+signal\s+(.*)\."
)
_FAILED = re.compile(
    rb"prterun detected that one or more processes exited with non-zero status,.*"
    rb"Process name:\s+\[[^]]*,(\d+)\]\s+Exit code:\s+(\d+)\s*",
    re.DOTALL,
)
_UNREACHABLE = re.compile(
    rb"A daemon failed to report back after being spawned\..*"
    rb"Remote host:\s+(\S+)\s+Daemon exit status:\s+(\d+)\s.*",
    re.DOTALL,
)
_BEGINNING = re.compile(
    rb"prterun noticed that |prterun detected that |prterun has exited due to |MPI_ABORT was |A daemon failed to "
)


class WithoutBanners:
    """Passes a stream of mpirun on immediately, without the banners that are replaced."""

    def __init__(
        self, write: Callable[[bytes], object], say: Callable[[str], object], signals: Sequence[int] = ()
    ) -> None:
        """write: function that writes the output passed on. say: function that prints a sentence in place of a banner.
        signals: signals that the launcher has received so far, after which ranks end with a status other than 0."""
        self._write, self._say, self._signals = write, say, signals
        self._kept = b""
        """Output from the beginning of a line, which may be a banner or the beginning of one."""
        self._in_line = False
        """Whether the output passed on ends within a line."""
        self._silent = True
        """Whether nothing has been passed on yet."""
        self.saw_ranks_end = self.saw_unreachable = False
        """Whether there was a banner about the end of a rank, and about a host that mpirun cannot reach."""

    def feed(self, content: bytes) -> None:
        """Process more output. Zero bytes are left out: mpirun ends its last banner with one."""
        self._kept += content.replace(b"\0", b"")
        while self._kept and self._step():
            pass

    def end(self) -> None:
        """Process the end of the output."""
        self._pass_on(len(self._kept))

    def _step(self) -> bool:
        """Pass on, or drop, a complete piece of the output. Returns whether there was one."""
        line, newline, rest = self._kept.partition(b"\n")
        if self._in_line or not (line in DASHES if newline else DASHES[-1].startswith(line)):
            self._pass_on(self._kept.find(b"\n-") + 1 or len(self._kept))  # up to the next line that may be of dashes
            return True
        title, is_whole, _ = rest.partition(b"\n")
        if not is_whole:
            return False
        text, dashes, after = rest.partition(b"\n" + line + b"\n")
        if dashes and text.count(b"\n") <= MOST_LINES and self._replace(text):
            self._kept = after
            return True
        if dashes or rest.count(b"\n") > MOST_LINES or not _BEGINNING.match(title):
            self._pass_on(len(line) + 1)
            return True
        return False

    def _replace(self, text: bytes) -> bool:
        """Print a banner's message as a sentence, unless it is known already. Returns False for a banner that is
        kept."""
        if killed := _KILLED.fullmatch(text):
            rank, host, signal = (each.decode(errors="replace") for each in killed.groups())
            self._say(f"rank {rank} ({host}) was lost: its process was ended by signal {signal}")
        elif failed := _FAILED.fullmatch(text):
            if self._silent and not self._signals:
                rank, status = (each.decode() for each in failed.groups())
                self._say(f"rank {rank} has ended with exit status {status}")
        elif unreachable := _UNREACHABLE.fullmatch(text):
            host, status = (each.decode(errors="replace") for each in unreachable.groups())
            self._say(f"error: mpirun cannot start processes on {host}: the remote shell has exit status {status}")
            self.saw_unreachable = True
            return True
        elif not _ABORTED.match(text):
            return False
        self.saw_ranks_end = True
        return True

    def _pass_on(self, count: int) -> None:
        content, self._kept = self._kept[:count], self._kept[count:]
        if content:
            self._write(content)
            self._in_line, self._silent = not content.endswith(b"\n"), False
