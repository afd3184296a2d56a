"""Layout of weights that multiply channels-last images."""

from __future__ import annotations

import math
from dataclasses import dataclass

from crossbow.types import Array, Shape


@dataclass(frozen=True)
class ChannelsLastStorage:
    """Weights of whole images, stored as (outputs, height, width, channels).

    shape: the logical one, (outputs, channels, height, width) or (outputs, channels · height · width).
    """

    shape: Shape
    image: Shape
    """(channels, height, width)."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def pack(self, plain: Array, flat: Array) -> None:
        flat[...] = plain.reshape(-1, *self.image).transpose(0, 2, 3, 1).ravel()

    def unpack(self, flat: Array, plain: Array) -> None:
        channels, height, width = self.image
        plain[...] = flat.reshape(-1, height, width, channels).transpose(0, 3, 1, 2).reshape(self.shape)

    def __str__(self) -> str:
        return "channels last"
