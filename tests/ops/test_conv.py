from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import ConvolutionBackwardData, ConvolutionBackwardWeights
from crossbow.ops import MSRA, Constant, Conv, ConvGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, Shape, Tensor


@pytest.mark.parametrize(
    ("conv", "x", "y"),
    [
        (Conv(number_of_outputs=32, kernel_size=5, padding=2), (8, 1, 28, 28), (8, 32, 28, 28)),
        (Conv(number_of_outputs=4), (1, 3, 2, 7), (1, 4, 2, 7)),
        (Conv(number_of_outputs=4, kernel_size=(3, 1), stride=(2, 1)), (2, 3, 8, 5), (2, 4, 3, 5)),
        (Conv(number_of_outputs=64, kernel_size=7, stride=2, padding=3), (1, 3, 224, 224), (1, 64, 112, 112)),
        (Conv(number_of_outputs=2, kernel_size=3, dilation=2), (1, 1, 7, 5), (1, 2, 3, 1)),
        (Conv(number_of_outputs=2, kernel_size=3, stride=2, padding=((0, 1), (0, 1))), (1, 1, 8, 7), (1, 2, 4, 3)),
        (Conv(number_of_outputs=2, kernel_size=2, padding=((1, 2), (0, 1))), (1, 1, 4, 4), (1, 2, 6, 4)),
        (Conv(number_of_outputs=2, kernel_size=3, padding=(1, 2)), (1, 1, 4, 4), (1, 2, 4, 6)),  # height 1, width 2
        (Conv(number_of_outputs=6, kernel_size=3, padding=1), (2, 4, 9), (2, 6, 9)),
        (Conv(number_of_outputs=6, kernel_size=(4,), stride=(3,), padding=((2, 0),)), (2, 4, 9), (2, 6, 3)),
        (Conv(number_of_outputs=6, kernel_size=3, padding=1), (2, 4, 5, 6, 7), (2, 6, 5, 6, 7)),
        (Conv(number_of_outputs=6, kernel_size=(1, 2, 3), dilation=(1, 2, 3)), (2, 4, 7, 7, 7), (2, 6, 7, 5, 1)),
    ],
)
def test_shapes(conv: Conv, x: Shape, y: Shape) -> None:
    assert conv.output_shape(x) == y


def test_variables() -> None:
    initialisers = {"weight_initialiser": MSRA(), "bias_initialiser": Constant(1)}
    conv = Conv(number_of_outputs=6, kernel_size=(3, 5), groups=2, **initialisers)  # type: ignore[arg-type]
    weights, bias = conv.variables((2, 4, 9, 9))
    assert (weights.name, weights.shape, weights.initialiser) == ("weights", (6, 2, 3, 5), MSRA())
    assert (bias.name, bias.shape, bias.initialiser) == ("bias", (6,), Constant(1))
    assert [spec.name for spec in Conv(number_of_outputs=6, bias=False).variables((2, 4, 9, 9))] == ["weights"]
    for shape in ((2, 4, 9), (2, 4, 9, 9), (2, 4, 9, 9, 9)):
        assert Conv(number_of_outputs=6, kernel_size=3).variables(shape)[0].shape == (6, 4, *[3] * (len(shape) - 2))


