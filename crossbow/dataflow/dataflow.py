"""A dataflow: a subgraph with a phase. It can be printed as a table and exported as a picture."""

from __future__ import annotations

import math
import os

from crossbow.conf import is_integer, shown
from crossbow.dataflow.derive import derive_check, derive_training
from crossbow.dataflow.drawing import Compiled, checked_format, dot_of, shape_text, write_picture
from crossbow.dataflow.graph import BATCH, Graph, build
from crossbow.dataflow.subgraph import SubGraph
from crossbow.dataflow.summary import NetworkSummary, summarise
from crossbow.dataflow.validate import infer_shapes, variables_of
from crossbow.files import checked_path, write_whole
from crossbow.tracebacks import without_own_frames
from crossbow.types import GraphError, Phase, Shape


class Dataflow:
    """A subgraph with a phase. For Phase.TRAIN, the gradient operators and the optimiser are derived.

    A dataflow is a description: it has no values, and several contexts may train it, each with its own model.
    """

    def __init__(self, subgraph: SubGraph) -> None:
        if not isinstance(subgraph, SubGraph):
            raise TypeError(f"a Dataflow holds a SubGraph. Received: {subgraph!r}")
        self.subgraph = subgraph
        self.phase = Phase.TRAIN
        self._graph: Graph | None = None

    def __repr__(self) -> str:
        number = len(self.subgraph.nodes)
        return f"Dataflow({self.phase.name}, {number} node{'s' * (number != 1)})"

    def set_phase(self, phase: Phase) -> Dataflow:
        """Set the phase, and return the dataflow."""
        if not isinstance(phase, Phase):
            raise TypeError(f"the phase is Phase.TRAIN or Phase.CHECK. Received: {phase!r}")
        self.phase, self._graph = phase, None
        return self

    @property
    @without_own_frames
    def graph(self) -> Graph:
        """The vertices in execution order, including derived ones. Raises GraphError."""
        if self._graph is None:
            wired = build(self.subgraph.nodes)
            self._graph = derive_training(wired) if self.phase is Phase.TRAIN else derive_check(wired)
        return self._graph

    @without_own_frames
    def parameters(self, batch: Shape) -> int:
        """Number of elements of all variables, for batches of this shape, (N, …). A shared operator counts once.

        Raises GraphError if the shape is invalid or does not fit.
        """
        batch = _checked_shape(batch, "parameters")
        graph = build(self.subgraph.nodes)
        specs = variables_of(graph, batch, infer_shapes(graph, batch))
        of_operators = {id(graph[order].operator): variables for order, variables in specs.items()}
        return sum(math.prod(spec.shape) for variables in of_operators.values() for spec in variables)

    @without_own_frames
    def summary(self, image_shape: Shape) -> NetworkSummary:
        """Shapes, parameters, multiply-adds and memory of every layer and in total, for examples of this shape,
        (C, H, W) or (features,). It needs no context; `print` shows it as a table.

        Raises GraphError if the shape is invalid or does not fit.

        >>> from crossbow import Dataflow, Sequential
        >>> from crossbow.ops import Conv, InnerProduct, Pool, ReLU
        >>> print(Dataflow(Sequential(Conv(16, 3), ReLU(), Pool(), InnerProduct(10))).summary((1, 8, 8)))
        node           operator      output  parameters  multiply-adds  activations
        ---------------------------------------------------------------------------
        batch                        1×8×8
        conv1          Conv          16×6×6         160          5,184       2.3 kB
        relu1          ReLU          16×6×6                                  2.3 kB
        pool1          Pool          16×3×3                                   576 B
        innerproduct1  InnerProduct  10           1,450          1,440         40 B
        ---------------------------------------------------------------------------
        total                                     1,610          6,624       5.2 kB
        1,610 parameters (6.4 kB); multiply-adds and activations of one example
        """
        good = isinstance(image_shape, tuple | list) and all(is_integer(n) and n >= 1 for n in image_shape)
        if not good or not image_shape:
            expected = "expected the shape of an example, as (C, H, W) or (features,), each ≥ 1"
            raise GraphError([f"summary: {expected}. Received: {shown(image_shape)}"])
        return summarise(build(self.subgraph.nodes), tuple(map(int, image_shape)))

    @without_own_frames
    def describe(self, batch: Shape | None = None, *, compiled: Compiled | None = None) -> str:
        """A table: order, node, operator, inputs, output shape, variables, bytes, buffer, kernels.

        batch: the shape of a batch, (N, …), from which the other shapes follow; by default that of the program.
        compiled: a compiled program of this dataflow, which adds bytes, buffers and kernels to the table; see
        `ExecutionContext.describe_dataflows`. Raises GraphError if the shape is invalid or does not fit.
        """
        if batch is not None:
            batch = _checked_shape(batch, "describe")
        if batch is None and compiled is not None:
            batch = compiled.batch
        graph = self.graph
        shapes = None if batch is None else infer_shapes(graph, batch)
        variables = {} if batch is None or shapes is None else variables_of(graph, batch, shapes)
        rows = [("order", "node", "operator", "inputs", "output", "variables", "bytes", "buffer", "kernels")]
        for vertex in graph:
            size, place, kernels = "", "", ""
            if compiled is not None and batch == compiled.batch:
                nbytes, place = compiled.memory_of(vertex.order)
                size, kernels = f"{nbytes:,}" if nbytes else "", compiled.kernels_of(vertex.order)
            rows.append(
                (
                    str(vertex.order),
                    vertex.name,
                    type(vertex.kernel).__name__,
                    " ".join("batch" if source == BATCH else str(source) for source in vertex.inputs[:6])
                    + (" …" if len(vertex.inputs) > 6 else ""),
                    shape_text(shapes[vertex.order]) if shapes is not None else "",
                    " ".join(f"{spec.name} {shape_text(spec.shape)}" for spec in variables.get(vertex.order, ())),
                    size,
                    place,
                    kernels,
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])

    @without_own_frames
    def export_dot(self, path: str | os.PathLike[str]) -> None:
        """Write the graph in Graphviz's DOT language. Dashed edges lead from an operator to its gradient.

        The file is written atomically; missing directories are created. Raises DataError if it cannot be written.
        """
        write_whole(checked_path("export_dot", path), dot_of(self.graph).encode())

    @without_own_frames
    def draw(
        self,
        path: str | os.PathLike[str],
        batch: Shape | None = None,
        *,
        compiled: Compiled | None = None,
        gradients: bool = False,
    ) -> None:
        """Draw the graph as SVG, PNG or DOT, which the ending of the path selects.

        batch: the shape of a batch, (N, …), with which nodes also show parameters, variables and output shapes.
        compiled: a compiled program of this dataflow, with which nodes also show kernels and buffers; the shape is then
        that of the program. gradients: whether gradient operators are drawn. The file is written atomically.

        Raises GraphError if the shape does not fit, DataError for another ending or if the file cannot be written, and
        ConfigurationError for SVG and PNG without `pip install 'crossbow[graph]'`.
        """
        path = checked_path("draw", path)
        checked_format(path)
        if batch is not None:
            batch = _checked_shape(batch, "draw")
        if compiled is not None:
            batch = compiled.batch
        write_picture(dot_of(self.graph, batch, compiled=compiled, gradients=gradients), path)


def _checked_shape(batch: object, method: str) -> Shape:
    if not isinstance(batch, tuple | list) or len(batch) < 2 or not all(is_integer(n) and n >= 1 for n in batch):
        expected = "expected the shape of a batch, as (N, C, H, W) or (N, features), each ≥ 1"
        raise GraphError([f"{method}: {expected}. Received: {shown(batch)}"])
    return tuple(map(int, batch))
