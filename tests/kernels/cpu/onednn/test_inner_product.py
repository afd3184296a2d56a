from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.interface import PlainStorage, Variable
from crossbow.kernels.native import NativeCall
from crossbow.kernels.requests import InnerProductBackwardData, InnerProductBackwardWeights, InnerProductForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.running import (
    FLOAT32,
    ONEDNN,
    REFERENCE,
    close,
    draw,
    execute,
    memory,
    stored,
    tensor,
    unstored,
    with_storage,
)


def compare(tx: Tensor, outputs: int, *, with_bias: bool, plain: bool = False) -> None:
    rows, features = tx.shape[0], tx.elements // tx.shape[0]
    x, w, b, dy = draw(tx.shape), draw((outputs, features)), draw((outputs,)), draw((rows, outputs), 1)
    numbers = {"input0": x, "weights": w, "output_gradient": dy, "bias": b}
    numbers = {role: value.astype(np.float64) for role, value in numbers.items()}
    expected = {"output": np.zeros(dy.shape), "input_gradient": np.zeros(x.shape)}
    expected |= {"weights_gradient": np.zeros(w.shape), "bias_gradient": np.zeros(outputs)}
    ty = tensor((rows, outputs))
    weights, bias = Variable(w.shape, FLOAT32), Variable(b.shape, FLOAT32) if with_bias else None
    for kernel in (
        REFERENCE.prepare(InnerProductForward(tx, weights, bias, ty)),
        REFERENCE.prepare(InnerProductBackwardData(ty, weights, tx)),
        REFERENCE.prepare(InnerProductBackwardWeights(tx, ty, weights, bias)),
    ):
        execute(kernel, {**numbers, **expected}, native=False)

    if plain:
        weights = Variable(w.shape, FLOAT32, PlainStorage(w.shape))
    forward = ONEDNN.prepare(InnerProductForward(tx, weights, bias, ty))
    if not plain:
        weights = with_storage(weights, forward)
    flat = stored(w, weights.storage)
    buffers = {"input0": memory(tx, x), "weights": flat, "bias": b, "output_gradient": memory(ty, dy)}
    buffers |= {"weights_gradient": np.full_like(flat, np.nan), "bias_gradient": np.full_like(b, np.nan)}
    buffers |= {"output": memory(ty), "input_gradient": memory(tx)}
    for kernel in (
        forward,
        ONEDNN.prepare(InnerProductBackwardData(ty, weights, tx)),
        ONEDNN.prepare(InnerProductBackwardWeights(tx, ty, weights, bias)),
    ):
        assert "ref:" not in kernel.name
        execute(kernel, buffers)
    close(buffers["output"], expected["output"], features)
    close(buffers["input_gradient"], expected["input_gradient"], outputs)
    actual = unstored(buffers["weights_gradient"], weights.storage, w.shape)
    close(actual, expected["weights_gradient"], rows)
    if with_bias:
        close(buffers["bias_gradient"], expected["bias_gradient"], rows)


@settings(max_examples=40, deadline=None)
@given(
    st.one_of(
        st.tuples(st.integers(1, 20), st.integers(1, 70)),
        st.tuples(st.integers(1, 20), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4)),
    ),
    st.integers(1, 70),
    st.sampled_from(Layout),
    st.booleans(),
    st.booleans(),
)
def test_random_shapes(shape: Shape, outputs: int, layout: Layout, with_bias: bool, plain: bool) -> None:
    kind = Tensor(shape, FLOAT32, layout if len(shape) == 4 else Layout.PLAIN)
    compare(kind, outputs, with_bias=with_bias, plain=plain)


@pytest.mark.parametrize("rows", [8, 13, 32])
def test_data_gradient_in_row_blocks(rows: int) -> None:
    compare(tensor((rows, 96)), 512, with_bias=True)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("shape", "rows", "outputs"),
    [
        ((5, 700), (5,), 400),
        ((3, 33, 4, 5), (3,), 401),
        ((2, 2), (2,), 150_000),
        ((2, 3, 700), (2, 3), 400),
        ((2, 3, 1, 1, 700), (2, 3, 1, 1), 400),
    ],
)
def test_gradient_in_blocks(shape: Shape, rows: Shape, outputs: int, with_bias: bool) -> None:
    tx, ty = tensor(shape), tensor((*rows, outputs))
    features = tx.elements // math.prod(rows)
    weights, bias = Variable((outputs, features), FLOAT32), Variable((outputs,), FLOAT32) if with_bias else None
    weights = with_storage(weights, ONEDNN.prepare(InnerProductForward(tx, weights, bias, ty)))
    kernel = ONEDNN.prepare(InnerProductBackwardWeights(tx, ty, weights, bias))
    assert kernel.blocks is not None
    assert weights.storage is not None
    buffers = {"input0": memory(tx, draw(shape)), "output_gradient": memory(ty, draw(ty.shape, 1))}
    buffers["weights_gradient"] = np.full(weights.storage.elements, np.nan, np.float32)
    buffers["bias_gradient"] = np.full(outputs, np.nan, np.float32)
    execute(kernel, buffers)
    parts = {"bias_gradient": np.full(outputs, np.nan, np.float32), "workspace": aligned_zeros(kernel.workspace)}
    whole = np.full(weights.storage.elements, np.nan, np.float32)
    blocks = kernel.blocks({**buffers, **parts})
    assert len(blocks) > 1 or features < 32
    alone = [len(block.calls) == 1 for block in blocks]
    assert alone == [not with_bias, *[True] * (len(blocks) - 1)]  # the bias gradient is there with the first
    for block in blocks:
        assert block.gradient.nbytes <= max(2**19, 16 * 4 * outputs)
        for call in block.calls:
            assert isinstance(call, NativeCall)
            call()
        whole[block.place] = block.gradient
    close(whole, buffers["weights_gradient"], math.prod(rows))
    close(parts["bias_gradient"], buffers["bias_gradient"], math.prod(rows))


@pytest.mark.parametrize(("shape", "rows"), [((2, 3, 4, 200), (2, 3, 4)), ((2, 3, 4, 200), (2, 3))])
def test_rows_that_have_to_be_reordered_come_whole(shape: Shape, rows: Shape) -> None:
    tx, ty = tensor(shape), tensor((*rows, 1500))
    weights = Variable((1500, tx.elements // math.prod(rows)), FLOAT32)
    weights = with_storage(weights, ONEDNN.prepare(InnerProductForward(tx, weights, None, ty)))
    assert ONEDNN.prepare(InnerProductBackwardWeights(tx, ty, weights, None)).blocks is None


def test_gradients_of_weights_in_another_order_come_whole() -> None:
    """Blocks are rows of the transposed weights, in which order they are usually stored."""
    tx, ty, weights = tensor((5, 700)), tensor((5, 400)), Variable((400, 700), FLOAT32)
    assert ONEDNN.prepare(InnerProductBackwardWeights(tx, ty, weights, None)).blocks is None


def test_small_gradients_come_whole() -> None:
    tx, ty, weights = tensor((8, 1024)), tensor((8, 10)), Variable((10, 1024), FLOAT32)
    weights = with_storage(weights, ONEDNN.prepare(InnerProductForward(tx, weights, None, ty)))
    assert ONEDNN.prepare(InnerProductBackwardWeights(tx, ty, weights, None)).blocks is None
