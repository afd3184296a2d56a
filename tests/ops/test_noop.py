from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from crossbow import Dataflow, DataflowNode, Operator, SubGraph
from crossbow.ops import ElementWiseOp, InnerProduct, Kernel, Noop, NoopGradient, ReLU, SoftMax, SoftMaxLoss
from crossbow.types import GraphError
from tests.support import KERNELS, blobs, chain, context, training


def test_shapes() -> None:
    assert Noop().output_shape((2, 3, 4, 5)) == (2, 3, 4, 5)
    assert Noop().gradient() == NoopGradient()


def straight(*between: Kernel) -> Dataflow:
    return training(InnerProduct(number_of_outputs=4), *between, InnerProduct(number_of_outputs=3))


def forked(*between: Kernel) -> Dataflow:
    """An output that is read by a ReLU, and, with `between` on the way, by the sum behind that."""
    first, _, total, *_ = chain(
        InnerProduct(number_of_outputs=4),
        ReLU(),
        ElementWiseOp(),
        InnerProduct(number_of_outputs=3),
        SoftMax(),
        SoftMaxLoss(),
    )
    path = [first, *(DataflowNode(Operator(kernel)) for kernel in between), total]
    for before, after in itertools.pairwise(path):
        before.connect_to(after)
    return Dataflow(SubGraph(first))


@KERNELS
@pytest.mark.parametrize("network", [straight, forked])
def test_a_network_with_it_learns_as_one_without(network: Callable[..., Dataflow], kernels: str) -> None:
    predictions = []
    for between in ((), (Noop(), Noop())):
        with context(network(*between), data=blobs(), kernels=kernels) as run:
            run.train(2)
            predictions.append(run.predict(blobs().train.images))
    np.testing.assert_array_equal(*predictions)


def test_it_does_not_stand_between_a_softmax_and_its_loss() -> None:
    nodes = chain(InnerProduct(number_of_outputs=3), SoftMax(), Noop(), SoftMaxLoss())
    with pytest.raises(GraphError, match=r"expected the output of a SoftMax as input\. Received: 'Noop2'"):
        context(Dataflow(SubGraph(nodes[0])), data=blobs())
