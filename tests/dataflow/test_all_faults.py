"""A context names everything that is wrong with a graph, whether deriving gradients or inferring shapes finds it."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import Dataflow, DataflowNode, Dataset, ExecutionContext, GraphError, ModelConf, Operator, SubGraph
from crossbow.ops import Conv, InnerProduct, SoftMax, SoftMaxLoss


def test_two_losses_and_a_kernel_that_does_not_fit() -> None:
    head = DataflowNode(Operator("conv", Conv(number_of_outputs=2, kernel_size=9)))
    output = head.connect_to(DataflowNode(Operator("output", InnerProduct(number_of_outputs=3))))
    softmax = output.connect_to(DataflowNode(Operator("softmax", SoftMax())))
    softmax.connect_to(DataflowNode(Operator("loss", SoftMaxLoss())))
    softmax.connect_to(DataflowNode(Operator("other loss", SoftMaxLoss())))
    data = Dataset((np.zeros((8, 1, 5, 5), np.float32), np.zeros(8, np.int64)))
    with pytest.raises(GraphError) as caught:
        ExecutionContext([Dataflow(SubGraph(head))], data=data, model=ModelConf(batch_size=4))
    text = str(caught.value)
    assert "'loss', 'other loss'" in text
    assert "node 'conv' (Conv)" in text
    assert "input 5×5" in text
