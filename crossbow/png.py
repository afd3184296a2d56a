"""PNG files of small images, without a library."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from crossbow.types import Array

_COLOUR_TYPES = {1: 0, 3: 2}
"""Colour types of PNG by number of channels: grey and RGB."""


def png(image: Array) -> bytes:
    """The PNG file of an image (C, H, W) of type uint8, grey (C = 1) or RGB (C = 3). Raises ValueError for others.

    Source: PNG Specification, second edition (ISO/IEC 15948:2003).
    """
    if image.ndim != 3 or image.shape[0] not in _COLOUR_TYPES or image.dtype != np.uint8:
        raise ValueError(f"expected an image (1 or 3, H, W) of uint8. Received: {image.shape} of {image.dtype}")
    channels, height, width = image.shape
    header = struct.pack(">2I5B", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    rows = np.moveaxis(image, 0, 2).reshape(height, -1)
    unfiltered = np.hstack([np.zeros((height, 1), np.uint8), rows]).tobytes()  # a row begins with its filter: 0, none
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(unfiltered, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
