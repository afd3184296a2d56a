"""Nodes, variables and constants of an operator that is written."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.onnx.network import FILLER
from crossbow.onnx.writing.model import Writer
from crossbow.onnx.writing.written_operator import WrittenOperator
from crossbow.ops import ReLU
from crossbow.types import Array

WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def operator() -> WrittenOperator:
    """An operator whose output has another name than itself, as the second node of a shared operator."""
    return WrittenOperator(
        Writer(), ReLU(), "it", ("x",), ((5, 3),), (5, 3), "it#2", {"weights": WEIGHTS}, "crossbow 2 ReLU it"
    )


def initializer(operator: WrittenOperator, name: str) -> Array:
    array = operator.writer.initializers[name]
    assert array.flags.c_contiguous
    return array


def test_parts_are_named_after_the_output(operator: WrittenOperator) -> None:
    part = operator.add("Mul", "x", "x", part="squares")
    assert operator.add("Concat", part, "x", axis=1) == "it#2"
    first, last = operator.writer.nodes
    assert (part, first.name, list(first.output), list(first.input)) == (
        *("it#2.squares",) * 2,
        ["it#2.squares"],
        ["x", "x"],
    )
    assert (last.name, list(last.input), last.attribute[0].i) == ("it#2", ["it#2.squares", "x"], 1)
    assert {node.doc_string for node in operator.writer.nodes} == {"crossbow 2 ReLU it"}


def test_variables_are_named_after_the_operator(operator: WrittenOperator) -> None:
    """Nodes of a shared operator have the same variables."""
    assert operator.variable("weights") == "it.weights"
    np.testing.assert_array_equal(initializer(operator, "it.weights"), WEIGHTS)
    operator.variable("weights", transposed=True)
    np.testing.assert_array_equal(initializer(operator, "it.weights"), WEIGHTS.T)
    operator.variable("weights", trailing=2)
    assert initializer(operator, "it.weights").shape == (2, 3, 1, 1)


def test_constants_are_named_after_the_output(operator: WrittenOperator) -> None:
    assert operator.constant("alpha", 0.5) == "it#2.alpha"
    assert operator.constant("pads", [1, 2], np.int64) == "it#2.pads"
    alpha, pads = initializer(operator, "it#2.alpha"), initializer(operator, "it#2.pads")
    assert (alpha.dtype, alpha.item()) == (np.float32, 0.5)
    assert (pads.dtype, pads.tolist()) == (np.int64, [1, 2])


def test_a_variable_that_the_operator_lacks_is_filled_with_zeros(operator: WrittenOperator) -> None:
    name = operator.filler("bias", 3)
    assert name == f"it.bias{FILLER}"
    np.testing.assert_array_equal(initializer(operator, name), np.zeros(3, np.float32), strict=True)


def test_a_fault_names_the_operator(operator: WrittenOperator) -> None:
    operator.fault("ONNX has no such thing")
    assert operator.writer.faults == ["node 'it' (ReLU): ONNX has no such thing"]
