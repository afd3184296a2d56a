"""Calls of the methods of operators. Operators may be written outside the package, so their return values are checked,
and their errors are explained."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from crossbow.conf import is_integer, shown
from crossbow.ops.kernel import Gradient, Kernel, VariableSpec
from crossbow.types import Shape

_RESERVED = re.compile(
    r"input\d*|output|labels|kept|state|slots|slot_labels|slot_positions|workspace|.*_(gradient|next)"
)
"""Names that kernels use for their other buffers."""


def ask(kernel: Kernel, method: str, *arguments: Any) -> Any:
    """Call a method of an operator. Raises the operator's own ValueError, or a ValueError that names the method and its
    exception."""
    try:
        return getattr(kernel, method)(*arguments)
    except (ValueError, NotImplementedError) as error:  # their messages are self-contained
        if isinstance(error, ValueError):
            raise
        raise ValueError(str(error)) from error
    except Exception as error:
        raise ValueError(f"{method} raised {type(error).__name__}: {error}") from error


def output_shape(kernel: Kernel, inputs: tuple[Shape, ...]) -> Shape:
    """The shape of the output. Raises ValueError."""
    shape = ask(kernel, "output_shape", *inputs)
    if not isinstance(shape, tuple | list) or not all(is_integer(size) and size >= 0 for size in shape):
        raise ValueError(f"expected output_shape to return a tuple of integers ≥ 0. Received: {shown(shape)}")
    return tuple(map(int, shape))


def variables(kernel: Kernel, inputs: tuple[Shape, ...]) -> tuple[VariableSpec, ...]:
    """The trainable variables. Raises ValueError."""
    return _specs(kernel, "variables", inputs)


def running_statistics(kernel: Kernel, inputs: tuple[Shape, ...]) -> tuple[VariableSpec, ...]:
    """The statistics. Raises ValueError."""
    return _specs(kernel, "running_statistics", inputs)


def gradient(kernel: Kernel, index: int) -> Gradient | None:
    """The gradient operator with respect to an input. Raises ValueError."""
    found = ask(kernel, "gradient", index)
    if found is not None and not isinstance(found, Gradient):
        raise ValueError(f"expected gradient to return a gradient operator or None. Received: {shown(found)}")
    return found


def prediction(kernel: Kernel) -> Kernel | None:
    """The operator that predicts in place of a loss. Raises ValueError."""
    found = ask(kernel, "prediction")
    if found is not None and not isinstance(found, Kernel):
        raise ValueError(f"expected prediction to return an operator or None. Received: {shown(found)}")
    if found is not None and (found.takes_labels or found.is_loss or found.is_measure):
        raise ValueError(f"expected prediction to return an operator without labels. Received: {shown(found)}")
    return found


def _specs(kernel: Kernel, method: str, inputs: tuple[Shape, ...]) -> tuple[VariableSpec, ...]:
    found = ask(kernel, method, *inputs)
    if not isinstance(found, tuple | list) or not all(isinstance(spec, VariableSpec) for spec in found):
        raise ValueError(f"expected {method} to return a tuple of VariableSpec. Received: {shown(found)}")
    counts = Counter(spec.name for spec in found)
    if wrong := [name for name, count in counts.items() if count > 1 or _RESERVED.fullmatch(name)]:
        raise ValueError(
            f"expected {method} with unique names that no other buffer has, unlike 'output' or 'x_gradient'. "
            f"Received: {', '.join(map(repr, wrong))}"
        )
    return tuple(found)
