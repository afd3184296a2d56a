"""Summary of a network before it runs: shapes, parameters, multiply-adds and memory of every layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from crossbow.dataflow.drawing import shape_text
from crossbow.dataflow.graph import Graph
from crossbow.dataflow.validate import infer_shapes, input_shapes, variables_of
from crossbow.types import Shape, bytes_text

FLOAT32 = 4
"""Size of an element of type float32 in bytes."""


@dataclass(frozen=True)
class LayerSummary:
    """A node of a network."""

    name: str
    operator: str
    """Type of the operator, such as "Conv"."""
    output_shape: Shape
    """Shape of the output for one example."""
    parameters: int
    """Number of elements of its variables; 0 if an earlier node has the same operator."""
    frozen: int
    """Number of these parameters whose learning rate multiplier is 0."""
    multiply_adds: int
    """Number of multiply-adds in products, for one example."""
    activation_bytes: int
    """Size of the output for one example, in float32."""


@dataclass(frozen=True)
class NetworkSummary:
    """The layers of a network in execution order, and their totals. `str` returns it as a table."""

    image_shape: Shape
    layers: tuple[LayerSummary, ...]

    @property
    def parameters(self) -> int:
        """Number of elements of all variables."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def frozen(self) -> int:
        """Number of parameters that training does not change."""
        return sum(layer.frozen for layer in self.layers)

    @property
    def multiply_adds(self) -> int:
        """Number of multiply-adds of a forward pass with one example. A training step needs about three times as many
        for each example."""
        return sum(layer.multiply_adds for layer in self.layers)

    @property
    def activation_bytes(self) -> int:
        """Size of all outputs for one example, in float32. A context needs less, because the compiler shares memory
        between outputs; see `ExecutionContext.summary`."""
        return sum(layer.activation_bytes for layer in self.layers)

    def __str__(self) -> str:
        rows = [("node", "operator", "output", "parameters", "multiply-adds", "activations")]
        rows += [("batch", "", shape_text(self.image_shape), "", "", "")]
        rows += [
            (
                layer.name,
                layer.operator,
                shape_text(layer.output_shape),
                f"{layer.parameters:,}" if layer.parameters else "",
                f"{layer.multiply_adds:,}" if layer.multiply_adds else "",
                bytes_text(layer.activation_bytes),
            )
            for layer in self.layers
        ]
        sums = (f"{self.parameters:,}", f"{self.multiply_adds:,}", bytes_text(self.activation_bytes))
        rows += [("total", "", "", *sums)]
        heading, *lines = _aligned(rows)
        rule = "-" * max(map(len, lines))
        frozen = f", {self.frozen:,} of them frozen" if self.frozen else ""
        size = bytes_text(FLOAT32 * self.parameters)
        notes = f"{self.parameters:,} parameters ({size}){frozen}; multiply-adds and activations of one example"
        return "\n".join([heading, rule, *lines[:-1], rule, lines[-1], notes])


def summarise(graph: Graph, image_shape: Shape) -> NetworkSummary:
    """The summary of a graph for examples of this shape. Raises GraphError if the shape does not fit."""
    batch = (1, *image_shape)
    shapes = infer_shapes(graph, batch)
    variables = variables_of(graph, batch, shapes)
    counted: set[int] = set()
    layers = []
    for vertex in graph:
        kernel = vertex.forward
        if kernel is None:
            continue
        specs = () if id(vertex.operator) in counted else variables.get(vertex.order, ())
        counted.add(id(vertex.operator))
        shape = shapes[vertex.order]
        layers.append(
            LayerSummary(
                name=vertex.name,
                operator=type(kernel).__name__,
                output_shape=shape[1:],
                parameters=sum(math.prod(spec.shape) for spec in specs),
                frozen=sum(math.prod(spec.shape) for spec in specs if spec.learning_rate_multiplier == 0),
                multiply_adds=kernel.multiply_adds(*input_shapes(vertex, batch, shapes)),
                activation_bytes=FLOAT32 * math.prod(shape),
            )
        )
    return NetworkSummary(tuple(image_shape), tuple(layers))


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines. The first three columns are aligned to the left, and the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if column < 3 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
