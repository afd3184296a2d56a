"""The ONNX losses on our SoftMaxLoss.

`load` does not read them, because labels come from the batch, through no edge of the graph: a loss is appended to the
loaded network. Here the labels are an input like any other. NegativeLogLikelihoodLoss takes logarithms of
probabilities, SoftMaxLoss the probabilities: it is given their exponentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from crossbow.onnx.network import Network, Step
from crossbow.onnx.reading.graph import LOSSES
from crossbow.ops import SoftMax, SoftMaxLoss
from crossbow.types import GraphError
from tests.onnx.cases import OnnxCase

Array = NDArray[Any]


def is_loss(case: OnnxCase) -> bool:
    """Whether it is one of a loss, and nothing else."""
    return len(case.model.graph.node) == 1 and case.operators <= LOSSES


def translate(case: OnnxCase, inputs: Sequence[Any]) -> tuple[Network, dict[str, Array]]:
    """The network, and its inputs by name. Raises GraphError."""
    (node,) = case.model.graph.node
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    reduction, ignored = attributes.get("reduction", b"mean").decode(), attributes.get("ignore_index")
    if reduction == "none" or len(inputs) > 2:
        received = "a weight for each class" if len(inputs) > 2 else "reduction=none"
        raise GraphError(
            [f"node {node.name!r} ({node.op_type}): expected one number, unweighted. Received: {received}"]
        )
    x, labels = (np.asarray(each) for each in inputs)
    if node.op_type == "NegativeLogLikelihoodLoss":
        x = np.exp(x.astype(np.float64)).astype(x.dtype)
    given = [Step(name, array.shape) for name, array in zip(node.input, (x, labels), strict=True)]
    softmax = Step("softmax", x.shape, SoftMax(), (given[0],))
    steps = [softmax] if node.op_type == "SoftmaxCrossEntropyLoss" else []
    mean = "full" if ignored is None else "valid"
    kernel = SoftMaxLoss(ignored_label=ignored, normalisation="none" if reduction == "sum" else mean)
    loss = Step("loss", (1,), kernel, ((steps or given)[0], given[1]))
    arrays = dict(zip(node.input, (x, labels), strict=True))
    return Network({step.name: step for step in given}, [*steps, loss], {node.output[0]: loss}), arrays
