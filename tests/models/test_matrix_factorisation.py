from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from crossbow import ConfigurationError, ExecutionContext, ModelConf, Predictor, SolverConf, SystemConf, TaskError, cli
from crossbow.onnx import save
from models.matrix_factorisation import LARGEST, NOISE, SCRIPT, main, matrix_factorisation, ratings
from tests.data.hand_made_files import write_source
from tests.models.zoo import help_of, parameters, shapes
from tests.onnx.models import run_onnx


def test_number_of_parameters() -> None:
    assert parameters(matrix_factorisation(), (4096, 2)) == 100_000
    assert parameters(matrix_factorisation(30, 20, rank=4), (8, 2)) == 200


def test_shapes() -> None:
    assert shapes(matrix_factorisation(), (4096, 2))["factorisation"] == (1,)


def test_wrong_sizes() -> None:
    with pytest.raises(ConfigurationError, match=r"rows must be .*Received: rows=0"):
        matrix_factorisation(0)


def test_ratings_are_products_of_vectors() -> None:
    """The table of all ratings has rank 10, up to the noise; the mean is about 10 · (1.1 / 2)²."""
    data = ratings(20, 30, rank=10, training=4000, check=100)
    assert data.check is not None
    users, items = np.asarray(data.train.images).T
    assert (users.min(), users.max(), items.min(), items.max()) == (0, 19, 0, 29)
    labels = np.asarray(data.train.labels)
    assert labels.mean() == pytest.approx(10 * (LARGEST / 2) ** 2, rel=0.25)
    table = np.zeros((20, 30))
    count = np.zeros((20, 30))
    np.add.at(table, (users.astype(int), items.astype(int)), labels)
    np.add.at(count, (users.astype(int), items.astype(int)), 1)
    values = np.linalg.svd(table / np.maximum(count, 1))[1]
    assert values[10] < 10 * NOISE < values[0]
    again = ratings(20, 30, rank=10, training=4000, check=100)
    np.testing.assert_array_equal(np.asarray(again.train.labels), labels)


def trained(epochs: int) -> tuple[list[float], Any, float]:
    """The losses of all epochs, the last test, and the mean squared error of the predictions for the check set."""
    data = ratings(20, 30, rank=3, training=2000, check=500)
    with ExecutionContext(
        [matrix_factorisation(20, 30, rank=3, regularisation=0.001), None],
        data=data,
        model=ModelConf(batch_size=50),
        solver=SolverConf(learning_rate=0.005),
        system=SystemConf(learners_per_device=2, threads_per_learner=1),
    ) as context:
        history = context.train_and_test(epochs)
        predicted = context.predict(data.check.images)
        error = float(np.mean((predicted - data.check.labels) ** 2))
        return [record.loss for record in history.records], history.records[-1].test, error


def test_it_learns() -> None:
    losses, test, error = trained(20)
    assert losses[-1] < 0.2 * losses[0]
    assert test.accuracy is None
    assert test.loss / test.examples < 0.1
    assert 0.8 * NOISE**2 < error < test.loss / test.examples  # the loss has the penalty of the vectors, too


