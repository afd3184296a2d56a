"""Every row of the table: its gradients, the fast library against the reference, and PyTorch's opinion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import crossbow.ops
from crossbow.kernels import why_not_compiled
from crossbow.ops import Accuracy, Classify, Kernel, ReLU, SoftMax, SoftMaxLoss
from crossbow.testing import OperatorRun, check_gradients, run_operator
from crossbow.types import Phase
from tests.combinations import covering, one_in
from tests.operators.table import CASES, TOLERANCES, WITHOUT_KERNELS, Case

Array = NDArray[Any]

NO_FAST_LIBRARY = why_not_compiled()
fast = pytest.mark.skipif(NO_FAST_LIBRARY is not None, reason=f"no compiled kernels: {NO_FAST_LIBRARY}")
REFERENCE = pytest.param({"device": "reference"}, id="reference")
CPU = pytest.param({"device": "cpu"}, marks=fast, id="cpu")
GPU = pytest.param({}, marks=pytest.mark.gpu, id="gpu")
GPU_LAYOUTS = [
    pytest.param({"channels_last": last}, marks=pytest.mark.gpu, id=f"gpu-{'channels-last' if last else 'plain'}")
    for last in (False, True)
]
every_row = pytest.mark.parametrize("case", CASES, ids=str)
differentiable = pytest.mark.parametrize("case", [c for c in CASES if c.kernel.gradient() is not None], ids=str)


def operators() -> list[type[Kernel]]:
    exported = [getattr(crossbow.ops, name) for name in crossbow.ops.__all__]
    return [
        item
        for item in exported
        if isinstance(item, type)
        and issubclass(item, Kernel)
        and item is not Kernel
        and item.__name__ not in WITHOUT_KERNELS
    ]


def gradient_for(case: Case) -> Array | None:
    """A gradient of the output that is the same for every library; None for losses and measures."""
    if case.kernel.is_loss or case.kernel.is_measure:
        return None
    shape = case.kernel.output_shape(*case.shapes)
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def run(case: Case, **options: Any) -> OperatorRun:
    return run_operator(
        case.kernel, case.inputs(), output_gradient=gradient_for(case), examples=case.examples, **options
    )


_ROWS = frozenset(map(id, CASES))
_EXACT: dict[int, OperatorRun] = {}


def exact(case: Case) -> OperatorRun:
    """In float64, on numbers that float32 represents. Several tests compare with a row's: it is computed once."""
    if id(case) in _EXACT:
        return _EXACT[id(case)]
    made = run(case, dtype=np.float64, variables=float32_variables(case))
    if id(case) in _ROWS:  # not one that was drawn for a single example
        _EXACT[id(case)] = made
    return made


def tensors(run: OperatorRun) -> dict[str, Array]:
    return {
        "output": run.outputs[0],
        **{f"gradient of input {i}": value for i, value in enumerate(run.input_gradients)},
        **{f"gradient of {name}": value for name, value in run.variable_gradients.items()},
        **run.statistics,
    }


def assert_close(received: dict[str, Array], expected: dict[str, Array], tolerance: float) -> None:
    assert received.keys() == expected.keys()
    for name, value in expected.items():
        assert received[name].shape == value.shape, name
        assert np.isfinite(received[name]).all(), name
        scale = float(np.max(np.abs(value), initial=0.0))
        error = float(np.max(np.abs(received[name] - value), initial=0.0))
        assert error <= tolerance * max(scale, 1e-30), f"{name}: error {error:.3g}, largest magnitude {scale:.3g}"


@pytest.mark.parametrize("operator", operators(), ids=lambda operator: operator.__name__)
def test_every_operator_has_a_row_and_a_tolerance(operator: type[Kernel]) -> None:
    assert any(type(case.kernel) is operator for case in CASES), f"tests/operators/table.py has no row of {operator}"
    assert operator in TOLERANCES


def test_an_operator_without_a_row_would_be_noticed() -> None:
    assert {"Conv", "Pool", "SoftMaxLoss"} <= {operator.__name__ for operator in operators()}
    assert set(WITHOUT_KERNELS) <= set(crossbow.ops.__all__)


@differentiable
@pytest.mark.parametrize("target", [REFERENCE, *GPU_LAYOUTS], indirect=True)
def test_gradients_agree_with_finite_differences(case: Case, target: dict[str, Any]) -> None:
    shapes = case.shapes
    labels = case.label_array(np.random.default_rng(0))
    if labels is not None:
        shapes = (*shapes, labels.shape)
    check_gradients(case.kernel, shapes, labels=labels, draw=case.draw, directions=1, **target)


@one_in(3)
@every_row
def test_float32_agrees_with_float64(case: Case) -> None:
    assert_close(tensors(run(case)), tensors(exact(case)), case.tolerance)


