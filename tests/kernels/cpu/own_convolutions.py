"""Convolutions with kernels of our own against the reference, in memory where nothing else may be touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cpu import storage
from crossbow.kernels.cpu.onednn import shared_library
from crossbow.kernels.cpu.simd import processor
from crossbow.kernels.cpu.simd.image_convolution import image_convolution
from crossbow.kernels.cpu.storage import strided_storage
from crossbow.kernels.interface import PreparedKernel, Storage, Variable
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
    Request,
)
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu import REASON
from tests.kernels.cpu.buffers import (
    FLOAT32,
    REFERENCE,
    Numbers,
    close,
    draw,
    execute,
    memory,
    output_shape,
    tensor,
)

GUARD = np.float32(-12345.0)
FIRST = pytest.mark.skipif(
    REASON is not None or not processor.measured(),
    reason="needs oneDNN, before which our own convolutions come with vectors of 8 or 16 lanes only",
)
"""For tests of which kernels are taken."""


def use_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(shared_library, "omp_get_max_threads", lambda: threads)


class Guarded:
    """Arrays that a kernel writes, with memory around them that it must leave alone."""

    def __init__(self) -> None:
        self.rooms: list[tuple[Numbers, int]] = []

    def new(self, kind: Tensor) -> Numbers:
        """An activation, or a flat vector."""
        room = aligned_zeros(kind.nbytes + 512).view(np.float32)
        room[:] = GUARD
        inside = room[64 : 64 + kind.elements]
        inside[:] = np.nan
        self.rooms.append((room, kind.elements))
        return kind.view(inside.view(np.uint8))

    def check(self) -> None:
        for room, elements in self.rooms:
            assert (room[:64] == GUARD).all()
            assert (room[64 + elements :] == GUARD).all()


def expected_of(
    x: Numbers, w: Numbers, b: Numbers, dy: Numbers, g: ConvolutionGeometry, *, relu: bool, bias: bool
) -> dict[str, Numbers]:
    """The reference's results, in float64."""
    tx, ty = (tensor(array.shape, np.float64, REFERENCE) for array in (x, dy))
    weights, biases = (Variable(array.shape, np.dtype(np.float64)) for array in (w, b))
    given_ = {"input0": x, "weights": w, "bias": b, "output_gradient": dy}
    buffers = {name: array.astype(np.float64) for name, array in given_.items()}
    results = {"output": np.zeros(dy.shape), "input_gradient": np.zeros(x.shape), "weights_gradient": np.zeros(w.shape)}
    results["bias_gradient"] = np.zeros(b.shape)
    for kernel in (
        REFERENCE.prepare(ConvolutionForward(tx, weights, biases if bias else None, ty, g, relu=relu)),
        REFERENCE.prepare(ConvolutionBackwardData(ty, weights, tx, g)),
        REFERENCE.prepare(ConvolutionBackwardWeights(tx, ty, weights, biases if bias else None, g)),
    ):
        execute(kernel, {**buffers, **results}, native=False)
    return results


def outputs_last(w: Numbers) -> Numbers:
    """(outputs, channels, kh, kw) as (kh, kw, channels, outputs)."""
    return np.ascontiguousarray(w.transpose(2, 3, 1, 0)).reshape(-1)


def stored_outputs_last(shape: Shape) -> Variable:
    """Weights that lie as kernels of our own want them."""
    return Variable(shape, FLOAT32, strided_storage(shape, shape, storage.outputs_last(shape)))


