"""The ONNX project's test cases, 1,884 generated ones and those from PyTorch, on our operators."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crossbow.onnx.reading.graph import LOSSES
from crossbow.onnx.reading.table import TRANSLATIONS
from crossbow.types import GraphError
from tests.combinations import one_in
from tests.onnx import counts
from tests.onnx.adapter import assert_same, conversion, is_form, is_ours, is_random, run, translate
from tests.onnx.cases import SUITES, OnnxCase, node_cases, pytorch_cases
from tests.onnx.counts import PROPERTY
from tests.onnx.exclusions import EXCLUDED, FIRST_OUTPUT, FORMS, NOT_OURS, ROUNDED
from tests.support import WHY_NOT_FAST

CASES = [*node_cases(), *(case for suite in SUITES[1:] for case in pytorch_cases(suite))]
OURS = [case for case in CASES if is_ours(case)]
FORM_CASES = [case for case in CASES if is_form(case)]

PASSED = [case for case in OURS if case.name not in EXCLUDED]
REFUSED = [case for case in OURS if case.name in EXCLUDED]
READ_IN_PART = [case for case in FORM_CASES if case.name in FORMS]
RUN = PASSED + READ_IN_PART
REFUSED_IN_PART = [case for case in FORM_CASES if case.name not in FORMS]
REST = [case for case in CASES if case not in OURS and case not in FORM_CASES]

Record = Callable[[str, Any], None]


def compare(case: OnnxCase, device: str) -> None:
    assert case.data
    for inputs, outputs in case.data:
        received, wanted = run(case, inputs, device), case.model.graph.output
        compared = 1 if case.name in FIRST_OUTPUT else len(wanted)
        assert len(outputs) == len(wanted)
        for entry, expected in zip(wanted[:compared], outputs[:compared], strict=True):
            assert_same(received[entry.name], expected, ROUNDED.get(case.name, 1e-5 if device == "reference" else 1e-4))


def way(case: OnnxCase) -> str | None:
    """How a case is made to run that `load` refuses."""
    return "by their first output alone" if case.name in FIRST_OUTPUT else conversion(case)


@pytest.mark.parametrize("case", RUN, ids=str)
def test_case(case: OnnxCase, record_property: Record) -> None:
    kind = "read in part" if case in READ_IN_PART else "passed"
    record_property(PROPERTY, (case.suite, kind, 1, way(case)))
    inputs = case.data[0][0]
    if not any(isinstance(value, list) for value in inputs) and is_random(translate(case, inputs)[0]):
        compare_random(case)
    else:
        compare(case, "reference")


def compare_random(case: OnnxCase) -> None:
    """Every implementation draws its own mask: what both keep is the same, and the rest is 0."""
    ((inputs, (theirs,)),) = case.data
    (mine,) = run(case, inputs).values()
    x = inputs[0]
    both = (mine != 0) & (theirs != 0)
    assert x.all()
    assert 0 < np.count_nonzero(both) < x.size
    np.testing.assert_allclose(mine[both], theirs[both], rtol=1e-6)


@one_in(2)
@pytest.mark.skipif(WHY_NOT_FAST is not None, reason=f"no fast kernels: {WHY_NOT_FAST}")
@pytest.mark.parametrize("case", RUN, ids=str)
def test_case_on_the_fast_kernels(case: OnnxCase) -> None:
    arrays = [value for inputs, outputs in case.data for value in (*inputs, *outputs)]
    if any(isinstance(array, list) or np.asarray(array).dtype != np.float32 for array in arrays):
        pytest.skip("not in single precision")
    if is_random(translate(case, case.data[0][0])[0]):
        pytest.skip("a random mask, which the reference kernels compare")
    compare(case, "cpu")


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_an_excluded_case_is_refused(case: OnnxCase, record_property: Record) -> None:
    record_property(PROPERTY, (case.suite, "excluded", 1, None))
    with pytest.raises(GraphError, match=r"(?m)^node '.*' \(.*\): "):
        run(case, case.data[0][0])


def test_operators_that_only_amount_to_ours_are_else_refused() -> None:
    """Or have inputs of types that `load` refuses."""
    read = []
    for case in REFUSED_IN_PART:
        try:
            translate(case, case.data[0][0])
        except GraphError:
            continue
        if conversion(case) is None:
            read.append(case.name)
    assert read == []


@pytest.mark.parametrize("case", READ_IN_PART, ids=str)
def test_what_is_read_in_part_has_inputs_that_load_accepts(case: OnnxCase) -> None:
    assert conversion(case) is None
    for entry in translate(case, case.data[0][0])[1].values():
        assert np.asarray(entry).dtype in (np.float32, np.float64)


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_is_counted_once(suite: str, record_property: Record) -> None:
    for kind, cases in (("refused in part", REFUSED_IN_PART), ("not ours", REST)):
        record_property(PROPERTY, (suite, kind, sum(case.suite == suite for case in cases), None))
    groups = (PASSED, REFUSED, READ_IN_PART, REFUSED_IN_PART, REST)
    names = [case.name for group in groups for case in group if case.suite == suite]
    assert len(names) == len(set(names)) == sum(case.suite == suite for case in CASES)


def test_what_load_always_refuses_does_not_pass() -> None:
    """Losses, which `test_losses.py` compares."""
    assert [case.name for case in RUN if case.operators & LOSSES] == []


def test_whole_numbers_that_would_wrap_around_are_wrong() -> None:
    assert_same(np.array([3.0, 4.0]), np.array([3, 4], np.uint8), 1e-5)
    for received in (259.0, 3.5, -253.0):
        with pytest.raises(AssertionError):
            assert_same(np.array([received]), np.array([3], np.uint8), 1e-5)


def test_what_is_made_to_run_is_counted() -> None:
    assert Counter(filter(None, map(way, PASSED))) == {
        "with whole numbers as float64": 37,
        "with half precision as float64": 4,
        "tensor by tensor of a list": 2,
        "by their first output alone": 2,
    }


def test_the_line_that_is_printed() -> None:
    assert doctest.testmod(counts).failed == 0
    count = Counter({"passed": 1200, "excluded": 1, "not ours": 2, "failed": 1})
    ways = Counter({"b": 2, "a": 1})
    assert counts.line("s", count, ways) == (
        "s: 1,200 passed, of them 1 a, 2 b / 1 excluded / read in part: 0 of 0 / 2 not ours / 1 failed"
    )


def test_there_are_as_many_cases_as_the_project_generates() -> None:
    assert Counter(case.suite for case in CASES) == {"node": 1884, "pytorch-converted": 82, "pytorch-operator": 35}


def test_every_exclusion_is_a_case_of_ours_and_has_a_reason() -> None:
    assert set(EXCLUDED) == {case.name for case in REFUSED}
    assert {reason.partition(":")[0] for reason in EXCLUDED.values()} <= {"dtype", "dynamic shape", "attribute"}
    assert set(FORMS) == {case.name for case in READ_IN_PART}
    assert set(FIRST_OUTPUT) <= {case.name for case in RUN}
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
        "HardSigmoid HardSwish Swish SwiGLU LogSoftmax Gelu"
    )
    assert set(wanted.split()) <= {operator for case in PASSED for operator in case.operators}
