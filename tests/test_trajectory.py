"""Promise 6: one learner without averaging is plain SGD as PyTorch computes it, step by step.

Every run is compared with the trajectory that `record_trajectory.py` recorded, and, where PyTorch is installed, with
PyTorch itself, weight by weight.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from crossbow import SSGD, Dataset, SolverConf, TrainingUnit
from models.lenet import lenet
from tests import record_trajectory as recording
from tests.support import FAST, context

Array = NDArray[Any]

LIVE = importlib.util.find_spec("torch") is not None or bool(os.environ.get("CROSSBOW_REQUIRE_TORCH"))
"""Whether PyTorch is run beside. Where it is required but not installed, its import fails, and so the test."""


def crossbow(kernels: str, precision: str, tmp_path: Path) -> Iterator[tuple[float, dict[str, Array]]]:
    """Our loss of each step, and the variables after it."""
    images, labels = recording.images_and_labels()
    dtype = np.dtype(precision)
    start = tmp_path / "start.safetensors"
    safetensors.numpy.save_file(
        {name: value.astype(dtype) for name, value in recording.initial_weights().items()}, start
    )
    solver = SolverConf(
        learning_rate=recording.LEARNING_RATE, momentum=recording.MOMENTUM, weight_decay=recording.WEIGHT_DECAY
    )
    with context(
        lenet(dropout=0),
        data=Dataset((images, labels)),
        solver=solver,
        rule=SSGD(),
        learners=1,
        batch_size=recording.BATCH_SIZE,
        seed=recording.SEED,
        kernels=kernels,
        precision=precision,
    ) as running:
        running.load(start)
        for _ in range(recording.STEPS):
            loss = running.train(1, TrainingUnit.TASKS).loss
            yield loss, running.variables


def recorded() -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads(recording.PATH.read_text())
    assert len(steps) == recording.STEPS == 50
    return steps


def assert_as_recorded(loss: float, weights: dict[str, Array], line: dict[str, Any], tolerance: float) -> None:
    """Errors of the elements are independent: their sum, and the norm, may err by the root of their number."""
    assert loss == pytest.approx(line["loss"], abs=tolerance)
    sizes = [np.prod(shape) for shape in recording.SHAPES.values() for _ in ("sum", "norm")]
    for received, expected, size in zip(recording.checksums(weights), line["checksums"], sizes, strict=True):
        assert received == pytest.approx(expected, abs=tolerance * np.sqrt(size))


@pytest.mark.parametrize(
    ("kernels", "precision", "tolerance"),
    [
        pytest.param("reference", "float64", 1e-9, id="reference-float64", marks=pytest.mark.slow),
        pytest.param("reference", "float32", 1e-4, id="reference-float32", marks=pytest.mark.slow),
        pytest.param("onednn", "float32", 1e-4, id="onednn-float32", marks=FAST.marks),
    ],
)
def test_as_pytorch_computes_it(kernels: str, precision: str, tolerance: float, tmp_path: Path) -> None:
    ours = crossbow(kernels, precision, tmp_path)
    theirs = recording.pytorch(precision) if LIVE else None
    for step, line in enumerate(recorded()):
        loss, weights = next(ours)
        assert_as_recorded(loss, weights, line, tolerance)
        if theirs is not None:
            expected_loss, expected = next(theirs)
            assert loss == pytest.approx(expected_loss, abs=tolerance), f"the loss of step {step}"
            for name in recording.SHAPES:
                error = np.abs(weights[name] - expected[name]).max()
                assert error <= tolerance, f"{name} after step {step}"
            if precision == "float64":  # the record is still what PyTorch does
                assert_as_recorded(expected_loss, expected, line, tolerance)
    assert next(ours, None) is None


def test_the_trajectory_leads_somewhere() -> None:
    """A comparison of steps that go nowhere would show little."""
    losses = [step["loss"] for step in recorded()]
    assert losses[0] > 2
    assert np.mean(losses[-5:]) < 0.1
