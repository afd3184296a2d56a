"""Softmax and the largest class, of lines that a block shares and of lines that a thread has alone."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cuda.four import threads_per_line
from crossbow.kernels.cuda.launch import Launch
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import LargestIndex, LogSoftmaxForward, SoftmaxBackward, SoftmaxForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.running import Numbers, Tensors, agree

PLAIN, LAST = Layout.PLAIN, Layout.CHANNELS_LAST
LINES: list[tuple[Shape, int, Layout]] = [
    ((3, 1000), 1, PLAIN),
    ((5, 64), 1, PLAIN),
    ((70, 3), 0, PLAIN),
    ((2, 65, 3, 2), 1, PLAIN),
    ((2, 65, 3, 2), 1, LAST),
    ((2, 3, 100, 2), 2, LAST),
    ((2, 3, 2, 129), -1, PLAIN),
    ((2, 3, 2, 129), 3, LAST),
    ((1, 70, 91, 91), 1, PLAIN),  # so many that each has a thread
    ((4, 20, 3, 3), 1, LAST),
]
lines = pytest.mark.parametrize(("shape", "axis", "layout"), LINES)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def test_both_ways_are_tested() -> None:
    assert {
        threads_per_line(Tensor(shape, np.dtype(np.float32), layout), axis) > 1 for shape, axis, layout in LINES
    } == {
        False,
        True,
    }


@pytest.mark.parametrize(
    ("shape", "expected"), [((3, 1000), ("_rows", 3, 256)), ((5, 64), ("_rows", 5, 32)), ((1000, 63), ("", 4, 256))]
)
def test_a_block_shares_a_long_line(shape: Shape, expected: tuple[str, int, int]) -> None:
    """Name of the kernel, and numbers of blocks and of their threads. Results do not show this."""
    x, y = Tensor(shape, np.dtype(np.float32)), Tensor(shape[:1], np.dtype(np.float32))
    buffers = {"input0": np.zeros(shape, np.float32), "output": np.zeros(shape, np.float32)}
    ending, blocks, threads = expected
    for name, request in {
        "softmax_forward": SoftmaxForward(x, x, 1),
        "classify": LargestIndex(x, y, 1, "first"),
    }.items():
        with fake_cuda():
            (launch,) = Cuda(np.dtype(np.float32)).prepare(request).bind(buffers)
            assert isinstance(launch, Launch)
            assert (launch.name, launch.blocks, launch.threads) == (name + ending, blocks, threads)


@lines
@dtypes
def test_softmax(shape: Shape, axis: int, layout: Layout, dtype: type) -> None:
    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(SoftmaxForward(tensors["input0"], tensors["output"], axis))

    def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(
            SoftmaxBackward(tensors["output"], tensors["output_gradient"], tensors["input_gradient"], axis)
        )

    tensor = Tensor(shape, np.dtype(dtype), layout)
    x: Numbers = (4 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    tolerance = 2e-6 if dtype is np.float32 else 1e-14
    y = agree(forward, {"input0": tensor, "output": tensor}, {"input0": x}, tolerance, in_place=True)["output"]
    roles = ("output", "output_gradient", "input_gradient")
    values = {"output": y, "output_gradient": x}
    agree(backward, dict.fromkeys(roles, tensor), values, tolerance, in_place=True)


@pytest.mark.parametrize("classes", [5, 200])
@pytest.mark.parametrize("request_of", [SoftmaxForward, LogSoftmaxForward])
def test_a_line_is_independent_of_the_next(
    classes: int, request_of: type[SoftmaxForward] | type[LogSoftmaxForward]
) -> None:
    """The next line's values are so large that with one of them subtracted the exponentials would all be 0."""

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(request_of(tensors["input0"], tensors["output"], 1))

    x = np.random.default_rng(0).standard_normal((4, classes)).astype(np.float32)
    x += 1000 * np.arange(4, dtype=np.float32)[:, None]
    tensor = Tensor(x.shape, x.dtype)
    agree(forward, {"input0": tensor, "output": tensor}, {"input0": x}, 1e-5)


@pytest.mark.parametrize("classes", [5, 200])
def test_softmax_of_what_is_not_a_number(classes: int) -> None:
    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(SoftmaxForward(tensors["input0"], tensors["output"], 1))

    x = np.random.default_rng(0).standard_normal((6, classes)).astype(np.float32)
    x[0, 0] = x[1, classes // 2] = x[2, -1] = np.nan
    x[3, 1] = np.inf
    x[4, 1] = -np.inf
    tensor = Tensor(x.shape, x.dtype)
    with np.errstate(invalid="ignore"):
        y = agree(forward, {"input0": tensor, "output": tensor}, {"input0": x}, 1e-6)["output"]
    assert np.isnan(y).all(axis=1).tolist() == [True] * 4 + [False] * 2
