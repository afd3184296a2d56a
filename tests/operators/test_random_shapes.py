"""Conv and Pool of any shape, stride and padding: reference, fast library and PyTorch agree."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crossbow.kernels import why_not_onednn
from crossbow.ops import Conv, Gaussian, Kernel, Pool
from crossbow.testing import OperatorRun, run_operator
from crossbow.types import Shape
from tests.operators.table import TOLERANCES
from tests.operators.test_table import assert_close, tensors

Array = NDArray[Any]

fast = pytest.mark.skipif(why_not_onednn() is not None, reason=f"no oneDNN: {why_not_onednn()}")
with_pytorch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch, only for comparisons, is not installed")
# Derandomised: a suite that fails on some days only would not say what changed. max_examples keeps it to seconds.
modest = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Conv, Shape]:
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    reach = [d * (k - 1) + 1 - 2 * p for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [max(1, r) + draw(st.integers(0, 7)) for r in reach]
    operator = Conv(
        number_of_outputs=groups * draw(st.integers(1, 9)),
        kernel_size=kernel,
        stride=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
        bias_initialiser=Gaussian(std=0.5),
    )
    return operator, (draw(st.integers(1, 4)), groups * draw(st.integers(1, 9)), *size)


@st.composite
def poolings(draw: st.DrawFn) -> tuple[Pool, Shape]:
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    # PyTorch allows padding up to half the window.
    padding = (draw(st.integers(0, kernel[0] // 2)), draw(st.integers(0, kernel[1] // 2)))
    rounding = draw(st.sampled_from(["ceil", "floor"]))
    size = [max(1, k - 2 * p) + draw(st.integers(0, 7)) for k, p in zip(kernel, padding, strict=True)]
    operator = Pool(
        method=draw(st.sampled_from(["max", "average"])),
        kernel_size=kernel,
        stride=draw(st.tuples(st.integers(1, 4), st.integers(1, 4))),
        padding=padding,
        rounding=rounding,
        count_padding=draw(st.booleans()),
    )
    return operator, (draw(st.integers(1, 3)), draw(st.integers(1, 20)), *size)


def operands(operator: Kernel, shape: Shape) -> tuple[Array, Array]:
    """An input and a gradient of the output."""
    generator = np.random.default_rng(0)
    x, dy = (generator.standard_normal(s).astype(np.float32) for s in (shape, operator.output_shape(shape)))
    return x, dy


def run(operator: Kernel, shape: Shape, **options: Any) -> OperatorRun:
    x, dy = operands(operator, shape)
    return run_operator(operator, [x], output_gradient=dy, **options)


def compare_with_fast_library(operator: Kernel, shape: Shape) -> None:
    received = run(operator, shape, device="cpu")
    exact = run(operator, shape, dtype=np.float64, variables=received.variables)
    assert_close(tensors(received), tensors(exact), TOLERANCES[type(operator)])


def compare_with_pytorch(operator: Kernel, shape: Shape) -> None:
    from tests.operators.oracles import run_oracle

    received = run(operator, shape, dtype=np.float64)
    x, dy = operands(operator, shape)
    output, input_gradients, variable_gradients = run_oracle(operator, [x], received.variables, dy)
    expected = OperatorRun([output], input_gradients, received.variables, variable_gradients)
    assert_close(tensors(received), tensors(expected), 1e-12)


@fast
@modest
@given(convolutions())
def test_convolution(drawn: tuple[Conv, Shape]) -> None:
    compare_with_fast_library(*drawn)


@fast
@modest
@given(poolings())
def test_pooling(drawn: tuple[Pool, Shape]) -> None:
    compare_with_fast_library(*drawn)


@with_pytorch
@modest
@given(convolutions())
def test_convolution_in_pytorch(drawn: tuple[Conv, Shape]) -> None:
    compare_with_pytorch(*drawn)


@with_pytorch
@modest
@given(poolings())
def test_pooling_in_pytorch(drawn: tuple[Pool, Shape]) -> None:
    compare_with_pytorch(*drawn)


@pytest.mark.parametrize("rounding", ["ceil", "floor"])
def test_pooled_sizes_are_those_of_pytorch(rounding: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    for size in range(1, 12):
        for kernel in range(1, 5):
            for stride in range(1, 6):
                for padding in range(kernel // 2 + 1):
                    if size + 2 * padding < kernel:
                        continue
                    pool = Pool(kernel_size=kernel, stride=stride, padding=padding, rounding=rounding)
                    theirs = torch.nn.functional.max_pool2d(
                        torch.zeros(1, 1, size, size), kernel, stride, padding, ceil_mode=rounding == "ceil"
                    )
                    assert pool.output_shape((1, 1, size, size)) == tuple(theirs.shape)
