"""Models as commands find them: in the directory of a run, with the record of its data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from crossbow import Dataset
from crossbow.data import synthetic
from crossbow.ops import DataTransform, InnerProduct
from crossbow.runtime.results import TestResult
from tests.support import context, training

SHAPE = (3, 8, 8)
NAMES = ("cat", "dog", "owl")
TRAINED_ON = {"name": "synthetic", "directory": None, "training_examples": 60, "check_examples": 30}
"""As scripts write it, without digests."""


def data(training: int = 60, check: int = 30) -> Dataset:
    found = synthetic(SHAPE, 3, training=training, check=check)
    found.class_names = NAMES
    return found


def run(directory: Path, *, record: dict[str, Any] | None = None, **more: Any) -> TestResult:
    """Write the directory of a run. Returns the result of its test."""
    network = training(DataTransform(mean=0.5, scale=2.0), InnerProduct(number_of_outputs=3))
    with context(network, data=data(), **more) as running:
        running.train(2)
        running.save(directory / "model.safetensors")
        if record is not None:
            (directory / "run.json").write_text(json.dumps({"data": record}), "utf-8")
        np.save(directory / "images.npy", running.data.train.images[:5])
        np.save(directory / "predictions.npy", running.predict(running.data.train.images[:5]))
        return running.test()
