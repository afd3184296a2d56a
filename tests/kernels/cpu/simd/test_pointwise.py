"""Weight gradients of 1×1 convolutions: the kernel against the reference, and when it is taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crossbow.kernels.cpu.library import Cpu
from crossbow.kernels.cpu.simd import pointwise, processor
from crossbow.kernels.cpu.simd.tile import LANES
from crossbow.kernels.cpu.storage import BlockedStorage
from crossbow.kernels.interface import PlainStorage, Storage, Variable
from crossbow.kernels.requests import ConvolutionBackwardWeights, ConvolutionForward, ConvolutionGeometry
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import FLOAT32, close, draw, memory, output_shape, tensor, unstored
from tests.kernels.cpu.own_convolutions import FIRST, Guarded, execute_in_rubbish, expected_of, use_threads


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    use_threads(monkeypatch, 1)


def blocked(outputs: int, channels: int) -> BlockedStorage:
    """oneDNN's choice: blocks of whole vectors of channels, in which outputs are contiguous."""
    shape, strides = (outputs, channels, 1, 1), (LANES * channels, LANES * LANES, LANES * LANES, LANES * LANES)
    return BlockedStorage(shape, shape, strides, ((1, LANES), (0, LANES)), outputs * channels)


def request(
    shape: Shape, outputs: int, g: ConvolutionGeometry, *, bias: bool = False, storage: Storage | None = None
) -> ConvolutionBackwardWeights:
    weights = Variable((outputs, shape[1], *g.kernel), FLOAT32, storage or blocked(outputs, shape[1]))
    biases = Variable((outputs,), FLOAT32) if bias else None
    return ConvolutionBackwardWeights(tensor(shape), tensor(output_shape(shape, outputs, g)), weights, biases, g)


def compare(shape: Shape, outputs: int, stride: tuple[int, int], *, bias: bool) -> None:
    """The gradient, computed twice, against the reference's."""
    g = ConvolutionGeometry((1, 1), stride=stride)
    asked = request(shape, outputs, g, bias=bias)
    assert pointwise.supported(asked)
    x, dy = draw(shape), draw(asked.dy.shape, 1)
    weights, biases = np.zeros((outputs, shape[1], 1, 1), np.float32), np.zeros(outputs, np.float32)
    expected = expected_of(x, weights, biases, dy, g, relu=False, bias=bias)
    guarded, results = Guarded(), []
    for _ in range(2):
        flat, sums = (guarded.new(Tensor((count,), FLOAT32, Layout.PLAIN)) for count in (weights.size, outputs))
        buffers = {"input0": memory(asked.x, x), "output_gradient": memory(asked.dy, dy), "weights_gradient": flat}
        execute_in_rubbish(pointwise.backward_weights(asked), {**buffers, "bias_gradient": sums} if bias else buffers)
        results.append((flat, sums))
    guarded.check()
    (gradient, sums), (again, _) = results
    assert gradient.tobytes() == again.tobytes()
    terms = dy.shape[0] * dy.shape[2] * dy.shape[3]
    close(unstored(gradient, asked.weights.storage, weights.shape), expected["weights_gradient"], terms)
    if bias:
        close(sums, expected["bias_gradient"], terms)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    images=st.integers(1, 3),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    channels=st.integers(1, 5),
    outputs=st.integers(1, 8),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    bias=st.booleans(),
)
# More positions than a block, the last of which is short; more channels than a chunk, with a last panel of fewer rows.
@example(3, (19, 20), -(-pointwise.CHUNK // LANES) + 1, 2 * pointwise.COLUMNS // LANES + 1, (1, 1), True)
@example(3, (40, 39), 1, 1, (2, 3), False)
@example(1, (1, 1), 2, 3, (1, 1), False)
def test_random_shapes(
    images: int, size: tuple[int, int], channels: int, outputs: int, stride: tuple[int, int], bias: bool
) -> None:
    compare((images, LANES * channels, *size), LANES * outputs, stride, bias=bias)


def test_the_errors_do_not_grow_with_the_image() -> None:
    shape, outputs = (1, LANES, 512, 512), LANES
    asked = request(shape, outputs, ConvolutionGeometry((1, 1)))
    x, dy = (draw(shape, seed) + np.float32(0.5) for seed in (0, 1))
    flat = np.zeros(LANES * LANES, np.float32)
    buffers = {"input0": memory(asked.x, x), "output_gradient": memory(asked.dy, dy), "weights_gradient": flat}
    execute_in_rubbish(pointwise.backward_weights(asked), buffers)
    exact = np.einsum("nohw,nchw->oc", dy, x, dtype=np.float64)
    received = unstored(flat, asked.weights.storage, (outputs, LANES, 1, 1))[:, :, 0, 0]
    np.testing.assert_allclose(received, exact, rtol=0, atol=2e-6 * np.abs(exact).max())


# When it is taken.

SHAPE = (2, 8 * LANES, 5, 6)
POINT = ConvolutionGeometry((1, 1))


@pytest.mark.parametrize(
    ("shape", "outputs", "g"),
    [
        (SHAPE, 8 * LANES, ConvolutionGeometry((1, 1), padding=((1, 0), (0, 0)))),
        (SHAPE, 8 * LANES, ConvolutionGeometry((3, 1))),
    ],
)
def test_windows_and_padding_are_not_supported(shape: Shape, outputs: int, g: ConvolutionGeometry) -> None:
    assert pointwise.supported(request(shape, outputs, POINT))
    assert not pointwise.supported(request(shape, outputs, g))


def test_other_layouts_of_the_weights_are_not_supported() -> None:
    made = blocked(8 * LANES, 8 * LANES)
    step = LANES * LANES
    for storage in (
        PlainStorage(made.shape),
        replace(made, blocks=((0, LANES), (1, LANES))),
        replace(made, blocks=((1, 2 * LANES), (0, 2 * LANES))),
        replace(made, strides=(step, 8 * step, step, step)),
        replace(made, elements=made.elements + step),
    ):
        assert not pointwise.supported(request(SHAPE, 8 * LANES, POINT, storage=storage))


@FIRST
def test_not_with_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    use_threads(monkeypatch, 2)
    assert not pointwise.supported(request(SHAPE, 8 * LANES, POINT))


@FIRST
@pytest.mark.parametrize(
    ("channels", "outputs", "stride", "taken"),
    [(64, 64, 1, True), (64, 72, 2, True), (56, 64, 1, False), (64, 56, 1, False), (64, 68, 1, False)],
)
def test_taken_before_onednns_with_vectors_of_8_lanes(channels: int, outputs: int, stride: int, taken: bool) -> None:
    library, g = Cpu(), ConvolutionGeometry((1, 1), stride=(stride, stride))
    x = tensor((2, channels, 6, 6))
    y, weights = tensor(output_shape(x.shape, outputs, g)), Variable((outputs, channels, 1, 1), FLOAT32)
    forward = library.prepare(ConvolutionForward(x, weights, None, y, g))
    weights = Variable(weights.shape, FLOAT32, forward.storages["weights"])
    name = library.prepare(ConvolutionBackwardWeights(x, y, weights, None, g)).name
    # oneDNN's blocks are larger if the processor has larger vectors than these tests.
    fits = isinstance(weights.storage, BlockedStorage) and weights.storage.blocks == ((1, LANES), (0, LANES))
    measured = processor.VECTORS.lanes == pointwise.MEASURED_LANES
    assert ("pointwise" in name) == (taken and measured and fits)
