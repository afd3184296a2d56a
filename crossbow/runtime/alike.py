"""Comparison of settings that must be equal on all ranks that train together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar, cast

from crossbow.cluster.ranks import Ranks
from crossbow.compile import ModelLayout
from crossbow.types import ConfigurationError

T = TypeVar("T")

OF_EACH_RANK = ("devices", "learners_per_device", "threads_per_learner", "loader_threads")
"""System settings that may differ between ranks."""


def check_alike(ranks: Ranks, about: Mapping[str, Any]) -> None:
    """Compare the descriptions of the run on all ranks, which must call this.

    about: network, data, model, solver and system, as in a checkpoint. Raises ConfigurationError with the first
    difference, which is the same on all ranks. A rank that would join the others, but differs from them, ends its
    program.
    """
    if ranks.connected:  # without others, the run need not be described
        check_equal(ranks, {"version": _version(), **dict(_fields(about))})


def differently_stored(ranks: Ranks, layouts: Iterable[ModelLayout]) -> frozenset[str]:
    """The names of the variables that the kernels of some ranks store in a different layout, because of their
    processors. All ranks must call this."""
    if not ranks.connected:
        return frozenset()
    own = {segment.name: _digest(repr(segment.storage)) for layout in layouts for segment in layout}
    of_ranks = ranks.gather(own)
    return frozenset(name for name in own if len({of_rank[name] for of_rank in of_ranks}) > 1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def same_error(ranks: Ranks, work: Callable[[], T]) -> T:
    """The result of a function that all ranks call at the same time. If one of them raises ConfigurationError, all of
    them do; the error names the rank, unless all ranks have the same error."""
    result, error = None, None
    try:
        result = work()
    except ConfigurationError as raised:
        error = raised
    reasons = ranks.gather(None if error is None else str(error))
    if error is not None and len(set(reasons)) == 1:
        raise error
    for rank, reason in zip(ranks.view.ranks, reasons, strict=True):
        if reason is not None:
            raise ConfigurationError(f"{rank}: {reason}") from error
    return cast(T, result)


def check_equal(ranks: Ranks, own: Mapping[str, Any]) -> None:
    """Compare named JSON values on all ranks, which must call this. Raises ConfigurationError, and ends a program, as
    `check_alike` does."""
    if not ranks.connected:
        return
    expected, *others = ranks.gather(own)
    for rank, received in zip(ranks.view.ranks[1:], others, strict=True):
        for name in [*expected, *(name for name in received if name not in expected)]:
            first, other = expected.get(name), received.get(name)
            if first != other:
                difference = (
                    f"{name} must be the same on all ranks: expected {first}, as on {ranks.view.ranks[0]}. "
                    f"Received: {other} on {rank}"
                )
                if ranks.joins:
                    ranks.give_up_joining(difference)
                raise ConfigurationError(difference)


def _fields(about: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The names and values that are compared."""
    for number, line in enumerate(about["network"]):
        yield f"network, operator {number}", line
    for part in ("model", "solver", "system", "data"):
        for name, value in about[part].items():
            if name not in OF_EACH_RANK:
                yield f"data, {name}" if part == "data" else name, value


def _version() -> str:
    try:
        return version("crossbow")
    except PackageNotFoundError:  # not installed, but imported from its path
        return "unknown"
