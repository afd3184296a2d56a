"""Convolutions with few channels: their kernels against the reference, and when they are taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crossbow import ExecutionContext, TrainingUnit
from crossbow.kernels.cpu.library import Cpu
from crossbow.kernels.cpu.simd import narrow, processor
from crossbow.kernels.interface import PlainStorage, Variable
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
)
from crossbow.ops import Conv, InnerProduct, Pool, ReLU
from crossbow.testing import run_operator
from crossbow.types import Shape
from tests.kernels.cpu.buffers import (
    FLOAT32,
    close,
    draw,
    execute,
    memory,
    output_shape,
    tensor,
    unstored,
    with_storage,
)
from tests.kernels.cpu.own_convolutions import (
    FIRST,
    compare,
    compute_an_image_in_batches,
    expected_of,
    lies_outputs_last,
    outputs_last,
    use_threads,
)
from tests.support import context, pictures, same_weights, training

CPU = Cpu()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a learner's stream with one; and nobody else takes these convolutions."""
    use_threads(monkeypatch, 1)
    monkeypatch.setattr(CPU, "rooms", Cpu(winograd=False).rooms)


# Numbers.

SIZE = st.integers(1, 3)
BORDER = st.tuples(st.integers(0, 2), st.integers(0, 2))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Shape, int, ConvolutionGeometry]:
    channels, outputs = draw(st.integers(1, 24)), draw(st.integers(1, 60))
    g = ConvolutionGeometry(
        (draw(st.integers(1, 5)), draw(st.integers(1, 5))),
        stride=(draw(SIZE), draw(SIZE)),
        padding=draw(st.tuples(BORDER, BORDER)),
        dilation=(draw(SIZE), 1),
    )
    around = [sum(border) for border in g.padding]
    height, width = (
        draw(st.integers(max(1, extent - more), extent + 7)) for extent, more in zip(g.extent, around, strict=True)
    )
    return (draw(st.integers(1, 3)), channels, height, width), outputs, g


@pytest.mark.slow
@settings(max_examples=30)
@given(convolutions(), st.booleans(), st.booleans())
@example(((2, 20, 12, 12), 50, ConvolutionGeometry((5, 5))), True, True)
@example(((2, 1, 28, 28), 20, ConvolutionGeometry((5, 5))), False, True)
def test_random_shapes(made: tuple[Shape, int, ConvolutionGeometry], relu: bool, bias: bool) -> None:
    shape, outputs, g = made
    compare(narrow, shape, outputs, g, relu=relu, bias=bias)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("shape", "outputs", "g"),
    [
        ((2, 5, 6, 7), 20, ConvolutionGeometry((1, 1))),
        ((2, 5, 6, 7), 20, ConvolutionGeometry((1, 1), stride=(2, 3))),  # pixels between the windows
        ((2, 5, 6, 7), 20, ConvolutionGeometry((6, 7))),  # one window, the image
        ((2, 5, 6, 7), 20, ConvolutionGeometry((9, 9), padding=((1, 2), (0, 2)))),  # one window, larger than the image
        ((2, 5, 6, 7), 20, ConvolutionGeometry((3, 3), padding=((2, 0), (0, 2)))),
        ((2, 5, 6, 7), 20, ConvolutionGeometry((3, 3), padding=((0, 0), (1, 0)))),  # to the left only
        ((2, 5, 9, 7), 20, ConvolutionGeometry((3, 2), dilation=(3, 1), padding=((3, 3), (0, 0)))),
        ((2, 5, 9, 11), 20, ConvolutionGeometry((2, 2), stride=(4, 4))),  # the last rows and columns are never read
        ((2, 1, 1, 40), 7, ConvolutionGeometry((1, 5))),  # one row; more windows than a tile has rows
        ((1, 3, 40, 1), 49, ConvolutionGeometry((5, 1))),
        ((3, 2, 5, 5), 97, ConvolutionGeometry((3, 3), padding=((1, 1), (1, 1)))),  # 7 vectors, in three chunks
        ((1, 33, 4, 4), 1, ConvolutionGeometry((2, 2))),
        # Rows whose sums are added in several parts, the last one shorter.
        ((2, 3, 75, 40), 20, ConvolutionGeometry((3, 2), stride=(2, 1), dilation=(3, 1), padding=((2, 1), (0, 2)))),
    ],
)
def test_odd_shapes(shape: Shape, outputs: int, g: ConvolutionGeometry, relu: bool) -> None:
    compare(narrow, shape, outputs, g, relu=relu)


