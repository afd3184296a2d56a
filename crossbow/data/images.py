"""Image files to pixels: JPEG files by simplejpeg, fast, and whatever that does not take by Pillow."""

from __future__ import annotations

import functools
import importlib
import io
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.types import DataError

Pixels = NDArray[np.uint8]

LARGEST_IMAGE = 2**30 // 12
"""Pixels at most: as many as Pillow opens without a warning, 256 MiB of RGB."""

JPEG = b"\xff\xd8\xff"
_FORMATS = {
    JPEG: "Jpeg",
    b"\x89PNG\r\n\x1a\n": "Png",
    b"GIF87a": "Gif",
    b"GIF89a": "Gif",
    b"BM": "Bmp",
    b"RIFF": "WebP",
}
"""Formats, by the names of Pillow's classes, by the first bytes of a file."""
_FORMAT_NAMES = "JPEG, PNG, GIF, BMP or WebP"

_THREE_CHANNELS = ("YCbCr", "RGB", "Gray")
"""The colours of JPEG files whose conversion to RGB is libjpeg's, and so the same in both packages."""

CheckSize = Callable[[int, int], None]
"""Raises DataError for a height and width that are not those of this image: before there is memory for them."""


def decode_image(content: bytes) -> Pixels:
    """The image in a JPEG, PNG, GIF, BMP or WebP file as RGB, uint8 (3, H, W): of an animation, the first image.

    The format is known by the content. Pixels equal those of Pillow, `Image.open(…).convert("RGB")`. An orientation
    that EXIF data state is ignored. Damage of which libjpeg only warns, such as bytes between segments, does not
    matter; a truncated file is an error.

    Needs simplejpeg or Pillow, which decodes all formats, and CMYK and slightly damaged JPEG files.

    Raises DataError with what was expected and what was received.
    """
    return np.ascontiguousarray(decode_pixels(content).transpose(2, 0, 1))


def decode_pixels(content: bytes | Pixels, check_size: CheckSize | None = None) -> Pixels:
    """The same as (H, W, 3), as files have them. The content may be an array of bytes."""
    if not isinstance(content, bytes | bytearray | memoryview | np.ndarray):
        raise DataError(f"expected the bytes of an image file. Received: {type(content).__name__}")
    start = bytes(content[:16])
    form = next((form for magic, form in _FORMATS.items() if start.startswith(magic)), None)
    if form is None:
        raise DataError(
            f"expected an image file, {_FORMAT_NAMES}. Received: {len(content):,} bytes beginning with "
            f"{start[:8].hex(' ') or 'none'}"
        )
    simplejpeg = _package("simplejpeg")
    problem: Exception | None = None
    if simplejpeg is not None and start.startswith(JPEG):
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
            if colours in _THREE_CHANNELS:
                _check(height, width, check_size)
                pixels: Pixels = simplejpeg.decode_jpeg(content, "RGB")  # strict: a warning is an error
                return pixels
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            problem = error  # Pillow tells those that are bad from those that only cause a warning
    return _decode_by_pillow(bytes(content), form, check_size, problem)


def _decode_by_pillow(content: bytes, form: str, check_size: CheckSize | None, problem: Exception | None) -> Pixels:
    name = form if form == "WebP" else form.upper()
    if _package("PIL.Image") is None:
        received = name if problem is None else f"{name} ({problem})"
        raise DataError(f"decoding this image file needs Pillow: pip install 'crossbow[zoo]'. Received: {received}")
    # The plug-in itself: Image.open would warn of files of several images, and of large ones.
    opened = getattr(_package(f"PIL.{form}ImagePlugin"), f"{form}ImageFile")
    try:
        with opened(io.BytesIO(content)) as image:
            _check(image.height, image.width, check_size)
            image.load()
            image.info.pop("transparency", None)  # changes no pixel of RGB, but may cause a warning
            return np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # whatever damaged bytes lead to: Pillow documents no list of errors
        received = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"expected an intact {name} file. Received: {received}") from error


def _check(height: int, width: int, check_size: CheckSize | None) -> None:
    if check_size is not None:
        check_size(height, width)
    if height * width > LARGEST_IMAGE:
        raise DataError(f"expected an image of at most {LARGEST_IMAGE:,} pixels. Received: {height:,} × {width:,}")


@functools.cache
def _package(name: str) -> ModuleType | Any | None:
    """A package, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
