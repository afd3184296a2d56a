"""What is trained: the variants of `models.lenet`, on data of MNIST's shape and type."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crossbow import Dataset

VARIANTS = {"original": 1_111_946, "caffe": 431_080}
"""The networks by name, with their number of parameters."""
CLASSES = 10
EXAMPLES = 60_000
"""As many as MNIST has."""
LEARNING_RATE, MOMENTUM = 0.002, 0.9


def dataset(seed: int = 0) -> Dataset:
    """MNIST's shape and type: uint8 (60,000, 1, 28, 28), 10 classes, one pixel in five not black.

    Each image is its class's picture, darkened at random. One label in ten is random, so that gradients do not fade to
    denormal numbers, which are slow to compute with.
    """
    generator = np.random.default_rng(seed)
    pictures = generator.integers(0, 256, (CLASSES, 1, 28, 28), dtype=np.uint8)
    pictures[generator.random(pictures.shape) > 0.2] = 0
    labels: NDArray[np.int32] = generator.integers(0, CLASSES, EXAMPLES, dtype=np.int32)
    images = np.minimum(pictures[labels], generator.integers(0, 256, (EXAMPLES, 1, 28, 28), dtype=np.uint8))
    wrong = generator.random(EXAMPLES) < 0.1
    labels[wrong] = generator.integers(0, CLASSES, int(wrong.sum()), dtype=np.int32)
    return Dataset((images, labels), number_of_classes=CLASSES)
