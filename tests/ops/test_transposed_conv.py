from __future__ import annotations

import numpy as np
import pytest

from crossbow import Dataset, ExecutionContext, Sequential, SolverConf, SystemConf
from crossbow.data import digits
from crossbow.ops import Constant, Conv, EuclideanLoss, ReLU, TransposedConv, TransposedConvGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, Shape


@pytest.mark.parametrize(
    ("kernel", "x", "y"),
    [
        (TransposedConv(4), (1, 3, 2, 7), (1, 4, 2, 7)),
        (TransposedConv(6, 4, stride=2, padding=1), (8, 3, 7, 7), (8, 6, 14, 14)),
        (TransposedConv(6, 3, stride=2, padding=1, output_padding=1), (8, 3, 7, 9), (8, 6, 14, 18)),
        (TransposedConv(2, (3, 1), stride=(2, 3), output_padding=(0, 2)), (1, 1, 3, 4), (1, 2, 7, 12)),
        (TransposedConv(2, 3, dilation=2, padding=((1, 2), (0, 3))), (1, 1, 4, 4), (1, 2, 5, 5)),
        (TransposedConv(6, 3, stride=2), (2, 4, 9), (2, 6, 19)),
        (TransposedConv(6, 2, stride=2, groups=2), (2, 4, 3, 4, 5), (2, 6, 6, 8, 10)),
    ],
)
def test_shapes(kernel: TransposedConv, x: Shape, y: Shape) -> None:
    """The convolution with the same fields leads back."""
    assert kernel.output_shape(x) == y
    fields = {name: getattr(kernel, name) for name in ("kernel_size", "stride", "padding", "dilation", "groups")}
    assert Conv(x[1], **fields).output_shape(y) == x


def test_variables() -> None:
    kernel = TransposedConv(6, (3, 5), groups=2, bias_initialiser=Constant(1))
    weights, bias = kernel.variables((2, 4, 9, 9))
    assert (weights.name, weights.shape, bias.name, bias.shape) == ("weights", (4, 3, 3, 5), "bias", (6,))
    assert bias.initialiser == Constant(1)
    frozen = {"weight_learning_rate_multiplier": 0, "bias_learning_rate_multiplier": 0}
    assert TransposedConv(6, **frozen).is_frozen
    assert not TransposedConv(6, weight_learning_rate_multiplier=0).is_frozen
    assert [spec.name for spec in TransposedConv(6, bias=False).variables((2, 4, 9, 9))] == ["weights"]
    assert kernel.multiply_adds((2, 4, 9, 8)) == 2 * 4 * 9 * 8 * 3 * 15


