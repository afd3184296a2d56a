"""A line on the terminal in the first run on a machine, which waits for kernels to be compiled."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from crossbow.console import say
from crossbow.monitors.console import draws_bars

LOGGER = logging.getLogger("crossbow.kernels.compiled")


class _FirstMessage(logging.Handler):
    """Prints a line at the first message."""

    def emit(self, record: logging.LogRecord) -> None:
        LOGGER.removeHandler(self)
        say("compiling kernels for this machine, which may take a minute; later runs load them from disk")


@contextlib.contextmanager
def announced() -> Iterator[None]:
    """Say once, if standard error is a terminal, that kernels are being compiled."""
    if not draws_bars(sys.stderr):
        yield
        return
    handler, level = _FirstMessage(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
