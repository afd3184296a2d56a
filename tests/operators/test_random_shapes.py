"""Conv and Pool of any shape, stride and padding, and matrix products of any shapes: reference, fast library and
PyTorch agree."""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crossbow.kernels import why_not_compiled
from crossbow.ops import Constant, Conv, Gaussian, InnerProduct, Kernel, MatMul, Pool, TransposedConv
from crossbow.testing import OperatorRun, run_operator
from crossbow.types import Shape
from tests.operators.table import TOLERANCES
from tests.operators.test_table import assert_close, tensors

Array = NDArray[Any]

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
with_pytorch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch, only for comparisons, is not installed")
# Derandomised: a suite that fails on some days only would not say what changed. max_examples keeps it to seconds.
modest = settings(max_examples=20, deadline=None, derandomize=True)


def drawn_axes(draw: st.DrawFn) -> int:
    return draw(st.sampled_from([1, 2, 2, 2, 3]))


def per_axis(draw: st.DrawFn, axes: int, lowest: int, highest: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(lowest, highest)) for _ in range(axes))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Conv, Shape]:
    groups, axes = draw(st.sampled_from([1, 1, 1, 2, 3])), drawn_axes(draw)
    kernel, dilation = per_axis(draw, axes, 1, 4 if axes < 3 else 3), per_axis(draw, axes, 1, 2)
    padding = tuple(zip(per_axis(draw, axes, 0, 2), per_axis(draw, axes, 0, 2), strict=True))
    reach = [d * (k - 1) + 1 - sum(p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [max(1, r) + draw(st.integers(0, 7 if axes < 3 else 3)) for r in reach]
    bias = draw(st.booleans())
    operator = Conv(
        number_of_outputs=groups * draw(st.integers(1, 9)),
        kernel_size=kernel,
        stride=per_axis(draw, axes, 1, 3),
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=bias,
        bias_initialiser=Gaussian(std=0.5) if bias else Constant(),
    )
    return operator, (draw(st.integers(1, 4)), groups * draw(st.integers(1, 9)), *size)


@st.composite
def transposed(draw: st.DrawFn) -> tuple[TransposedConv, Shape]:
    groups, axes = draw(st.sampled_from([1, 1, 2])), drawn_axes(draw)
    kernel, dilation = per_axis(draw, axes, 1, 4 if axes < 3 else 2), per_axis(draw, axes, 1, 2)
    stride = per_axis(draw, axes, 1, 3)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple((draw(st.integers(0, (r - 1) // 2)), draw(st.integers(0, (r - 1) // 2))) for r in reach)
    bias = draw(st.booleans())
    operator = TransposedConv(
        groups * draw(st.integers(1, 9)),
        kernel,
        stride=stride,
        padding=padding,
        output_padding=tuple(draw(st.integers(0, s - 1)) for s in stride),
        dilation=dilation,
        groups=groups,
        bias=bias,
        bias_initialiser=Gaussian(std=0.5) if bias else Constant(),
    )
    return operator, (draw(st.integers(1, 4)), groups * draw(st.integers(1, 9)), *per_axis(draw, axes, 1, 5))


@st.composite
def poolings(draw: st.DrawFn) -> tuple[Pool, Shape]:
    axes = drawn_axes(draw)
    # Max pooling is compiled for each small window; `tests/kernels/cpu/passes/test_pooling.py` has them all.
    kernel = draw(st.sampled_from([(2, 2), (3, 2), (4, 4)])) if axes == 2 else per_axis(draw, axes, 1, 3)
    dilation = draw(st.sampled_from([(1,) * axes, per_axis(draw, axes, 1, 3)]))
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple((draw(st.integers(0, e - 1)), draw(st.integers(0, e - 1))) for e in extent)
    if draw(st.booleans()):  # PyTorch's own functions allow the same on both sides, up to half the window
        padding = tuple((k // 2, k // 2) for k in kernel)
    # An input no shorter than the distance between a window's elements: no window steps over it.
    least = [max(d, e - sum(p)) for d, e, p in zip(dilation, extent, padding, strict=True)]
    method = draw(st.sampled_from(["max", "average", "stochastic"]))
    operator = Pool(
        method=method,
        kernel_size=kernel,
        stride=per_axis(draw, axes, 1, 4),
        padding=padding,
        dilation=dilation,
        rounding=draw(st.sampled_from(["ceil", "floor"])),
        count_padding=draw(st.booleans()) or method != "average",
    )
    size = [low + draw(st.integers(0, 7 if axes < 3 else 3)) for low in least]
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


@pytest.mark.slow
@fast
@modest
@given(transposed())
def test_transposed_convolution(drawn: tuple[TransposedConv, Shape]) -> None:
    compare_with_fast_library(*drawn)


@with_pytorch
@modest
@given(transposed())
def test_transposed_convolution_in_pytorch(drawn: tuple[TransposedConv, Shape]) -> None:
    compare_with_pytorch(*drawn)


@pytest.mark.slow
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


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("rounding", ["ceil", "floor"])
def test_pooled_sizes_are_those_of_pytorch(rounding: str, dilation: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    sizes, strides = range(2, 12), range(1, 6)
    for size, kernel, stride in itertools.product(sizes, range(1, 5), strides):
        for padding in range(kernel // 2 + 1):
            if size + 2 * padding < dilation * (kernel - 1) + 1:
                continue
            pool = Pool(kernel_size=kernel, stride=stride, padding=padding, dilation=dilation, rounding=rounding)
            theirs = torch.nn.functional.max_pool2d(
                torch.zeros(1, 1, size, size), kernel, stride, padding, dilation, ceil_mode=rounding == "ceil"
            )
            assert pool.output_shape((1, 1, size, size)) == tuple(theirs.shape)


@st.composite
def inner_products(draw: st.DrawFn) -> tuple[InnerProduct, Shape]:
    shape = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5).map(tuple))
    axis = draw(st.integers(1, len(shape) - 1))
    bias = draw(st.booleans())
    operator = InnerProduct(
        number_of_outputs=draw(st.integers(1, 20)),
        axis=axis - draw(st.sampled_from([0, len(shape)])),
        bias=bias,
        bias_initialiser=Gaussian(std=0.5) if bias else Constant(),
    )
    return operator, shape


@fast
@modest
@given(inner_products())
def test_inner_product(drawn: tuple[InnerProduct, Shape]) -> None:
    compare_with_fast_library(*drawn)


@with_pytorch
@modest
@given(inner_products())
def test_inner_product_in_pytorch(drawn: tuple[InnerProduct, Shape]) -> None:
    compare_with_pytorch(*drawn)


@st.composite
def matrix_products(draw: st.DrawFn) -> tuple[MatMul, Shape, Shape]:
    rows, inner, columns = (draw(st.integers(1, 9)) for _ in range(3))
    turned = draw(st.tuples(st.booleans(), st.booleans()))
    stack = draw(st.lists(st.integers(1, 3), max_size=3))
    shapes = []
    for matrix, turn in zip(((rows, inner), (inner, columns)), turned, strict=True):
        own = [draw(st.sampled_from([size, size, 1])) for size in stack][draw(st.integers(0, len(stack))) :]
        shapes.append((*own, *(reversed(matrix) if turn else matrix)))
    return MatMul(transpose_a=turned[0], transpose_b=turned[1]), shapes[0], shapes[1]


def run_product(operator: MatMul, a: Shape, b: Shape, **options: Any) -> tuple[list[Array], Array, OperatorRun]:
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(shape).astype(np.float32) for shape in (a, b)]
    dy = generator.standard_normal(operator.output_shape(a, b)).astype(np.float32)
    return inputs, dy, run_operator(operator, inputs, output_gradient=dy, **options)


@fast
@modest
@given(matrix_products())
def test_matrix_product(drawn: tuple[MatMul, Shape, Shape]) -> None:
    received, exact = run_product(*drawn, device="cpu")[2], run_product(*drawn, dtype=np.float64)[2]
    assert_close(tensors(received), tensors(exact), TOLERANCES[MatMul])


@with_pytorch
@modest
@given(matrix_products())
def test_matrix_product_in_pytorch(drawn: tuple[MatMul, Shape, Shape]) -> None:
    from tests.operators.oracles import run_oracle

    inputs, dy, received = run_product(*drawn, dtype=np.float64)
    output, gradients, _ = run_oracle(drawn[0], inputs, {}, dy)
    assert_close(tensors(received), tensors(OperatorRun([output], gradients, {}, {})), 1e-12)
