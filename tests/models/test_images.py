from __future__ import annotations

import argparse

import numpy as np
import pytest

from crossbow.ops import DataTransform
from crossbow.testing import run_operator
from models.images import add_augmentation, image_transform


def transform(dataset: str, *arguments: str, scale: float = 2.0, shape: tuple[int, ...] = (3, 32, 32)) -> DataTransform:
    parser = argparse.ArgumentParser()
    add_augmentation(parser.add_argument_group("model"))
    options = parser.parse_args(arguments)
    options.dataset, options.image_shape = dataset, shape
    return image_transform(options, scale)


@pytest.mark.parametrize(
    ("dataset", "arguments", "augmented"),
    [
        ("cifar10", [], True),
        ("cifar100", [], True),
        ("cifar100_coarse", [], True),
        ("cifar10", ["--no-augmentation"], False),
        ("synthetic", [], False),
        ("synthetic", ["--augmentation"], True),
    ],
)
def test_which_images_are_augmented(dataset: str, arguments: list[str], augmented: bool) -> None:
    found = transform(dataset, *arguments)
    assert (found.padding, found.mirror) == ((4, True) if augmented else (0, False))
    assert found.output_shape((8, 3, 32, 32)) == (8, 3, 32, 32)


def test_images_that_are_padded_already_are_cropped() -> None:
    """Those of CIFAR that `crossbow data encode` writes: the network is that for CIFAR."""
    found = transform("batch_files", shape=(3, 40, 40))
    assert (found.padding, found.crop_size, found.mirror) == (0, (32, 32), True)
    assert found.output_shape((8, 3, 40, 40)) == (8, 3, 32, 32)
    whole = transform("batch_files", "--no-augmentation", shape=(3, 40, 40))
    assert whole.output_shape((8, 3, 40, 40)) == (8, 3, 40, 40)
    assert transform("batch_files", shape=(3, 36, 36)).output_shape((8, 3, 36, 36)) == (8, 3, 36, 36)


def test_stored_images_without_a_border_are_augmented_if_that_is_wanted() -> None:
    """As those of CIFAR-100 that were encoded without one."""
    assert transform("batch_files").padding == 0
    assert transform("batch_files", "--augmentation").padding == 4


def test_stored_pixels_are_around_0_already() -> None:
    pixels = np.array([-1.0, 0.0, 1.0], np.float32).reshape(1, 1, 1, 3)
    for scale in (2.0, 255.0):
        (found,) = run_operator(transform("batch_files", scale=scale), [pixels]).outputs
        np.testing.assert_allclose(found, pixels * scale / 2)


def test_pixels_are_around_0() -> None:
    pixels = np.array([0.0, 0.5, 1.0], np.float32).reshape(1, 1, 1, 3)
    for scale in (2.0, 255.0):
        (found,) = run_operator(transform("synthetic", scale=scale), [pixels]).outputs
        np.testing.assert_allclose(found, pixels * scale - scale / 2)
