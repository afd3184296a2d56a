"""Activations, softmax, dropout, sums, losses, batches and vectors against the reference library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.kernels.cpu.library import Cpu
from crossbow.kernels.cpu.passes.flags import SLEEP_MICROSECONDS, YIELDS, wait_for_flags
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.native import NativeError
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import (
    ActivationBackward,
    ActivationForward,
    ClipCoefficients,
    DropoutBackward,
    DropoutForward,
    EuclideanLossBackward,
    EuclideanLossForward,
    LabelAccuracy,
    LinearCombination,
    LoadBatch,
    ScaledGradient,
    SoftmaxBackward,
    SoftmaxForward,
    SoftmaxLossBackward,
    SoftmaxLossForward,
    SquaredNorm,
    WeightedSum,
)
from crossbow.solver.update import Assignment
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.running import FLOAT32, ONEDNN, Numbers, close, draw, execute, memory, state, tensor

SINGLE = Reference(np.float32)
SHAPES = [(3, 10), (1, 1), (4, 33), (2, 20, 3, 5), (1, 1, 4, 4), (2, 16, 2, 2)]


def both(
    fast: PreparedKernel, plain: PreparedKernel, tensors: Mapping[str, Tensor], values: Mapping[str, Numbers]
) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """What the two kernels write. The roles read and written must agree, and in place must be allowed alike."""
    assert (fast.reads, fast.writes, fast.in_place) == (plain.reads, plain.writes, plain.in_place)
    results = []
    for kernel, library in ((fast, ONEDNN), (plain, SINGLE)):
        buffers = {role: memory(t, values.get(role)) if library is ONEDNN else filled(t, values.get(role))
                   for role, t in tensors.items()}  # fmt: skip
        buffers |= {role: value.copy() for role, value in values.items() if role not in tensors}
        execute(kernel, buffers, native=library is ONEDNN)
        results.append({role: buffers[role] for role in kernel.writes})
        if kernel.in_place is not None:
            source, target = kernel.in_place
            shared = memory(tensors[source], values[source]) if library is ONEDNN else values[source].copy()
            execute(kernel, {**buffers, source: shared, target: shared}, native=library is ONEDNN)
            np.testing.assert_array_equal(shared, buffers[target])
    return results[0], results[1]


def filled(kind: Tensor, values: Numbers | None) -> Numbers:
    empty = np.nan if kind.dtype.kind == "f" else 0
    return np.full(kind.shape, empty, kind.dtype) if values is None else np.array(values, kind.dtype)


@pairwise
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["relu", "clipped", "sigmoid", "tanh"])
@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_activation(shape: Shape, mode: str, slope: float) -> None:
    t, ceiling = tensor(shape), 0.8
    x, dy = 2 * draw(shape), draw(shape, 1)
    tensors = {"input0": t, "output": t}
    actual, expected = both(
        ONEDNN.prepare(ActivationForward(t, t, mode, slope, ceiling)),
        SINGLE.prepare(ActivationForward(t, t, mode, slope, ceiling)),
        tensors,
        {"input0": x},
    )
    close(actual["output"], expected["output"])
    y = expected["output"]
    tensors = {"output": t, "output_gradient": t, "input_gradient": t}
    actual, expected = both(
        ONEDNN.prepare(ActivationBackward(t, t, t, mode, slope, ceiling)),
        SINGLE.prepare(ActivationBackward(t, t, t, mode, slope, ceiling)),
        tensors,
        {"output": y, "output_gradient": dy},
    )
    close(actual["input_gradient"], expected["input_gradient"])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("library", [ONEDNN, Cpu(onednn=False)], ids=["onednn", "compiled"])
def test_softmax(shape: Shape, axis: int, library: Cpu) -> None:
    t = tensor(shape)
    x, dy = 5 * draw(shape), draw(shape, 1)
    x[..., 0] += 200  # overflows without the subtraction of the maximum
    actual, expected = both(
        library.prepare(SoftmaxForward(t, t, axis)),
        SINGLE.prepare(SoftmaxForward(t, t, axis)),
        {"input0": t, "output": t},
        {"input0": x},
    )
    close(actual["output"], expected["output"])
    actual, expected = both(
        library.prepare(SoftmaxBackward(t, t, t, axis)),
        SINGLE.prepare(SoftmaxBackward(t, t, t, axis)),
        {"output": t, "output_gradient": t, "input_gradient": t},
        {"output": expected["output"], "output_gradient": dy},
    )
    close(actual["input_gradient"], expected["input_gradient"])


@pairwise
@pytest.mark.parametrize("shape", [*SHAPES, (5, 3, 7, 11), (9, 1023), (2, 8, 40, 40)])
@pytest.mark.parametrize(("ratio", "seed", "key", "task"), [(0.4, 7, 3, 5), (0.0, 0, 0, 0), (0.9, 2**40 + 1, 9, 2**33)])
def test_dropout_is_bit_identical(shape: Shape, ratio: float, seed: int, key: int, task: int) -> None:
    t, where = tensor(shape), {"state": state(TASK=task)}
    for request, read, write in (
        (DropoutForward, "input0", "output"),
        (DropoutBackward, "output_gradient", "input_gradient"),
    ):
        actual, expected = both(
            ONEDNN.prepare(request(t, t, ratio, seed, key)),
            SINGLE.prepare(request(t, t, ratio, seed, key)),
            {read: t, write: t},
            {read: draw(shape), **where},
        )
        np.testing.assert_array_equal(actual[write], expected[write])


@pairwise
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_weighted_sum_and_scale_are_bit_identical(shape: Shape, count: int) -> None:
    t, coefficients = tensor(shape), [1.1, -0.3, 0.7, 2.0, 1.0, 0.25, -1.5][:count]
    inputs = {f"input{i}": t for i in range(count)}
    values = {role: draw(shape, i) for i, role in enumerate(inputs)}
    actual, expected = both(
        ONEDNN.prepare(WeightedSum([t] * count, t, coefficients)),
        SINGLE.prepare(WeightedSum([t] * count, t, coefficients)),
        {**inputs, "output": t},
        values,
    )
    np.testing.assert_array_equal(actual["output"], expected["output"])
    actual, expected = both(
        ONEDNN.prepare(ScaledGradient(t, t, 0.3)),
        SINGLE.prepare(ScaledGradient(t, t, 0.3)),
        {"output_gradient": t, "input_gradient": t},
        {"output_gradient": draw(shape)},
    )
    np.testing.assert_array_equal(actual["input_gradient"], expected["input_gradient"])


@pytest.mark.parametrize("examples", [5, 3, 1, 0])
@pytest.mark.parametrize("ignored", [None, 2])
@pytest.mark.parametrize("normalisation", ["batch", "full", "valid", "none"])
def test_softmax_loss(examples: int, ignored: int | None, normalisation: str) -> None:
    p = np.exp(3 * draw((5, 7)))
    p /= p.sum(axis=1, keepdims=True)
    p[0, 1] = 0
    t, labels, one = tensor(p.shape), Tensor((5,), np.dtype(np.int32)), tensor((1,))
    values = {"input0": p, "labels": np.array([1, 2, 0, 6, 2], np.int32), "state": state(EXAMPLES=examples)}
    actual, expected = both(
        ONEDNN.prepare(SoftmaxLossForward(t, labels, ignored, normalisation)),
        SINGLE.prepare(SoftmaxLossForward(t, labels, ignored, normalisation)),
        {"output": one},
        values,
    )
    close(actual["output"], expected["output"])
    actual, expected = both(
        ONEDNN.prepare(SoftmaxLossBackward(t, labels, t, ignored, normalisation)),
        SINGLE.prepare(SoftmaxLossBackward(t, labels, t, ignored, normalisation)),
        {"input_gradient": t},
        values,
    )
    np.testing.assert_array_equal(actual["input_gradient"], expected["input_gradient"])


@pytest.mark.parametrize("examples", [5, 2])
@pytest.mark.parametrize("top_k", [1, 2, 7])
@pytest.mark.parametrize("ignored", [None, 2])
def test_accuracy(examples: int, top_k: int, ignored: int | None) -> None:
    p = np.random.default_rng(top_k).integers(0, 3, (5, 7)).astype(np.float32)
    p[3, 2] = np.nan
    p[4, 1] = np.nan
    values = {"input0": p, "labels": np.array([1, 2, 0, 6, 1], np.int32), "state": state(EXAMPLES=examples)}
    t, labels = tensor(p.shape), Tensor((5,), np.dtype(np.int32))
    actual, expected = both(
        ONEDNN.prepare(LabelAccuracy(t, labels, top_k, ignored)),
        SINGLE.prepare(LabelAccuracy(t, labels, top_k, ignored)),
        {"output": tensor((1,))},
        values,
    )
    np.testing.assert_array_equal(actual["output"], expected["output"])


@pytest.mark.parametrize("wrong", [-1, 7])
def test_a_label_outside_the_classes_is_an_error(wrong: int) -> None:
    t, labels = tensor((2, 7)), Tensor((2,), np.dtype(np.int32))
    buffers: dict[str, Any] = {"input0": memory(t, np.full((2, 7), 1 / 7)), "labels": np.array([0, wrong], np.int32)}
    buffers |= {"state": state(EXAMPLES=2), "output": np.zeros(1, np.float32), "input_gradient": memory(t)}
    for kernel in (
        ONEDNN.prepare(SoftmaxLossForward(t, labels, None, "batch")),
        ONEDNN.prepare(SoftmaxLossBackward(t, labels, t, None, "batch")),
        ONEDNN.prepare(LabelAccuracy(t, labels, 1, None)),
    ):
        with pytest.raises(NativeError, match="label"):
            execute(kernel, buffers)


@pytest.mark.parametrize("examples", [4, 3])
@pytest.mark.parametrize("shape", [(4, 3), (4, 1)])
def test_euclidean_loss(shape: Shape, examples: int) -> None:
    t = tensor(shape)
    values = {"input0": draw(shape), "labels": draw(shape, 1), "state": state(EXAMPLES=examples)}
    actual, expected = both(
        ONEDNN.prepare(EuclideanLossForward(t, t)),
        SINGLE.prepare(EuclideanLossForward(t, t)),
        {"output": tensor((1,))},
        values,
    )
    close(actual["output"], expected["output"])
    actual, expected = both(
        ONEDNN.prepare(EuclideanLossBackward(t, t, t)),
        SINGLE.prepare(EuclideanLossBackward(t, t, t)),
        {"input_gradient": t},
        values,
    )
    np.testing.assert_array_equal(actual["input_gradient"], expected["input_gradient"])


@pytest.mark.parametrize("shape", [(3, 7), (2, 1, 5, 4), (2, 3, 5, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("label_dtype", [np.int32, np.float32])
def test_load_batch(shape: Shape, dtype: Any, label_dtype: Any) -> None:
    slots = np.random.default_rng(0).integers(0, 255, (3, *shape)).astype(dtype)
    slot_labels = np.arange(3 * shape[0]).reshape(3, shape[0]).astype(label_dtype)
    arguments = (
        Tensor(slots.shape, slots.dtype),
        tensor(shape),
        Tensor(slot_labels.shape, slot_labels.dtype),
        labels := Tensor(slot_labels.shape[1:], slot_labels.dtype),
        1 / 255,
    )
    actual, expected = both(
        ONEDNN.prepare(LoadBatch(*arguments)),
        SINGLE.prepare(LoadBatch(*arguments)),
        {"input": tensor(shape), "labels": labels},
        {"slots": slots, "slot_labels": slot_labels, "state": state(SLOT=2)},
    )
    for role in ("input", "labels"):
        np.testing.assert_array_equal(actual[role], expected[role])


NAMES = ["a", "b", "c", "d"]
TERMS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=14).map(tuple)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.builds(Assignment, st.sampled_from(NAMES), TERMS), min_size=1, max_size=4),
    st.sampled_from([1, 15, 16, 17, 1000, 1024, 1025, 5000]),
    st.integers(0, 100),
    st.lists(st.sampled_from(NAMES), max_size=2),
)
def test_linear_combination_is_bit_identical(
    assignments: list[Assignment], length: int, seed: int, signs: list[str]
) -> None:
    assignments = [
        Assignment(a.target, (*a.terms[:2], *(f"sign{n}" for n in range(len(signs)) if (n + i) % 2 == 0), *a.terms[2:]))
        for i, a in enumerate(assignments)
    ]
    coefficients = np.random.default_rng(seed).standard_normal(sum(len(a.terms) for a in assignments))
    results = []
    for library in (ONEDNN, SINGLE):
        buffers = {name: draw((length,), i) for i, name in enumerate(NAMES)}
        buffers["a"][::3] = 0
        kernel = library.prepare(
            LinearCombination(assignments, FLOAT32, [(f"sign{n}", of) for n, of in enumerate(signs)])
        )
        call = kernel.bind({**buffers, "coefficients": coefficients, "workspace": np.zeros(0, np.uint8)})
        for _ in range(2):
            for part in call:
                part()
        results.append(buffers)
    for name in NAMES:
        np.testing.assert_array_equal(results[0][name], results[1][name])


def test_linear_combination_reads_its_coefficients_at_every_call() -> None:
    kernel = ONEDNN.prepare(LinearCombination([Assignment("w", ("w", "g"))], FLOAT32))
    buffers = {"w": np.ones(3, np.float32), "g": np.ones(3, np.float32), "coefficients": np.array([1.0, 1.0])}
    (call,) = kernel.bind(buffers)
    call()
    buffers["coefficients"][1] = -1
    call()
    np.testing.assert_array_equal(buffers["w"], np.ones(3))


@pytest.mark.parametrize("length", [0, 1, 16, 1000, 1024, 5000])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_squared_norm(length: int, count: int) -> None:
    terms = tuple(f"x{i}" for i in range(count))
    buffers: dict[str, Numbers] = {term: draw((length,), i) for i, term in enumerate(terms)}
    buffers["coefficients"] = np.linspace(0.3, 0.7, count)
    results = []
    for library in (ONEDNN, SINGLE):
        kernel = library.prepare(SquaredNorm(terms, FLOAT32))
        assert (kernel.reads, kernel.writes) == ((*terms, "coefficients"), ("square",))
        square = np.full(1, np.nan)
        for _ in range(2):
            execute(kernel, {**buffers, "square": square}, native=library is ONEDNN)
        results.append(float(square[0]))
    assert results[0] == pytest.approx(results[1], rel=1e-13)


def test_squares_are_added_up_in_double_precision() -> None:
    x, square = np.array([4096, 1], np.float32), np.zeros(1)
    execute(ONEDNN.prepare(SquaredNorm(("x",), FLOAT32)), {"x": x, "coefficients": np.ones(1), "square": square})
    assert square == 2**24 + 1


@pytest.mark.parametrize("squares", [[9.0, 16.0], [6.25], [6.0], [0.0, 0.0], [np.inf], [1.0, np.nan]])
def test_clipped_coefficients(squares: list[float]) -> None:
    results = []
    for library in (ONEDNN, SINGLE):
        kernel = library.prepare(ClipCoefficients(2.5, [True, False, True]))
        assert (kernel.reads, kernel.writes) == (("squares", "coefficients"), ("clipped_coefficients",))
        buffers = {"squares": np.array(squares), "coefficients": np.array([1.0, 2.0, 4.0])}
        clipped = np.full(3, np.nan)
        execute(kernel, {**buffers, "clipped_coefficients": clipped}, native=library is ONEDNN)
        results.append(clipped)
    np.testing.assert_array_equal(*results)


def test_vectors_of_different_lengths_are_refused() -> None:
    kernel = ONEDNN.prepare(LinearCombination([Assignment("w", ("w", "g"))], FLOAT32))
    buffers = {"w": np.ones(3, np.float32), "g": np.ones(2, np.float32), "coefficients": np.ones(2)}
    with pytest.raises(ValueError, match="one length"):
        kernel.bind(buffers)


def test_activations_are_channels_last() -> None:
    assert ONEDNN.layout((2, 3, 4, 5)) is Layout.CHANNELS_LAST
    assert ONEDNN.layout((2, 3)) is Layout.PLAIN


def test_a_wait_yields_its_core_before_it_sleeps() -> None:
    """The functions stand for the system's, and record their calls. The second flag is set during the third sleep."""
    flags, calls = np.array([4, 3]), list[str]()
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 4)

    def sched_yield(_0: int, _1: int, _2: int, _3: int) -> int:
        calls.append("yield")
        return 0

    def usleep(microseconds: int, _1: int, _2: int, _3: int) -> int:
        calls.append(f"sleep {microseconds}")
        flags[1] = 4 if len(calls) >= YIELDS + 3 else 3
        return 0

    functions = function(sched_yield), function(usleep)
    addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in functions]
    wait_for_flags.call(
        "wait",
        flags=flags,
        count=flags.size,
        stride=flags.strides[0],
        abort=np.zeros(1, np.int64),
        state=state(TICK=4),
        sched_yield=addresses[0],
        usleep=addresses[1],
    )()
    assert calls == ["yield"] * YIELDS + [f"sleep {SLEEP_MICROSECONDS}"] * 3