def test_ratings_are_predicted_by_all_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the context, the saved model, the command line, and onnxruntime."""
    data = ratings(20, 30, rank=3, training=100, check=50)
    pairs = np.array([[0, 0], [19, 29], [7, 3]], np.float32)
    with ExecutionContext(
        [matrix_factorisation(20, 30, rank=3), None], data=data, model=ModelConf(batch_size=50)
    ) as context:
        context.train(2)
        predicted = context.predict(pairs)
        users, items = (context.variables[f"factorisation.{name}"] for name in ("users", "items"))
        context.save(tmp_path / "model.safetensors")
        save(context, tmp_path / "network.onnx")
    np.testing.assert_allclose(predicted, [users[int(u)] @ items[int(v)] for u, v in pairs], rtol=1e-6)
    with Predictor.load(tmp_path / "model.safetensors") as predictor:
        np.testing.assert_array_equal(predictor(pairs), predicted)
        with pytest.raises(TaskError, match=r"19 for every user\. Received: 20, in example 0"):
            predictor(np.array([[20, 0]], np.float32))
    np.testing.assert_allclose(run_onnx(onnx.load(tmp_path / "network.onnx"), input=pairs), predicted, rtol=1e-6)
    np.save(tmp_path / "pairs.npy", pairs)
    capsys.readouterr()
    assert cli.main(["predict", str(tmp_path / "model.safetensors"), str(tmp_path / "pairs.npy"), "--json"]) == 0
    found = [row["output"] for row in json.loads(capsys.readouterr().out)]
    np.testing.assert_allclose(found, predicted, rtol=1e-6)


def test_synthetic_data_of_the_options() -> None:
    data = SCRIPT.synthetic_data(["--users", "9"], training=2000, check=5)
    assert data.check is not None
    assert (len(data.train), len(data.check), data.image_shape) == (2000, 5, (2,))
    assert np.asarray(data.train.images)[:, 0].max() == 8
    assert SCRIPT.dataflow(["--users", "9"]).parameters((1, 2)) == (9 + 5000) * 10


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in (
        "Without options: synthetic ratings",
        "(default: 4096)",
        "(default: 0.0001 with sgd",
        "(default: 2,609,152)",
    ):
        assert part in text
    for option in ("--image-shape", "--classes"):
        assert option not in text


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--users 40 --items 50 --dataset synthetic --training-examples 512 --test-examples 64 --batch-size 64"
    assert main([*arguments.split(), "--epochs", "2", "--learners", "1", "--output-directory", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "matrix_factorisation (40×50, rank 10), 900 parameters" in out
    assert "512 training and 64 test examples of shape 2" in out
    assert "accuracy" not in out


@pytest.mark.slow
def test_ratings_are_read_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """User and item as integers, as the original's encoder writes them, and ratings as numbers."""
    pairs = np.array([[0, 1], [2, 0], [1, 1], [2, 2]], np.int32)
    write_ratings(tmp_path, pairs, np.array([1.0, 2.5, 4.0, 3.0], np.float32))
    arguments = f"--users 3 --items 3 --dataset batch_files --data-directory {tmp_path} --batch-size 2 --epochs 2"
    assert main([*arguments.split(), "--learners", "1", "--output-directory", str(tmp_path / "out")]) == 0
    assert "batch_files, 4 training and 4 test examples of shape 2" in capsys.readouterr().out


def test_a_wrong_index_is_named_by_file_and_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = np.array([[0, 1], [2, 0], [3, 1], [2, 2]], np.int32)
    write_ratings(tmp_path, pairs, np.array([1.0, 2.5, 4.0, 3.0], np.float32))
    arguments = f"--users 3 --items 3 --dataset batch_files --data-directory {tmp_path} --batch-size 2 --epochs 1"
    assert main([*arguments.split(), "--learners", "1", "--output-directory", str(tmp_path / "out")]) == 2
    expected = "expected a whole number from 0 to 2 for every user. Received: 3, in example "
    error = capsys.readouterr().err
    assert expected in error
    assert f"of the batch ({tmp_path}/ratings-train.metadata: example 2)\n" in error


def test_classes_are_no_ratings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = np.array([[0, 1], [2, 0]], np.int32)
    write_ratings(tmp_path, pairs, np.array([1, 2], np.int32))
    arguments = f"--dataset batch_files --data-directory {tmp_path} --output-directory {tmp_path / 'out'}"
    assert main(arguments.split()) == 2
    assert "ratings-train.metadata: expected labels of type float. Received: int" in capsys.readouterr().err


def write_ratings(directory: Path, pairs: Any, labels: Any) -> None:
    for name in ("ratings-train", "ratings-test"):
        write_source(directory, name, Ratings(pairs, labels), 2)


class Ratings:
    """A source of batch-aligned files."""

    example_shape, example_type, label_shape = (2,), "int", (1,)

    def __init__(self, pairs: Any, labels: Any) -> None:
        self.pairs, self.labels = pairs, labels
        self.label_type = "float" if labels.dtype.kind == "f" else "int"

    def __len__(self) -> int:
        return len(self.pairs)

    def slice(self, start: int, stop: int) -> tuple[Any, Any]:
        return self.pairs[start:stop], self.labels[start:stop, np.newaxis]
