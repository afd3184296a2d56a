"""Images without a source: shapes, classes, the same for the same seed, and that they can be learned."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow import SolverConf, TrainingUnit
from crossbow.data import synthetic
from crossbow.ops import InnerProduct
from crossbow.types import DataError
from tests.support import KERNELS, context, training

SHAPES = st.one_of(st.tuples(st.integers(1, 40)), st.tuples(*[st.integers(1, 9)] * 3)).filter(
    lambda shape: len(shape) == 1 or shape[2] not in (1, 3, 4)  # such may look like channels-last images
)


@given(SHAPES, st.integers(1, 12), st.integers(1, 30), st.integers(0, 9), st.integers(0, 2**64))
@settings(max_examples=50, deadline=None)
def test_any_shape(shape: tuple[int, ...], classes: int, training: int, check: int, seed: int) -> None:
    data = synthetic(shape, classes, training=training, check=check, seed=seed)
    assert data.train.images.shape == (training, *shape)
    assert data.train.images.dtype == np.uint8
    assert data.number_of_classes == classes
    np.testing.assert_array_equal(data.train.labels, np.arange(training) % classes)
    if check:
        assert data.check is not None
        assert data.check.images.shape == (check, *shape)
        np.testing.assert_array_equal(data.check.labels, np.arange(check) % classes)
    else:
        assert data.check is None


def test_images_of_a_class_are_its_pattern_and_noise() -> None:
    data = synthetic((2, 9, 8), 3, training=3000, check=3000)
    assert data.check is not None
    for label in range(3):
        for phase in (data.train, data.check):
            images = phase.images[phase.labels == label].astype(float)
            spread = images.max(axis=0) - images.min(axis=0)
            assert spread.max() <= 127
            assert spread.min() >= 120, "noise is not that of a few images"
        # The pattern is the same in both phases: the mean image, whose deviation is 37 / √1000.
        means = [phase.images[phase.labels == label].mean(axis=0) for phase in (data.train, data.check)]
        assert np.abs(means[0] - means[1]).max() < 8
        # 4 × 4 areas in each channel.
        areas = [np.split(part, [3, 5, 7], axis=1) for part in np.split(means[0], [2, 4, 6], axis=2)]
        assert sum(area.shape[1] * area.shape[2] for column in areas for area in column) == 72
        assert means[0].std() > 20
        levels = np.unique(np.round(images.min(axis=0)))
        assert len(levels) <= 32 + 10
    assert data.train.images.min() >= 0
    assert len({synthetic((1, 4, 4), 3, training=9, seed=seed).train.images.tobytes() for seed in range(5)}) == 5


def test_the_default_sizes() -> None:
    data = synthetic((1,))
    assert data.check is not None
    assert (len(data.train), len(data.check), data.number_of_classes) == (2048, 512, 10)
    first = synthetic((1,), seed=0)
    np.testing.assert_array_equal(data.train.images, first.train.images)


def test_two_dimensions_are_sequences() -> None:
    assert synthetic((3, 3), training=2, check=0).image_shape == (3, 3)


def test_noise_differs_from_image_to_image_and_between_the_phases() -> None:
    data = synthetic((1, 8, 8), 2, training=50, check=50)
    assert data.check is not None
    together = np.concatenate([data.train.images, data.check.images])
    assert len({image.tobytes() for image in together}) == 100


def test_the_same_seed_the_same_data() -> None:
    first, again = (synthetic((3, 5, 7), 4, training=20, check=10, seed=9) for _ in range(2))
    np.testing.assert_array_equal(first.train.images, again.train.images)
    assert first.check is not None
    assert again.check is not None
    np.testing.assert_array_equal(first.check.images, again.check.images)
    more = synthetic((3, 5, 7), 4, training=40, check=3, seed=9)
    np.testing.assert_array_equal(more.train.images[:20], first.train.images)


def test_they_never_change_from_one_release_to_the_next() -> None:
    # Recorded: a benchmark must be repeatable with later versions of Crossbow and of NumPy.
    data = synthetic((1, 2, 2), 2, training=3, check=1, seed=7)
    assert data.train.images.reshape(3, 4).tolist() == [
        [120, 159, 179, 135],
        [122, 175, 155, 177],
        [128, 171, 203, 144],
    ]
    assert data.check is not None
    assert data.check.images.reshape(4).tolist() == [53, 89, 229, 193]


@KERNELS
def test_they_can_be_learned(kernels: str) -> None:
    data = synthetic((3, 8, 8), 10, training=400, check=100)
    model = training(InnerProduct(number_of_outputs=10))
    with context(model, data=data, kernels=kernels, solver=SolverConf(learning_rate=0.1), batch_size=8) as running:
        before = running.test()
        running.train(3, TrainingUnit.EPOCHS)
        after = running.test()
    assert after.loss < 0.5 * before.loss
    assert after.accuracy is not None
    assert after.accuracy > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"image_shape": (3, 0)},
            r"image_shape: expected .* another shape, each ≥ 1. Received: \(3, 0\)",
        ),
        ({"image_shape": (3, 0, 4)}, "image_shape: expected"),
        ({"image_shape": 7}, "image_shape: expected .* Received: 7"),
        ({"image_shape": (1.5,)}, "image_shape: expected"),
        ({"number_of_classes": 0}, "number_of_classes: expected an integer ≥ 1. Received: 0"),
        ({"training": 0}, "training: expected an integer ≥ 1"),
        ({"check": -1}, "check: expected an integer ≥ 0"),
        ({"seed": -1}, "seed: expected an integer ≥ 0"),
        ({"image_shape": (32, 32, 3)}, "these look like channels-last images"),
        ({"seed": 0.5}, "seed: expected an integer ≥ 0. Received: 0.5"),
    ],
)
def test_impossible_ones_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        synthetic(**{"image_shape": (1, 4, 4), **arguments})


def test_what_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two patterns, three training images and one check image of eight bytes."""
    module = importlib.import_module("crossbow.data.synthetic")
    arguments: dict[str, Any] = {"image_shape": (1, 2, 4), "number_of_classes": 2, "training": 3, "check": 1}
    monkeypatch.setattr(module, "physical_memory", lambda: 48)
    assert len(synthetic(**arguments).train) == 3
    monkeypatch.setattr(module, "physical_memory", lambda: 47)
    with pytest.raises(DataError, match=r"expected images and patterns of classes that fit into .* of memory\."):
        synthetic(**arguments)
