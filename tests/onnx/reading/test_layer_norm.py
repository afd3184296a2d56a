"""ONNX layer normalisations, as Crossbow's operator."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import GraphError
from crossbow.onnx import load
from crossbow.ops import LayerNorm, Values
from tests.onnx.models import draw, kernel_of, model, node, same


@pytest.mark.parametrize(("axis", "number"), [(-1, 1), (3, 1), (-2, 2), (1, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_axes_and_bias(axis: int, number: int, bias: bool) -> None:
    shape = (2, 6, 6)[3 - number :]
    weights = {"w": draw(*shape)} | ({"b": draw(*shape, seed=1)} if bias else {})
    names = " ".join(["x", *weights])
    proto = model([node("LayerNormalization", names, "y", "it", axis=axis, epsilon=0.01)], ["N", 2, 6, 6], **weights)
    kernel = kernel_of(same(proto), "it")
    assert isinstance(kernel, LayerNorm)
    assert (kernel.axis, kernel.number_of_axes, kernel.epsilon, kernel.bias) == (-number, number, 0.01, bias)
    assert kernel.weight_initialiser == Values(weights["w"])
    assert kernel.weight_learning_rate_multiplier == 1


def test_factors_for_some_of_the_axes_are_repeated() -> None:
    nodes = [node("LayerNormalization", "x w", "y", "it", axis=2)]
    kernel = kernel_of(load(model(nodes, ["N", 2, 6, 6], w=draw(6))), "it")
    assert isinstance(kernel, LayerNorm)
    assert kernel.variables((1, 2, 6, 6))[0].shape == (6, 6)


def test_examples_are_not_normalised_together() -> None:
    nodes = [node("LayerNormalization", "x w", "y", "it", axis=0)]
    with pytest.raises(GraphError, match=r"'it' .*expected a normalisation within examples\. Received: all axes of"):
        load(model(nodes, ["N", 2, 6, 6], w=np.ones(6, np.float32)))
