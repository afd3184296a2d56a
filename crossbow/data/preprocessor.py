"""Decoding and preprocessing of images by compiled passes."""

from __future__ import annotations

from crossbow.data.colours import ColourDistortion
from crossbow.data.cropping import RandomWindows
from crossbow.data.images import Scratch, decode_pixels
from crossbow.data.preprocessing import Boxes, Pixels, Preprocessing, centre_window
from crossbow.data.resampling import Resampler


class Preprocessor:
    """Decodes and preprocesses images. It keeps its working memory, so only one thread at a time may use it."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self._size = preprocessing.size
        self._windows = RandomWindows(preprocessing.size) if preprocessing.training else None
        self._colours = ColourDistortion() if preprocessing.training and preprocessing.colour_distortion else None
        self._resampler = Resampler(preprocessing.size)
        self._pixels = Scratch()
        self.content = Scratch()
        """Memory for the file of an image."""

    def write(self, content: Pixels, boxes: Boxes | None, choices: tuple[int, int, int], out: Pixels) -> None:
        """Write an image to `out` (3, S, S).

        content: the bytes of an image file. boxes: as in `RandomWindows.choose`. choices: (seed, epoch, index).
        """
        pixels = decode_pixels(content, scratch=self._pixels)
        height, width, _ = pixels.shape
        if self._windows is None:
            window = centre_window(height, width, self._size)
        else:
            window = self._windows.choose(height, width, boxes, *choices)
        self._resampler.resample(pixels, window, out)
        if self._colours is not None:
            self._colours.distort(out, *choices)
