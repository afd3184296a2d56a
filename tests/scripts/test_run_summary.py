"""The summary of a trained model: operators, confusion matrix, worst examples."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from crossbow import Dataset, ExecutionContext, ModelConf, Sequential, SystemConf
from crossbow.data import image_folder, sequence
from crossbow.data.examples import ArrayExamples, BadExample, Selection
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss
from crossbow.png import png
from crossbow.scripts import run_summary
from crossbow.scripts.run_summary import confusion, errors, operators, worst, write_summary
from crossbow.types import Array
from models.lenet import lenet
from tests.support import blobs, context, perceptron


def test_operators_with_their_parameters() -> None:
    rows = operators(lenet("caffe"), (4, 1, 28, 28))
    assert rows[0] == {"name": "conv1", "type": "Conv", "output": "4×20×24×24", "parameters": 520}
    assert sum(row["parameters"] for row in rows) == 431_080


def test_confusion_counts_labels_in_rows() -> None:
    found = confusion(np.array([0, 2, 2, 2, 1]), np.array([0, 1, 2, 1, 1]), 4)
    assert found.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 2, 1, 0], [0, 0, 0, 0]]


def test_the_worst_are_the_most_certain_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_summary, "WORST", 2)
    images = np.arange(5 * 4, dtype=np.uint8).reshape(5, 1, 2, 2)
    labels = np.array([0, 1, 1, 0, 0])
    outputs = np.array([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.3, 0.7], [0.1, 0.9]])
    found = worst(images.__getitem__, labels, outputs, [0, 1, 2, 3])
    assert [(each["index"], each["label"], each["predicted"]) for each in found] == [(2, 1, 0), (3, 0, 1)]
    assert found[0]["outputs"] == [0.2, 0.8]
    assert base64.b64decode(found[0]["png"]) == png(images[2])
    as_numbers = worst(images.astype(np.float32).__getitem__, labels, outputs, [2])
    assert base64.b64decode(as_numbers[0]["png"]) == png(np.array([[[0, 85], [170, 255]]], np.uint8))
    assert "png" not in worst(images.reshape(5, 4).__getitem__, labels, outputs, [2])[0]


def test_the_file_agrees_with_the_test(tmp_path: Path) -> None:
    data = blobs(40)
    with context(data=data) as running:
        running.train(1)
        write_summary(running, perceptron(), tmp_path / "summary.json")
        tested = running.test()
    summary = json.loads((tmp_path / "summary.json").read_text())
    matrix = np.array(summary["confusion"])
    assert matrix.sum() == tested.examples
    assert np.trace(matrix) / matrix.sum() == pytest.approx(tested.accuracy)
    assert len(summary["worst"]) == min(run_summary.WORST, matrix.sum() - np.trace(matrix))
    assert [row["type"] for row in summary["operators"]][-1] in ("SoftMaxLoss", "Accuracy")


def test_images_that_are_read_when_they_are_needed(tmp_path: Path) -> None:
    """Their errors are those of the same images in memory; an image that cannot be decoded leaves them out."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (20, 1, 4, 4), dtype=np.uint8)
    labels = generator.integers(0, 3, 20)
    network = Sequential(InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    arrays = Dataset((images, labels), (images, labels))
    pairs = list(zip(images, labels, strict=True))
    with ExecutionContext([network, None], data=arrays, model=ModelConf(batch_size=4)) as running:
        expected = errors(running, arrays)
        assert expected["worst"][0]["png"]
        assert errors(running, sequence(pairs, pairs)) == expected
        directory = tmp_path / "c"
        directory.mkdir()
        (directory / "damaged.png").write_bytes(png(images[0])[:40])
        (directory / "good.png").write_bytes(png(images[0]))
        damaged = image_folder(tmp_path, image_size=4, check_fraction=0)
        assert errors(running, Dataset(damaged.train, damaged.train)) == {}


class Damaged(ArrayExamples):
    """Example 5 cannot be decoded."""

    def write_images(self, selection: Selection, images: Array) -> None:
        if 5 in selection.indices:
            raise BadExample(5, "five", "expected an image. Received: nothing")
        super().write_images(selection, images)


def test_skipped_examples_are_left_out() -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (40, 1, 4, 4), dtype=np.uint8)
    labels = generator.integers(0, 3, 40).astype(np.int32)
    data = Dataset((images, labels), Damaged(images, labels))
    network = Sequential(InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    system = SystemConf(on_bad_record="skip", learners_per_device=1)
    with ExecutionContext([network, None], data=data, model=ModelConf(batch_size=4), system=system) as running:
        assert errors(running, data) == {}  # no test has found it yet
        assert running.test().examples == 39
        found = errors(running, data)
    assert np.sum(found["confusion"]) == 39
    assert len(found["worst"]) > 3
    for entry in found["worst"]:
        assert entry["label"] == labels[entry["index"]]
        assert base64.b64decode(entry["png"]) == png(images[entry["index"]])


def test_data_without_single_classes_and_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs(40)
    with context(data=data) as running:
        assert errors(running, Dataset((data.train.images, data.train.labels))) == {}  # type: ignore[attr-defined]
        monkeypatch.setattr(run_summary, "MOST_CLASSES", 1)
        assert "confusion" not in errors(running, data)
        monkeypatch.setattr(run_summary, "MOST_EXAMPLES", 1)
        assert errors(running, data) == {}
