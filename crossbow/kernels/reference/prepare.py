"""From a function of arrays to a prepared kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from crossbow.kernels.interface import Buffers, Call, PreparedKernel

Floats = NDArray[Any]
"""An array of any floating-point type."""


def prepare(
    name: str,
    function: Callable[..., None],
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    *,
    in_place: tuple[str, str] | None = None,
    kept: int = 0,
    **constants: object,
) -> PreparedKernel:
    """A prepared kernel whose calls are `function(**constants, <role>=<array>, …)` for the roles read and written."""
    configured = functools.partial(function, **constants)
    roles = tuple(dict.fromkeys((*reads, *writes)))

    def bind(buffers: Buffers) -> list[Call]:
        return [functools.partial(configured, **{role: buffers[role] for role in roles})]

    return PreparedKernel(f"{name} reference", reads, writes, bind, kept=kept, in_place=in_place)
