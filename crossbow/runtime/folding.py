"""Folding of normalisations into the preceding convolutions, for predictions, where statistics and variables are fixed.

A normalisation multiplies every channel by γ / √(σ² + ε), and adds an offset. A convolution with weights that are
multiplied by this factor, and with a bias, has the same output up to rounding. That saves a pass if convolutions add
their bias themselves (`KernelLibrary.fused_bias`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from crossbow.compile.model import ModelLayout, Segment
from crossbow.dataflow.derive import bypass
from crossbow.dataflow.graph import Graph, Vertex, consumers
from crossbow.dataflow.operator import Operator
from crossbow.dataflow.validate import infer_shapes, statistics_of, variables_of
from crossbow.kernels.interface import PlainStorage
from crossbow.ops import BatchNorm, Conv
from crossbow.types import Array, Shape

Values = Mapping[tuple[int, str], Array]
"""Variables and statistics, by the operator's id and their name."""


@dataclass(frozen=True)
class _Pair:
    """A convolution, the normalisation after it, and the convolution that replaces both."""

    convolution: Vertex
    normalisation: Vertex
    both: Operator


class Folding:
    """A graph for prediction without the normalisations that convolutions include, and the values of its variables."""

    def __init__(self, graph: Graph) -> None:
        """graph: a graph from `derive_prediction`."""
        self._original = graph
        self._pairs = tuple(_pairs(graph))
        both = {pair.convolution.order: pair.both for pair in self._pairs}
        left_out = {pair.normalisation.order for pair in self._pairs}
        replaced = tuple(replace(vertex, operator=both.get(vertex.order, vertex.operator)) for vertex in graph)
        self.graph = bypass(replaced, left_out)

    def values(self, original: Values, dtype: np.dtype[np.generic]) -> dict[tuple[int, str], Array]:
        """The values of the graph's variables, from those of the original graph. Computed in double precision."""
        values = dict(original)
        for pair in self._pairs:
            convolution, normalisation = (_named(vertex, original) for vertex in (pair.convolution, pair.normalisation))
            kernel, weights = pair.normalisation.kernel, convolution["weights"]
            assert isinstance(kernel, BatchNorm)
            with np.errstate(all="ignore"):  # `load` finds numbers that are not finite
                factor = normalisation["weights"] / np.sqrt(normalisation["running_variance"] + kernel.epsilon)
                offset = factor * (convolution.get("bias", 0.0) - normalisation["running_mean"])
                offset += normalisation.get("bias", 0.0)
                weights = weights * factor.reshape(-1, *[1] * (weights.ndim - 1))
                values[id(pair.both), "weights"] = weights.astype(dtype)
                values[id(pair.both), "bias"] = offset.astype(dtype)
        return values

    def check(self, values: Values, source: str, batch: Shape, dtype: np.dtype[np.generic]) -> None:
        """Raise DataError if values from a file do not fit the variables of the original graph."""
        shapes = infer_shapes(self._original, batch)
        specs, statistics = (of(self._original, batch, shapes) for of in (variables_of, statistics_of))
        segments: dict[tuple[int, str], Segment] = {}
        offset = 0
        for vertex in self._original:
            for spec in (*specs.get(vertex.order, ()), *statistics.get(vertex.order, ())):
                if (id(vertex.operator), spec.name) not in segments:
                    storage = PlainStorage(spec.shape)
                    name = f"{vertex.name}.{spec.name}"
                    segments[id(vertex.operator), spec.name] = Segment(name, spec, storage, offset)
                    offset += storage.elements
        layout = ModelLayout(segments, dtype)
        given = {segment.name: values[key] for key, segment in segments.items() if key in values}
        layout.load(given, layout.new_vector(), source)


def _named(vertex: Vertex, values: Values) -> dict[str, NDArray[np.float64]]:
    """The values of an operator's variables by name, in double precision."""
    return {name: np.asarray(value, np.float64) for (own, name), value in values.items() if own == id(vertex.operator)}


def _pairs(graph: Graph) -> list[_Pair]:
    """Convolutions whose only reader is a normalisation. Operators with several nodes, which share variables, are not
    folded."""
    users, nodes = consumers(graph), Counter(id(vertex.operator) for vertex in graph)
    found = []
    for vertex in graph:
        readers, kernel = users[vertex.order], vertex.kernel
        if type(kernel) is not Conv or len(readers) != 1 or type(readers[0].kernel) is not BatchNorm:
            continue
        if nodes[id(vertex.operator)] == nodes[id(readers[0].operator)] == 1:
            found.append(_Pair(vertex, readers[0], Operator(vertex.operator.name, replace(kernel, bias=True))))
    return found
