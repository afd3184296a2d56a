"""Registration of a library's kernels by request, and selection of a kernel.

A library consists of *rooms*: kernels of one kind, in a `Registry`. A request goes from room to room. In each, the
kernels for it are tried in the order of registration, and the first whose condition holds prepares the answer. If it
raises `UnsupportedError`, the next kernel is tried, and its name then states the reason.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from crossbow.kernels.interface import Buffers, Call, PlainStorage, PreparedKernel, Storage, Variable
from crossbow.kernels.requests import Request, RequestType
from crossbow.types import Array, ConfigurationError, CrossbowError

R = TypeVar("R", bound=Request)
Prepare = TypeVar("Prepare", bound=Callable[..., PreparedKernel])


class UnsupportedError(CrossbowError, RuntimeError):
    """Raised while a kernel is prepared, if its underlying implementation rejects the request."""


@dataclass(frozen=True)
class Candidate:
    """A kernel for one kind of request."""

    prepare: Callable[[Any], PreparedKernel]
    when: Callable[[Any], bool]
    """Whether it supports a request."""


class Registry:
    """The kernels of one room."""

    def __init__(self, name: str, *, takes_empty: bool = True, plain_variables: bool = False) -> None:
        """takes_empty: whether tensors may be empty. plain_variables: whether the kernels support only variables in
        logical order; variables with other storages are then copied before and after them."""
        self.name, self.takes_empty, self.plain_variables = name, takes_empty, plain_variables
        self._candidates: dict[RequestType, list[Candidate]] = {}

    def kernel(self, request: type[R], when: Callable[[R], bool] = lambda _: True) -> Callable[[Prepare], Prepare]:
        """Decorator: register a function, from a request to a prepared kernel, for requests of a type for which the
        condition holds."""

        def register(prepare: Prepare) -> Prepare:
            self._candidates.setdefault(request, []).append(Candidate(prepare, when))
            return prepare

        return register

    def candidates(self, request: RequestType) -> Sequence[Candidate]:
        """Kernels for a type of request, in the order in which they are tried."""
        return self._candidates.get(request, ())


class Rooms:
    """Registries in the order in which they are tried."""

    def __init__(self, library: str, *registries: Registry) -> None:
        self.library, self.registries = library, registries

    def prepare(self, request: Request) -> PreparedKernel:
        """The answer to a request. Raises ConfigurationError if no room has a kernel for it."""
        reason, empty = "", request.empty_shape()
        for registry in self.registries:
            candidates = registry.candidates(type(request))
            if candidates and empty is not None and not registry.takes_empty:
                reason = reason or f"no elements in a tensor of shape {empty}"
                continue
            for candidate in candidates:
                try:
                    if not candidate.when(request):
                        continue
                    kernel = candidate.prepare(request)
                except UnsupportedError as error:
                    reason = reason or str(error)
                    continue
                if registry.plain_variables:
                    kernel = _on_plain_variables(kernel, request)
                return replace(kernel, name=f"{kernel.name} (fallback: {reason})") if reason else kernel
        raise ConfigurationError(
            f"{self.library}: expected a request for which there is a kernel{reason and f' ({reason})'}. "
            f"Received: {request}"
        )


def load(package: str) -> None:
    """Import all modules of a package, so that their kernels are registered."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)


def _on_plain_variables(kernel: PreparedKernel, request: Request) -> PreparedKernel:
    """A kernel for variables in logical order, wrapped for other storages: they are copied before and after it."""
    variables = {role: value for role, value in vars(request).items() if isinstance(value, Variable)}
    storages: dict[str, Storage] = {
        role: variable.storage
        for role, variable in variables.items()
        if variable.storage is not None and not isinstance(variable.storage, PlainStorage)
    }
    return _copying(kernel, variables, storages) if storages else kernel


def _copying(
    kernel: PreparedKernel, variables: Mapping[str, Variable], storages: Mapping[str, Storage]
) -> PreparedKernel:
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
