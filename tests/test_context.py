"""What a user holds: every way of training, testing, predicting, saving and loading."""

from __future__ import annotations

import itertools
import json
import os
import re
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from crossbow import (
    SMA,
    SSGD,
    ConfigurationError,
    CrossbowError,
    DataError,
    Dataflow,
    DataflowNode,
    Dataset,
    ExecutionContext,
    GraphError,
    ModelConf,
    Monitor,
    Operator,
    Phase,
    SolverConf,
    SubGraph,
    SystemConf,
    TrainingUnit,
)
from crossbow.conf import configuration
from crossbow.data import examples, sequence
from crossbow.ops import (
    Accuracy,
    BatchNorm,
    Constant,
    Conv,
    ConvGradient,
    Dropout,
    EuclideanLoss,
    Gaussian,
    GradientDescentOptimiser,
    Initialiser,
    InnerProduct,
    InnerProductGradient,
    Kernel,
    Pool,
    PoolGradient,
    ReLU,
    ReLUGradient,
    SoftMax,
    SoftMaxLoss,
    SoftMaxLossGradient,
    Values,
    VariableSpec,
)
from crossbow.types import Shape
from tests.combinations import pairwise
from tests.support import (
    KERNELS,
    CheckProbe,
    Probe,
    blobs,
    chain,
    context,
    dawdle,
    perceptron,
    pictures,
    same_weights,
    training,
)

DATA = blobs()


# The seed's first program


def first_program(use: Callable[[ExecutionContext], Any], **system: Any) -> Any:
    from crossbow.data import digits

    inner_product = DataflowNode(
        Operator(
            "InnerProduct",
            InnerProduct(number_of_outputs=10, weight_initialiser=Gaussian(std=0.1), bias_initialiser=Constant(1.0)),
        )
    )
    softmax = DataflowNode(Operator("SoftMax", SoftMax()))
    loss = DataflowNode(Operator("SoftMaxLoss", SoftMaxLoss()))
    inner_product.connect_to(softmax).connect_to(loss)

    dataflow = Dataflow(SubGraph(inner_product)).set_phase(Phase.TRAIN)
    with ExecutionContext(
        [dataflow, None],
        data=digits(),
        model=ModelConf(batch_size=8),
        solver=SolverConf(learning_rate=0.1),
        system=SystemConf(devices="cpu", learners_per_device="auto", **system),
    ) as context:
        return use(context)


@KERNELS
def test_the_first_program(kernels: str) -> None:
    def use(context: ExecutionContext) -> Any:
        context.train(1, TrainingUnit.EPOCHS)
        return context.test()

    result = first_program(use, kernels=kernels)
    assert result.examples == 296
    assert result.accuracy > 0.85


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        lambda context: context.train_and_test(1),
        lambda context: context.train_for_duration(0.5),
        lambda context: context.train_until_condition(1.0, 20),
    ],
    ids=["train_and_test", "train_for_duration", "train_until_condition"],
)
def test_the_first_program_in_its_other_forms(use: Callable[[ExecutionContext], Any]) -> None:
    history = first_program(use)
    assert history.records[-1].tasks > 0
    assert history.loss < 3


PROGRAM = """
from crossbow import Dataflow, DataflowNode, ExecutionContext, Operator, Phase, SubGraph, TrainingUnit
from crossbow import Constant, Gaussian, ModelConf, SolverConf, SystemConf
from crossbow.ops import Accuracy, InnerProduct, SoftMax, SoftMaxLoss
from crossbow.data import digits

inner_product = DataflowNode(Operator("InnerProduct", InnerProduct(
    number_of_outputs=10, weight_initialiser=Gaussian(std=0.1), bias_initialiser=Constant(1.0))))
softmax = DataflowNode(Operator("SoftMax", SoftMax()))
loss = DataflowNode(Operator("SoftMaxLoss", SoftMaxLoss()))
inner_product.connect_to(softmax).connect_to(loss)

dataflow = Dataflow(SubGraph(inner_product)).set_phase(Phase.TRAIN)
with ExecutionContext([dataflow, None], data=digits(), model=ModelConf(batch_size=8), solver=SolverConf(learning_rate=0.1),
                      system=SystemConf(devices="cpu", learners_per_device="auto")) as context:
    context.train(1, TrainingUnit.EPOCHS)
"""  # noqa: E501
"""Word for word the design's."""


def test_the_first_program_word_for_word() -> None:
    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    assert names["context"].engine.tasks >= 1501 / 8


# Training: the ways are in tests/runtime/test_run.py; here that each learns.


@pairwise
@KERNELS
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("rule", [None, SMA(alpha=0.2, tau=2, base_momentum=0.3), SSGD()], ids=str)
def test_a_convolutional_network_learns(rule: Any, devices: str, kernels: str) -> None:
    network = training(
        Conv(number_of_outputs=6, kernel_size=3, padding=1),
        ReLU(),
        Pool(kernel_size=2),
        InnerProduct(number_of_outputs=12),
        ReLU(),
        Dropout(ratio=0.1),
        InnerProduct(number_of_outputs=3),
    )
    solver = SolverConf(learning_rate=0.1, momentum=0.5)
    data = pictures(examples=64, check=30)
    with context(network, data=data, devices=devices, kernels=kernels, rule=rule, solver=solver) as running:
        before = running.test()
        history = running.train_and_test(60, target_accuracy=1.0)
        assert history.stopped == "accuracy"
        assert running.test().loss < before.loss


