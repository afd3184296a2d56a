from __future__ import annotations

import numpy as np
import pytest

from crossbow.dataflow.graph import build
from crossbow.dataflow.validate import infer_shapes
from crossbow.ops import InnerProduct, Kernel, LogSoftMax, SoftMaxLoss
from crossbow.testing import run_operator
from crossbow.types import GraphError
from tests.support import KERNELS, blobs, chain, context, training

DEVICES = pytest.mark.parametrize("device", ["reference", "cpu"])


@DEVICES
def test_far_from_zero_nothing_overflows(device: str) -> None:
    x = np.array([[0.0, 200.0], [-1e4, 1e4], [3e38, 0]], np.float32)
    (y,) = run_operator(LogSoftMax(), [x], device=device).outputs
    np.testing.assert_allclose(y, [[-200, 0], [-2e4, 0], [0, -3e38]], rtol=1e-6)


@KERNELS
def test_behind_a_softmax_the_loss_is_the_negative_log_likelihood(kernels: str) -> None:
    """Training with a LogSoftMax before the SoftMax and without it is the same."""
    trained = []
    nothing: list[Kernel] = []
    for middle in (nothing, [LogSoftMax()]):
        dataflow = training(InnerProduct(number_of_outputs=3), *middle)
        with context(dataflow, data=blobs(), kernels=kernels) as run:
            run.train(2)
            trained.append(list(run.variables.values()))
    for first, second in zip(*trained, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)


def test_a_loss_of_probabilities_does_not_take_their_logarithms() -> None:
    nodes = chain(InnerProduct(number_of_outputs=3), LogSoftMax(), SoftMaxLoss())
    with pytest.raises(GraphError, match=r"expected the output of a SoftMax as input.*LogSoftMax"):
        infer_shapes(build(nodes), (4, 6))
