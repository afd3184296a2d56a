"""Tracebacks that show users their own code, without the frames of this package."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import ParamSpec, TypeVar

from crossbow.types import ConfigurationError, GraphError

P = ParamSpec("P")
T = TypeVar("T")

PACKAGE = __name__.partition(".")[0]


def users_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this package, or None if no others are left."""
    kept = []
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] != PACKAGE:
            kept.append(traceback)
        traceback = traceback.tb_next
    found: TracebackType | None = None
    for entry in reversed(kept):
        found = TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return found


def users_error(error: BaseException) -> BaseException | None:
    """The error that the user's own code raised, which is `error` or its cause, with only the frames of that code. None
    if this package raised it.
    """
    for raised in (error, error.__cause__):
        if raised is not None and (frames := users_frames(raised.__traceback__)) is not None:
            return raised.with_traceback(frames)
    return None


def raised_together(errors: Sequence[BaseException]) -> BaseException | None:
    """The errors as the cause of another error: the only one, or a group of all; None if there are none."""
    if len(errors) > 1:
        return BaseExceptionGroup("errors raised by operators", errors)
    return errors[0] if errors else None


def without_own_frames(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for public functions: removes this package's frames from errors in a graph or a configuration.

    The messages are self-contained, and the last line of the traceback is then the user's own.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (GraphError, ConfigurationError) as error:
            error.__traceback__ = users_frames(error.__traceback__)
            raise  # a bare raise adds no frame of this function

    return call