@pairwise
@KERNELS
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("shape", [(12,), (3, 2, 2)])
def test_own_data(dtype: Any, shape: Shape, kernels: str) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (30, *shape)).astype(dtype)
    if dtype != np.uint8:
        images /= 255
    labels = (images.reshape(30, -1)[:, 0] > images.reshape(30, -1)[:, 1]).astype(np.int64)
    data = Dataset((images[:20], labels[:20]), (images[20:], labels[20:]))
    with context(perceptron(classes=2), data=data, kernels=kernels, solver=SolverConf(learning_rate=0.3)) as running:
        first = running.train(1).loss
        assert running.train(30).loss < first
        assert running.test().examples == 10
        assert running.predict(images[:7]).shape == (7, 2)


@KERNELS
def test_regression(kernels: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 4)).astype(np.float32)
    y = (x @ [[1.0], [2.0], [-1.0], [0.5]] + 3).astype(np.float32)
    nodes = chain(InnerProduct(number_of_outputs=1), EuclideanLoss())
    with context(
        Dataflow(SubGraph(nodes[0])), data=Dataset((x[:50], y[:50]), (x[50:], y[50:])), kernels=kernels
    ) as running:
        running.train(30)
        result = running.test()
        assert result.loss < 1e-3
        assert result.accuracy is None
        np.testing.assert_allclose(running.predict(x), y, atol=0.1)
        np.testing.assert_allclose(running.variables["InnerProduct0.bias"], [3], atol=0.1)


# Testing


def outputs(variables: Mapping[str, Any], x: Any) -> Any:
    """The perceptron's probabilities, by hand."""
    hidden = np.maximum(x @ variables["InnerProduct0.weights"].T + variables["InnerProduct0.bias"], 0)
    logits = hidden @ variables["InnerProduct2.weights"].T + variables["InnerProduct2.bias"]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


@pairwise
@KERNELS
@pytest.mark.parametrize("learners", [1, 2, 3])
@pytest.mark.parametrize("examples", [1, 2, 7, 13])
@pytest.mark.parametrize("batch", [1, 2, 5, 13, 100, None])
def test_every_example_counts_once(batch: int | None, examples: int, learners: int, kernels: str) -> None:
    data = blobs(check=examples)
    with context(data=data, check_batch_size=batch, learners=learners, kernels=kernels) as running:
        running.train(1)
        result = running.test()
        assert data.check is not None
        p = outputs(running.variables, data.check.images)
        assert result.examples == examples
        assert result.loss == pytest.approx(-np.log(p[np.arange(examples), data.check.labels]).mean(), abs=1e-5)
        assert result.accuracy == pytest.approx((p.argmax(axis=1) == data.check.labels).mean(), abs=1e-6)


