"""Registry of the functions that write Crossbow's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from crossbow.onnx.network import MARK
from crossbow.onnx.training_settings import settings_of
from crossbow.onnx.writing.model import Writer
from crossbow.onnx.writing.written_operator import WrittenOperator
from crossbow.ops import Kernel
from crossbow.types import Array, Shape

WRITERS: dict[type[Kernel], Callable[[WrittenOperator], None]] = {}


def writes(*kinds: type[Kernel]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function that writes operators."""

    def enter(function: Callable[..., None]) -> Callable[..., None]:
        for kind in kinds:
            WRITERS[kind] = function
        return function

    return enter


def write_operator(
    writer: Writer,
    order: int,
    kernel: Kernel,
    name: str,
    inputs: tuple[str, ...],
    shapes: tuple[Shape, ...],
    output: str,
    variables: Mapping[str, Array],
) -> None:
    """Add the nodes of one operator, or a fault if ONNX has no counterpart."""
    write = WRITERS.get(type(kernel))
    if write is None:
        writer.fault(name, kernel, "ONNX has no such operator")
        return
    if settings := settings_of(kernel, variables):
        writer.settings[order] = settings
    mark = f"{MARK} {order} {type(kernel).__name__} {name}"
    write(WrittenOperator(writer, kernel, name, inputs, shapes, kernel.output_shape(*shapes), output, variables, mark))
