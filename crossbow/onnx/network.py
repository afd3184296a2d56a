"""A network between two languages: steps that each hold one of our operators. Reading an ONNX model ends here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossbow.conf import is_integer
from crossbow.dataflow import DataflowNode, Operator, SubGraph
from crossbow.ops import Kernel, Noop
from crossbow.types import GraphError, Phase, Shape

ANY_BATCH = 1_000_003
"""Stands for a batch size that a model leaves open: a large prime, so that a number that depends on it shows."""
MARK = "crossbow"
"""Begins the doc_string of every node that `save` writes: "crossbow <place> <class> <operator's name>"."""
FILLER = ":filler"
"""Ends the name of an initializer that `save` writes for a variable that our operator does not have."""


@dataclass(frozen=True, eq=False)
class Step:
    """An operator and where its inputs come from; or, without a kernel, an input of the network."""

    name: str
    shape: Shape
    """Of the output. The first size is the batch's."""
    kernel: Kernel | None = None
    inputs: tuple[Step, ...] = ()
    phase: Phase = Phase.CHECK
    """The phase in which the operator computes what the ONNX one does: TRAIN where that one normalises by the batch,
    or drops elements."""
    shared: bool = False
    """Whether steps of the same name are one operator with one set of variables."""


@dataclass(frozen=True)
class Network:
    """Steps in an order in which they can run."""

    inputs: Mapping[str, Step]
    steps: Sequence[Step]
    outputs: Mapping[str, Step]

    def subgraph(self) -> SubGraph:
        """The network as a graph of nodes; it has one input, one output and no step that leads elsewhere.

        Where several steps read the input, or none does, a Noop of the input's name comes first.
        """
        ((name, source),) = self.inputs.items()
        readers = [step for step in self.steps for before in step.inputs if before is source]
        nodes: dict[Step, DataflowNode] = {}
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
    """Raises GraphError where it is not the sizes of one example."""
    if shape is not None and not (isinstance(shape, tuple | list) and all(is_integer(n) and n >= 1 for n in shape)):
        expected = "expected input_shape=(C, H, W) or (features,), each ≥ 1, without the batch's"
        raise GraphError([f"{where}: {expected}. Received: {shape!r}"])


def needed(outputs: Sequence[Step], steps: Sequence[Step]) -> list[Step]:
    """The steps on which the outputs depend, in order."""
    found = set(outputs)
    for step in reversed(steps):
        if step in found:
            found.update(step.inputs)
    return [step for step in steps if step in found]
