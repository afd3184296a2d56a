"""From a function of arrays to a prepared kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
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
    relu: bool = False,
    **constants: object,
) -> PreparedKernel:
    """A prepared kernel whose calls are `function(**constants, <role>=<array>, …)` for the roles read and written.

    relu: and then output ← max(output, 0).
    """
    configured = functools.partial(function, **constants)
    roles = tuple(dict.fromkeys((*reads, *writes)))

    def bind(buffers: Buffers) -> list[Call]:
        calls: list[Call] = [functools.partial(configured, **{role: buffers[role] for role in roles})]
        if relu:
            calls.append(functools.partial(np.maximum, buffers["output"], 0, out=buffers["output"]))
        return calls

    return PreparedKernel(f"{name} reference", reads, writes, bind, kept=kept, in_place=in_place)
