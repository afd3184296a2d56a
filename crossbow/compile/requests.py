"""A kernel library that prepares a kernel once for equal requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from crossbow.kernels.interface import KernelLibrary


def remembering(library: KernelLibrary) -> KernelLibrary:
    """The library, with equal requests answered by the same prepared kernel: deep networks repeat their layers.

    A prepared kernel holds no buffers, so operators can share it as learners do. It is made for the number of threads
    that the calling thread has, so one memory serves one program.
    """
    return cast(KernelLibrary, _Remembering(library))


class _Remembering:
    def __init__(self, library: KernelLibrary) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if callable(found):
            found = _remembered(found)
        setattr(self, name, found)  # from now on it is found without coming here
        return found


def _remembered(request: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[object, Any] = {}

    def prepare(*arguments: Any, **settings: Any) -> Any:
        key = (arguments, *settings.items())
        try:
            hash(key)
        except TypeError:  # it holds a list, or an array
            return request(*arguments, **settings)
        if key not in known:
            known[key] = request(*arguments, **settings)
        return known[key]

    return prepare
