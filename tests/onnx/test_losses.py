"""The ONNX project's cases of losses as a judge of SoftMaxLoss.

`load` refuses these operators: labels come from the batch, through no edge of the graph, and a loss is appended to the
loaded network. So they are none of ours in the count of cases, and have a line of their own below it.
NegativeLogLikelihoodLoss takes logarithms of probabilities, SoftMaxLoss the probabilities: it is given their
exponentials.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from crossbow import GraphError
from crossbow.onnx.loading import read
from crossbow.onnx.reading.graph import LOSSES
from crossbow.ops import SoftMax, SoftMaxLoss
from crossbow.testing import run_operator
from tests.onnx.cases import OnnxCase, node_cases
from tests.onnx.counts import LOSS_PROPERTY
from tests.support import WHY_NOT_FAST

LOSS_CASES = [case for case in node_cases() if len(case.model.graph.node) == 1 and case.operators <= LOSSES]


def attributes_of(case: OnnxCase) -> dict[str, Any]:
    (node,) = case.model.graph.node
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def is_comparable(case: OnnxCase) -> bool:
    """SoftMaxLoss is one number, a mean or a sum."""
    return attributes_of(case).get("reduction") != b"none"


COMPARED = [case for case in LOSS_CASES if is_comparable(case)]
FAST = pytest.param(
    "cpu", marks=pytest.mark.skipif(WHY_NOT_FAST is not None, reason=f"no fast kernels: {WHY_NOT_FAST}")
)


@pytest.mark.parametrize("device", ["reference", FAST])
@pytest.mark.parametrize("case", COMPARED, ids=str)
def test_a_loss(case: OnnxCase, device: str, record_property: Callable[[str, Any], None]) -> None:
    if device == "reference":
        record_property(LOSS_PROPERTY, 1)
    dtype, tolerance = (np.float64, 1e-5) if device == "reference" else (np.float32, 1e-4)
    given = attributes_of(case)
    (((x, labels, *weights), outputs),) = case.data
    kernel = SoftMaxLoss(
        ignored_label=given.get("ignore_index"),
        normalisation="none" if given.get("reduction") == b"sum" else "valid",
        class_weights=weights[0] if weights else None,
    )
    if case.operators == {"NegativeLogLikelihoodLoss"}:
        probabilities = np.exp(x.astype(np.float64))
    else:
        (probabilities,) = run_operator(SoftMax(), [x], device=device, dtype=dtype).outputs
    (loss,) = run_operator(kernel, [probabilities, labels], device=device, dtype=dtype).outputs
    np.testing.assert_allclose(loss.reshape(()), outputs[0], rtol=tolerance, atol=tolerance / 10)
    for logarithms in outputs[1:]:
        np.testing.assert_allclose(probabilities, np.exp(logarithms), rtol=tolerance, atol=tolerance / 10)


def test_there_are_as_many_as_there_were() -> None:
    assert (len(LOSS_CASES), len(COMPARED)) == (52, 39)


@pytest.mark.parametrize("case", LOSS_CASES, ids=str)
def test_a_loss_is_not_read(case: OnnxCase) -> None:
    with pytest.raises(GraphError, match="expected the network without its loss"):
        read(case.model)
