"""The next kernel where oneDNN has none: the compiled pass or the reference, under a name that says so."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from crossbow.kernels.interface import Buffers, Call, PlainStorage, PreparedKernel, Storage, Variable
from crossbow.kernels.onednn.binding import OneDNNError
from crossbow.types import Array, Tensor

Request = Callable[..., PreparedKernel]
Library = TypeVar("Library", bound=type)


def with_fallbacks(library: Library) -> Library:
    """Decorator for a class of kernels: what its kernels refuse, those of the class that it derives from compute.

    A kernel refuses with a `OneDNNError` while it is prepared. Tensors without elements are never offered to oneDNN,
    whose compiled kernels and passes expect some.
    """
    for name, request in list(vars(library).items()):
        if inspect.isfunction(request) and request.__annotations__.get("return") == "PreparedKernel":
            setattr(library, name, _falling_back(library, name, request))
    return library


def _falling_back(library: type, name: str, request: Request) -> Request:
    signature = inspect.signature(request)

    @functools.wraps(request)
    def prepare(self: Any, *arguments: Any, **settings: Any) -> PreparedKernel:
        given = signature.bind(self, *arguments, **settings).arguments
        reason = _emptiness(given.values())
        if reason is None:
            try:
                return request(self, *arguments, **settings)
            except OneDNNError as error:
                reason = str(error)
        kernel: PreparedKernel = getattr(super(library, self), name)(*arguments, **settings)
        storages = {role: value.storage for role, value in given.items() if isinstance(value, Variable)}
        chosen = {role: s for role, s in storages.items() if s is not None and not isinstance(s, PlainStorage)}
        return fallen_back(_on_plain_variables(kernel, chosen, given) if chosen else kernel, reason)

    return prepare


def fallen_back(kernel: PreparedKernel, reason: object) -> PreparedKernel:
    """The kernel, whose name tells that it stands in for another, and why."""
    return replace(kernel, name=f"{kernel.name} (fallback: {reason})")


def _emptiness(arguments: Iterable[object]) -> str | None:
    """What is said of the first tensor, or variable, without elements; None where all have some."""
    for argument in arguments:
        for each in argument if isinstance(argument, tuple | list) else (argument,):
            if isinstance(each, Tensor | Variable) and 0 in each.shape:
                return f"no elements in a tensor of shape {each.shape}"
    return None


def _on_plain_variables(
    kernel: PreparedKernel, storages: Mapping[str, Storage], variables: Mapping[str, Any]
) -> PreparedKernel:
    """A kernel that knows variables in logical order only, for some that lie otherwise: they are copied around it."""
    places = {place: role for role in storages for place in (role, f"{role}_gradient")}
    read = [place for place in places if place in kernel.reads]
    written = [place for place in places if place in kernel.writes]

    def bind(buffers: Buffers) -> Sequence[Call]:
        copies: dict[str, Array] = {
            place: np.zeros(variables[places[place]].shape, buffers[place].dtype) for place in (*read, *written)
        }

        def unpack() -> None:
            for place in read:
                storages[places[place]].unpack(buffers[place].reshape(-1), copies[place])

        def pack() -> None:
            for place in written:
                storages[places[place]].pack(copies[place], buffers[place].reshape(-1))

        return (unpack, *kernel.bind({**buffers, **copies}), pack)

    return replace(kernel, bind=bind)
