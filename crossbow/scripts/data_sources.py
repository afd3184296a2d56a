"""Data sets of model scripts: their descriptions, and functions that read them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np

from crossbow.data import (
    Dataset,
    batch_files,
    cifar10,
    cifar100,
    digits,
    fashion_mnist,
    image_folder,
    mnist,
    records,
    sequence,
    synthetic,
    text_files,
    topics,
)
from crossbow.files import check_readable, file_error
from crossbow.types import DataError, Shape

SYNTHETIC = "synthetic"
"""The data set whose shape and size are options."""
BATCH_FILES = "batch_files"
IMAGE_FOLDER = "image_folder"
RECORDS = "records"
SEQUENCE = "sequence"
SEQUENCE_FILE = "dataset.py"
MODULE_OF_SEQUENCES = "crossbow_user_dataset"
"""Name of the module that `SEQUENCE_FILE` becomes."""
IMAGES = (IMAGE_FOLDER, RECORDS)
"""Data sets of image files, whose images are resized."""
NUMBERED = (BATCH_FILES, RECORDS, SEQUENCE)
"""Data sets whose labels are numbers, so their number of classes must be stated or guessed."""
OF_FILES = (BATCH_FILES, *IMAGES, SEQUENCE)
"""Data sets whose shape and number of classes are known only after their files are read. All scripts support them."""


@dataclass(frozen=True)
class DataSource:
    """A selected data set."""

    name: str
    directory: Path | None
    """Directory of its files; None if it is downloaded, or needs no files."""
    image_shape: Shape
    number_of_classes: int | None
    """Number of classes; None if the labels are numbers."""
    training: int
    """Number of training examples of the synthetic data set; other data sets have a fixed number."""
    check: int
    """Number of check examples of the synthetic data set."""
    image_size: int = 224
    """Height and width to which the images of `IMAGES` are resized."""
    colour_distortion: bool = False
    """Whether the colours of the training images of `IMAGES` are distorted at random."""
    check_fraction: float = 0.1
    """Fraction of each class of `IMAGE_FOLDER` for checks, unless it has folders for training and for checks."""
    classes: int | None = None
    """Number of classes of `NUMBERED` data sets; None: the largest label + 1."""
    loaded: Dataset | None = field(default=None, compare=False, repr=False)
    """The data set, if it has already been read."""

    def load(self) -> Dataset:
        """The data set. Raises DataError if files are missing or damaged, or cannot be downloaded."""
        return KNOWN[self.name].load(self) if self.loaded is None else self.loaded


@dataclass(frozen=True)
class Known:
    """Description of a data set before it is read."""

    summary: str
    """Text for `--help` of `--dataset`."""
    without_options: str
    """Name of the data set in the sentence that describes a script's defaults."""
    load: Callable[[DataSource], Dataset]
    image_shape: Shape | None
    """Shape of an image; None if an option or the files determine it."""
    number_of_classes: int = 10
    files: str = ""
    """Required contents of `--data-directory`; empty if the data set has no files."""


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
    "fashion_mnist": Known(
        summary="70,000 images of clothes, downloaded once",
        without_options="Fashion-MNIST",
        load=lambda source: fashion_mnist(source.directory),
        image_shape=(1, 28, 28),
        files="Fashion-MNIST's four IDX files, gzipped or not",
    ),
    "cifar10": Known(
        summary="60,000 colour images, downloaded once",
        without_options="CIFAR-10",
        load=lambda source: cifar10(source.directory),
        image_shape=(3, 32, 32),
        files="CIFAR-10: its binaries, its Python archive, or an .npz of JPEG files",
    ),
    "cifar100": Known(
        summary="60,000 colour images in 100 classes, downloaded once",
        without_options="CIFAR-100",
        load=lambda source: cifar100(source.directory),
        image_shape=(3, 32, 32),
        number_of_classes=100,
        files="CIFAR-100: its binaries or its Python archive",
    ),
    "cifar100_coarse": Known(
        summary="the same images in 20 classes",
        without_options="CIFAR-100 with its 20 coarse classes",
        load=lambda source: cifar100(source.directory, labels="coarse"),
        image_shape=(3, 32, 32),
        number_of_classes=20,
        files="CIFAR-100: its binaries or its Python archive",
    ),
    "topics": Known(
        summary="texts of Python's help(), as sequences of 64 characters",
        without_options="the texts of Python's help()",
        load=lambda source: topics(),
        image_shape=(64,),
        number_of_classes=96,
    ),
    "text": Known(
        summary="text files, as sequences of 64 characters",
        without_options="text files",
        load=lambda source: text_files(given_directory(source.directory, "text")),
        image_shape=(64,),
        number_of_classes=96,
        files="files NAME.txt of UTF-8 text, or one such file",
    ),
    BATCH_FILES: Known(
        summary="images in batch-aligned files, as crossbow data encode writes them",
        without_options="images in batch-aligned files",
        load=lambda source: stored_batches(
            source.directory, has_classes=source.number_of_classes is not None, number_of_classes=source.classes
        ),
        image_shape=None,
        files="NAME-train.metadata and NAME-test.metadata of batch-aligned files",
    ),
    IMAGE_FOLDER: Known(
        summary="image files, in a folder for each class",
        without_options="images in folders",
        load=lambda source: image_folder(
            given_directory(source.directory, IMAGE_FOLDER),
            image_size=source.image_size,
            colour_distortion=source.colour_distortion,
            check_fraction=source.check_fraction,
        ),
        image_shape=None,
        files="a folder of image files for each class, or such folders in train and val",
    ),
    RECORDS: Known(
        summary="images in record files, as crossbow data records and imagenet write them",
        without_options="images in record files",
        load=lambda source: _plausible(
            records(
                *metadata_files(source.directory, RECORDS),
                image_size=source.image_size,
                colour_distortion=source.colour_distortion,
                number_of_classes=source.classes,
            ),
            source.classes,
        ),
        image_shape=None,
        files="NAME-train.metadata and NAME-test.metadata of record files",
    ),
    SEQUENCE: Known(
        summary=f"Python sequences of (image, label), which {SEQUENCE_FILE} defines",
        without_options="images in Python sequences",
        load=lambda source: python_sequences(source.directory, number_of_classes=source.classes),
        image_shape=None,
        files=f"{SEQUENCE_FILE}, Python code that defines the sequences train and check",
    ),
    SYNTHETIC: Known(
        summary="random images of any shape, for benchmarks",
        without_options="synthetic images",
        load=lambda source: _synthetic(source),
        image_shape=None,
    ),
}
"""All data sets by their name on the command line."""


