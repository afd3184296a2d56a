"""Pictures of a graph, laid out by Graphviz."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from crossbow.dataflow.graph import BATCH, Graph, Vertex
from crossbow.dataflow.validate import infer_shapes, variables_of
from crossbow.extras import optional_module
from crossbow.files import write_whole
from crossbow.ops.kernel import Gradient, VariableSpec
from crossbow.types import DataError, Shape, bytes_text

FORMATS = ("svg", "png", "dot")
COLOURS = {
    "Conv": "#cfe2f3",
    "TransposedConv": "#cfe2f3",
    "InnerProduct": "#cfe2f3",
    "MatMul": "#cfe2f3",
    "BatchNorm": "#fff2cc",
    "LRN": "#fff2cc",
    "Pool": "#d9ead3",
    "ReLU": "#f4cccc",
    "SoftMax": "#f4cccc",
    "SoftMaxLoss": "#d9d2e9",
    "EuclideanLoss": "#d9d2e9",
    "SigmoidLoss": "#d9d2e9",
}
"""Fill colours of common operators; the others are white, and gradients grey."""
GREY = "#eeeeee"


class Compiled(Protocol):
    """The information of a compiled program about its vertices."""

    @property
    def batch(self) -> Shape: ...

    def memory_of(self, order: int) -> tuple[int, str]:
        """Size of the vertex's output in bytes, and its location."""

    def kernels_of(self, order: int) -> str:
        """Names of the kernels that compute the vertex or, in brackets, of another vertex's kernel that includes it."""


def dot_of(
    graph: Graph, batch: Shape | None = None, *, compiled: Compiled | None = None, gradients: bool = True
) -> str:
    """The graph in Graphviz's DOT language. Dashed edges lead from an operator to its gradient.

    batch: the shape of a batch, with which nodes show parameters, variables and output shapes. compiled: a program of
    the same graph and batch, whose kernels and buffers are also shown; dashed nodes are fused into the kernel of
    another node. gradients: whether gradient operators are drawn.
    """
    shapes = None if batch is None else infer_shapes(graph, batch)
    variables = {} if batch is None or shapes is None else variables_of(graph, batch, shapes)
    shown = {BATCH}
    for vertex in graph:
        # Without the gradients, the optimiser has no input.
        if gradients or (not isinstance(vertex.kernel, Gradient) and shown.issuperset(vertex.inputs)):
            shown.add(vertex.order)
    drawn = [vertex for vertex in graph if vertex.order in shown]
    batch_label = "" if batch is None else f', label="batch\\n{shape_text(batch)}"'
    lines = [
        "digraph dataflow {",
        "  rankdir=TB;",
        '  node [shape=box, fontname="Helvetica"];',
        f"  batch [shape=oval{batch_label}];",
    ]
    for vertex in drawn:
        text = [f"{vertex.order} {vertex.name}", type(vertex.kernel).__name__]
        if shapes is not None:
            text[1] = _with_parameters(vertex)
            text += _variables(variables.get(vertex.order, ()))
            text.append(f"→ {shape_text(shapes[vertex.order])}")
        fused = False
        if compiled is not None:
            kernels = compiled.kernels_of(vertex.order)
            fused = kernels.startswith("(")
            text += [line for line in (kernels, _buffer(compiled, vertex.order)) if line]
        lines.append(f'  n{vertex.order} [label="{_escaped(text)}"{_style(vertex, fused)}];')
    for vertex in drawn:
        for source in vertex.inputs:
            lines.append(f"  {'batch' if source == BATCH else f'n{source}'} -> n{vertex.order};")
        if vertex.peer is not None:
            lines.append(f"  n{vertex.peer} -> n{vertex.order} [style=dashed, constraint=false];")
    return "\n".join([*lines, "}"]) + "\n"


def checked_format(path: Path) -> str:
    """The format that the file's ending selects. Raises DataError for an unknown ending."""
    ending = path.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        expected = ", ".join(f".{name}" for name in FORMATS)
        raise DataError(f"{path}: expected a file name that ends with one of {expected}. Received: {path.name!r}")
    return ending


def write_picture(dot: str, path: Path) -> None:
    """Write a graph in DOT as SVG, PNG or DOT, which the ending of the file selects. The file is written atomically.

    Raises DataError for another ending or if the file cannot be written, and ConfigurationError if pygraphviz, which
    includes Graphviz, is not installed.
    """
    ending = checked_format(path)
    data = dot.encode()
    if ending != "dot":
        graphviz = optional_module("pygraphviz", f"a picture of a graph as {ending.upper()}", "graph")
        data = graphviz.AGraph(string=dot).draw(format=ending, prog="dot")
    write_whole(path, data)


def shape_text(shape: Shape) -> str:
    return "×".join(map(str, shape)) if shape else "scalar"


def _with_parameters(vertex: Vertex) -> str:
    """The kernel's type, and the parameters that differ from their defaults, without initialisers."""
    kernel = vertex.kernel
    given = []
    for field in dataclasses.fields(kernel) if dataclasses.is_dataclass(kernel) else ():
        value = getattr(kernel, field.name)
        if value != field.default and not dataclasses.is_dataclass(value) and not isinstance(value, Gradient):
            given.append(f"{field.name}={value}")
    return "\n".join([type(kernel).__name__, *given])


def _variables(specs: Sequence[VariableSpec]) -> list[str]:
    if not specs:
        return []
    number = sum(math.prod(spec.shape) for spec in specs)
    return [*(f"{spec.name} {shape_text(spec.shape)}" for spec in specs), f"{number:,} parameters"]


def _buffer(compiled: Compiled, order: int) -> str:
    nbytes, place = compiled.memory_of(order)
    return f"{place}, {bytes_text(nbytes)}" if place else ""


def _style(vertex: Vertex, fused: bool) -> str:
    kind = type(vertex.kernel).__name__
    colour = GREY if isinstance(vertex.kernel, Gradient) else COLOURS.get(kind)
    dashes = "dashed" if fused else ""
    if colour is None:
        return f", style={dashes}" if dashes else ""
    style = f'"filled,{dashes}"' if dashes else "filled"
    return f', style={style}, fillcolor="{colour}"'


def _escaped(lines: Sequence[str]) -> str:
    return "\n".join(lines).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
