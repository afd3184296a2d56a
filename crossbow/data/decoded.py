"""Examples whose images are stored as files of any size, and decoded and preprocessed when they are needed."""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from crossbow.data.examples import BadExample, Examples, Selection
from crossbow.data.images import Scratch
from crossbow.data.preprocessing import Boxes, Pixels, Preprocessing
from crossbow.types import Array, DataError, Shape

if TYPE_CHECKING:
    from crossbow.data.preprocessor import Preprocessor


class DecodedExamples(Examples):
    """Examples whose images are files: uint8 (3, S, S). Every thread has its own `Preprocessor`."""

    def __init__(self, labels: Array, preprocessing: Preprocessing) -> None:
        self.labels = labels
        self.preprocessing = preprocessing
        self._thread = threading.local()
        self._preprocessor()  # compiles now rather than during the first batch

    @abstractmethod
    def read(self, index: int, scratch: Scratch) -> tuple[Pixels, Boxes | None]:
        """The content of an image's file, which may be in `scratch`, and its bounding boxes if it may have any.

        Raises DataError.
        """

    @abstractmethod
    def source(self, index: int) -> str:
        """The path of an image's file, and the number of its record if the file has several."""

    @property
    def image_shape(self) -> Shape:
        return (3, self.preprocessing.size, self.preprocessing.size)

    @property
    def image_dtype(self) -> np.dtype[np.generic]:
        return np.dtype(np.uint8)

    def write_images(self, selection: Selection, images: Array) -> None:
        preprocessor = self._preprocessor()
        places = zip(selection.epochs.tolist(), selection.indices.tolist(), strict=True)
        for position, (epoch, index) in enumerate(places):
            try:
                content, boxes = self.read(index, preprocessor.content)
                preprocessor.write(content, boxes, (selection.seed, epoch, index), images[position])
            except DataError as error:
                source = self.source(index)
                raise BadExample(index, source, str(error).removeprefix(f"{source}: ")) from error

    def for_tests(self) -> Examples:
        other = copy.copy(self)
        other.preprocessing = replace(self.preprocessing, training=False)
        other._thread = threading.local()
        return other

    def _preprocessor(self) -> Preprocessor:
        made: Preprocessor | None = getattr(self._thread, "preprocessor", None)
        if made is None:
            from crossbow.data.preprocessor import Preprocessor  # here, because numba takes long to import

            made = self._thread.preprocessor = Preprocessor(self.preprocessing)
        return made