@pairwise
@KERNELS
@pytest.mark.parametrize("with_accuracy", [True, False])
@pytest.mark.parametrize("normalisation", ["batch", "full", "valid", "none"])
def test_what_is_ignored_counts_nowhere(normalisation: str, with_accuracy: bool, kernels: str) -> None:
    """The result is that of the whole set, whatever its batches: some of these hold ignored examples only."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(20, 6)), generator.integers(0, 3, 20)
    y[:8] = y[::3] = -1
    nodes = chain(
        InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss(ignored_label=-1, normalisation=normalisation)
    )
    if with_accuracy:  # else one is attached
        nodes[1].connect_to(DataflowNode(Operator("accuracy", Accuracy(ignored_label=-1))))
    network, data = Dataflow(SubGraph(nodes[0])), Dataset((x, y), (x, y), ignored_label=-1)
    for batch in (1, 3, 7, 20):
        with context(network, data=data, check_batch_size=batch, kernels=kernels) as running:
            result, p = running.test(), running.predict(x)
        valid = y != -1
        normaliser = {"batch": 20, "full": 20, "valid": valid.sum(), "none": 1}[normalisation]
        assert result.loss == pytest.approx(-np.log(p[valid, y[valid]]).sum() / normaliser, rel=1e-5)
        assert result.accuracy == pytest.approx((p.argmax(axis=1) == y)[valid].mean())
        assert result.examples == 20


def test_testing_leaves_no_trace() -> None:
    with context() as running:
        running.train(1)
        before = running.variables
        assert running.test() == running.test()
        assert same_weights(running.variables, before)


def test_dropout_is_for_training() -> None:
    with context(perceptron(Dropout(ratio=0.9))) as running:
        running.train(1)
        assert running.test() == running.test()
        # The names do not count the dropout, which is not in the check dataflow.
        variables = {name.replace("3", "2"): value for name, value in running.variables.items()}
        np.testing.assert_allclose(running.predict(DATA.train.images), outputs(variables, DATA.train.images), atol=1e-6)


def check_dataflow(nodes: Sequence[DataflowNode], *ends: Kernel) -> Dataflow:
    """A check dataflow that shares the operators of these nodes."""
    copies = [node.shallow_copy() for node in nodes]
    for before, after in itertools.pairwise(copies):
        before.connect_to(after)
    for end in ends:
        copies[-1].connect_to(DataflowNode(Operator(type(end).__name__, end)))
    return Dataflow(SubGraph(copies[0])).set_phase(Phase.CHECK)


def test_a_check_dataflow_of_ones_own() -> None:
    nodes = chain(InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    train = Dataflow(SubGraph(nodes[0]))
    check = check_dataflow(nodes[:2], SoftMaxLoss(), Accuracy(top_k=2))
    with context(train, check=check) as running, context(train) as plain:
        first, second = running.test(), plain.test()
        assert first.loss == second.loss
        assert first.accuracy is not None
        assert second.accuracy is not None
        assert first.accuracy >= second.accuracy
        assert running.describe_dataflows().split("\n\n")[1].count("arena+") == 4


def test_a_check_dataflow_without_a_loss() -> None:
    nodes = chain(InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    with context(Dataflow(SubGraph(nodes[0])), check=check_dataflow(nodes[:2], Accuracy())) as running:
        history = running.train_and_test(2)
        assert np.isnan(running.test().loss)
        assert 0 <= (running.test().accuracy or 0) <= 1
        assert len(history.tests) == 2
        assert history.best in history.tests


def test_a_check_dataflow_with_variables_of_its_own_is_refused() -> None:
    other = chain(InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    with pytest.raises(GraphError, match=r"expected an operator of the training dataflow \(connect a shallow_copy"):
        context(perceptron(), check=Dataflow(SubGraph(other[0])).set_phase(Phase.CHECK))


def test_no_check_set() -> None:
    with context(data=blobs(check=0)) as running:
        running.train(1)
        with pytest.raises(CrossbowError, match=r"no check set: give Dataset\(\(x_train, y_train\)"):
            running.test()
        assert running.predict(DATA.train.images).shape == (40, 3)


# Predicting


@pairwise
@KERNELS
@pytest.mark.parametrize("batch", [1, 4, 64])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 40])
def test_predictions_are_those_of_the_base_model(count: int, batch: int, kernels: str) -> None:
    with context(kernels=kernels, check_batch_size=batch) as running:
        for _ in range(2):  # also after z has moved to its other buffer
            running.train(2, TrainingUnit.TASKS)
            images = DATA.train.images[:count]
            received = running.predict(images)
            assert received.shape == (count, 3)
            assert received.dtype == np.float32
            np.testing.assert_allclose(received, outputs(running.variables, images), atol=1e-6)


def test_predictions_are_the_callers() -> None:
    """A result does not change with the next one."""
    with context() as running:
        first = running.predict(DATA.train.images[:2])
        kept = first.copy()
        running.predict(DATA.train.images[5:7])
        np.testing.assert_array_equal(first, kept)


@KERNELS
def test_predictions_of_pictures(kernels: str) -> None:
    data = pictures()
    network = training(Conv(number_of_outputs=4, kernel_size=3), Pool(kernel_size=2), InnerProduct(number_of_outputs=3))
    with context(network, data=data, kernels=kernels) as running:
        running.train(2)
        together = running.predict(data.train.images)
        one_by_one = np.concatenate([running.predict(image[None]) for image in data.train.images])
        np.testing.assert_allclose(together, one_by_one, atol=1e-6)
        np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("images", "text"),
    [
        (np.zeros((2, 5)), r"expected images of shape \(N, 6\). Received: \(2, 5\)"),
        (np.zeros(6), r"expected images of shape \(N, 6\). Received: \(6,\)"),
        (np.zeros((2, 6), np.uint8), "expected images of type float64. Received: uint8"),
        (np.zeros((2, 6), np.complex64), "expected images of type float64. Received: complex64"),
    ],
)
def test_images_that_do_not_fit(images: Any, text: str) -> None:
    with context() as running, pytest.raises(DataError, match=text):
        running.predict(images)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_images_that_are_too_large(dtype: Any) -> None:
    (x, y), large = (DATA.train.images.astype(dtype), DATA.train.labels), np.zeros((2, 6))
    large[1, 3] = -1e300
    expected = r"predict: expected numbers that float32 can hold. Received: 1e\+300"
    with context(data=Dataset((x, y))) as running, pytest.raises(DataError, match=expected):
        running.predict(large)
    with context(data=Dataset((x, y)), precision="float64") as running:
        large[1, 3] = 1e30
        assert np.isfinite(running.predict(large)).all()


def test_training_images_that_are_too_large() -> None:
    x = DATA.train.images.astype(np.float64)
    x[3, 1] = 1e300
    data = Dataset((x, DATA.train.labels))
    with pytest.raises(DataError, match=r"^x_train: expected numbers that float32 can hold\. Received: 1e\+300$"):
        context(data=data)
    context(data=data, precision="float64").close()


def test_examples_of_a_data_set_are_predicted_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "PIECE", 3 * DATA.train.images[0].nbytes)  # type: ignore[attr-defined]
    images = DATA.train.images  # type: ignore[attr-defined]
    pairs = sequence(list(zip(images, DATA.train.labels, strict=True))).train
    with context() as running:
        expected = running.predict(images)
        for given in (DATA.train, pairs, DATA.train[3:7]):
            chosen = expected[3:7] if len(given) == 4 else expected
            np.testing.assert_allclose(running.predict(given), chosen, atol=1e-6)
        for given in (DATA.train, pairs):
            assert running.predict(given[:0]).shape == (0, 3)
        other = Dataset((images[:, :-1], DATA.train.labels))
        with pytest.raises(DataError, match=r"^predict: expected images of shape \(N, "):
            running.predict(other.train)


def test_rows_of_different_lengths() -> None:
    with context() as running, pytest.raises(DataError, match=r"predict: expected an array of images\. Received: "):
        running.predict([[1.0, 2.0], [3.0]])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "duration", ["10", [1], 10**400, True, 0, -1, np.nan, np.inf, np.ones(2)], ids=lambda v: str(v)[:9]
)
def test_a_duration_that_is_none(duration: Any) -> None:
    with context() as running:
        with pytest.raises(ConfigurationError, match=r"duration must be a finite number > 0\. Received: duration="):
            running.train_for_duration(duration)
        assert running.train_for_duration(1e-3, count=1)


def test_training_without_an_end() -> None:
    with context() as running:
        for train in (running.train, running.train_for_duration, running.train_until_condition):
            with pytest.raises(ConfigurationError, match=r"expected a count, a duration or a target\. Received: none"):
                train(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_images_that_are_not_finite_are_refused(bad: float) -> None:
    """As `Dataset` refuses them, with the number of the first."""
    images = DATA.train.images[:5].astype(np.float64)
    with context() as running:
        before = running.predict(images)
        for where in ((3, 1), (2, 0)):
            images[where] = bad
        with pytest.raises(DataError, match=rf"predict: expected finite numbers\. Received: {bad} in example 2$"):
            running.predict(images)
        np.testing.assert_array_equal(running.predict(images[:2]), before[:2])
        assert running.predict(images[:0]).shape == (0, 3)


def test_predicting_takes_any_floating_point() -> None:
    with context() as running:
        images = DATA.train.images[:5]
        np.testing.assert_allclose(running.predict(images.astype(np.float32)), running.predict(images), atol=1e-6)
        np.testing.assert_allclose(running.predict(images.tolist()), running.predict(images), atol=1e-6)


# Saving and loading


@pairwise
@KERNELS
@pytest.mark.parametrize("rule", [SMA(base_momentum=0.5), SSGD()], ids=str)
@pytest.mark.parametrize("ticks", [2, 3])
def test_what_was_saved_is_loaded(ticks: int, rule: Any, kernels: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.safetensors"
    with context(rule=rule, kernels=kernels, seed=1) as running:
        running.train(2 * ticks, TrainingUnit.TASKS)
        expected, test, prediction = running.variables, running.test(), running.predict(DATA.train.images)
        running.save(path)
        running.train(3)
        assert not same_weights(running.variables, expected)
        running.load(path)
        assert same_weights(running.variables, expected)
        assert running.test() == test
        np.testing.assert_array_equal(running.predict(DATA.train.images), prediction)
    with context(rule=rule, kernels=kernels, seed=2, devices="cpu:0/2,cpu:1/2") as running:
        running.load(path)
        assert same_weights(running.variables, expected)
        assert running.test() == test
        running.train(1)
        assert not same_weights(running.variables, expected)
    assert list(tmp_path.rglob("*")) == [path.parent, path]


def test_loading_starts_every_learner_from_the_model(tmp_path: Path) -> None:
    """Nothing of the training before is left: two contexts that load the same go on in the same way."""
    solver = SolverConf(learning_rate=0.1, momentum=0.9)
    results = []
    for seed in (1, 2):
        with context(rule=SMA(base_momentum=0.5), solver=solver, data=blobs(4), learners=2) as running:
            if seed == 1:
                running.save(tmp_path / "model")
            running.train(2 + 2 * seed, TrainingUnit.TASKS)
            running.load(tmp_path / "model")
            assert running.engine.tick == 1 + seed
            for member in running.engine.members:
                assert not member.replica.velocity.any()
            losses = running.train(2, TrainingUnit.TASKS).loss
            results.append((losses, running.variables))
    # A batch is the whole set, so that both runs see the same whatever their tick.
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    for name, value in results[0][1].items():
        np.testing.assert_allclose(value, results[1][1][name], atol=1e-6)


def test_a_saved_model_is_a_file_like_others(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with context() as running:
        running.save(str(path))
        loaded = safetensors.numpy.load_file(path)
        assert same_weights(loaded, running.variables)
    if os.name == "posix":
        (tmp_path / "other").write_bytes(b"")
        assert path.stat().st_mode == (tmp_path / "other").stat().st_mode  # readable by whom the user lets read


def _with_bfloat16(variables: dict[str, Any], name: str) -> bytes:
    """The file of the variables, one of them in a type that NumPy has not by itself."""
    header, offset = {}, 0
    for key, value in variables.items():
        end = offset + (2 if key == name else 4) * value.size
        header[key] = {"dtype": "BF16" if key == name else "F32", "shape": value.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(offset)


def _numpy_knows(name: str) -> bool:
    """Another package, as onnx, may have taught it."""
    try:
        np.dtype(name)
    except TypeError:
        return False
    return True


def unloadable(path: Path, how: str) -> str:
    """Make a file that cannot be loaded; what the error says of it."""
    variables: dict[str, Any] = {
        "InnerProduct0.weights": np.ones((8, 6), np.float32),
        "InnerProduct0.bias": np.ones(8, np.float32),
        "InnerProduct2.weights": np.ones((3, 8), np.float32),
        "InnerProduct2.bias": np.ones(3, np.float32),
    }
    whole = safetensors.numpy.save(variables)
    if how == "missing":
        return "expected a saved model. Received: no such file"
    if how == "a folder":
        path.mkdir()
        return "expected the directory of a run, with best.safetensors or model.safetensors. Received: neither"
    contents = {
        "empty": b"",
        "a text": b"hello, world, this is no model at all",
        "its header torn": whole[:40],
        "its end torn": whole[:-1],
        "longer": whole + b"more",
        "of numbers that NumPy does not know": _with_bfloat16(variables, "InnerProduct2.bias"),
    }
    if how in contents:
        path.write_bytes(contents[how])
        if "know" in how and _numpy_knows("bfloat16"):
            return r"InnerProduct2.bias: expected floating point. Received: bfloat16"
        return r"expected a saved model \(safetensors\). Received: "
    if how == "another network's":
        variables["InnerProduct0.weights"] = np.ones((8, 5), np.float32)
        text = r"InnerProduct0.weights: expected \(8, 6\). Received: \(8, 5\)"
    elif how == "without a variable":
        del variables["InnerProduct2.bias"]
        text = r"InnerProduct2.bias: expected \(3,\). Received: nothing"
    elif how == "with one more":
        variables["more"] = np.ones(1, np.float32)
        text = r"more: expected no such variable. Received: \(1,\)"
    elif how in ("not a number", "too large"):
        value = {"not a number": np.nan, "too large": 1e300}[how]
        variables["InnerProduct2.bias"] = np.array([0, value, 0], np.float64)
        received = re.escape(f"{value:g}")
        text = f"InnerProduct2.bias: expected finite numbers that float32 can hold. Received: {received}"
    else:
        variables["InnerProduct2.bias"] = np.ones(3, np.int64)
        text = "InnerProduct2.bias: expected floating point. Received: int64"
    safetensors.numpy.save_file(variables, path)
    return f"does not fit the model: {text}"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("running_variance", -0.25, "numbers ≥ 0"),
        ("running_variance", np.inf, "finite numbers"),
        ("running_mean", np.nan, "finite numbers"),
        ("count", -1.0, "numbers ≥ 0"),
    ],
)
def test_statistics_that_are_none_are_not_loaded(name: str, value: float, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with context(perceptron(BatchNorm(statistics="cma"))) as running:
        before = running.variables
        spoilt = {key: array.copy() for key, array in before.items()}
        spoilt[f"BatchNorm1.{name}"][-1] = value
        safetensors.numpy.save_file(spoilt, path)
        text = f"BatchNorm1.{name}: expected {expected} that float32 can hold. Received: {value:g}"
        with pytest.raises(DataError, match=re.escape(text)):
            running.load(path)
        assert same_weights(running.variables, before)
    with pytest.raises(ConfigurationError, match=r"BatchNorm1.running_variance: .*finite, ≥ 0, .*Constant"):
        context(perceptron(BatchNorm(variance_initialiser=Constant(-1.0))))


@pytest.mark.parametrize(
    "how",
    [
        "missing",
        "a folder",
        "empty",
        "a text",
        "its header torn",
        "its end torn",
        "longer",
        "of numbers that NumPy does not know",
        "another network's",
        "without a variable",
        "with one more",
        "of another type",
        "not a number",
        "too large",
    ],
)
def test_a_file_that_cannot_be_loaded_changes_nothing(how: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    text = unloadable(path, how)
    with (
        context(solver=SolverConf(learning_rate=0.1, momentum=0.9)) as running,
        context(solver=SolverConf(learning_rate=0.1, momentum=0.9)) as untouched,
    ):
        running.train(1)
        untouched.train(1)
        with pytest.raises(DataError, match=rf"model.*{text}") as caught:
            running.load(path)
        assert str(path) in str(caught.value)
        running.train(1)
        untouched.train(1)
        assert same_weights(running.variables, untouched.variables)


def test_a_directory_is_not_written_over(tmp_path: Path) -> None:
    with context() as running, pytest.raises(DataError, match="expected the name of a file to write"):
        running.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_no_file_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with context() as running:
        with pytest.raises(DataError, match=r"file: expected a directory to write to\. Received: a file$"):
            running.save(tmp_path / "file" / "model")
        with pytest.raises(DataError, match=r"n{300}: expected to write this file\. Received: File name too long$"):
            running.save(tmp_path / ("n" * 300))
        with pytest.raises(DataError, match=r"expected to write this file\. Received: embedded null byte$"):
            running.save(f"{tmp_path}/a\0b")
        running.save(tmp_path / ("n" * 255))

        def refuse(*arguments: Any, **options: Any) -> Any:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "open", refuse)  # root may write everywhere
        with pytest.raises(DataError, match=r"model: expected to write this file\. Received: Permission denied$"):
            running.save(tmp_path / "model")


@pytest.mark.parametrize("path", [None, 123, b"model", ["model"], np.zeros(2)], ids=str)
def test_what_is_no_path(path: Any) -> None:
    with context() as running:
        with pytest.raises(TypeError, match=r"^save: expected a path, as a str or a pathlib\.Path\. Received: "):
            running.save(path)
        with pytest.raises(TypeError, match=r"^load: expected a path, as a str or a pathlib\.Path\. Received: "):
            running.load(path)


def test_loading_where_nothing_may_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    with context() as running:
        with pytest.raises(DataError, match=r"n{300}: expected a saved model .* Received: File name too long$"):
            running.load(tmp_path / ("n" * 300))
        monkeypatch.setattr(Path, "stat", refuse)  # root may read everything
        with pytest.raises(DataError, match=r"model: expected a saved model .* Received: Permission denied$"):
            running.load(tmp_path / "model")


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_a_save_that_fails_leaves_the_old_file(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    with context() as running:
        running.save(path)
        old = path.read_bytes()
        running.train(1)

        def fail(*arguments: Any, **options: Any) -> None:
            raise OSError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(os, broken, fail)
            with pytest.raises(DataError, match=r"model: expected to write this file\. Received: the disk is full$"):
                running.save(path)
        assert path.read_bytes() == old
        assert list(tmp_path.iterdir()) == [path]
        running.save(path)
        assert path.read_bytes() != old


def test_interrupting_a_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with context() as running:
        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            running.save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_variables_are_a_copy() -> None:
    with context() as running:
        for value in running.variables.values():
            value[...] = 0
        assert all(value.any() for name, value in running.variables.items() if name.endswith("weights"))


def test_a_model_of_another_precision(tmp_path: Path) -> None:
    with context(precision="float64") as running:
        running.save(tmp_path / "double")
        expected = running.test().loss
    with context(precision="float32", seed=5) as running:
        running.load(tmp_path / "double")
        assert running.test().loss == pytest.approx(expected, rel=1e-5)
        running.save(tmp_path / "single")
    with context(precision="float64", seed=5) as running:
        running.load(tmp_path / "single")
        assert running.test().loss == pytest.approx(expected, rel=1e-5)


# The context itself


def test_a_closed_context_says_so(tmp_path: Path) -> None:
    with context() as running:
        running.train(1)
    running.close()
    uses: list[Callable[[], Any]] = [
        lambda: running.train(1),
        lambda: running.train_and_test(1),
        lambda: running.test(),
        lambda: running.predict(DATA.train.images),
        lambda: running.variables,
        lambda: running.save(tmp_path / "model"),
        lambda: running.load(tmp_path / "model"),
    ]
    for use in uses:
        with pytest.raises(CrossbowError, match="the context is closed"):
            use()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model", "solver", "system", "data"])
def test_what_it_was_created_with_cannot_be_changed(name: str) -> None:
    with context() as running:
        before = getattr(running, name)
        with pytest.raises(AttributeError, match=rf"^ExecutionContext\.{name} cannot be changed; create another"):
            setattr(running, name, before)
        assert getattr(running, name) is before


def test_it_is_shown_in_a_line() -> None:
    with context(learners=1) as running:
        assert repr(running) == "ExecutionContext(cpu, 1 learner, SMA, epoch 0, open)"
        running.train(2)
    assert repr(running) == "ExecutionContext(cpu, 1 learner, SMA, epoch 2, closed)"


def test_a_context_need_not_be_a_with_statement() -> None:
    running = context()
    running.train(1)
    running.close()
    running.close()


def test_contexts_after_one_another() -> None:
    dataflow, results = perceptron(), []
    for _ in range(2):
        with context(dataflow) as running:
            running.train(2)
            results.append(running.variables)
    assert same_weights(*results)


@KERNELS
def test_contexts_at_the_same_time_on_the_same_dataflow(kernels: str) -> None:
    dataflow = perceptron()
    with context(dataflow, kernels=kernels) as alone:
        alone.train(3)
        expected = alone.variables
    with context(dataflow, kernels=kernels) as first, context(dataflow, kernels=kernels) as second:
        threads = [threading.Thread(target=running.train, args=(3,)) for running in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert same_weights(first.variables, expected)
        assert same_weights(second.variables, expected)
        first.train(1)
        assert same_weights(second.variables, expected)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dataflows": []}, r"expected the dataflows \[train, check\]"),
        ({"dataflows": 3}, r"expected the dataflows \[train, check\]"),
        ({"dataflows": [None, None]}, "expected a dataflow of Phase.TRAIN first. Received: None"),
        ({"dataflows": [perceptron().set_phase(Phase.CHECK), None]}, "expected a dataflow of Phase.TRAIN first"),
        ({"dataflows": [perceptron(), perceptron()]}, "expected a dataflow of Phase.CHECK second, or None"),
        ({"data": None}, "data must be a Dataset. Received: None"),
        ({"data": (1, 2)}, r"data must be a Dataset. Received: \(1, 2\)"),
        (
            {"data": (np.zeros((4, 6)), np.zeros(4))},
            r"Received: \(an array of shape \(4, 6\), float64, an array of shape \(4,\), float64\)$",
        ),
        ({"monitors": ["x"]}, "monitors must be of crossbow.Monitor. Received: 'x' among them"),
        ({"monitors": [Monitor]}, "monitors must be of crossbow.Monitor. Received: <class .* among them"),
        ({"monitors": Monitor()}, "monitors must be a list of crossbow.Monitor. Received: <"),
        ({"model": SolverConf()}, "model must be a ModelConf. Received: SolverConf"),
        ({"solver": 0.1}, "solver must be a SolverConf. Received: 0.1"),
        ({"system": "cpu"}, "system must be a SystemConf. Received: 'cpu'"),
        ({"model": ModelConf(batch_size=41)}, "batch_size must be at most the number of training examples, 40"),
        ({"system": SystemConf(devices="cpu,cuda:0")}, "devices must all be of one kind"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        ExecutionContext(**{"dataflows": [perceptron(), None], "data": DATA, **arguments})


@pytest.mark.parametrize("initialiser", [Gaussian(std=3e38), Values(np.full((8, 6), 1e300))], ids=str)
def test_initial_values_that_are_too_large(initialiser: Initialiser) -> None:
    network = training(InnerProduct(number_of_outputs=8, weight_initialiser=initialiser))
    before = threading.active_count()
    expected = (
        r"InnerProduct0\.weights: expected initial values that are finite, and that float32 can hold\. Received: "
    )
    with pytest.raises(ConfigurationError, match=expected + r"those of (Gaussian|Values)\("):
        context(network, data=blobs(classes=8))
    assert threading.active_count() == before
    with context(network, data=blobs(classes=8), precision="float64"):
        pass


def test_threads_that_predict_at_once_take_turns() -> None:
    images = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
    received: list[tuple[int, Any]] = []
    with context() as running:
        expected = running.predict(images)

        def work(start: int) -> None:
            received.extend((start, running.predict(images[start : start + 7])) for _ in range(20))

        threads = [threading.Thread(target=work, args=(start,)) for start in (0, 10, 20, 30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(received) == 80
    assert all(np.allclose(result, expected[start : start + 7], atol=1e-6) for start, result in received)


def test_what_is_used_after_another_thread_has_closed_it_is_refused() -> None:
    with context() as running:
        engine, images = running.engine, running.data.train.images
    with pytest.raises(CrossbowError, match="the context was closed"):
        engine.predict(images)


def test_a_graph_with_faults_leaves_no_thread() -> None:
    network = training(InnerProduct(number_of_outputs=2))  # the labels are 0, 1 and 2
    before = threading.active_count()
    with pytest.raises(GraphError, match=r"node 'SoftMaxLoss2'.*expected class labels of shape \(4,\), from 0 to 1"):
        context(network)
    assert threading.active_count() == before


def test_a_fault_of_the_check_dataflow_leaves_no_thread() -> None:
    nodes = chain(InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    check = check_dataflow(nodes[:1], EuclideanLoss())
    before = threading.active_count()
    with pytest.raises(GraphError, match="EuclideanLoss"):
        context(Dataflow(SubGraph(nodes[0])), check=check)
    assert threading.active_count() == before


def test_describing_a_dataflow_that_was_compiled() -> None:
    dataflow = perceptron()
    with context(dataflow) as running:
        table = running.describe_dataflows()
    assert "InnerProduct0.gradient" in table
    assert "4×8" in table
    assert "arena+" in table
    assert "arena+" not in dataflow.describe((4, 6))


# Operators from outside, gradients wired by hand


@configuration
class Affine(Kernel):
    """y = x · scale + shift, one of each for every feature: an operator as a user writes it."""

    scale_initialiser: Initialiser = Constant(1.0)

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        shape = inputs[0][1:]
        return VariableSpec("scale", shape, self.scale_initialiser), VariableSpec("shift", shape, Constant(0.0))

    def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
        return inputs[0] * variables["scale"] + variables["shift"]

    def backward(
        self, xp: ModuleType, inputs: Sequence[Any], output: Any, variables: Mapping[str, Any], output_gradient: Any
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        (x,) = inputs
        gradients = {"scale": (x * output_gradient).sum(axis=0), "shift": output_gradient.sum(axis=0)}
        return [output_gradient * variables["scale"]], gradients


@KERNELS
def test_an_operator_from_outside_trains(kernels: str) -> None:
    network = training(Affine(), InnerProduct(number_of_outputs=3), Affine())
    with context(network, kernels=kernels) as running:
        before = running.variables
        losses = [record.loss for record in running.train(10).records]
        assert losses[-1] < losses[0] / 2
        after = running.variables
        assert sum(name.startswith("Affine") for name in after) == 4
        assert all(not np.array_equal(before[name], after[name]) for name in after)
        assert (running.test().accuracy or 0) > 0.5
        assert running.predict(DATA.train.images).shape == (40, 3)


def test_an_operator_from_outside_steps_as_one_from_inside() -> None:
    """An inner product and its bias, the bias as a user's operator: the same first step."""
    biases = []
    for network, name in (
        (training(InnerProduct(number_of_outputs=3)), "InnerProduct0.bias"),
        (training(InnerProduct(number_of_outputs=3, bias=False), Affine()), "Affine1.shift"),
    ):
        with context(network, precision="float64", rule=SSGD()) as running:
            running.train(2, TrainingUnit.TASKS)
            biases.append(running.variables[name])
    np.testing.assert_allclose(*biases, atol=1e-15)
    assert biases[0].all()