@pytest.mark.parametrize(
    ("conv", "x", "message"),
    [
        (Conv(number_of_outputs=2), (4, 9), r"\(N, C, H, W\) or \(N, C, D, H, W\). Received: \(4, 9\)"),
        (Conv(number_of_outputs=2), (1, 2, 3, 4, 5, 6), r"\(N, C, D, H, W\). Received: \(1, 2, 3, 4, 5, 6\)"),
        (
            Conv(number_of_outputs=2, padding=((1, 0), (0, 1))),
            (1, 3, 9),
            r"2 spatial axes, for padding=\(\(1, 0\), \(0, 1\)\). Received: \(1, 3, 9\)",
        ),
        (Conv(number_of_outputs=2, groups=2), (1, 3, 9, 9), "groups=2 divides. Received: 3 channels"),
        (Conv(number_of_outputs=2, kernel_size=5), (1, 1, 4, 9), "as large as the kernel. Received: input 4×9"),
        (
            Conv(number_of_outputs=2, kernel_size=3, dilation=4, padding=1),
            (1, 1, 6),
            "as the kernel. Received: input 6",
        ),
    ],
)
def test_wrong_shapes(conv: Conv, x: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conv.output_shape(x)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "Conv needs number_of_outputs"),
        ({"number_of_outputs": 0}, "number_of_outputs must be an integer ≥ 1. Received: number_of_outputs=0"),
        ({"number_of_outputs": 3, "groups": 2}, "groups must be a divisor of number_of_outputs=3. Received: groups=2"),
        ({"number_of_outputs": 1, "stride": 0}, "stride must be"),
        ({"number_of_outputs": 1, "padding": -1}, "padding must be"),
        ({"number_of_outputs": 1, "dilation": 0}, "dilation must be"),
        ({"number_of_outputs": 1, "groups": 0}, "groups must be"),
        ({"number_of_outputs": 1, "bias": "yes"}, "bias must be True or False"),
        (
            {"number_of_outputs": 1, "bias": False, "bias_learning_rate_multiplier": 3},
            "bias_learning_rate_multiplier must be left at 1.0 with bias=False, where it does nothing. Received: bias_",
        ),
        (
            {"number_of_outputs": 1, "bias": False, "bias_initialiser": Constant(1.0)},
            "bias_initialiser must be left at",
        ),
        ({"number_of_outputs": 1, "kernel": 3}, "Conv has no 'kernel'. Did you mean 'kernel_size'?"),
    ],
)
def test_bad_configurations(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Conv(**values)  # type: ignore[arg-type]


def test_numbers_by_hand() -> None:
    """A 3×3 image, a 2×2 kernel: every number of forward and backward can be followed on paper."""
    conv = Conv(number_of_outputs=1, kernel_size=2)
    x = np.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    variables = {"weights": np.array([[[[1.0, 2.0], [3.0, 4.0]]]]), "bias": np.array([10.0])}
    dy = np.array([[[[1.0, 0.0], [0.0, 2.0]]]])
    run = run_operator(conv, [x], variables=variables, output_gradient=dy)
    # 1·1 + 2·2 + 3·4 + 4·5 + 10 = 47, and each step to the right adds 1 + 2 + 3 + 4, each step down 3 times that.
    np.testing.assert_array_equal(run.outputs[0], [[[[47, 57], [77, 87]]]])
    dw = [[1 + 2 * 5, 2 + 2 * 6], [4 + 2 * 8, 5 + 2 * 9]]
    np.testing.assert_array_equal(run.variable_gradients["weights"], [[dw]])
    np.testing.assert_array_equal(run.variable_gradients["bias"], [3])
    np.testing.assert_array_equal(run.input_gradients[0], [[[[1, 2, 0], [3, 4 + 2, 4], [0, 6, 8]]]])


def test_padding_by_hand() -> None:
    """One sample before, none behind; every other sample in the window."""
    conv = Conv(number_of_outputs=1, kernel_size=2, padding=((1, 0),), dilation=2, bias=False)
    run = run_operator(conv, [[[[1.0, 2.0, 4.0]]]], variables={"weights": [[[10.0, 1.0]]]}, output_gradient=[[[1, 3]]])
    np.testing.assert_array_equal(run.outputs[0], [[[2, 14]]])  # 10·0 + 2, 10·1 + 4
    np.testing.assert_array_equal(run.variable_gradients["weights"], [[[3, 2 + 12]]])
    np.testing.assert_array_equal(run.input_gradients[0], [[[30, 1, 3]]])


def test_depthwise_filters_each_channel_alone() -> None:
    x = np.arange(8.0).reshape(1, 2, 4)
    conv = Conv(number_of_outputs=2, kernel_size=2, groups=2, bias=False)
    run = run_operator(conv, [x], variables={"weights": [[[1.0, 1.0]], [[-1.0, 1.0]]]})
    np.testing.assert_array_equal(run.outputs[0], [[[1, 3, 5], [1, 1, 1]]])


@pytest.mark.parametrize("fused", [False, True])
def test_a_sum_of_gradients_is_part_of_the_gradient(fused: bool) -> None:
    requests: list[Any] = []
    conv, float32 = Conv(number_of_outputs=2, kernel_size=3), np.dtype(np.float32)
    x, y = Tensor((1, 4, 5, 5), float32), Tensor((1, 2, 3, 3), float32)
    variables = {spec.name: Variable(spec.shape, float32) for spec in conv.variables(x.shape)}
    library = SimpleNamespace(prepare=requests.append)
    site = SimpleNamespace(library=library, inputs=(x,), output=y, variables=variables)
    site.needs_input_gradient, site.fused_sum = True, fused
    conv.gradient().prepare(conv, cast(Any, site))
    assert [type(request) for request in requests] == [ConvolutionBackwardWeights, ConvolutionBackwardData]
    assert requests[1].sum is fused


def test_gradient_operator() -> None:
    assert Conv(number_of_outputs=1).gradient() == ConvGradient(input=0)


@pytest.mark.parametrize(
    "conv",
    [
        Conv(number_of_outputs=4, kernel_size=3, padding=1),
        Conv(number_of_outputs=4, kernel_size=(2, 3), stride=(2, 1), padding=(0, 2), bias=False),
        Conv(number_of_outputs=6, kernel_size=3, groups=2, dilation=2, padding=2, stride=2),
    ],
    ids=str,
)
def test_gradients(conv: Conv) -> None:
    check_gradients(conv, [(2, 4, 7, 6)])
