"""The end of all ranks when one of them fails."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from crossbow.cluster.members import RankFailedError
from crossbow.cluster.output import SECONDS_BEFORE_ERRORS, mark_errors
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.transport import Transport
from crossbow.console import say

FAILED = 1
"""Exit status after an exception."""
LOST = 3
"""Exit status after a loss of ranks without which training cannot continue."""
TERMINATED = 143
"""Exit status after SIGTERM."""
ASKED_TO_LEAVE = "it was asked to leave"
"""The reason why a rank has left after its process received SIGTERM."""
SECONDS_BETWEEN = 0.01
"""Time between two checks whether other ranks have ended."""


def end_all_on_exception(ranks: Ranks) -> None:
    """End all ranks after an exception has ended this one and its traceback is printed."""
    hook = sys.excepthook

    def print_and_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if not ranks.is_first:
                time.sleep(SECONDS_BEFORE_ERRORS)
            mark_errors(ranks.own, seconds=0.0)
            if isinstance(error, RankFailedError):
                say(f"error: {error}")
            else:
                hook(kind, error, trace)
        finally:
            end_all(ranks.transport, FAILED)

    sys.excepthook = print_and_end


def end_all(transport: Transport, status: int) -> None:
    """End all ranks with this exit status. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    transport.abort(status)


def end_with_others(ranks: Ranks) -> None:
    """Tell the other ranks that this program has ended, and wait until theirs have ended. Unlike MPI's own wait, this
    one keeps no core busy."""
    ranks.tell_end()
    while not ranks.all_have_ended():
        time.sleep(SECONDS_BETWEEN)