def compare(
    own: Any, shape: Shape, outputs: int, g: ConvolutionGeometry, *, relu: bool = False, bias: bool = True
) -> None:
    """All three kernels of a module, called as they are, against the reference; and again, which must change no bit."""
    y_shape = output_shape(shape, outputs, g)
    x, w, dy, b = draw(shape), draw((outputs, shape[1], *g.kernel)), draw(y_shape, 1), draw((outputs,), 2)
    expected = expected_of(x, w, b, dy, g, relu=relu, bias=bias)
    tx, ty, guarded = tensor(shape), tensor(y_shape), Guarded()
    assert image_convolution(tx, ty, g) is not None
    weights, biases = stored_outputs_last(w.shape), Variable(b.shape, FLOAT32) if bias else None
    requests: dict[str, Request] = {
        "forward": ConvolutionForward(tx, weights, biases, ty, g, relu=relu),
        "backward_data": ConvolutionBackwardData(ty, weights, tx, g),
        "backward_weights": ConvolutionBackwardWeights(tx, ty, weights, biases, g),
    }
    given_ = {"input0": memory(tx, x), "weights": outputs_last(w), "bias": b, "output_gradient": memory(ty, dy)}
    before = {name: array.copy() for name, array in given_.items()}
    results: list[dict[str, Numbers]] = []
    for _ in range(2):
        flat = [Tensor((count,), FLOAT32, Layout.PLAIN) for count in (w.size, outputs)]
        written = dict(zip(expected, map(guarded.new, (ty, tx, *flat)), strict=True))
        kernels = tuple(getattr(own, name)(request) for name, request in requests.items())
        for kernel in kernels:
            execute_in_rubbish(kernel, {**given_, **written})
        results.append({name: written[name] for name in expected if bias or "bias" not in name})
    guarded.check()
    for name, array in before.items():
        assert array.tobytes() == given_[name].tobytes(), f"{name} was written"
    for name, values in results[0].items():
        assert values.tobytes() == results[1][name].tobytes(), f"{name} differs from run to run"
    close(results[0]["output"], expected["output"], w[0].size)
    close(results[0]["input_gradient"], expected["input_gradient"], w.size // w.shape[1])
    gradient = results[0]["weights_gradient"].reshape(*g.kernel, shape[1], outputs).transpose(3, 2, 0, 1)
    terms = y_shape[0] * y_shape[2] * y_shape[3]
    close(gradient, expected["weights_gradient"], terms)
    if bias:
        close(results[0]["bias_gradient"], expected["bias_gradient"], terms)


def execute_in_rubbish(kernel: PreparedKernel, buffers: Mapping[str, Numbers]) -> None:
    """The arena is shared: a workspace begins with anything, and what lies behind it is another's."""
    room = aligned_zeros(kernel.workspace + 256)
    room[:] = 0xFF
    for call in kernel.bind({**buffers, "workspace": room[: kernel.workspace]}):
        call()  # type: ignore[operator]
    assert (room[kernel.workspace :] == 0xFF).all()


def compute_an_image_in_batches(own: Any, channels: int, outputs: int) -> None:
    """It must be the same whatever its place, and whatever its neighbours; padding is 0 also behind a larger number."""
    g = ConvolutionGeometry((3, 3), padding=((1, 1), (1, 1)))
    w, x = outputs_last(draw((outputs, channels, 3, 3))), draw((3, channels, 6, 6))
    results = []
    for images in (x, x[::-1], x[1:2]):
        tx, ty = tensor(images.shape), tensor((len(images), outputs, 6, 6))
        request = ConvolutionForward(tx, stored_outputs_last((outputs, channels, 3, 3)), None, ty, g)
        y = memory(ty)
        buffers = {"input0": memory(tx, images), "weights": w, "output": y}
        execute_in_rubbish(own.forward(request), buffers)
        results.append(y.copy())
    np.testing.assert_array_equal(results[0], results[1][::-1])
    np.testing.assert_array_equal(results[0][1:2], results[2])


def lies_outputs_last(storage: Storage, shape: Shape) -> bool:
    """Whether the weights lie as (kh, kw, channels, outputs)."""
    values, flat = draw(shape), np.zeros(storage.elements, np.float32)
    storage.pack(values, flat)
    return np.array_equal(flat, outputs_last(values))
