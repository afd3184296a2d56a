"""Tensors without elements, and scalars: what NumPy computes, or one sentence, on every library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from crossbow import Dataset, GraphError, TrainingUnit
from crossbow.conf import configuration
from crossbow.kernels import why_not_compiled
from crossbow.ops import (
    LRN,
    BatchNorm,
    Classify,
    Concat,
    Conv,
    Dropout,
    EuclideanLoss,
    Flatten,
    InnerProduct,
    Kernel,
    MatMul,
    Pool,
    ReLU,
    Scale,
    SigmoidLoss,
    SoftMax,
    SoftMaxLoss,
)
from crossbow.testing import OperatorRun, check_gradients, run_operator
from crossbow.types import Array, ConfigurationError, Phase, Shape
from tests.operators.table import CASES, Case
from tests.operators.test_table import tensors
from tests.support import KERNELS, context, training

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
DEVICES = pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
EXPLAINED = re.compile(r"\w+: (.*: )?expected .*\. Received: ", re.DOTALL)
"""The house's form of an error."""


def shapes_of(case: Case) -> Iterator[tuple[Shape, ...]]:
    """The shapes of a row with each axis 0 in turn, in one input and in all; with all 0; and scalars."""
    for number, shape in enumerate(case.shapes):
        for axis in range(len(shape)):
            for some in ({number}, set(range(len(case.shapes)))):
                yield tuple(
                    tuple(0 if n in some and a == axis else size for a, size in enumerate(sizes))
                    for n, sizes in enumerate(case.shapes)
                )
    yield tuple((0,) * len(shape) for shape in case.shapes)
    yield tuple(() for _ in case.shapes)


def inputs(case: Case, shapes: Sequence[Shape]) -> list[Any]:
    """Ones, and labels that are 0."""
    x = shapes[0]
    labels = {
        "class": (x[:1], np.int64),
        "classes": (x[:1] + x[2:], np.int64),
        "values": (x, np.float32),
        "fractions": (x, np.float32),
        "value": (x[:1], np.float32),
    }
    arrays: list[Any] = [np.ones(shape, np.float32) for shape in shapes]
    return arrays if case.labels is None else [*arrays, np.zeros(*labels[case.labels])]


def explained(error: ConfigurationError) -> str:
    assert EXPLAINED.match(str(error)), str(error)
    return str(error)


def attempt(kernel: Kernel, arrays: Sequence[Any], device: str, phase: Phase) -> OperatorRun | str:
    """What is computed, or what is said."""
    try:
        return run_operator(kernel, arrays, device=device, phase=phase)
    except ConfigurationError as error:
        return explained(error)


def _kind(case: Case) -> tuple[object, ...]:
    names = ("method", "mode", "type", "region", "normalisation", "statistics", "axis", "global_pooling")
    return (case.name, *(getattr(case.kernel, name, None) for name in names), *map(len, case.shapes))


ROWS = {_kind(case): case for case in reversed(CASES)}
"""A row for each kind of operator and number of dimensions."""


@fast
@pytest.mark.parametrize("name", sorted({case.name for case in CASES}))
@pytest.mark.parametrize("phase", Phase)
def test_every_operator_with_every_axis_empty(name: str, phase: Phase) -> None:
    computed = refused = 0
    for case in ROWS.values():
        for shapes in dict.fromkeys(shapes_of(case)) if case.name == name else ():
            arrays = inputs(case, shapes)
            plain, quick = (attempt(case.kernel, arrays, device, phase) for device in ("reference", "cpu"))
            if isinstance(plain, str):
                refused += 1
                assert quick == plain
                continue
            assert isinstance(quick, OperatorRun), f"{case}, {shapes}: {quick}"
            computed += 1
            ours, expected = tensors(quick), tensors(plain)
            assert ours.keys() == expected.keys()
            for role, value in expected.items():
                assert np.isfinite(value).all(), f"{case}, {shapes}: {role}"
                np.testing.assert_allclose(ours[role], value, rtol=1e-5, err_msg=f"{case}, {shapes}: {role}")
    assert refused or name in ("Noop", "ReLU", "GELU", "SiLU", "HardSwish", "Dropout", "ElementWiseOp")
    statistics = name == "BatchNorm" and phase is Phase.TRAIN
    assert computed or name in ("Accuracy", "MatFact", "MatFactPrediction", "SoftMaxLoss", "Broadcast") or statistics


@pytest.mark.parametrize("name", sorted({case.name for case in CASES if case.kernel.gradient() is not None}))
def test_gradients_of_every_operator_with_every_axis_empty(name: str) -> None:
    first = next(case for case in ROWS.values() if case.name == name)
    for shapes in dict.fromkeys(shapes_of(first)):
        arrays = inputs(first, shapes)
        labels = arrays[-1] if first.labels else None
        try:
            check_gradients(first.kernel, [array.shape for array in arrays], labels=labels, directions=1)
        except ConfigurationError as error:
            explained(error)


ZEROS = {"bias": np.array([1.0, 2.0])}


