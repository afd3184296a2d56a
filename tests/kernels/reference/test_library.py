"""What holds for every kernel of the reference library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import (
    ActivationBackward,
    ActivationForward,
    CopyBackward,
    CopyForward,
    DropoutBackward,
    DropoutForward,
    MaximumForward,
    ProductBackward,
    ProductForward,
    ScaledGradient,
    SoftmaxBackward,
    SoftmaxForward,
    WeightedSum,
)
from crossbow.types import ConfigurationError, Layout, Phase
from tests.kernels.reference.running import DTYPES, Numbers, channels_last, draw, nan, run, state, tensor

SHAPE = (3, 4, 5, 2)


def element_wise_kernels(library: Reference) -> list[PreparedKernel]:
    t = tensor(SHAPE, library.dtypes[0])
    modes = (("relu", 0.0), ("relu", 0.1), ("sigmoid", 0.0), ("tanh", 0.0), ("clipped", 0.0))
    return [
        *(library.prepare(ActivationForward(t, t, mode, slope, 1.0)) for mode, slope in modes),
        *(library.prepare(ActivationBackward(t, t, t, mode, slope, 1.0)) for mode, slope in modes),
        library.prepare(SoftmaxForward(t, t, 1)),
        library.prepare(SoftmaxForward(t, t, 3)),
        library.prepare(SoftmaxBackward(t, t, t, 1)),
        library.prepare(DropoutForward(t, t, 0.3, 1, 2)),
        library.prepare(DropoutBackward(t, t, 0.3, 1, 2)),
        library.prepare(WeightedSum((t, t, t), t, (1.0, -0.3, 2.5))),
        library.prepare(ScaledGradient(t, t, 0.3)),
        library.prepare(CopyForward(t, t)),
        library.prepare(CopyBackward(t, t)),
        library.prepare(ProductForward((t, t, t), t)),
        library.prepare(ProductBackward((t, t, t), t, 1)),
        library.prepare(MaximumForward((t, t, t), t, Phase.CHECK)),
    ]


def values(role: str, dtype: Any) -> Numbers:
    return state(TASK=5, EXAMPLES=3) if role == "state" else draw(*SHAPE, dtype=dtype, seed=len(role) + ord(role[-1]))


def result(kernel: PreparedKernel, dtype: Any, *, last: bool = False, in_place: bool = False) -> Numbers:
    order = channels_last if last else np.array
    buffers = {role: values(role, dtype) for role in kernel.reads}
    buffers = {role: order(v) if role != "state" else v for role, v in buffers.items()}
    (target,) = kernel.writes
    if in_place:
        assert kernel.in_place is not None
        assert kernel.in_place[1] == target
        buffers[target] = buffers[kernel.in_place[0]]
    else:
        buffers[target] = order(nan(SHAPE, dtype))
    run(kernel, **buffers)
    return buffers[target]


INDICES = range(len(element_wise_kernels(Reference())))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", INDICES)
def test_in_place_and_strided_give_the_same_bits_in_the_same_type(index: int, dtype: Any) -> None:
    kernel = element_wise_kernels(Reference(dtype))[index]
    apart = result(kernel, dtype)
    assert apart.dtype == dtype
    assert np.isfinite(apart).all()
    np.testing.assert_array_equal(result(kernel, dtype, in_place=True), apart)
    strided = result(kernel, dtype, last=True)
    if kernel.name.startswith("softmax"):  # sums run in memory order
        np.testing.assert_allclose(strided, apart, rtol=1e-5, atol=1e-7)
    else:
        np.testing.assert_array_equal(strided, apart)


def test_types() -> None:
    assert Reference().dtypes == (np.dtype(np.float32),)
    assert Reference("float64").dtypes == (np.dtype(np.float64),)
    with pytest.raises(ConfigurationError, match=r"dtype must be float32 or float64\. Received: int32"):
        Reference(np.int32)


def test_everything_is_plain() -> None:
    assert {Reference().layout(shape) for shape in ((8,), (8, 3), (8, 3, 4, 5))} == {Layout.PLAIN}


def test_names_say_request_and_library() -> None:
    for kernel in element_wise_kernels(Reference()):
        assert kernel.name.endswith(" reference")
