"""What requests of sliding windows declare: their geometry, roles and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
    PoolingBackward,
    PoolingForward,
    PoolingGeometry,
    ResponseGeometry,
    WindowGeometry,
)
from crossbow.types import Phase, Tensor

X = Tensor((2, 3, 4, 4), np.dtype(np.float32))
W = Variable((3, 3, 2, 2), np.dtype(np.float32))


def test_windows_have_stride_and_dilation_one_and_no_padding_unless_said() -> None:
    geometry = WindowGeometry(kernel=(3, 2))
    assert (geometry.stride, geometry.padding, geometry.dilation) == ((1, 1), ((0, 0), (0, 0)), (1, 1))
    assert ConvolutionGeometry(kernel=(3,)).groups == 1
    given = WindowGeometry((3, 2), (2, 1), ((1, 0), (0, 2)), (1, 4))
    assert (given.stride, given.padding, given.dilation) == ((2, 1), ((1, 0), (0, 2)), (1, 4))
    assert (geometry.extent, given.extent) == ((3, 2), (3, 5))


@pytest.mark.parametrize("values", [{"stride": (1,)}, {"padding": ((0, 0),) * 3}, {"dilation": (1, 1, 1)}], ids=str)
def test_every_axis_has_a_value(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(ValueError, match=rf"^expected 2 values, as kernel=\(3, 2\) has\. Received: {name}="):
        WindowGeometry((3, 2), **values)


@pytest.mark.parametrize(
    ("size", "leads", "expected"),
    [
        (1, False, (0, 0)),
        (1, True, (0, 0)),
        (2, False, (0, 1)),
        (2, True, (1, 0)),
        (5, False, (2, 2)),
        (5, True, (2, 2)),
    ],
)
def test_the_halves_of_a_response_window(size: int, leads: bool, expected: tuple[int, int]) -> None:
    geometry = ResponseGeometry((1,), size, 1.0, 1.0, 1.0, leads)
    assert (geometry.before, geometry.after) == expected


def test_roles_of_a_convolution() -> None:
    geometry = ConvolutionGeometry((2, 2))
    assert ConvolutionForward(X, W, None, X, geometry).reads == ("input0", "weights")
    assert ConvolutionForward(X, W, W, X, geometry).reads == ("input0", "weights", "bias")
    assert [ConvolutionForward(X, W, None, X, geometry, relu=relu).label for relu in (False, True)] == [
        "convolution_forward",
        "convolution_forward relu",
    ]
    alone, added = (ConvolutionBackwardData(X, W, X, geometry, sum=adds) for adds in (False, True))
    assert (alone.reads, alone.in_place) == (("output_gradient", "weights"), None)
    assert added.reads == ("output_gradient", "weights", "addend")
    assert added.in_place == ("addend", "input_gradient")
    assert [each.label for each in (alone, added)] == ["convolution_backward_data", "convolution_backward_data sum"]
    assert ConvolutionBackwardWeights(X, X, W, None, geometry).writes == ("weights_gradient",)
    assert ConvolutionBackwardWeights(X, X, W, W, geometry).writes == ("weights_gradient", "bias_gradient")


@pytest.mark.parametrize(
    ("method", "phase", "reads", "writes"),
    [
        ("max", Phase.TRAIN, ("input0",), ("output", "kept")),
        ("max", Phase.CHECK, ("input0",), ("output",)),
        ("average", Phase.TRAIN, ("input0",), ("output",)),
        ("stochastic", Phase.TRAIN, ("input0", "state"), ("output", "kept")),
        ("stochastic", Phase.CHECK, ("input0",), ("output",)),
    ],
)
def test_roles_of_a_pooling(method: str, phase: Phase, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
    request = PoolingForward(X, X, PoolingGeometry((2, 2), method=method), phase)
    assert (request.reads, request.writes, request.label) == (reads, writes, f"pooling_forward {method}")


def test_roles_of_a_poolings_gradient() -> None:
    average, largest = PoolingGeometry((2, 2), method="average"), PoolingGeometry((2, 2))
    assert PoolingBackward(X, X, average).reads == ("output_gradient",)
    assert PoolingBackward(X, X, largest).reads == ("output_gradient", "kept")
    assert PoolingBackward(X, X, largest, relu=True).reads == ("output_gradient", "kept", "output")
    assert [PoolingBackward(X, X, largest, relu=relu).label for relu in (False, True)] == [
        "pooling_backward max",
        "pooling_backward max relu",
    ]
