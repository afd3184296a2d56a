"""Inner products on the GPU that is none: what the operator table does not cover."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda.inner_product import MANY_ROWS, ProductSteps
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.storage import ChannelsLastStorage
from crossbow.kernels.interface import PlainStorage, PreparedKernel, Storage, Variable
from crossbow.kernels.reference.library import Reference
from crossbow.kernels.requests import (
    CopyForward,
    InnerProductBackwardData,
    InnerProductBackwardWeights,
    InnerProductForward,
)
from crossbow.types import Array, Layout, Shape, Tensor
from tests.kernels.cuda.fake import FakeCuda, fake_cuda

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as cuda:
        yield cuda


def draw(shape: Shape, dtype: np.dtype[Any] = FLOAT32, seed: int = 0) -> NDArray[Any]:
    """Numbers that float32 represents exactly."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def memory(tensor: Tensor, value: Array | float = np.nan) -> NDArray[Any]:
    array: NDArray[Any] = tensor.view(aligned_zeros(tensor.nbytes))
    array[...] = value
    return array


def execute(kernel: PreparedKernel, buffers: dict[str, NDArray[Any]]) -> None:
    """Run a kernel on the buffers that it names, with a workspace of NaN."""
    roles = {role: buffers[role] for role in (*kernel.reads, *kernel.writes)}
    workspace = aligned_zeros(kernel.workspace, 256)
    workspace[...] = 0xFF
    for call in kernel.bind({**roles, "workspace": workspace}):
        call()


def close(received: NDArray[Any], expected: NDArray[Any], summed: int) -> None:
    tolerance = np.finfo(received.dtype).eps * (2 + math.sqrt(summed))
    np.testing.assert_allclose(received, expected, rtol=tolerance, atol=tolerance * max(1, math.sqrt(summed)))


def compare(
    tx: Tensor,
    ty: Tensor,
    *,
    with_bias: bool = True,
    relu: bool = False,
    storage: Storage | None = None,
) -> Variable:
    """All three kernels beside the reference. The weights' variable with its storage."""
    kind, outputs = tx.dtype, ty.shape[-1]
    rows = math.prod(ty.shape[:-1])
    features = tx.elements // rows
    w, b = draw((outputs, features), kind, 1), draw((outputs,), kind, 2)
    numbers = {"input0": draw(tx.shape, kind), "output_gradient": draw(ty.shape, kind, 3), "bias": b}
    expected = {role: value.astype(np.float64) for role, value in {**numbers, "weights": w}.items()}
    expected |= {"output": np.zeros(ty.shape), "input_gradient": np.zeros(tx.shape)}
    expected |= {"weights_gradient": np.zeros(w.shape), "bias_gradient": np.zeros(b.shape)}
    weights, bias = Variable(w.shape, kind), Variable(b.shape, kind) if with_bias else None
    reference = Reference(np.float64)
    for kernel in (
        reference.prepare(InnerProductForward(tx, weights, bias, ty, relu=relu)),
        reference.prepare(InnerProductBackwardData(ty, weights, tx)),
        reference.prepare(InnerProductBackwardWeights(tx, ty, weights, bias)),
    ):
        execute(kernel, expected)

    cuda = Cuda(kind)
    weights = Variable(w.shape, kind, storage)
    forward = cuda.prepare(InnerProductForward(tx, weights, bias, ty, relu=relu))
    assert (storage is None) == ("weights" in forward.storages)
    weights = Variable(w.shape, kind, storage or forward.storages["weights"])
    assert weights.storage is not None
    flat = np.full(weights.storage.elements, np.nan, kind)
    weights.storage.pack(w, flat)
    buffers = {"input0": memory(tx, numbers["input0"]), "output_gradient": memory(ty, numbers["output_gradient"])}
    buffers |= {"weights": flat, "weights_gradient": np.full_like(flat, np.nan)}
    buffers |= {"bias": b, "bias_gradient": np.full_like(b, np.nan)}
    buffers |= {"output": memory(ty), "input_gradient": memory(tx)}
    for kernel in (
        forward,
        cuda.prepare(InnerProductBackwardData(ty, weights, tx)),
        cuda.prepare(InnerProductBackwardWeights(tx, ty, weights, bias)),
    ):
        execute(kernel, buffers)
    close(buffers["output"], expected["output"], features)
    close(buffers["input_gradient"], expected["input_gradient"], outputs)
    gradient = np.full_like(w, np.nan)
    weights.storage.unpack(buffers["weights_gradient"], gradient)
    close(gradient, expected["weights_gradient"], rows)
    if with_bias:
        close(buffers["bias_gradient"], expected["bias_gradient"], rows)
    return weights


