"""Decoding of image files: JPEG files with simplejpeg, which is fast, and all others with Pillow."""

from __future__ import annotations

import functools
import importlib
import io
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.files import reason
from crossbow.types import DataError

Pixels = NDArray[np.uint8]

LARGEST_IMAGE = 2**30 // 12
"""Maximum number of pixels: as many as Pillow opens without a warning, 256 MiB of RGB."""

JPEG = b"\xff\xd8\xff"
_FORMATS = {
    JPEG: "Jpeg",
    b"\x89PNG\r\n\x1a\n": "Png",
    b"GIF87a": "Gif",
    b"GIF89a": "Gif",
    b"BM": "Bmp",
    b"RIFF": "WebP",
}
"""Names of Pillow's formats by the first bytes of a file."""
FORMAT_NAMES = "JPEG, PNG, GIF, BMP or WebP"
"""The formats in error messages."""

_THREE_CHANNELS = ("YCbCr", "RGB", "Gray")
"""Colour spaces of JPEG files that libjpeg converts to RGB, with equal results in both packages."""

CheckSize = Callable[[int, int], None]
"""Function that raises DataError if an image must not have this height and width. It is called before memory for the
image is allocated."""


def decode_image(content: bytes) -> Pixels:
    """Decode a JPEG, PNG, GIF, BMP or WebP file as RGB, uint8 (3, H, W). For an animation, this is its first image.

    The content determines the format. Pixels equal Pillow's, `Image.open(…).convert("RGB")`. The orientation in EXIF
    data is ignored. JPEG files with defects that libjpeg only warns of, such as bytes between segments, are decoded;
    truncated files are errors.

    simplejpeg decodes most JPEG files. Pillow decodes the others (CMYK, and those with defects) and all other formats,
    and replaces simplejpeg if that is not installed.

    Raises DataError with what was expected and what was received.
    """
    return np.ascontiguousarray(decode_pixels(content).transpose(2, 0, 1))


class Scratch:
    """Reusable memory for arrays of bytes. Each array is valid until the next one is requested."""

    LARGEST_KEPT = 64 << 20
    """Size in bytes. Memory of larger arrays is not kept, because one large image would occupy it permanently."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def array(self, count: int) -> Pixels:
        """An uninitialised array of `count` bytes."""
        if count > self.LARGEST_KEPT:
            return np.empty(count, np.uint8)
        if count > self._memory.size:
            self._memory = np.empty(max(count, min(2 * self._memory.size, self.LARGEST_KEPT)), np.uint8)
        return self._memory[:count]


def looks_like_an_image(start: bytes) -> bool:
    """Whether a file with these first 16 bytes is in one of the formats that can be decoded.

    Two signatures are so short or common that more bytes are checked: text may begin with BM, and sounds with RIFF.
    """
    form = _format(start)
    if form == "Bmp":
        return start[6:10] == bytes(4)
    return start[8:12] == b"WEBP" if form == "WebP" else form is not None


def _format(start: bytes) -> str | None:
    return next((form for magic, form in _FORMATS.items() if start.startswith(magic)), None)


def decode_pixels(
    content: bytes | Pixels, check_size: CheckSize | None = None, scratch: Scratch | None = None
) -> Pixels:
    """Decode an image file as `decode_image` does, but return (H, W, 3). The content may be an array of bytes.

    scratch: memory that the result may be in.
    """
    if not isinstance(content, bytes | bytearray | memoryview | np.ndarray):
        raise DataError(f"expected the bytes of an image file. Received: {type(content).__name__}")
    start = bytes(content[:16])
    form = _format(start)
    if form is None:
        raise DataError(
            f"expected an image file, {FORMAT_NAMES}. Received: {len(content):,} bytes beginning with "
            f"{start[:8].hex(' ') or 'none'}"
        )
    simplejpeg = _package("simplejpeg")
    problem: Exception | None = None
    if simplejpeg is not None and start.startswith(JPEG):
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
            if colours in _THREE_CHANNELS:
                _check(height, width, check_size)
                memory = None if scratch is None else scratch.array(3 * height * width)
                pixels: Pixels = simplejpeg.decode_jpeg(content, "RGB", buffer=memory)  # strict: a warning is an error
                return pixels
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            problem = error  # it may be only a warning, which Pillow distinguishes
    return _decode_by_pillow(bytes(content), form, check_size, problem)


def _decode_by_pillow(content: bytes, form: str, check_size: CheckSize | None, problem: Exception | None) -> Pixels:
    name = form if form == "WebP" else form.upper()
    if _package("PIL.Image") is None:
        received = name if problem is None else f"{name} ({problem})"
        raise DataError(f"decoding this image file needs Pillow: pip install 'crossbow[zoo]'. Received: {received}")
    # Image.open would warn of files with several images, and of large ones.
    opened = getattr(_package(f"PIL.{form}ImagePlugin"), f"{form}ImageFile")
    try:
        with opened(io.BytesIO(content)) as image:
            _check(image.height, image.width, check_size)
            image.load()
            image.info.pop("transparency", None)  # it would cause a warning, and does not change RGB
            return np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow does not document which exceptions damaged files cause
        received = reason(error)
        # Their texts would tell a user nothing.
        if isinstance(error.__cause__ or error, struct.error) or "identified by this driver" in received:
            received = f"{len(content):,} bytes with an incomplete or unknown header"
        raise DataError(f"expected an intact {name} file. Received: {received}") from error


def _check(height: int, width: int, check_size: CheckSize | None) -> None:
    if check_size is not None:
        check_size(height, width)
    if height * width > LARGEST_IMAGE:
        raise DataError(f"expected an image of at most {LARGEST_IMAGE:,} pixels. Received: {height:,} × {width:,}")


@functools.cache
def _package(name: str) -> ModuleType | Any | None:
    """A package, or None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
