"""Examples whose images are stored as files of any size, and decoded and transformed when they are needed."""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from crossbow.data.examples import BadExample, Examples, Selection
from crossbow.data.image_transform import Boxes, ImageTransform, Pixels
from crossbow.data.images import Scratch
from crossbow.types import Array, DataError, Shape

if TYPE_CHECKING:
    from crossbow.data.transformer import Transformer


class EncodedExamples(Examples):
    """Examples whose images are files: uint8 (3, S, S). Every thread has its own `Transformer`."""

    def __init__(self, labels: Array, transform: ImageTransform) -> None:
        self.labels = labels
        self.transform = transform
        self._thread = threading.local()
        self._transformer()  # compiles now rather than during the first batch

    @abstractmethod
    def read(self, index: int, scratch: Scratch) -> tuple[bytes | Pixels, Boxes | None]:
        """The file of an image, which may be in `scratch`, and its bounding boxes if it may have any.

        Raises DataError.
        """

    @abstractmethod
    def source(self, index: int) -> str:
        """The file of an image, and the number of its record if it is one of several."""

    @property
    def image_shape(self) -> Shape:
        return (3, self.transform.size, self.transform.size)

    @property
    def image_dtype(self) -> np.dtype[np.generic]:
        return np.dtype(np.uint8)

    def write_images(self, selection: Selection, images: Array) -> None:
        transformer = self._transformer()
        places = zip(selection.epochs.tolist(), selection.indices.tolist(), strict=True)
        for position, (epoch, index) in enumerate(places):
            try:
                content, boxes = self.read(index, transformer.content)
                transformer.write(content, boxes, (selection.seed, epoch, index), images[position])
            except DataError as error:
                source = self.source(index)
                raise BadExample(index, source, str(error).removeprefix(f"{source}: ")) from error

    def with_labels(self, labels: Array) -> Examples:
        other = copy.copy(self)
        other.labels = labels
        return other

    def _transformer(self) -> Transformer:
        made: Transformer | None = getattr(self._thread, "transformer", None)
        if made is None:
            from crossbow.data.transformer import Transformer  # here, because numba takes long to import

            made = self._thread.transformer = Transformer(self.transform)
        return made