def wired_by_hand() -> Dataflow:
    """A small convolutional network with its gradients wired as in the original."""
    kernels = [
        Conv(number_of_outputs=4, kernel_size=3),
        ReLU(),
        Pool(kernel_size=2),
        InnerProduct(number_of_outputs=3),
        SoftMax(),
        SoftMaxLoss(),
    ]
    nodes = chain(*kernels)
    conv, relu, pool, inner_product, _, loss = nodes
    last = loss
    updates = []
    for node, gradient in (
        (loss, SoftMaxLossGradient()),
        (inner_product, InnerProductGradient()),
        (pool, PoolGradient()),
        (relu, ReLUGradient()),
        (conv, ConvGradient()),
    ):
        operator = Operator(f"{node.operator.name}.gradient", gradient).set_peer(node.operator)
        last = last.connect_to(DataflowNode(operator))
        if node in (conv, inner_product):
            updates.append(last)
    optimiser = DataflowNode(Operator("optimiser", GradientDescentOptimiser()))
    for update in updates:
        update.connect_to(optimiser)
    return Dataflow(SubGraph(nodes[0])).set_phase(Phase.TRAIN)


@pytest.mark.slow
@KERNELS
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_gradients_wired_by_hand_are_as_good_as_derived_ones(rule: Any, kernels: str) -> None:
    derived = training(
        Conv(number_of_outputs=4, kernel_size=3), ReLU(), Pool(kernel_size=2), InnerProduct(number_of_outputs=3)
    )
    by_hand = wired_by_hand()
    data, solver, results = pictures(), SolverConf(learning_rate=0.1, momentum=0.9, weight_decay=0.01), []
    for network in (derived, by_hand):
        with context(network, data=data, solver=solver, rule=rule, kernels=kernels) as running:
            running.train_and_test(3)
            results.append((running.variables, running.test()))
    assert same_weights(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_probes_are_identities() -> None:
    """What the other tests rest on."""
    with (
        context(perceptron()) as plain,
        context(perceptron(Probe(action=dawdle(0)), CheckProbe(action=dawdle(0)))) as probed,
    ):
        plain.train(1)
        probed.train(1)
        assert plain.test() == probed.test()


def test_a_saved_model_that_says_it_is_huge(tmp_path: Path) -> None:
    """What is read is that of the model alone: names and shapes are compared before."""
    path = tmp_path / "model"
    shapes = json.dumps({"huge": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    with context() as run:
        path.write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
        with pytest.raises(DataError, match=r"Received: a header of 1\.0 TB, more than 16\.7 MB"):
            run.load(path)
        path.write_bytes(len(shapes).to_bytes(8, "little") + shapes)
        with path.open("r+b") as file:
            file.truncate(8 + len(shapes) + 2**40)
        with pytest.raises(DataError, match=r"huge: expected no such variable\. Received: \(274877906944,\)"):
            run.load(path)


def test_variables_are_set_by_name() -> None:
    with context(learners=2) as running:
        before = running.variables
        weights = np.arange(24.0).reshape(3, 8)
        running.set_variables({"InnerProduct2.weights": weights, "InnerProduct2.bias": [1, 2, 3]})
        after = running.variables
        np.testing.assert_array_equal(after["InnerProduct2.weights"], weights)
        np.testing.assert_array_equal(after["InnerProduct2.bias"], [1, 2, 3])
        np.testing.assert_array_equal(after["InnerProduct0.weights"], before["InnerProduct0.weights"])
        running.set_variables({name: np.zeros_like(value) for name, value in after.items()})
        running.train(1, verbose=0)  # all learners begin there: without weights, only the last bias can move
        moved = {name for name, value in running.variables.items() if value.any()}
        assert moved == {"InnerProduct2.bias"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], r"set_variables: expected a dictionary of arrays by name\. Received: \[1\.0\]"),
        (
            {"InnerProduct1.bias": [0.0]},
            r"expected names of variables\. Received: 'InnerProduct1.bias'\. Did you",
        ),
        ({5: [0.0]}, r"expected names of variables\. Received: 5\. Names: InnerProduct0.weights, "),
        ({"InnerProduct2.bias": [0.0] * 4}, r"InnerProduct2.bias: expected \(3,\)\. Received: \(4,\)"),
        ({"InnerProduct2.bias": [0.0, float("nan"), 1.0]}, r"expected finite numbers .*Received: nan"),
        ({"InnerProduct2.bias": "zero"}, r"InnerProduct2.bias: expected \(3,\)\. Received: \(\)"),
        ({"InnerProduct2.bias": ["a", "b", "c"]}, r"InnerProduct2.bias: expected floating point\. Received: <U1"),
        ({"InnerProduct2.bias": [[1], [1, 2]]}, r"set_variables: InnerProduct2.bias: expected an array\. Received: "),
    ],
)
def test_what_cannot_be_set_changes_nothing(values: Any, message: str) -> None:
    with context() as running:
        before = running.variables
        with pytest.raises(DataError, match=message):
            running.set_variables(values)
        assert same_weights(running.variables, before)