def split(shape: Shape, dimensions: int, layout: Layout, outputs: int, dtype: np.dtype[Any]) -> tuple[Tensor, Tensor]:
    """An input, and its output with so many of its dimensions and one more; images lie as the layout says."""
    y = (*shape[:dimensions], outputs)
    x, y_ = (Tensor(s, dtype, layout if len(s) == 4 else Layout.PLAIN) for s in (shape, y))
    return x, y_


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_shapes(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=6)))
    dimensions = data.draw(st.integers(1, len(shape) - 1))
    layout, dtype = data.draw(st.sampled_from(Layout)), data.draw(st.sampled_from([FLOAT32, FLOAT64]))
    tx, ty = split(shape, dimensions, layout, data.draw(st.integers(1, 40)), dtype)
    storage = (
        PlainStorage((ty.shape[-1], tx.elements // math.prod(ty.shape[:-1]))) if data.draw(st.booleans()) else None
    )
    with fake_cuda():
        compare(tx, ty, with_bias=data.draw(st.booleans()), relu=data.draw(st.booleans()), storage=storage)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_weights_lie_as_the_images(fake: FakeCuda, dtype: np.dtype[Any]) -> None:
    tx, ty = split((3, 5, 2, 4), 1, Layout.CHANNELS_LAST, 7, dtype)
    assert compare(tx, ty).storage == ChannelsLastStorage((7, 40), (5, 2, 4))
    assert {"move", "transpose", "reorder"}.isdisjoint(recorded.name for recorded in fake.calls)


@pytest.mark.parametrize("shape", [(3, 40), (3, 1, 5, 8), (3, 40, 1, 1)], ids=str)
def test_weights_lie_plain_where_that_is_the_images_order(fake: FakeCuda, shape: Shape) -> None:
    tx, ty = split(shape, 1, Layout.CHANNELS_LAST, 7, FLOAT32)
    assert compare(tx, ty).storage == PlainStorage((7, 40))


@pytest.mark.parametrize("layout", Layout)
def test_weights_of_other_images_are_refused(layout: Layout) -> None:
    tx, ty = split((3, 5, 4, 2) if layout is Layout.CHANNELS_LAST else (3, 5, 2, 4), 1, layout, 7, FLOAT32)
    weights = Variable((7, 40), FLOAT32, ChannelsLastStorage((7, 40), (5, 2, 4)))
    for prepare in (
        lambda: Cuda().prepare(InnerProductForward(tx, weights, None, ty)),
        lambda: Cuda().prepare(InnerProductBackwardData(ty, weights, tx)),
        lambda: Cuda().prepare(InnerProductBackwardWeights(tx, ty, weights, None)),
    ):
        with pytest.raises(ValueError, match=r"expected channels-last images of \(5, 2, 4\)"):
            prepare()


def test_relu_leaves_nan(fake: FakeCuda) -> None:
    x, y = np.array([[np.nan], [1], [-1]], np.float32), np.zeros((3, 2), np.float32)
    tx, ty, weights = Tensor(x.shape, FLOAT32), Tensor(y.shape, FLOAT32), Variable((2, 1), FLOAT32)
    kernel = Cuda().prepare(InnerProductForward(tx, weights, None, ty, relu=True))
    execute(kernel, {"input0": x, "weights": np.array([[1], [-2]], np.float32), "output": y})
    np.testing.assert_array_equal(y, [[np.nan, np.nan], [1, 0], [0, 2]])


def test_calls_without_bias_and_relu_are_one_product(fake: FakeCuda) -> None:
    compare(*split((70, 40), 1, Layout.PLAIN, 70, FLOAT32), with_bias=False)
    assert [recorded.name for recorded in fake.calls] == ["cublasGemmEx"] * 3


@pytest.mark.parametrize(
    ("outer", "rows", "columns"),
    [(1, 1, 1), (1, MANY_ROWS + 7, 3), (1, 5, 100), (3, 300, 33), (50, 2, 1), (2, MANY_ROWS, 32)],
)
@pytest.mark.parametrize("blocks", [2, 4096])
def test_sum_of_rows(
    fake: FakeCuda, outer: int, rows: int, columns: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossbow.kernels.cuda.inner_product.MOST_BLOCKS", blocks)
    x, y = draw((outer, rows, columns)), np.full((outer, columns), np.nan, np.float32)
    steps = ProductSteps(CopyForward(Tensor(x.shape, FLOAT32), Tensor(y.shape, FLOAT32)), FLOAT32)
    steps.sum_rows(outer, rows, columns, "input0", "output")
    execute(steps.prepared(), {"input0": x, "output": y})
    exact = x.astype(np.float64).sum(axis=1)
    assert np.abs(y - exact).max() <= 2**-23 * max(1, np.abs(exact).max())


def test_places_in_the_workspace_are_apart(fake: FakeCuda) -> None:
    steps = ProductSteps(CopyForward(Tensor((1,), FLOAT64), Tensor((1,), FLOAT64)), FLOAT64)
    places = [steps.reserve(elements) for elements in (1, 33, 32)]
    assert places == [slice(0, 256), slice(256, 768), slice(768, 1024)]
    assert steps.prepared().workspace == 1024
