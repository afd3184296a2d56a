"""Prepared kernels for operators outside the package, from their `forward` and `backward` in array-module code.

The code runs directly on the bound arrays, with any kernel library; its results are copied into the buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from crossbow.files import reason
from crossbow.kernels.interface import Buffers, PreparedKernel, State, Variable
from crossbow.types import Array, Shape, Tensor

_TOO_FEW_INPUTS = ("tuple index out of range", "not enough values to unpack")
"""The beginnings of Python's messages where an operator reads more inputs than it has."""


class ArrayOperator(Protocol):
    """The part of an operator that runs its array-module code; see `crossbow.ops.Kernel`."""

    takes_labels: ClassVar[bool]
    is_loss: ClassVar[bool]
    is_measure: ClassVar[bool]

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array: ...

    def backward(
        self,
        xp: ModuleType,
        inputs: Sequence[Array],
        output: Array,
        variables: Mapping[str, Array],
        output_gradient: Array,
    ) -> tuple[Sequence[Array | None], Mapping[str, Array]]: ...


class ArraySite(Protocol):
    """The part of an operator's surroundings that its array-module code needs."""

    @property
    def inputs(self) -> Sequence[Tensor]: ...

    @property
    def variables(self) -> Mapping[str, Variable]: ...

    @property
    def needs_input_gradient(self) -> bool: ...


def prepare_forward(kernel: ArrayOperator, site: ArraySite) -> tuple[PreparedKernel, ...]:
    """The operator's `forward` as one prepared kernel."""
    roles = _Roles.of(kernel, site)

    def bind(buffers: Buffers) -> list[Callable[[], None]]:
        def call() -> None:
            with _arrays(buffers) as (module, arrays):
                inputs, variables = roles.inputs(arrays), roles.variables(arrays)
                name, scalar = f"{roles.name}.forward", kernel.is_loss or kernel.is_measure
                try:
                    result = kernel.forward(module, inputs, variables)
                except (IndexError, ValueError) as error:
                    if scalar and not kernel.takes_labels and str(error).startswith(_TOO_FEW_INPUTS):
                        expected = f"{name}: expected takes_labels = True for an operator that reads the labels"
                        raise type(error)(f"{expected}. Received: {error}") from error
                    raise
                _copy(module, result, arrays["output"], name, "an output", scalar=scalar)

        return [call]

    return (PreparedKernel(f"{roles.name}.forward array", roles.reads, ("output",), bind),)


def prepare_backward(kernel: ArrayOperator, input: int, site: ArraySite) -> tuple[PreparedKernel, ...]:
    """The operator's `backward` as a prepared kernel for one input's gradient; for input 0, also the variables'."""
    roles = _Roles.of(kernel, site)
    updated = tuple(site.variables) if input == 0 else ()
    reads = (*roles.reads, "output") if kernel.is_loss else (*roles.reads, "output", "output_gradient")
    writes = tuple(f"{name}_gradient" for name in updated)
    if site.needs_input_gradient:
        writes += ("input_gradient",)
    if not writes:
        return ()

    def bind(buffers: Buffers) -> list[Callable[[], None]]:
        return [_Backward(kernel, input, roles, updated, site.needs_input_gradient, buffers)]

    return (PreparedKernel(f"{roles.name}.backward array", reads, writes, bind),)


@dataclass(frozen=True)
class _Roles:
    """The buffers that an operator's code reads."""

    name: str
    edges: tuple[str, ...]
    """Roles of the inputs, with the labels last."""
    parameters: tuple[str, ...]
    only_real_examples: bool
    """Whether the padding of a batch is excluded, as for losses and metrics."""

    @classmethod
    def of(cls, kernel: ArrayOperator, site: ArraySite) -> _Roles:
        edges = tuple(f"input{index}" for index in range(len(site.inputs)))
        if kernel.takes_labels:
            edges += ("labels",)
        return cls(type(kernel).__name__, edges, tuple(site.variables), kernel.is_loss or kernel.is_measure)

    @property
    def reads(self) -> tuple[str, ...]:
        return (*self.edges, *self.parameters, *(("state",) if self.only_real_examples else ()))

    def examples(self, buffers: Buffers) -> slice:
        return slice(int(buffers["state"][State.EXAMPLES]) if self.only_real_examples else None)

    def inputs(self, buffers: Buffers) -> tuple[Array, ...]:
        real = self.examples(buffers)
        return tuple(_read_only(buffers[role][real]) for role in self.edges)

    def variables(self, buffers: Buffers) -> dict[str, Array]:
        return {name: _read_only(buffers[name]) for name in self.parameters}


