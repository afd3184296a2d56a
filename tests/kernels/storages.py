"""Storages that no library has."""

from __future__ import annotations

import math
from dataclasses import dataclass

from crossbow.types import Array, Shape


@dataclass(frozen=True)
class Reversed:
    """The last element first."""

    shape: Shape

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def pack(self, plain: Array, flat: Array) -> None:
        flat[...] = plain.reshape(-1)[::-1]

    def unpack(self, flat: Array, plain: Array) -> None:
        plain[...] = flat[::-1].reshape(self.shape)
