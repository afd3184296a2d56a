"""What requests that multiply matrices declare, and the shapes of products."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import (
    InnerProductBackwardData,
    InnerProductBackwardWeights,
    InnerProductForward,
    MatmulBackward,
    MatmulForward,
    MatrixProductGeometry,
    SelfAttentionForward,
)
from crossbow.kernels.requests.products import probabilities_of
from crossbow.types import Phase, Shape, Tensor

X = Tensor((2, 3), np.dtype(np.float32))
W = Variable((3, 3), np.dtype(np.float32))


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (4, 5)), ((2, 3, 4), (1, 4, 5)), ((6, 1, 3, 4), (1, 2, 4, 5)), ((1, 1), (1, 1))]
)
def test_shapes_of_products(a: Shape, b: Shape, transposed: tuple[bool, bool]) -> None:
    factors = np.zeros(a), np.zeros(b)
    stored = [x.swapaxes(-1, -2) if turned else x for x, turned in zip(factors, transposed, strict=True)]
    geometry = MatrixProductGeometry((stored[0].shape, stored[1].shape), transposed)
    assert (geometry.factor(0), geometry.factor(1), geometry.y) == (a, b, (factors[0] @ factors[1]).shape)


@pytest.mark.parametrize(("a", "b"), [((2, 3, 4), (3, 4, 5)), ((2, 3, 4), (5, 4, 3))])
def test_stacks_that_do_not_broadcast_are_refused(a: Shape, b: Shape) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        _ = MatrixProductGeometry((a, b)).y


def test_a_gradient_reads_the_other_factor() -> None:
    geometry = MatrixProductGeometry(((2, 3), (3, 2)))
    assert MatmulForward(X, X, X, geometry).reads == ("input0", "input1")
    for number, other in ((0, "input1"), (1, "input0")):
        assert MatmulBackward(X, X, X, number, geometry).reads == ("output_gradient", other)


def test_an_attention_keeps_its_probabilities_for_its_gradient() -> None:
    x, y = Tensor((2, 5, 12), np.dtype(np.float32)), Tensor((2, 5, 4), np.dtype(np.float32))
    training, checking = (SelfAttentionForward(x, y, 2, False, phase) for phase in (Phase.TRAIN, Phase.CHECK))
    assert (training.writes, checking.writes) == (("output", "kept"), ("output",))
    assert probabilities_of(x, heads=2) == 2 * 2 * 5 * 5 * 4


def test_roles_of_an_inner_product() -> None:
    assert InnerProductForward(X, W, None, X).reads == ("input0", "weights")
    assert InnerProductForward(X, W, W, X, relu=True).reads == ("input0", "weights", "bias")
    assert [InnerProductForward(X, W, W, X, relu=relu).label for relu in (False, True)] == [
        "inner_product_forward",
        "inner_product_forward relu",
    ]
    assert InnerProductBackwardData(X, W, X).reads == ("output_gradient", "weights")
    assert InnerProductBackwardWeights(X, X, W, None).writes == ("weights_gradient",)
    assert InnerProductBackwardWeights(X, X, W, W).writes == ("weights_gradient", "bias_gradient")
