"""Collected nodes become a checked model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import crossbow
from crossbow.onnx.network import ANY_BATCH
from crossbow.onnx.training_settings import read_settings
from crossbow.onnx.writing.model import OPSET, Writer, make_model
from crossbow.ops import ReLU
from tests.onnx.models import draw, node, run_onnx


def writer(*nodes: onnx.NodeProto) -> Writer:
    return Writer(nodes=list(nodes), initializers={"c": np.array([1.5, 2.5], np.float32)})


def test_a_model_of_any_batch_size() -> None:
    model = make_model(writer(node("Add", "x c", "y")), {"x": (ANY_BATCH, 2)}, {"y": (ANY_BATCH, 2)})
    for count in (1, 5):
        x = draw(count, 2)
        np.testing.assert_array_equal(run_onnx(model, x=x), x + np.array([1.5, 2.5], np.float32))
    dimensions = model.graph.input[0].type.tensor_type.shape.dim
    assert (dimensions[0].dim_param, dimensions[1].dim_value) == ("N", 2)
    assert (model.producer_name, model.producer_version) == ("crossbow", crossbow.__version__)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", OPSET)]
    assert len(model.metadata_props) == 0


def test_a_fixed_batch_size_stays_fixed() -> None:
    model = make_model(writer(node("Add", "x c", "y")), {"x": (3, 2)}, {"y": (3, 2)})
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 3


def test_settings_are_in_the_metadata() -> None:
    made = writer(node("Add", "x c", "y"))
    made.settings[3] = {"statistics": "cma", "count": 2.0}
    model = make_model(made, {"x": (3, 2)}, {"y": (3, 2)})
    assert read_settings(model) == {"3": {"statistics": "cma", "count": 2.0}}


@pytest.mark.parametrize(
    "broken",
    [node("Add", "x nothing", "y"), node("Nonsense", "x c", "y"), node("MatMul", "x c", "y")],
    ids=["an undefined name", "an unknown operator", "another shape"],
)
def test_a_model_that_is_wrong_is_not_returned(broken: onnx.NodeProto) -> None:
    with pytest.raises((onnx.checker.ValidationError, onnx.shape_inference.InferenceError)):
        make_model(writer(broken), {"x": (3, 2)}, {"y": (3, 2)})


def test_faults_name_node_and_operator() -> None:
    made = Writer()
    made.fault("it", ReLU(), "ONNX has no such operator")
    assert made.faults == ["node 'it' (ReLU): ONNX has no such operator"]
