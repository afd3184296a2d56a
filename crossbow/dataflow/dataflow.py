"""A dataflow: a subgraph with a phase. It can be printed as a table and exported as a picture."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from crossbow.conf import is_integer, shown
from crossbow.dataflow.derive import derive_check, derive_training
from crossbow.dataflow.graph import BATCH, Graph, Vertex, build
from crossbow.dataflow.subgraph import SubGraph
from crossbow.dataflow.validate import infer_shapes, variables_of
from crossbow.files import checked_path, write_whole
from crossbow.ops.kernel import Gradient
from crossbow.tracebacks import without_own_frames
from crossbow.types import Array, GraphError, Phase, Shape


class Compiled(Protocol):
    """Information that a compiled program has about its vertices."""

    @property
    def batch(self) -> Shape: ...

    def memory_of(self, order: int) -> tuple[int, str]:
        """Size of the vertex's output in bytes, and its location."""

    def kernels_of(self, order: int) -> str:
        """Names of the kernels that compute the vertex; in brackets, the other kernel that includes it."""


@dataclass(frozen=True, eq=False)
class Holder:
    """What an open context has made of a dataflow."""

    compiled: Compiled | None
    base_model: Callable[[], Mapping[tuple[int, str], Array]]
    """The base model by operator (its id) and variable: a copy."""


class Dataflow:
    """A subgraph with a phase. For Phase.TRAIN, the gradient operators and the optimiser are derived.

    Several contexts may hold one dataflow, one after the other or at once: each compiles it and has a model of its own.
    """

    def __init__(self, subgraph: SubGraph) -> None:
        if not isinstance(subgraph, SubGraph):
            raise TypeError(f"a Dataflow holds a SubGraph. Received: {subgraph!r}")
        self.subgraph = subgraph
        self.phase = Phase.TRAIN
        self._graph: Graph | None = None
        self._compiled: Compiled | None = None
        self._was_held = False
        self._holders: list[weakref.ref[Holder]] = []
        """In the order in which they came. Weak: a context may be gone without having been closed."""

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

    def hold(self, holder: Holder) -> None:
        """Note that a context has the dataflow, and its program: none where it has no examples to test with."""
        self._holders.append(weakref.ref(holder))
        self._was_held = True
        if holder.compiled is not None:
            self._compiled = holder.compiled

    def release(self, holder: Holder) -> None:
        """Note that the context is closed."""
        self._holders = [reference for reference in self._holders if reference() not in (None, holder)]

    @property
    def was_held(self) -> bool:
        """Whether a context holds the dataflow, or has. It may have been trained then, compiled or not: a dataflow for
        checks is not where there is no check set."""
        return self._was_held

    @property
    def compiled(self) -> Compiled | None:
        """The program that a context has made of this dataflow: the last of those that are open, or, where none is, the
        last of all. `describe` then shows memory."""
        holders = self._present()
        if not holders:
            return self._compiled
        return next((holder.compiled for holder in reversed(holders) if holder.compiled is not None), None)

    @property
    @without_own_frames
    def base_model(self) -> Callable[[], Mapping[tuple[int, str], Array]] | None:
        """Gives the base model by operator (its id) and variable, while an open context holds the dataflow.

        Raises GraphError while several do: nobody knows whose is meant.
        """
        holders = self._present()
        if len(holders) > 1:
            expected = "expected a dataflow that one open context holds, whose base model is meant"
            advice = "close the others, or give each context a dataflow of its own, Dataflow(dataflow.subgraph)"
            raise GraphError([f"{expected}. Received: one that {len(holders)} hold; {advice}"])
        return holders[0].base_model if holders else None

    def _present(self) -> list[Holder]:
        return [holder for reference in self._holders if (holder := reference()) is not None]

    @without_own_frames
    def describe(self, batch: Shape | None = None) -> str:
        """A table: order, node, operator, inputs, output shape, variables, bytes, buffer, kernels.

        Shapes need the shape of a batch, (N, …): the argument, or that of the program that a context compiled. Bytes,
        buffer and kernels are those of the compiled program, in the same notation as in `ExecutionContext.describe`.
        Raises GraphError if the shape is invalid or does not fit.
        """
        if batch is not None:
            batch = _checked_shape(batch)
        compiled = self.compiled
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
                    _shape_text(shapes[vertex.order]) if shapes is not None else "",
                    " ".join(f"{spec.name} {_shape_text(spec.shape)}" for spec in variables.get(vertex.order, ())),
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
        path = checked_path("export_dot", path)
        lines = [
            "digraph dataflow {",
            "  rankdir=TB;",
            '  node [shape=box, fontname="Helvetica"];',
            "  batch [shape=oval];",
        ]
        for vertex in self.graph:
            style = ', style=filled, fillcolor="#eeeeee"' if isinstance(vertex.kernel, Gradient) else ""
            lines.append(f'  n{vertex.order} [label="{_dot_label(vertex)}"{style}];')
        for vertex in self.graph:
            for source in vertex.inputs:
                lines.append(f"  {'batch' if source == BATCH else f'n{source}'} -> n{vertex.order};")
            if vertex.peer is not None:
                lines.append(f"  n{vertex.peer} -> n{vertex.order} [style=dashed, constraint=false];")
        write_whole(path, ("\n".join([*lines, "}"]) + "\n").encode())


def _checked_shape(batch: object) -> Shape:
    if not isinstance(batch, tuple | list) or len(batch) < 2 or not all(is_integer(n) and n >= 1 for n in batch):
        expected = "expected the shape of a batch, as (N, C, H, W) or (N, features), each ≥ 1"
        raise GraphError([f"describe: {expected}. Received: {shown(batch)}"])
    return tuple(map(int, batch))


def _shape_text(shape: Shape) -> str:
    return "×".join(map(str, shape)) if shape else "scalar"


def _dot_label(vertex: Vertex) -> str:
    name = vertex.name.replace("\\", "\\\\").replace('"', '\\"')
    return f"{vertex.order} {name}\\n{type(vertex.kernel).__name__}"