@every_row
@pytest.mark.parametrize("target", [CPU, *GPU_LAYOUTS], indirect=True)
def test_fast_library_agrees_with_reference(case: Case, target: dict[str, Any]) -> None:
    assert_close(tensors(run(case, **target)), tensors(exact(case)), case.tolerance)


@pytest.mark.slow
@one_in(3)
@every_row
@pytest.mark.parametrize("target", [CPU, *GPU_LAYOUTS], indirect=True)
def test_fast_library_agrees_with_reference_when_checking(case: Case, target: dict[str, Any]) -> None:
    variables = float32_variables(case)
    options: dict[str, Any] = {"phase": Phase.CHECK, "examples": case.examples, "variables": variables}
    expected = run_operator(case.kernel, case.inputs(), dtype=np.float64, **options)
    received = run_operator(case.kernel, case.inputs(), **target, **options)
    assert not received.input_gradients
    assert not received.variable_gradients
    assert_close(tensors(received), tensors(expected), case.tolerance)


ROWS = [pytest.param(case, id=str(case)) for case in CASES]


@one_in(3)
@pytest.mark.parametrize(
    ("case", "target"),
    [*covering(ROWS, [CPU, REFERENCE], together=1), *covering(ROWS, [GPU], together=1)],
    indirect=["target"],
)
def test_in_place_changes_nothing(case: Case, target: dict[str, Any]) -> None:
    apart, shared = tensors(run(case, **target)), tensors(run(case, in_place=True, **target))
    assert apart.keys() == shared.keys()
    for name, value in apart.items():
        np.testing.assert_array_equal(shared[name], value, err_msg=name)


@one_in(2)
@every_row
def test_agrees_with_pytorch(case: Case) -> None:
    pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    from tests.operators.oracles import run_oracle, run_statistics_oracle

    inputs = case.inputs()
    if isinstance(case.kernel, SoftMaxLoss):
        # PyTorch's loss takes logits, ours probabilities.
        logits = np.random.default_rng(2).standard_normal(case.shapes[0])
        probabilities = run_operator(SoftMax(), [logits], dtype=np.float64).outputs[0]
        ours, theirs = [probabilities, inputs[-1]], [logits, inputs[-1]]
    else:
        ours = theirs = inputs
    result = run_operator(
        case.kernel, ours, output_gradient=gradient_for(case), examples=case.examples, dtype=np.float64
    )
    output, input_gradients, variable_gradients = run_oracle(
        case.kernel, theirs, result.variables, gradient_for(case), case.examples
    )
    statistics = run_statistics_oracle(case.kernel, theirs)
    expected = OperatorRun([output], input_gradients, result.variables, variable_gradients, statistics)
    assert_close(tensors(result), tensors(expected), 1e-12 * (1 + abs(case.offset)))


KINKED = [
    case
    for case in CASES
    if isinstance(case.kernel, Accuracy | Classify | ReLU) or getattr(case.kernel, "method", "") == "max"
]


def run_on_kinks(case: Case, **options: Any) -> tuple[list[Array], OperatorRun]:
    """Many zeros, many equal maxima."""
    inputs: list[Array] = [np.random.default_rng(3).integers(-1, 2, shape).astype(np.float32) for shape in case.shapes]
    labels = case.label_array(np.random.default_rng(4))
    inputs += [] if labels is None else [labels]
    options = {"output_gradient": gradient_for(case), "examples": case.examples, **options}
    return inputs, run_operator(case.kernel, inputs, **options)


@pytest.mark.slow
@pytest.mark.parametrize("case", KINKED, ids=str)
@pytest.mark.parametrize("target", [CPU, GPU], indirect=True)
def test_fast_library_agrees_with_reference_at_kinks(case: Case, target: dict[str, Any]) -> None:
    expected, received = (run_on_kinks(case, **where)[1] for where in ({}, target))
    assert_close(tensors(received), tensors(expected), TOLERANCES[type(case.kernel)])


@pytest.mark.parametrize("case", KINKED, ids=str)
def test_agrees_with_pytorch_at_kinks(case: Case) -> None:
    """At a kink the left derivative; of equal maxima the first."""
    pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    from tests.operators.oracles import run_oracle

    inputs, result = run_on_kinks(case, dtype=np.float64)
    output, gradients, _ = run_oracle(case.kernel, inputs, {}, gradient_for(case), case.examples)
    assert_close(tensors(result), tensors(OperatorRun([output], gradients, {}, {})), 1e-12)


def float32_variables(case: Case) -> dict[str, Array]:
    """Initial values that float32 represents exactly, so that two types compute the same thing."""
    return {name: np.asarray(value, np.float64) for name, value in run(case).variables.items()}
