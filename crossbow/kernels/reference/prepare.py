"""Conversion of functions of arrays to kernels of the reference library."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.registry import R, Registry

Floats = NDArray[Any]
"""An array of any floating-point type."""
Function = TypeVar("Function", bound=Callable[..., None])

REFERENCE = Registry("reference", plain_variables=True)


def computes(
    request: type[R],
    when: Callable[[R], bool] = lambda _: True,
    *,
    kept: Callable[[R], int] = lambda _: 0,
    in_place: bool = True,
) -> Callable[[Function], Function]:
    """Decorator: register a function as the kernel for requests of a type for which the condition holds.

    The function's parameters have the names of the buffers' roles, and of the request's fields that it needs. kept:
    size of `kept` in bytes. in_place: whether the function supports the sharing of memory that the contract allows.
    """

    def register(function: Function) -> Function:
        parameters = tuple(inspect.signature(function).parameters)

        def prepare(request: R) -> PreparedKernel:
            roles = request.roles
            constants = {name: getattr(request, name) for name in parameters if hasattr(request, name)}
            configured = functools.partial(function, **constants)
            relu = "output" in roles and getattr(request, "relu", False)

            def bind(buffers: Buffers) -> list[Call]:
                calls: list[Call] = [functools.partial(configured, **{role: buffers[role] for role in roles})]
                if relu:
                    calls.append(functools.partial(np.maximum, buffers["output"], 0, out=buffers["output"]))
                return calls

            return request.prepared("reference", bind, kept=kept(request), in_place=in_place)

        REFERENCE.kernel(request, when)(prepare)
        return function

    return register
