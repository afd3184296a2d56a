"""Names of classes, in the order of their labels: names for well-known data sets, and files of names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crossbow.data.reading import read_at_most
from crossbow.files import check_readable, file_error, kind_of_file
from crossbow.types import DataError, bytes_text

CLASSES = ".classes"
"""Suffix of the file of class names next to a metadata file. The original has no such file."""
LARGEST_FILE = 1 << 20
"""Maximum size in bytes of a file of class names."""

DIGITS = tuple("0123456789")
"""Class names of `digits` and of MNIST."""

FASHION_MNIST = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)

CIFAR_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CIFAR_100_FINE = tuple(_FINE.split())

CIFAR_100_COARSE = (
    "aquatic_mammals",
    "fish",
    "flowers",
    "food_containers",
    "fruit_and_vegetables",
    "household_electrical_devices",
    "household_furniture",
    "insects",
    "large_carnivores",
    "large_man-made_outdoor_things",
    "large_natural_outdoor_scenes",
    "large_omnivores_and_herbivores",
    "medium_mammals",
    "non-insect_invertebrates",
    "people",
    "reptiles",
    "small_mammals",
    "trees",
    "vehicles_1",
    "vehicles_2",
)


def class_lines(names: Sequence[str] | None) -> bytes | None:
    """The content of a file of class names, one in a line. None if there are no names, if a name is not a single line
    that UTF-8 can encode, or if the content is larger than `LARGEST_FILE`."""
    if not names or any(name.splitlines() != [name] for name in names):
        return None
    try:
        content = "".join(f"{name}\n" for name in names).encode()
    except UnicodeEncodeError:  # the name of a folder may have any bytes
        return None
    return content if len(content) <= LARGEST_FILE else None


def read_class_names(path: Path) -> tuple[str, ...] | None:
    """The class names in a file, or None if there is no such file. Raises DataError if it contains something else."""
    if kind_of_file(path) is None:
        return None
    expected = "a text with the name of a class in each line"
    check_readable(path, expected)
    try:
        with path.open("rb") as file:
            content = read_at_most(file, LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise file_error(error, path, expected) from error
    if len(content) > LARGEST_FILE:
        raise DataError(f"{path}: expected {expected}, of at most {bytes_text(LARGEST_FILE)}. Received: more")
    try:
        names = tuple(content.decode("utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected {expected}, in UTF-8. Received: {error}") from error
    if not names or not all(names):
        received = f"no name in line {names.index('') + 1}" if names else "an empty file"
        raise DataError(f"{path}: expected {expected}. Received: {received}")
    return names
