"""Inner products of register tiles against the reference, in the CPU library without oneDNN."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import InnerProductBackwardData, InnerProductBackwardWeights, InnerProductForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import (
    COMPILED,
    FLOAT32,
    REFERENCE,
    close,
    draw,
    execute,
    memory,
    stored,
    unstored,
    with_storage,
)
from tests.kernels.cpu.own_convolutions import use_threads

LAST, PLAIN = Layout.CHANNELS_LAST, Layout.PLAIN


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("x_shape", "layout", "y_shape"),
    [
        ((8, 800), PLAIN, (8, 50)),
        ((1, 1), PLAIN, (1, 1)),
        ((3, 7), PLAIN, (3, 97)),
        ((17, 33), PLAIN, (17, 5)),
        ((4, 5, 3, 2), LAST, (4, 10)),
        ((4, 5, 3, 2), PLAIN, (4, 10)),
        ((2, 3, 11), PLAIN, (2, 3, 6)),
    ],
)
def test_it_agrees_with_the_reference(
    x_shape: Shape, layout: Layout, y_shape: Shape, bias: bool, relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_threads(monkeypatch, 1)
    outputs, features = y_shape[-1], int(np.prod(x_shape[len(y_shape) - 1 :]))
    x, w, b, dy = draw(x_shape), draw((outputs, features), 1), draw((outputs,), 2), draw(y_shape, 3)
    wide = np.dtype(np.float64)
    tx, ty = Tensor(x_shape, wide), Tensor(y_shape, wide)
    weights, biases = Variable(w.shape, wide), Variable(b.shape, wide) if bias else None
    given = {"input0": x, "weights": w, "bias": b, "output_gradient": dy}
    expected = {role: array.astype(np.float64) for role, array in given.items()}
    for role, array in {"output": dy, "input_gradient": x, "weights_gradient": w, "bias_gradient": b}.items():
        expected[role] = np.zeros(array.shape)
    for request in (
        InnerProductForward(tx, weights, biases, ty, relu=relu),
        InnerProductBackwardData(ty, weights, tx),
        InnerProductBackwardWeights(tx, ty, weights, biases),
    ):
        execute(REFERENCE.prepare(request), expected, native=False)

    tx, ty = Tensor(x_shape, FLOAT32, layout), Tensor(y_shape, FLOAT32)
    weights, biases = Variable(w.shape, FLOAT32), Variable(b.shape, FLOAT32) if bias else None
    forward = COMPILED.prepare(InnerProductForward(tx, weights, biases, ty, relu=relu))
    weights = with_storage(weights, forward)
    kernels = (
        forward,
        COMPILED.prepare(InnerProductBackwardData(ty, weights, tx)),
        COMPILED.prepare(InnerProductBackwardWeights(tx, ty, weights, biases)),
    )
    buffers = {"input0": memory(tx, x), "output": memory(ty), "input_gradient": memory(tx)}
    buffers |= {"output_gradient": memory(ty, dy), "bias": b, "bias_gradient": np.full_like(b, np.nan)}
    buffers |= {"weights": stored(w, weights.storage), "weights_gradient": stored(w, weights.storage)}
    for kernel in kernels:
        assert " tiles " in kernel.name
        execute(kernel, buffers)
    close(buffers["output"], expected["output"], features)
    close(buffers["input_gradient"], expected["input_gradient"], outputs)
    close(unstored(buffers["weights_gradient"], weights.storage, w.shape), expected["weights_gradient"], 8)
    if bias:
        close(buffers["bias_gradient"], expected["bias_gradient"], 8)
