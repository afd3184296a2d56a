"""The ONNX project's test cases, 1,884 generated ones and those from PyTorch, on our operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crossbow.onnx.reading.graph import LOSSES
from crossbow.onnx.reading.table import TRANSLATIONS
from crossbow.types import GraphError
from tests.onnx.adapter import assert_same, is_form, is_ours, is_random, run, translate
from tests.onnx.cases import SUITES, OnnxCase, node_cases, pytorch_cases
from tests.onnx.conftest import PROPERTY
from tests.onnx.exclusions import EXCLUDED, FORMS, NOT_OURS, ROUNDED
from tests.onnx.losses import is_loss
from tests.support import WHY_NOT_FAST

CASES = [*node_cases(), *(case for suite in SUITES[1:] for case in pytorch_cases(suite))]
OURS = [case for case in CASES if is_ours(case)]
FORM_CASES = [case for case in CASES if is_form(case)]

RUN = [case for case in OURS if case.name not in EXCLUDED] + [case for case in FORM_CASES if case.name in FORMS]
REFUSED = [case for case in OURS if case.name in EXCLUDED]

Record = Callable[[str, Any], None]


def compare(case: OnnxCase, device: str) -> None:
    assert case.data
    for inputs, outputs in case.data:
        received = run(case, inputs, device)
        for entry, expected in zip(case.model.graph.output, outputs, strict=True):
            assert_same(received[entry.name], expected, ROUNDED.get(case.name, 1e-5 if device == "reference" else 1e-4))


@pytest.mark.parametrize("case", RUN, ids=str)
def test_case(case: OnnxCase, record_property: Record) -> None:
    record_property(PROPERTY, (case.suite, "passed", 1))
    inputs = case.data[0][0]
    if not any(isinstance(value, list) for value in inputs) and is_random(translate(case, inputs)[0]):
        compare_random(case)
    else:
        compare(case, "reference")


def compare_random(case: OnnxCase) -> None:
    """Every implementation draws its own mask: what both keep is the same, the rest is 0, and the mask says so."""
    ((inputs, outputs),) = case.data
    received = list(run(case, inputs).values())
    x, mine, theirs = inputs[0], received[0], outputs[0]
    both = (mine != 0) & (theirs != 0)
    assert x.all()
    assert 0 < np.count_nonzero(both) < x.size
    np.testing.assert_allclose(mine[both], theirs[both], rtol=1e-6)
    if len(outputs) > 1:
        np.testing.assert_array_equal(outputs[1], theirs != 0)
        np.testing.assert_array_equal(received[1], mine != 0)


@pytest.mark.skipif(WHY_NOT_FAST is not None, reason=f"no fast kernels: {WHY_NOT_FAST}")
@pytest.mark.parametrize("case", RUN, ids=str)
def test_case_on_the_fast_kernels(case: OnnxCase) -> None:
    arrays = [value for inputs, outputs in case.data for value in (*inputs[: 1 if is_loss(case) else None], *outputs)]
    if any(isinstance(array, list) or np.asarray(array).dtype != np.float32 for array in arrays):
        pytest.skip("not in single precision")
    if is_random(translate(case, case.data[0][0])[0]):
        pytest.skip("a random mask, which the reference kernels compare")
    compare(case, "cpu")


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_an_excluded_case_is_refused(case: OnnxCase, record_property: Record) -> None:
    record_property(PROPERTY, (case.suite, "excluded", 1))
    with pytest.raises(GraphError, match=r"^node '.*' \(.*\): "):
        run(case, case.data[0][0])


def test_operators_that_only_amount_to_ours_are_else_refused(record_property: Record) -> None:
    others = [case for case in FORM_CASES if case.name not in FORMS]
    for suite in SUITES:
        rest = [case for case in CASES if case.suite == suite and case not in RUN and case not in REFUSED]
        record_property(PROPERTY, (suite, "not ours", len(rest)))
    read = []
    for case in others:
        try:
            translate(case, case.data[0][0])
        except GraphError:
            continue
        read.append(case.name)
    assert read == []


def test_there_are_as_many_cases_as_the_project_generates() -> None:
    assert Counter(case.suite for case in CASES) == {"node": 1884, "pytorch-converted": 82, "pytorch-operator": 35}


def test_every_exclusion_is_a_case_of_ours_and_has_a_reason() -> None:
    assert set(EXCLUDED) == {case.name for case in REFUSED}
    assert {reason.partition(":")[0] for reason in EXCLUDED.values()} <= {"dtype", "dynamic shape", "attribute"}
    assert set(FORMS) <= {case.name for case in FORM_CASES}
    assert set(ROUNDED) <= {case.name for case in RUN}


def test_no_operator_has_more_than_a_quarter_of_its_cases_excluded() -> None:
    total = Counter(operator for case in OURS for operator in case.operators)
    excluded = Counter(operator for case in REFUSED for operator in case.operators)
    assert {
        operator: (count, total[operator]) for operator, count in excluded.items() if 4 * count > total[operator]
    } == {}


def test_what_is_near_and_not_ours_has_a_reason() -> None:
    """One line for every operator that is read in some cases only, and for others; none for what is ours."""
    forms = {name for name, entry in TRANSLATIONS.items() if entry.is_form}
    assert forms | LOSSES <= NOT_OURS.keys()
    assert not NOT_OURS.keys() & TRANSLATIONS.keys() - forms
    rest = [case for case in CASES if case not in RUN and case not in REFUSED]
    assert NOT_OURS.keys() <= {operator for case in rest for operator in case.operators}


def test_our_operators_are_among_the_cases() -> None:
    wanted = (
        "Conv MaxPool AveragePool GlobalAveragePool GlobalMaxPool Gemm MatMul Relu LeakyRelu Sigmoid Tanh LRN Concat "
        "BatchNormalization Dropout Add Sub Mul Sum Max Min Mean Neg Abs Softmax Identity Flatten ArgMax ArgMin PRelu "
        "HardSwish Swish SwiGLU SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss"
    )
    assert set(wanted.split()) <= {operator for case in RUN for operator in case.operators}
