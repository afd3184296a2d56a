"""How the zoo builds its graphs: operators by name, and the end that classifiers share."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow import Dataflow, DataflowNode, Operator, Phase, SubGraph
from crossbow.ops import Accuracy, SoftMax, SoftMaxLoss
from crossbow.ops.kernel import Kernel


def add(name: str, kernel: Kernel, *inputs: DataflowNode) -> DataflowNode:
    """A new node that reads these nodes, in this order; without any it reads the batch."""
    node = DataflowNode(Operator(name, kernel))
    for source in inputs:
        source.connect_to(node)
    return node


def chain(layers: Sequence[tuple[str, Kernel]]) -> tuple[DataflowNode, DataflowNode]:
    """The first and the last of these nodes, each of which reads the one before."""
    first = last = add(*layers[0])
    for name, kernel in layers[1:]:
        last = add(name, kernel, last)
    return first, last


def classifier(head: DataflowNode, logits: DataflowNode) -> Dataflow:
    """The training dataflow: a softmax on the logits (N, classes), the loss, and the accuracy beside it."""
    softmax = add("softmax", SoftMax(), logits)
    add("loss", SoftMaxLoss(), softmax)
    add("accuracy", Accuracy(), softmax)
    return Dataflow(SubGraph(head)).set_phase(Phase.TRAIN)