def _synthetic(source: DataSource) -> Dataset:
    assert source.number_of_classes is not None, "a script without classes makes its own synthetic data"
    return synthetic(source.image_shape, source.number_of_classes, training=source.training, check=source.check)


def given_directory(directory: Path | None, dataset: str) -> Path:
    """The given directory of a data set. Raises DataError if it is None."""
    if directory is None:
        raise DataError(f"--dataset {dataset}: expected --data-directory. Received: none")
    return directory


def metadata_files(directory: Path | None, dataset: str) -> tuple[Path, Path]:
    """The only NAME-train.metadata in a directory, and NAME-test.metadata. Raises DataError if one is missing, or if
    there are several."""
    directory = given_directory(directory, dataset)
    try:
        found = sorted(directory.glob("*-train.metadata"))
        listed = [path.name for path in directory.iterdir()]
    except OSError as error:
        raise file_error(error, directory, f"a directory with {KNOWN[dataset].files}") from error
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise DataError(f"{directory}: expected one NAME-train.metadata. Received: {names}")
    (train,) = found
    check = train.with_name(train.name.replace("-train.", "-test."))
    if check.name not in listed:
        raise DataError(f"{directory}: expected {check.name} beside {train.name}. Received: none")
    return train, check


def stored_batches(
    directory: Path | None, *, has_classes: bool = True, number_of_classes: int | None = None
) -> Dataset:
    """The data set in the batch-aligned files of a directory.

    has_classes: whether the labels must be classes; otherwise they must be numbers. number_of_classes: None is the
    largest label + 1. Raises DataError if the labels are of the other kind.
    """
    train, check = metadata_files(directory, BATCH_FILES)
    data = batch_files(train, check, number_of_classes=number_of_classes)
    if has_classes and data.number_of_classes is None:
        raise DataError(f"{train}: expected labels of type int, which are classes. Received: float")
    if not has_classes and data.number_of_classes is not None:
        raise DataError(f"{train}: expected labels of type float. Received: int")
    return _plausible(data, number_of_classes)


def python_sequences(directory: Path | None, *, number_of_classes: int | None = None) -> Dataset:
    """The data set of the sequences `train` and `check` that `dataset.py` in a directory defines.

    `dataset.py` may import modules in the same directory. Its exceptions reach the caller. Raises DataError if the file
    is missing or does not define both sequences, or if an example cannot be used.
    """
    path = given_directory(directory, SEQUENCE) / SEQUENCE_FILE
    expected = f"Python code that defines the sequences train and check of --dataset {SEQUENCE}"
    check_readable(path, expected)
    try:
        code = path.read_bytes()
    except (OSError, ValueError) as error:
        raise file_error(error, path, expected) from error
    module = ModuleType(MODULE_OF_SEQUENCES)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # data classes, for example, look up their module there
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    train, check = (getattr(module, phase, None) for phase in ("train", "check"))
    if train is None or check is None:
        missing = " and ".join(phase for phase, found in (("train", train), ("check", check)) if found is None)
        raise DataError(f"{path}: expected the sequences train and check. Received: no {missing}")
    try:
        data = sequence(train, check, number_of_classes=number_of_classes)
        if data.number_of_classes is None:
            raise DataError("expected labels of type int, which are classes. Received: floating-point numbers")
        return _plausible(data, number_of_classes)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _plausible(data: Dataset, stated: int | None) -> Dataset:
    """The data set. Raises DataError if its number of classes is larger than the number of its examples, and neither
    stated nor that of names: a damaged label may be any number."""
    if (
        stated is None
        and data.class_names is None
        and data.number_of_classes is not None
        and data.number_of_classes > len(data.train)
    ):
        largest = data.number_of_classes - 1
        assert data.check is not None
        examples = next(each for each in (data.train, data.check) if (each.labels == largest).any())
        number = int(np.argmax(examples.labels.reshape(len(examples), -1).max(axis=1)))
        where = examples.source(number) or f"{'train' if examples is data.train else 'check'}, example {number}"
        raise DataError(
            f"{where}: expected a label below the number of training examples, {len(data.train):,}, unless --classes "
            f"gives the number of classes. Received: {largest}"
        )
    return data