def test_the_errors_of_weight_gradients_do_not_grow_with_the_image() -> None:
    """PyTorch's are 6e-6 with this one."""
    x, dy = (draw((1, 3, 512, 512), seed) + np.float32(0.5) for seed in (0, 1))
    run = run_operator(Conv(number_of_outputs=3, kernel_size=1), [x], output_gradient=dy, device="cpu")
    exact = np.einsum("nohw,nchw->oc", dy, x, dtype=np.float64)
    received = run.variable_gradients["weights"][:, :, 0, 0]
    np.testing.assert_allclose(received, exact, rtol=0, atol=2e-6 * np.abs(exact).max())


def test_an_image_is_computed_alike_in_every_batch() -> None:
    compute_an_image_in_batches(narrow, 5, 20)


# When they are taken.

G = ConvolutionGeometry((5, 5))
STEM, SECOND = ((4, 1, 28, 28), 17), ((4, 20, 12, 12), 50)
"""They fill vectors of 8 or 16 lanes only in part."""


def names(shape: Shape, outputs: int, g: ConvolutionGeometry = G, storage: Any = None) -> dict[str, bool]:
    """Which kernels are those of narrow convolutions, and whether the weights lie as these want them."""
    tx, ty = tensor(shape), tensor(output_shape(shape, outputs, g))
    weights = Variable((outputs, shape[1] // g.groups, *g.kernel), FLOAT32, storage)
    bias = Variable((outputs,), FLOAT32)
    forward = CPU.prepare(ConvolutionForward(tx, weights, bias, ty, g))
    assert ("weights" in forward.storages) == (storage is None)
    if storage is None:
        weights = with_storage(weights, forward)
    kernels = {
        "forward": forward,
        "weights": CPU.prepare(ConvolutionBackwardWeights(tx, ty, weights, bias, g)),
        "data": CPU.prepare(ConvolutionBackwardData(ty, weights, tx, g)),
    }
    found = {name: "narrow" in kernel.name for name, kernel in kernels.items()}
    return {**found, "last": weights.storage is not None and lies_outputs_last(weights.storage, weights.shape)}


ALL = {"forward": True, "weights": True, "data": True, "last": True}
NONE = {"forward": False, "weights": False, "data": False, "last": False}


@FIRST
@pytest.mark.parametrize(
    ("shape", "outputs", "expected"),
    [
        (*STEM, ALL),
        (*SECOND, ALL),
        ((4, 20, 12, 12), 20, ALL),
        ((4, 32, 12, 12), 64, NONE),
        ((4, 16, 12, 12), 32, NONE),
        ((4, 3, 12, 12), 32, NONE),  # three channels are not filled up
        ((4, 3, 12, 12), 17, ALL),
        ((4, 1, 28, 28), 32, {"forward": False, "weights": True, "data": False, "last": True}),
        ((4, 1, 28, 28), 16, {"forward": False, "weights": True, "data": False, "last": True}),
    ],
)
def test_where_vectors_would_not_be_full(shape: Shape, outputs: int, expected: dict[str, bool]) -> None:
    assert names(shape, outputs) == expected


@FIRST
@pytest.mark.parametrize(("shape", "outputs"), [STEM, SECOND, ((4, 1, 28, 28), 32)])
@pytest.mark.parametrize("threads", [2, 3])
def test_not_with_several_threads(shape: Shape, outputs: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_threads(monkeypatch, threads)
    found = names(shape, outputs)
    assert {**found, "last": False} == NONE


@FIRST
def test_not_before_onednns_with_vectors_that_were_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "VECTORS", replace(processor.VECTORS, lanes=4))
    for shape, outputs in (STEM, SECOND):
        assert {**names(shape, outputs), "last": False} == NONE


GROUPS, GAPS = ConvolutionGeometry((3, 3), groups=5), ConvolutionGeometry((3, 3), dilation=(1, 2))


@FIRST
@pytest.mark.parametrize("g", [GROUPS, GAPS, ConvolutionGeometry((3, 3), dilation=(2, 2))])
def test_not_with_groups_nor_with_gaps_in_a_row(g: ConvolutionGeometry) -> None:
    assert {**names((4, 20, 12, 12), 50, g), "last": False} == NONE
    gaps_between_rows = ConvolutionGeometry((3, 3), dilation=(2, 1))
    assert names((4, 20, 12, 12), 50, gaps_between_rows) == ALL


@FIRST
def test_not_where_the_weights_lie_otherwise() -> None:
    assert names(*SECOND, storage=PlainStorage((50, 20, 5, 5))) == NONE


@FIRST
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("shape", "outputs"), [STEM, SECOND])
def test_the_library_takes_the_same_weights(
    shape: Shape, outputs: int, relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program for another number of threads, on the variables as the first one has laid them out."""
    y_shape = output_shape(shape, outputs, G)
    x, w, dy, b = draw(shape), draw((outputs, shape[1], 5, 5)), draw(y_shape, 1), draw((outputs,), 2)
    expected = expected_of(x, w, b, dy, G, relu=relu, bias=True)
    tx, ty, bias = tensor(shape), tensor(y_shape), Variable(b.shape, FLOAT32)
    first = CPU.prepare(ConvolutionForward(tx, Variable(w.shape, FLOAT32), bias, ty, G, relu=relu))
    weights = with_storage(Variable(w.shape, FLOAT32), first)
    for threads in (1, 2):
        use_threads(monkeypatch, threads)
        kernels = (
            CPU.prepare(ConvolutionForward(tx, weights, bias, ty, G, relu=relu)),
            CPU.prepare(ConvolutionBackwardData(ty, weights, tx, G)),
            CPU.prepare(ConvolutionBackwardWeights(tx, ty, weights, bias, G)),
        )
        assert ["narrow" in kernel.name for kernel in kernels] == [threads == 1] * 3
        assert weights.storage is not None
        flat = np.zeros(weights.storage.elements, np.float32)
        weights.storage.pack(w, flat)
        np.testing.assert_array_equal(flat, outputs_last(w))
        buffers = {"input0": memory(tx, x), "weights": flat, "bias": b, "output_gradient": memory(ty, dy)}
        buffers |= {"output": memory(ty), "input_gradient": memory(tx)}
        buffers |= {"weights_gradient": np.full_like(flat, np.nan), "bias_gradient": np.full_like(b, np.nan)}
        for kernel in kernels:
            execute(kernel, buffers)
        terms = y_shape[0] * y_shape[2] * y_shape[3]
        close(buffers["output"], expected["output"], w[0].size)
        close(buffers["input_gradient"], expected["input_gradient"], 25 * outputs)
        close(unstored(buffers["weights_gradient"], weights.storage, w.shape), expected["weights_gradient"], terms)
        close(buffers["bias_gradient"], expected["bias_gradient"], terms)


# In a model.


def network() -> Any:
    return training(
        Conv(number_of_outputs=17, kernel_size=3, padding=1),
        ReLU(),
        Pool(kernel_size=2, stride=2),
        Conv(number_of_outputs=50, kernel_size=2),  # 3 and 5 are Winograd's
        Pool(kernel_size=2, stride=2, rounding="floor"),
        InnerProduct(number_of_outputs=3),
    )


def made(threads: int, learners: int = 1) -> ExecutionContext:
    return context(network(), data=pictures(), kernels="onednn", threads=threads, learners=learners)


def kernels_of(running: ExecutionContext) -> list[str]:
    return [step.kernel.name for step in running.engine.program.steps if "convolution" in step.kernel.name]


@FIRST
def test_training_checking_and_prediction_share_the_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Models go from one to two threads and back, by way of a file; every number stays what it was."""
    monkeypatch.undo()  # the streams' own numbers of threads, and all kernels
    file, again = tmp_path / "model", tmp_path / "again"
    with made(threads=1) as running:
        assert [name for name in kernels_of(running) if "narrow" not in name] == []
        assert running.engine.parts.check_program is not None
        for program in (running.engine.program, running.engine.parts.check_program):
            convolutions = [segment for segment in program.model if len(segment.spec.shape) == 4]
            assert len(convolutions) == 2
            assert all(lies_outputs_last(segment.storage, segment.spec.shape) for segment in convolutions)
        running.train(12, TrainingUnit.TASKS)
        variables, tested = running.variables, running.test()
        prediction = running.predict(pictures().train.images)
        running.save(file)
    with made(threads=2) as other:
        assert not any("narrow" in name for name in kernels_of(other))
        other.load(file)
        assert same_weights(other.variables, variables)
        assert other.test().loss == pytest.approx(tested.loss, rel=1e-5)
        np.testing.assert_allclose(other.predict(pictures().train.images), prediction, rtol=1e-4, atol=1e-6)
        other.save(again)
    with made(threads=1) as running:
        running.load(again)
        assert same_weights(running.variables, variables)
        assert running.test() == tested
        np.testing.assert_array_equal(running.predict(pictures().train.images), prediction)


@FIRST
@pytest.mark.parametrize("learners", [1, 2, 3])
def test_the_same_seed_gives_the_same_weights(learners: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    results = []
    for _ in range(2):
        with made(threads=1, learners=learners) as running:
            running.train(24, TrainingUnit.TASKS)
            results.append(running.variables)
    assert same_weights(*results)


@FIRST
def test_one_thread_trains_as_two_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    results = []
    for threads in (1, 2):
        with made(threads=threads) as running:
            running.train(6, TrainingUnit.TASKS)
            results.append(running.variables)
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=0, atol=1e-4 * np.abs(value).max(), err_msg=name)
