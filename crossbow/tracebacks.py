"""Tracebacks: what users see of an error is their own code, not the frames of this package."""

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
    """The traceback without the frames of this package; None where all of them are."""
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
    """The error that users' own code raised, with the frames of that code only; None where this package raised it.

    It is `error`, or the one from which this package raised that.
    """
    for raised in (error, error.__cause__):
        if raised is not None and (frames := users_frames(raised.__traceback__)) is not None:
            return raised.with_traceback(frames)
    return None


def raised_together(errors: Sequence[BaseException]) -> BaseException | None:
    """One error as the cause of another one: the only one, or a group of all."""
    if len(errors) > 1:
        return BaseExceptionGroup("the errors that operators raised", errors)
    return errors[0] if errors else None


def without_own_frames(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for what users call: errors in a graph or a configuration arrive without the frames of this package.

    Their sentences say all there is to say, and the last line of the traceback is then the user's own.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (GraphError, ConfigurationError) as error:
            error.__traceback__ = users_frames(error.__traceback__)
            raise  # which, as it names no error, adds no frame of this function either

    return call