@dataclass(frozen=True)
class _Backward:
    """One call of an operator's `backward`."""

    kernel: ArrayOperator
    input: int
    roles: _Roles
    updated: tuple[str, ...]
    """Variables whose gradients are computed."""
    input_gradient_wanted: bool
    buffers: Buffers

    def __call__(self) -> None:
        with _arrays(self.buffers) as (module, arrays):
            self._call(module, arrays)

    def _call(self, module: Any, buffers: Buffers) -> None:
        roles, where = self.roles, f"{self.roles.name}.backward"
        output = _read_only(buffers["output"])
        output_gradient = module.ones_like(output) if self.kernel.is_loss else _read_only(buffers["output_gradient"])
        result = self.kernel.backward(module, roles.inputs(buffers), output, roles.variables(buffers), output_gradient)
        input_gradients, variable_gradients = _pair(result, where)
        if set(variable_gradients) != set(roles.parameters):
            expected, received = (", ".join(map(str, names)) for names in (roles.parameters, variable_gradients))
            raise ValueError(
                f"{where}: expected gradients of the variables {expected or 'none'}. Received: {received or 'none'}"
            )
        inputs = roles.inputs(buffers)
        if len(input_gradients) > len(inputs):
            raise ValueError(
                f"{where}: expected gradients of at most {len(inputs)} inputs. Received: {len(input_gradients)}"
            )
        for index, (gradient, like) in enumerate(zip(input_gradients, inputs, strict=False)):
            if gradient is not None:  # checked even if it is not used
                _checked(module, gradient, like.shape, output.dtype, where, f"a gradient of input {index}")
        for name in self.updated:
            _copy(module, variable_gradients[name], buffers[f"{name}_gradient"], where, f"a gradient of {name!r}")
        if self.input_gradient_wanted:
            gradient = input_gradients[self.input] if self.input < len(input_gradients) else None
            if gradient is None:
                raise ValueError(
                    f"{where}: expected a gradient of input {self.input}, because something upstream of it trains. "
                    "Received: None"
                )
            target: NDArray[Any] = buffers["input_gradient"]
            real = roles.examples(buffers)
            _copy(module, gradient, target[real], where, f"a gradient of input {self.input}")
            if real.stop is not None:
                target[real.stop :] = 0  # padding does not contribute to the loss


def _pair(result: object, where: str) -> tuple[Sequence[Array | None], Mapping[str, Array]]:
    """The return value of `backward` as a pair. Raises ValueError if it has another form."""
    if (
        not isinstance(result, tuple)
        or len(result) != 2
        or not isinstance(result[0], tuple | list)
        or not isinstance(result[1], Mapping)
    ):
        raise ValueError(
            f"{where}: expected (a sequence with the gradient of every input, a mapping from variables to gradients). "
            f"Received: {_kind(result)}"
        )
    return result[0], result[1]


def _kind(value: object) -> str:
    """The type of a value; for a tuple, the types of its elements."""
    return f"({', '.join(map(_kind, value))})" if isinstance(value, tuple) else type(value).__name__


@contextmanager
def _arrays(buffers: Buffers) -> Iterator[tuple[Any, Buffers]]:
    """The array module for the device that the buffers are on, and the buffers as its arrays."""
    if all(isinstance(array, np.ndarray) for array in buffers.values()):
        yield np, buffers
        return
    from crossbow.kernels.cuda.api import api
    from crossbow.kernels.cuda.launch import current

    with api().arrays(current().pointer) as (module, array_of):
        yield module, {role: array_of(array) for role, array in buffers.items()}


def _read_only(array: Array) -> Array:
    """A view that user code cannot write to, if the array type supports that: other operators still read the array."""
    view = array.view()
    if isinstance(view, np.ndarray):
        view.flags.writeable = False
    return view


def _copy(module: Any, value: object, target: Any, where: str, what: str, *, scalar: bool = False) -> None:
    """Copy a result into its buffer. With `scalar`, a loss may be a number instead of an array of one element."""
    target[...] = _checked(module, value, target.shape, target.dtype, where, what, scalar=scalar)


def _checked(
    module: Any, value: object, shape: Shape, dtype: np.dtype[Any], where: str, what: str, *, scalar: bool = False
) -> Any:
    """A result as an array. Raises ValueError if its shape or type is wrong."""
    try:
        result = None if value is None else module.asarray(value)
    except (ValueError, TypeError) as error:  # rows of different lengths
        raise ValueError(f"{where}: expected {what} of shape {shape}. Received: {reason(error)}") from error
    if result is None or (result.shape != shape and not (scalar and result.shape == ())):
        received = "None" if result is None else str(result.shape)
        raise ValueError(f"{where}: expected {what} of shape {shape}. Received: {received}")
    if not np.can_cast(result.dtype, dtype, "same_kind"):
        raise ValueError(f"{where}: expected {what} of type {dtype}. Received: {result.dtype}")
    return result