@DEVICES
@pytest.mark.parametrize(
    ("kernel", "shapes", "expected"),
    [
        # As outsiders tried them.
        (ReLU(), [()], np.ones(())),
        (Concat(axis=0), [(0,), (5,)], np.ones(5)),
        (Concat(), [(0, 2), (0, 5)], np.ones((0, 7))),
        (MatMul(), [(5, 0), (0, 10)], np.zeros((5, 10))),
        (SoftMax(axis=-1), [(5, 0, 0)], np.ones((5, 0, 0))),
        (InnerProduct(number_of_outputs=2), [(0, 3)], np.ones((0, 2))),
        # Sums of nothing.
        (InnerProduct(number_of_outputs=2), [(3, 0)], np.array([[1.0, 2.0]] * 3)),
        (Conv(number_of_outputs=2), [(1, 0, 1, 1)], np.array([[[[1.0]], [[2.0]]]])),
        (Conv(number_of_outputs=2, kernel_size=3), [(0, 4, 5, 5)], np.ones((0, 2, 3, 3))),
        (Pool(method="average", kernel_size=2, stride=1, padding=1), [(1, 1, 0, 1)], np.zeros((1, 1, 1, 2))),
        (Flatten(axis=0), [()], np.ones((1, 1))),
        (Flatten(), [(3, 0, 2)], np.ones((3, 0))),
        (EuclideanLoss(), [(0, 3), (0, 3)], np.zeros(1)),
        (SigmoidLoss(), [(0, 3), (0, 3)], np.zeros(1)),
        (SoftMaxLoss(normalisation="full"), [(0, 3), (0,)], np.zeros(1)),
    ],
    ids=str,
)
def test_what_is_computed(kernel: Kernel, shapes: Sequence[Shape], expected: Array, device: str) -> None:
    arrays = [np.ones(shape) for shape in shapes]
    if isinstance(kernel, SoftMaxLoss):
        arrays[1] = arrays[1].astype(np.int64)
    given = ZEROS if isinstance(kernel, InnerProduct | Conv) else {}
    run = run_operator(kernel, arrays, device=device, variables=given)
    np.testing.assert_array_equal(run.outputs[0], expected, strict=False)
    assert run.outputs[0].shape == expected.shape
    for array, gradient in zip(arrays, run.input_gradients, strict=False):
        assert gradient.shape == array.shape
    if given:
        rows = expected.size // 2
        np.testing.assert_array_equal(run.variable_gradients["bias"], [rows, rows])


@DEVICES
@pytest.mark.parametrize(
    ("kernel", "shape", "expected"),
    [
        (Classify(), (3, 0), "Classify: expected an input with at least one class. Received: (3, 0), with axis=1"),
        (SoftMaxLoss(), (3, 0), "SoftMaxLoss: expected an input of shape (N, classes) or"),
        (BatchNorm(), (0, 3), "BatchNorm: expected more than one value per channel to train on. Received: an input of"),
        (Pool(global_pooling=True), (2, 3, 0, 4), "Pool: expected an input at least as large as the window."),
        (InnerProduct(number_of_outputs=2), (), "InnerProduct: expected"),
        (MatMul(), (), "MatMul: number of inputs: expected 2. Received: 1"),
    ],
    ids=str,
)
def test_what_is_refused(kernel: Kernel, shape: Shape, expected: str, device: str) -> None:
    arrays = [np.ones(shape), *([np.zeros(shape[:1], np.int64)] if kernel.takes_labels else [])]
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        run_operator(kernel, arrays, device=device)


@configuration
class First(Kernel):
    """The first channels of x, of which there may be none."""

    channels: int = 0

    def output_shape(self, *inputs: Shape) -> Shape:
        return (inputs[0][0], self.channels, *inputs[0][2:])

    def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
        return inputs[0][:, : self.channels]

    def backward(
        self,
        xp: ModuleType,
        inputs: Sequence[Any],
        output: Any,
        variables: Mapping[str, Any],
        output_gradient: Any,
    ) -> Any:
        gradient = xp.zeros_like(inputs[0])
        gradient[:, : self.channels] = output_gradient
        return [gradient], {}


CONV = Conv(number_of_outputs=4, kernel_size=3, padding=1)


@KERNELS
@pytest.mark.parametrize(
    "middle",
    [
        (CONV, ReLU(), Pool(), LRN(), Scale(bias=True)),
        (Pool(), Dropout(), Pool(method="average"), Flatten()),
    ],
    ids=["conv", "pool"],
)
def test_a_network_in_which_nothing_is_left_learns_the_last_bias(middle: Sequence[Kernel], kernels: str) -> None:
    generator = np.random.default_rng(0)
    images, labels = generator.random((16, 3, 8, 8), np.float32), np.arange(16) % 2
    network = training(CONV, First(), *middle, InnerProduct(number_of_outputs=2))
    with context(network, data=Dataset((images, labels)), kernels=kernels, learners=1) as running:
        if kernels != "reference":
            assert "(fallback: no elements in a tensor of shape (4, 0, 8, 8))" in running.describe()
        running.train(4, TrainingUnit.TASKS)
        predicted = running.predict(images)
    np.testing.assert_array_equal(predicted, np.broadcast_to(predicted[0], predicted.shape))
    assert np.isfinite(predicted).all()


@KERNELS
def test_a_network_that_cannot_be_trained_on_nothing(kernels: str) -> None:
    data = Dataset((np.ones((16, 3, 8, 8), np.float32), np.arange(16) % 2))
    expected = r"BatchNorm2.*: expected more than one value per channel to train on"
    with pytest.raises(GraphError, match=expected):
        context(training(CONV, First(), BatchNorm(), InnerProduct(number_of_outputs=2)), data=data, kernels=kernels)
