"""Registered functions write the nodes of an operator."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.conf import configuration
from crossbow.onnx import save
from crossbow.onnx.writing import table
from crossbow.onnx.writing.model import Writer
from crossbow.onnx.writing.table import WRITERS, write_operator, writes
from crossbow.onnx.writing.written_operator import WrittenOperator
from crossbow.ops import BatchNorm, InnerProduct, Noop, ReLU

assert save  # importing it fills the table
WEIGHTS = {"weights": np.ones((3, 4), np.float32), "bias": np.ones(3, np.float32)}


def test_nodes_are_marked_with_position_class_and_name() -> None:
    writer = Writer()
    write_operator(writer, 5, InnerProduct(number_of_outputs=3), "my name", ("x",), ((2, 4),), "y", WEIGHTS)
    (node,) = writer.nodes
    assert (node.op_type, node.doc_string, node.name, list(node.output)) == (
        "Gemm",
        "crossbow 5 InnerProduct my name",
        "y",
        ["y"],
    )
    assert list(node.input) == ["x", "my name.weights", "my name.bias"]
    assert writer.settings == {}


def test_settings_are_collected_by_position() -> None:
    writer, values = Writer(), {name: np.ones(4, np.float32) for name in ("weights", "bias")}
    values |= {"running_mean": np.zeros(4), "running_variance": np.ones(4), "count": np.array([7.0])}
    write_operator(writer, 2, BatchNorm(statistics="cma"), "norm", ("x",), ((2, 4),), "y", values)
    assert writer.settings == {2: {"statistics": "cma", "count": 7.0}}


def test_an_operator_without_a_writer_is_a_fault() -> None:
    """Also one that is derived from an operator that has one."""

    @configuration
    class Own(ReLU):
        """Computes something else."""

    writer = Writer()
    write_operator(writer, 0, Own(), "it", ("x",), ((2, 4),), "y", {})
    assert writer.faults == ["node 'it' (Own): ONNX has no such operator"]
    assert writer.nodes == []


def test_one_function_writes_several_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "WRITERS", {})
    shapes = []

    @writes(Noop, ReLU)
    def write(operator: WrittenOperator) -> None:
        shapes.append(operator.shape)

    for kernel in (Noop(), ReLU()):
        write_operator(Writer(), 0, kernel, "it", ("x",), ((2, 4),), "y", {})
    assert {Noop: write, ReLU: write} == table.WRITERS
    assert shapes == [(2, 4), (2, 4)]


def test_writers_are_functions_of_their_own() -> None:
    assert len(set(WRITERS.values())) == len(WRITERS)
