"""What requests with variables per channel declare."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import (
    BatchNormBackward,
    BatchNormInference,
    BatchNormSetting,
    BatchNormTraining,
    LayerNormBackward,
    LayerNormForward,
    ScalingBackward,
    ScalingForward,
    SlopeBackward,
)
from crossbow.types import Tensor

X = Tensor((2, 3), np.dtype(np.float32))
WEIGHTS = Variable((3,), np.dtype(np.float32))


@pytest.mark.parametrize("fraction", [0.9, None])
@pytest.mark.parametrize("bias", [False, True])
def test_statistics_of_all_tasks_have_a_count(bias: bool, fraction: float | None) -> None:
    setting = BatchNormSetting(1e-5, fraction, bias)
    parameters = ("weights", "bias") if bias else ("weights",)
    statistics = ("running_mean", "running_variance", *(() if fraction is not None else ("count",)))
    training, inference = BatchNormTraining(X, X, setting), BatchNormInference(X, X, setting)
    assert training.reads == ("input0", *parameters, *statistics)
    assert training.writes == ("output", "kept", *(f"{role}_next" for role in statistics))
    assert training.in_place is None  # the gradient reads the input
    assert inference.reads == ("input0", *parameters, "running_mean", "running_variance")
    assert (inference.writes, inference.in_place) == (("output",), ("input0", "output"))


@pytest.mark.parametrize("relu", [False, True])
def test_the_gradient_reads_the_bias_to_know_where_a_relu_was_flat(relu: bool) -> None:
    setting = BatchNormSetting(1e-5, 0.9, bias=True, relu=relu)
    request = BatchNormBackward(X, X, X, setting)
    assert request.reads == ("input0", "output_gradient", "weights", *(("bias",) if relu else ()), "kept")
    assert request.writes == ("weights_gradient", "bias_gradient", "input_gradient")
    requests = (request, BatchNormTraining(X, X, setting), BatchNormInference(X, X, setting))
    assert [each.label.endswith(" relu") for each in requests] == [relu] * 3


@pytest.mark.parametrize("relu", [False, True])
def test_a_sum_is_read_and_has_a_gradient_behind_a_relu(relu: bool) -> None:
    setting = BatchNormSetting(1e-5, 0.9, bias=False, relu=relu, sum=True)
    statistics = ("running_mean", "running_variance")
    assert BatchNormTraining(X, X, setting).reads == ("input0", "addend", "weights", *statistics)
    assert BatchNormInference(X, X, setting).reads == ("input0", "addend", "weights", *statistics)
    request = BatchNormBackward(X, X, X, setting)
    if relu:
        assert request.reads == ("input0", "output", "output_gradient", "weights", "kept")
        assert request.writes == ("weights_gradient", "addend_gradient", "input_gradient")
        assert request.in_place == ("output_gradient", "addend_gradient")
        assert BatchNormBackward(X, X, None, setting).writes == ("weights_gradient", "addend_gradient")
    else:
        assert request.reads == ("input0", "output_gradient", "weights", "kept")
        assert request.writes == ("weights_gradient", "input_gradient")
        assert request.in_place == ("output_gradient", "input_gradient")
    requests = (request, BatchNormTraining(X, X, setting), BatchNormInference(X, X, setting))
    assert [each.label.partition(" ")[2] for each in requests] == ["sum relu" if relu else "sum"] * 3


def test_roles_of_layer_normalisations_and_slopes() -> None:
    assert LayerNormForward(X, WEIGHTS, None, X, 1, 1e-5).reads == ("input0", "weights")
    assert LayerNormForward(X, WEIGHTS, WEIGHTS, X, 1, 1e-5).reads == ("input0", "weights", "bias")
    for dx, more, in_place in ((None, (), None), (X, ("input_gradient",), ("output_gradient", "input_gradient"))):
        request = LayerNormBackward(X, X, WEIGHTS, WEIGHTS, dx, 1, 1e-5)
        assert request.writes == ("weights_gradient", "bias_gradient", *more)
        assert request.in_place == in_place
        slope = SlopeBackward(X, X, WEIGHTS, dx)
        assert (slope.writes, slope.in_place) == (("weights_gradient", *more), None)


def test_only_a_gradient_of_the_input_can_be_in_place() -> None:
    setting = BatchNormSetting(1e-5, 0.9, bias=False)
    for dx, in_place in ((None, None), (X, ("output_gradient", "input_gradient"))):
        for request in (BatchNormBackward(X, X, dx, setting), ScalingBackward(X, X, WEIGHTS, None, dx, 1)):
            assert request.in_place == in_place
            assert request.writes == ("weights_gradient", *(() if dx is None else ("input_gradient",)))


def test_factors_with_and_without_an_offset() -> None:
    assert ScalingForward(X, WEIGHTS, None, X, 1).reads == ("input0", "weights")
    assert ScalingForward(X, WEIGHTS, WEIGHTS, X, 1).reads == ("input0", "weights", "bias")
    both = ScalingBackward(X, X, WEIGHTS, WEIGHTS, X, 1)
    assert both.writes == ("weights_gradient", "bias_gradient", "input_gradient")
    assert both.reads == ("input0", "output_gradient", "weights")
