"""The data sets that model scripts can be told to train on: what they are, and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crossbow.data import Dataset, cifar10, digits, mnist, synthetic
from crossbow.types import Shape

SYNTHETIC = "synthetic"
"""The one data set whose shape and size are the user's to say."""


@dataclass(frozen=True)
class DataSource:
    """A data set by name."""

    name: str
    directory: Path | None
    """Where its files lie; None: it is downloaded, or needs no files."""
    image_shape: Shape
    number_of_classes: int
    training: int
    """How many training examples of the synthetic data set; the others have their own number."""
    check: int
    """How many to check with, likewise."""

    def load(self) -> Dataset:
        """The data set. Raises DataError where files are missing or damaged, or cannot be downloaded."""
        return KNOWN[self.name].load(self)


@dataclass(frozen=True)
class Known:
    """What is known of a data set before it is read."""

    summary: str
    """For `--help` of `--dataset`."""
    without_options: str
    """How it is called in the sentence that says what a script does without options."""
    load: Callable[[DataSource], Dataset]
    image_shape: Shape | None
    """None: the user says it."""
    number_of_classes: int = 10
    files: str = ""
    """What `--data-directory` must hold; empty where the data set has no files."""


KNOWN = {
    "digits": Known(
        summary="1,797 images bundled with scikit-learn",
        without_options="the digits bundled with scikit-learn",
        load=lambda source: digits(),
        image_shape=(1, 28, 28),
    ),
    "mnist": Known(
        summary="70,000, downloaded once",
        without_options="MNIST",
        load=lambda source: mnist(source.directory),
        image_shape=(1, 28, 28),
        files="MNIST's four IDX files, gzipped or not",
    ),
    "cifar10": Known(
        summary="60,000 colour images, downloaded once",
        without_options="CIFAR-10",
        load=lambda source: cifar10(source.directory),
        image_shape=(3, 32, 32),
        files="CIFAR-10: its binaries, its Python archive, or an .npz of JPEG files",
    ),
    SYNTHETIC: Known(
        summary="random images of any shape, for benchmarks",
        without_options="synthetic images",
        load=lambda source: synthetic(
            source.image_shape, source.number_of_classes, training=source.training, check=source.check
        ),
        image_shape=None,
    ),
}
"""Every data set by its name on the command line."""
