"""The variables or statistics of a graph while it is compiled: their types, and the storages that kernels choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from crossbow.compile.model import ModelLayout, lay_out
from crossbow.dataflow.graph import Graph, Vertex
from crossbow.kernels.interface import PlainStorage, PreparedKernel, Storage, Variable
from crossbow.ops.kernel import VariableSpec


class Variables:
    """The variables of a graph's operators, or their statistics, by (operator's id, name).

    The first forward kernels that read a variable choose its storage, which is undetermined (None) before. If a layout
    is given, it determines all storages.
    """

    def __init__(
        self,
        graph: Graph,
        specs: Mapping[int, tuple[VariableSpec, ...]],
        dtype: np.dtype[np.generic],
        narrow: np.dtype[np.generic],
        given: ModelLayout | None,
    ) -> None:
        """specs: the variables of operators by position. dtype: type of the vector. narrow: type in which kernels read
        the variables of operators with `narrow_variables`. given: the layout of the training graph's variables."""
        self._graph, self._specs, self._dtype, self._given = graph, specs, dtype, given
        self._known: dict[tuple[int, str], Variable] = {}
        self.faults: dict[str, None] = {}
        """The variables that do not fit the given layout, as an ordered set of texts."""
        for vertex, spec in self._all():
            key, who = (id(vertex.operator), spec.name), f"node {vertex.name!r} ({type(vertex.kernel).__name__})"
            read_as = narrow if vertex.forward is not None and vertex.forward.narrow_variables else dtype
            if given is None:
                self._known[key] = Variable(spec.shape, read_as)
            elif key not in given.segments:
                text = "expected an operator of the training dataflow (connect a shallow_copy() of its node)"
                self.faults[f"{who}: {text}. Received: one with variables of its own"] = None
            elif (trained := given.variable(*key)).shape != spec.shape:
                text = f"expected an input with which {spec.name!r} has the shape of the training dataflow"
                self.faults[f"{who}: {text}, {trained.shape}. Received: {spec.shape}"] = None
            else:
                self._known[key] = replace(trained, dtype=read_as)

    def _all(self) -> list[tuple[Vertex, VariableSpec]]:
        return [(self._graph[order], spec) for order, specs in self._specs.items() for spec in specs]

    def __getitem__(self, key: tuple[int, str]) -> Variable:
        return self._known[key]

    def specs(self, vertex: Vertex) -> tuple[VariableSpec, ...]:
        """The variables of a vertex, in order."""
        return self._specs.get(vertex.order, ())

    def settle(self, vertex: Vertex, kernels: Sequence[PreparedKernel]) -> None:
        """Use the storages that the vertex's forward kernels chose, and plain storage for its other variables."""
        for spec in self.specs(vertex):
            key = (id(vertex.operator), spec.name)
            if self._known[key].storage is None:
                chosen = [kernel.storages[spec.name] for kernel in kernels if spec.name in kernel.storages]
                storage = chosen[0] if chosen else PlainStorage(spec.shape)
                self._known[key] = replace(self._known[key], storage=storage)

    def layout(self) -> ModelLayout:
        """The layout of the vector: the given one, or one of the storages that kernels chose. Other storages are
        plain."""
        if self._given is not None:
            return self._given
        found: dict[tuple[int, str], tuple[str, VariableSpec, Storage]] = {}
        for vertex, spec in self._all():
            key = (id(vertex.operator), spec.name)
            if key not in found:
                storage = self._known[key].storage or PlainStorage(spec.shape)
                found[key] = f"{vertex.name}.{spec.name}", spec, storage
        return lay_out(found, self._dtype)
