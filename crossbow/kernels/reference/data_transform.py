"""Preprocessing of images: cropping, mirroring, centring and scaling."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.interface import State
from crossbow.kernels.random import below, image_words
from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import ImageTransform, ImageWindows
from crossbow.types import Array


@computes(ImageWindows, lambda request: request.seed is not None)
def at_random(
    *,
    input0: Floats,
    state: Array,
    slot_positions: Array,
    output: Floats,
    transform: ImageTransform,
    seed: int,
    key: int,
) -> None:
    """A window of each image, mirrored or not, as determined by its random words."""
    rows, columns = transform.choices(input0.shape, output.shape)
    words = image_words(slot_positions[int(state[State.SLOT])], seed, key)
    tops, lefts, mirrored = below(words[:, 0], rows), below(words[:, 1], columns), below(words[:, 2], 2)
    padded = _padded(input0, transform)
    height, width = output.shape[2:]
    for n, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        window = padded[n, :, top : top + height, left : left + width]
        output[n] = window[:, :, ::-1] if transform.mirror and mirrored[n] else window


@computes(ImageWindows, lambda request: request.seed is None)
def centred(*, input0: Floats, output: Floats, transform: ImageTransform) -> None:
    """The centred window."""
    top, left = transform.centre(input0.shape, output.shape)
    height, width = output.shape[2:]
    output[...] = _padded(input0, transform)[:, :, top : top + height, left : left + width]


def _padded(x: Floats, transform: ImageTransform) -> Floats:
    """(x − mean) · scale, with its padding: (N, C, H + 2 padding, W + 2 padding)."""
    mean, border_mean, scale = (v.astype(x.dtype) for v in (transform.mean, transform.border_mean, transform.scale))
    (n, c, height, width), p = x.shape, transform.padding
    padded = np.empty((n, c, height + 2 * p, width + 2 * p), x.dtype)
    padded[...] = (x.dtype.type(0) - border_mean) * scale
    padded[:, :, p : p + height, p : p + width] = (x - mean) * scale
    return padded
