"""Wrong gradients are found, and right ones pass."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from crossbow.ops import (
    Accuracy,
    Dropout,
    InnerProduct,
    Pool,
    ReLU,
    SoftMax,
    SoftMaxLoss,
)
from crossbow.testing import check_gradients
from crossbow.types import ConfigurationError, Shape
from tests.kernels.cuda.fake import fake_cuda
from tests.testing.user_operators import (
    AbsoluteLoss,
    Array,
    Blend,
    Logarithm,
    Steps,
)


def test_right_gradients_pass() -> None:
    assert check_gradients(Blend(), [(3, 4), (3, 4)]) < 1e-8
    assert check_gradients(AbsoluteLoss(), [(3, 4), (3, 4)]) < 1e-8


@pytest.mark.parametrize(
    ("field", "name"),
    [("first_factor", "input 0"), ("second_factor", "input 1"), ("variable_factor", "variable 'c'")],
)
@pytest.mark.parametrize("factor", [0.0, -1.0, 1.001, 1e9])
def test_wrong_gradients_are_found(field: str, name: str, factor: float) -> None:
    wrong = dataclasses.replace(Blend(), **{field: factor})
    with pytest.raises(AssertionError, match=f"Blend: the gradient of {name} is wrong.*expected .* received"):
        check_gradients(wrong, [(3, 4), (3, 4)])


def test_gradients_on_a_gpu() -> None:
    with fake_cuda():
        for kernel in (ReLU(mode="tanh"), InnerProduct(number_of_outputs=3)):
            assert check_gradients(kernel, [(2, 3, 4, 5)], device="cuda:0", channels_last=True) < 1e-6
        assert check_gradients(SoftMaxLoss(), [(3, 4), (3,)], device="cuda:0") < 1e-6


def test_a_wrong_gradient_of_a_loss_is_found() -> None:
    with pytest.raises(AssertionError, match="AbsoluteLoss: the gradient of input 0 is wrong"):
        check_gradients(AbsoluteLoss(slope=0.5), [(3, 4), (3, 4)])


def test_a_wrong_gradient_of_nan_is_found() -> None:
    with pytest.raises(AssertionError, match=r"Blend: the gradient of input 0 is wrong.*received nan"):
        check_gradients(Blend(first_factor=np.nan), [(3, 4), (3, 4)])


def test_kinks_are_drawn_again() -> None:
    """Half of these inputs are exactly at ReLU's kink, or are equal maxima: no derivative, and no false alarm."""
    calls = 0

    def draw(generator: np.random.Generator, shape: Shape) -> Array:
        nonlocal calls
        calls += 1
        x = generator.standard_normal(shape)
        return x * 0 if generator.random() < 0.5 else x

    assert check_gradients(ReLU(), [(2, 3)], draw=draw, directions=10) < 1e-6
    assert calls > 12
    assert check_gradients(Pool(), [(1, 1, 4, 4)], draw=draw, directions=10) < 1e-6


def test_kinks_between_two_steps_are_seen() -> None:
    """ReLU with kinks at every distance below the step: the check neither raises nor takes a wrong derivative."""
    for distance in np.linspace(-1.2e-4, 1.2e-4, 49):

        def draw(generator: np.random.Generator, shape: Shape, distance: float = distance) -> Array:
            near = generator.random() < 0.5
            return np.full(shape, distance) if near else generator.standard_normal(shape)

        assert check_gradients(ReLU(), [(1, 1)], draw=draw, directions=4) < 1e-6


def test_an_operator_without_a_smooth_point_is_named() -> None:
    with pytest.raises(AssertionError, match="Steps: found no point in 50 draws"):
        check_gradients(Steps(), [(3, 4)])


def test_softmax_loss_is_checked_with_its_softmax() -> None:
    loss = SoftMaxLoss(normalisation="valid", ignored_label=-1)
    assert check_gradients(loss, [(4, 5), (4,)], labels=[1, -1, 0, 4]) < 1e-8
    # The same gradient through SoftMaxGradient would be the one of the pair only if it were that of p: it is not.
    assert check_gradients(SoftMax(), [(4, 5)]) < 1e-8


def test_dropout_keeps_its_mask() -> None:
    assert check_gradients(Dropout(ratio=0.5), [(4, 5)], directions=5) < 1e-8


def test_inputs_can_be_drawn_from_a_domain() -> None:
    assert check_gradients(Logarithm(), [(2, 3)], draw=lambda g, shape: g.uniform(1, 2, shape)) < 1e-8


def test_given_variables_are_the_point() -> None:
    assert check_gradients(Blend(), [(2, 3), (2, 3)], variables={"c": [1.0, 2.0, 3.0]}) < 1e-8
    with pytest.raises(ConfigurationError, match=r"Blend: variable 'c': expected shape \(3,\). Received: \(2,\)"):
        check_gradients(Blend(), [(2, 3), (2, 3)], variables={"c": [1.0, 2.0]})


def test_what_has_no_gradient_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Accuracy: the operator: expected one with a gradient"):
        check_gradients(Accuracy(), [(3, 4), (3,)])


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ConfigurationError, match="Blend: expected two inputs of one shape"):
        check_gradients(Blend(), [(2, 3), (2, 4)])
    with pytest.raises(ConfigurationError, match=r"Blend: number of inputs: expected 2\. Received: 1"):
        check_gradients(Blend(), [(2, 3)])
    with pytest.raises(ConfigurationError, match=r"labels: expected shape \(3,\). Received: \(2,\)"):
        check_gradients(SoftMaxLoss(), [(3, 4), (3,)], labels=[0, 1])
    with pytest.raises(
        ConfigurationError, match=r"input_shapes: expected shapes, as \[\(8, 3\), \(8,\)\]\. Received: array"
    ):
        check_gradients(Blend(), [np.ones((2, 3)), (2, 3)])  # type: ignore[list-item]


def test_the_worst_error_follows_the_seed() -> None:
    assert check_gradients(Blend(), [(3, 4), (3, 4)], seed=1) == check_gradients(Blend(), [(3, 4), (3, 4)], seed=1)
