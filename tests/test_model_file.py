"""Files of models: what they carry, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from crossbow import DataError, DataflowNode, Operator, Phase, Predictor, SubGraph
from crossbow.dataflow import Dataflow
from crossbow.model_file import ModelSettings, model_path, read_model, read_variables, write_model
from crossbow.ops import DataTransform, Dropout, InnerProduct, ReLU, SoftMax, SoftMaxLoss
from tests.support import Probe, context, perceptron, pictures, same_weights, training


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A saved model of a small network on pictures, with names of classes."""
    data = pictures()
    data.class_names = ("top", "middle", "bottom")
    dataflow = training(DataTransform(mean=0.5, scale=2.0, padding=1), InnerProduct(number_of_outputs=3))
    with context(dataflow, data=data, check_batch_size=7) as running:
        running.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def edited(path: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """The file with other metadata: `edit` changes the model's JSON, or returns another text."""
    with safetensors.safe_open(path, framework="np") as file:
        metadata = file.metadata()
    model = json.loads(metadata["model"])
    text = edit(model)
    metadata["model"] = text if isinstance(text, str) else json.dumps(model)
    path.write_bytes(safetensors.numpy.save(safetensors.numpy.load_file(path), metadata=metadata))
    return path


def test_what_a_file_carries(path: Path) -> None:
    file = read_model(path)
    assert file.settings == ModelSettings(
        image_shape=(1, 8, 8),
        image_dtype=np.dtype(np.uint8),
        scale=1 / 255,
        number_of_classes=3,
        class_names=("top", "middle", "bottom"),
        batch_size=4,
        check_batch_size=7,
        kernels="reference",
        precision="float32",
        winograd=True,
        threads_per_learner=1,
    )
    training, check = file.dataflows()
    assert check is None
    assert training.phase is Phase.TRAIN
    assert [node.operator.name for node in training.subgraph.nodes][:2] == ["DataTransform0", "InnerProduct1"]
    head, second, *_ = (node.operator for node in training.subgraph.nodes)
    assert head.kernel == DataTransform(mean=0.5, scale=2.0, padding=1)
    values = file.by_operator(training)
    np.testing.assert_array_equal(values[id(second), "weights"], file.variables["InnerProduct1.weights"])


def test_equal_models_are_equal_files(path: Path) -> None:
    """Metadata from a library would be in random order: ten files, so that equal ones by chance are rare."""
    file = read_model(path)
    training, check = file.dataflows()
    whole = {path.read_bytes()}
    for number in range(10):
        again = path.with_name(f"{number}.safetensors")
        write_model(again, file.variables, training, check, file.settings)
        whole.add(again.read_bytes())
    assert len(whole) == 1


def test_other_programs_read_the_variables(path: Path) -> None:
    """It is a usual safetensors file."""
    tensors = safetensors.numpy.load_file(path)
    assert {name: value.shape for name, value in tensors.items()} == {
        "InnerProduct1.weights": (3, 64),
        "InnerProduct1.bias": (3,),
    }


def test_names_with_dots(tmp_path: Path) -> None:
    a, b = (DataflowNode(Operator(name, InnerProduct(number_of_outputs=3))) for name in ("a", "a.weights"))
    a.connect_to(b).connect_to(DataflowNode(Operator("s", SoftMax()))).connect_to(
        DataflowNode(Operator("l", SoftMaxLoss()))
    )
    with context(Dataflow(SubGraph(a))) as running:
        running.save(tmp_path / "m")
        images = running.data.train.images[:5]
        with Predictor.load(tmp_path / "m") as predictor:
            np.testing.assert_array_equal(predictor(images), running.predict(images))


def test_a_check_dataflow_of_its_own(tmp_path: Path) -> None:
    """Its operators are those of the training dataflow where they are shared, and its prediction is the file's."""
    dataflow = training(InnerProduct(number_of_outputs=3), ReLU(), Dropout())
    product = dataflow.subgraph.head.operator
    head = DataflowNode(product)
    head.connect_to(DataflowNode(Operator("softmax", SoftMax()))).connect_to(
        DataflowNode(Operator("loss", SoftMaxLoss()))
    )
    check = Dataflow(SubGraph(head)).set_phase(Phase.CHECK)
    with context(dataflow, check=check) as running:
        running.train(1)
        running.save(tmp_path / "m")
        images = running.data.train.images[:9]
        with Predictor.load(tmp_path / "m") as predictor:
            np.testing.assert_array_equal(predictor(images), running.predict(images))
        assert (running.predict(images) > 0).all()


# Files without a graph


def test_a_file_of_an_old_version(tmp_path: Path) -> None:
    """A context reads it; a predictor says what it lacks."""
    path = tmp_path / "old.safetensors"
    with context() as running:
        variables = running.variables
        path.write_bytes(safetensors.numpy.save(variables, metadata={"format": "crossbow"}))
        running.train(1)
        running.load(path)
        assert same_weights(running.variables, variables)
    with pytest.raises(DataError, match=r"expected a model with its graph, .*\. Received: one without a graph, of an"):
        read_model(path)


def test_a_graph_without_a_description(tmp_path: Path) -> None:
    """The variables are saved nevertheless, and the file tells why there is no graph."""
    path = tmp_path / "m"
    with context(perceptron(Probe(action=lambda *arguments: None))) as running:
        running.save(path)
        running.load(path)
        assert same_weights(read_variables(path), running.variables)
    expected = (
        r"had no description: operator 'Probe1', field 'action' of Probe: expected a number, .* Received: <function"
    )
    with pytest.raises(DataError, match=expected):
        read_model(path)


# Directories of runs


def test_the_best_model_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected the directory of a run, with best.safetensors or .*neither$"):
        model_path(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert model_path(tmp_path) == tmp_path / "model.safetensors"
    (tmp_path / "best.safetensors").write_bytes(b"")
    assert model_path(str(tmp_path)) == tmp_path / "best.safetensors"
    assert model_path(tmp_path / "x") == tmp_path / "x"


# Damage


def refused(path: Path, expected: str) -> None:
    """Both ways of reading end with one sentence that names the file; a context does not change."""
    with pytest.raises(DataError, match=expected) as error:
        Predictor.load(path)
    assert str(error.value).startswith(f"{path}: expected ")
    assert "\n" not in str(error.value)


def test_a_newer_version(path: Path) -> None:
    edited(path, lambda model: model.update(version=2))
    refused(path, r"expected a model of version 1 or older\. Received: version 2, of a newer Crossbow$")
    with context() as running, pytest.raises(DataError, match="version 1 or older"):
        running.load(path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda model: "no JSON",
        lambda model: "[" * 100_000,
        lambda model: "[]",
        lambda model: model.update(version="1"),
        lambda model: model.pop("version"),
        lambda model: model.pop("settings"),
        lambda model: model.pop("graph"),
        lambda model: model.update(settings=3),
        lambda model: model["settings"].pop("scale"),
        lambda model: model["settings"].update(image_shape="8"),
        lambda model: model["settings"].update(image_shape=[1, 0]),
        lambda model: model["settings"].update(image_dtype="complex64"),
        lambda model: model["settings"].update(image_dtype="night"),
        lambda model: model["settings"].update(scale=None),
        lambda model: model["settings"].update(image_shape=[2.0, 3]),
        lambda model: model["settings"].update(image_shape=[0, 3]),
        lambda model: model["settings"].update(image_shape=[]),
        lambda model: model["settings"].update(number_of_classes=2.0),
        lambda model: model["settings"].update(class_names=3),
        lambda model: model["settings"].update(check_batch_size="many"),
        lambda model: model["settings"].update(kernels="none"),
        lambda model: model["settings"].update(winograd=3),
        lambda model: model["settings"].update(threads_per_learner="x"),
        lambda model: model.update(graph=[]),
        lambda model: model["graph"].update(graphs=[]),
    ],
)
def test_damaged_metadata(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    refused(edited(path, edit), "Received: ")


@pytest.mark.parametrize("length", [0, 7, 100, 700, -1])
def test_truncated_files(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])
    refused(path, r"expected a saved model \(safetensors\)\. Received: ")


def test_other_files(path: Path, tmp_path: Path) -> None:
    refused(tmp_path / "none", r"expected a saved model\. Received: no such file$")
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes(safetensors.numpy.save({"weight": np.zeros(3, np.float32)}))
    refused(foreign, "expected a model with its graph, as ExecutionContext.save writes")
    foreign.write_bytes(b"\x89PNG\r\n\x1a\n" * 10)
    refused(foreign, "expected a saved model")


def test_variables_that_do_not_fit(path: Path) -> None:
    """Missing, of another shape, or not finite."""
    with safetensors.safe_open(path, framework="np") as file:
        metadata = file.metadata()
    tensors = safetensors.numpy.load_file(path)
    for changes, expected in (
        ({"InnerProduct1.bias": None}, r"InnerProduct1.bias: expected \(3,\)\. Received: nothing"),
        ({"InnerProduct1.bias": np.zeros(4, np.float32)}, r"InnerProduct1.bias: expected \(3,\)\. Received: \(4,\)"),
        ({"InnerProduct1.bias": np.full(3, np.nan, np.float32)}, "expected finite numbers"),
        ({"InnerProduct1.bias": np.zeros(3, np.int32)}, "expected floating point"),
    ):
        changed = {name: value for name, value in {**tensors, **changes}.items() if value is not None}
        path.write_bytes(safetensors.numpy.save(changed, metadata=metadata))
        with pytest.raises(DataError, match=expected):
            Predictor.load(path)
