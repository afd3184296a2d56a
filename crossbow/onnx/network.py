"""Intermediate form of an imported network: symbolic tensors, each with the operator that computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossbow.conf import is_integer
from crossbow.dataflow import DataflowNode, Operator, SubGraph
from crossbow.ops import Kernel, Noop
from crossbow.types import GraphError, Phase, Shape

ANY_BATCH = 1_000_003
"""Placeholder for an open batch size: a large prime, so that numbers that depend on it can be recognised."""
MARK = "crossbow"
"""First word of the doc_string of every node that `save` writes: "crossbow <position> <class> <operator's name>"."""
FILLER = ":filler"
"""End of the name of an initializer that `save` writes for a variable that Crossbow's operator does not have."""


@dataclass(frozen=True, eq=False)
class NetworkStep:
    """The output of an operator, with its inputs; or, without a kernel, an input of the network."""

    name: str
    shape: Shape
    """Shape of the output, including the batch."""
    kernel: Kernel | None = None
    inputs: tuple[NetworkStep, ...] = ()
    phase: Phase = Phase.CHECK
    """Phase in which the operator equals the ONNX operator: TRAIN if the ONNX operator normalises by the batch, or
    drops elements."""
    shared: bool = False
    """Whether steps of the same name share one operator and its variables."""


@dataclass(frozen=True)
class Network:
    """An imported network: its steps in topological order."""

    inputs: Mapping[str, NetworkStep]
    steps: Sequence[NetworkStep]
    outputs: Mapping[str, NetworkStep]

    def subgraph(self) -> SubGraph:
        """The network as a graph of nodes. It must have one input and one output, and all steps must lead to the
        output.

        If several steps read the input, or none, a Noop with the input's name is inserted.
        """
        ((name, source),) = self.inputs.items()
        readers = [step for step in self.steps for before in step.inputs if before is source]
        nodes: dict[NetworkStep, DataflowNode] = {}
        head: DataflowNode | None = None
        if len(readers) != 1:
            head = nodes[source] = DataflowNode(Operator(name, Noop()))
        operators: dict[str, Operator] = {}
        for step in self.steps:
            assert step.kernel is not None
            operator = operators.get(step.name) if step.shared else None
            if operator is None or operator.kernel != step.kernel:
                operator = Operator(step.name, step.kernel)
                if step.shared:
                    operators[step.name] = operator
            nodes[step] = DataflowNode(operator)
            for before in step.inputs:
                if before in nodes:
                    nodes[before].connect_to(nodes[step])
        return SubGraph(head or nodes[readers[0]])


def check_input_shape(where: str, shape: Shape | None) -> None:
    """Raise GraphError unless the shape is that of one example."""
    if shape is not None and not (isinstance(shape, tuple | list) and all(is_integer(n) and n >= 1 for n in shape)):
        expected = "expected input_shape=(C, H, W) or (features,), each ≥ 1, without the batch"
        raise GraphError([f"{where}: {expected}. Received: {shape!r}"])


def needed(outputs: Sequence[NetworkStep], steps: Sequence[NetworkStep]) -> list[NetworkStep]:
    """The steps on which the outputs depend, in order."""
    found = set(outputs)
    for step in reversed(steps):
        if step in found:
            found.update(step.inputs)
    return [step for step in steps if step in found]
