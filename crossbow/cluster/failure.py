"""The end of all ranks when one of them fails."""

from __future__ import annotations

import sys
from types import TracebackType

from crossbow.cluster.transport import Transport

FAILED = 1
"""Exit status after an exception."""
LOST = 3
"""Exit status after the loss of rank 0, or of too many ranks."""
TERMINATED = 143
"""Exit status after SIGTERM."""


def end_all_on_exception(transport: Transport) -> None:
    """End all ranks when an exception ends this one, once its traceback is printed."""
    hook = sys.excepthook

    def print_and_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            hook(kind, error, trace)
        finally:
            end_all(transport, FAILED)

    sys.excepthook = print_and_end


def end_all(transport: Transport, status: int) -> None:
    """End all ranks with this exit status. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    transport.abort(status)