@pytest.mark.parametrize(
    ("kernel", "x", "message"),
    [
        (TransposedConv(2), (4, 9), r"\(N, C, H, W\) or \(N, C, D, H, W\)\. Received: \(4, 9\)"),
        (TransposedConv(2, groups=2), (1, 3, 9, 9), r"groups=2 divides\. Received: 3 channels"),
        (TransposedConv(2, 3, padding=2), (1, 1, 2, 9), r"a padding that leaves an output\. Received: input 2×9"),
        (TransposedConv(2, stride=3, output_padding=(1, 2)), (1, 1, 4), r"2 spatial axes, for output_padding=\(1, 2\)"),
        (TransposedConv(2, stride=(3, 1)), (1, 1, 4), r"2 spatial axes, for stride=\(3, 1\)"),
        (TransposedConv(2), (1, 2, 0, 3), r"at least one element on each spatial axis\. Received: \(1, 2, 0, 3\)"),
    ],
)
def test_wrong_shapes(kernel: TransposedConv, x: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel.output_shape(x)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "TransposedConv needs number_of_outputs"),
        (
            {"number_of_outputs": 3, "groups": 2},
            "groups must be a divisor of number_of_outputs=3",
        ),
        ({"number_of_outputs": 1, "stride": 0}, "stride must be"),
        ({"number_of_outputs": 1, "output_padding": -1}, "output_padding must be an integer ≥ 0 or a tuple of such"),
        ({"number_of_outputs": 1, "output_padding": 1}, r"output_padding must be less than stride=1\. Received: "),
        ({"number_of_outputs": 1, "stride": (2, 3), "output_padding": 2}, r"must be less than stride=\(2, 3\)"),
        ({"number_of_outputs": 1, "stride": (2, 3), "output_padding": (1, 3)}, r"must be less than stride=\(2, 3\)"),
        ({"number_of_outputs": 1, "stride": (2, 3), "output_padding": (1, 1, 1)}, r"as long as stride=\(2, 3\)"),
        ({"number_of_outputs": 1, "stride": (2, 3), "output_padding": (1,)}, r"as long as stride=\(2, 3\)"),
        ({"number_of_outputs": 1, "bias": False, "bias_initialiser": Constant(1.0)}, "must be left at"),
    ],
)
def test_bad_configurations(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TransposedConv(**values)  # type: ignore[arg-type]


def test_numbers_by_hand() -> None:
    """Two pixels, a 1×2 kernel, stride 2: each pixel writes a pair of its own."""
    kernel = TransposedConv(1, (1, 2), stride=(1, 2))
    variables = {"weights": [[[[10.0, 1.0]]]], "bias": [100.0]}
    run = run_operator(kernel, [[[[[2.0, 3.0]]]]], variables=variables, output_gradient=[[[[1.0, 2.0, 3.0, 4.0]]]])
    np.testing.assert_array_equal(run.outputs[0], [[[[120, 102, 130, 103]]]])
    np.testing.assert_array_equal(run.variable_gradients["weights"], [[[[2 * 1 + 3 * 3, 2 * 2 + 3 * 4]]]])
    np.testing.assert_array_equal(run.variable_gradients["bias"], [10])
    np.testing.assert_array_equal(run.input_gradients[0], [[[[12, 34]]]])


def test_overlaps_add_up_and_padding_cuts_off() -> None:
    """Windows of three at distance one: (1, 2, 3), shifted by one and times ten; the ends are cut off."""
    kernel = TransposedConv(1, 3, padding=((1, 0),), bias=False)
    run = run_operator(kernel, [[[[1.0, 10.0]]]], variables={"weights": [[[1.0, 2.0, 3.0]]]})
    np.testing.assert_array_equal(run.outputs[0], [[[12, 23, 30]]])


@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (2, 4, 6), (2, 4, 2, 3, 2)])
def test_gradients(shape: Shape) -> None:
    check_gradients(TransposedConv(6, 3, stride=2, padding=1, output_padding=1, groups=2), [shape])


def test_the_gradient_of_the_input_is_left_out_where_nothing_needs_it() -> None:
    assert TransposedConv(2).gradient() == TransposedConvGradient()


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 2])
def test_an_autoencoder_trains(learners: int) -> None:
    """Digits through four channels of 7×7 and back: far closer than their mean."""
    x = np.asarray(digits().train.images[:256], np.float32)
    x /= x.max()
    network = Sequential(
        Conv(16, 4, stride=2, padding=1),
        ReLU(),
        Conv(4, 4, stride=2, padding=1),
        TransposedConv(16, 4, stride=2, padding=1),
        ReLU(),
        TransposedConv(1, 4, stride=2, padding=1),
        EuclideanLoss(),
    )
    with ExecutionContext(
        network,
        data=Dataset((x, x), (x, x)),
        solver=SolverConf(method="adam", learning_rate=0.005),
        system=SystemConf(learners_per_device=learners, threads_per_learner=1),
    ) as context:
        history = context.train_and_test(25, verbose=0)
        mean = 0.5 * np.square(x - x.mean(axis=0)).sum() / len(x)
        assert history.best.test.loss < 0.5 * mean
        assert context.predict(x[:3]).shape == (3, *x.shape[1:])
