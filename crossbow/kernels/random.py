"""Random numbers that depend on positions, never on timing: Philox4x32-10 (Salmon et al., SC 2011).

All libraries use one generator: the same seed, task, operator and element give the same number on every device.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
ROUNDS = 10


def halves(number: int) -> tuple[int, int]:
    """The low and the high 32 bits of a number of 64 bits, such as a seed.

    >>> halves(2**33 + 5)
    (5, 2)
    """
    return number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF


def philox(counters: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox4x32-10. counters: (n, 4) uint32; key: two uint32; returns (n, 4) uint32."""
    c0, c1, c2, c3 = (counters[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        high0, low0, high1, low1 = p0 >> np.uint64(32), p0 & _LOW, p1 >> np.uint64(32), p1 & _LOW
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint64(k0), low1, high0 ^ c3 ^ np.uint64(k1), low0
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def threshold(ratio: float) -> int:
    """Bound below which an element's 32 random bits cause it to be dropped."""
    return min(round(ratio * 2**32), 2**32 - 1)


def random_words(elements: int, seed: int, key: int, task: int) -> NDArray[np.uint32]:
    """The random numbers of operator `key` in task `task`: 32 bits for each element, in NCHW order.

    Element e takes word e mod 4 of philox(counter = (e div 4, key, task low, task high), key = (seed low, seed high)),
    all halves of 32 bits.
    """
    blocks = -(-elements // 4)
    counters = np.empty((blocks, 4), np.uint32)
    counters[:, 0] = np.arange(blocks, dtype=np.uint32)
    counters[:, 1] = key
    counters[:, 2] = task & 0xFFFFFFFF
    counters[:, 3] = task >> 32
    words = philox(counters, halves(seed))
    return words.reshape(-1)[:elements]


def image_words(positions: NDArray[np.int64], seed: int, key: int) -> NDArray[np.uint32]:
    """The random numbers of operator `key` for images: (n, 4), four words of 32 bits for each (epoch, index) of (n, 2).

    They are philox(counter = (index low, key, epoch low, index high), key = (seed low, seed high)).
    """
    epochs, indices = positions[:, 0], positions[:, 1]
    low = 0xFFFFFFFF
    keys = np.full(len(positions), key)
    counters = np.stack([indices & low, keys, epochs & low, indices >> 32], axis=1).astype(np.uint32)
    return philox(counters, (seed & low, (seed >> 32) & low))


def below(words: NDArray[np.uint32], count: int) -> NDArray[np.int64]:
    """Integers from 0 to count − 1, uniformly distributed up to a deviation of count / 2³²: ⌊word · count / 2³²⌋."""
    return ((words.astype(np.uint64) * np.uint64(count)) >> np.uint64(32)).astype(np.int64)


def keep_mask(elements: int, ratio: float, seed: int, key: int, task: int) -> NDArray[np.bool_]:
    """Dropout's mask: an element is kept, with probability 1 − ratio, when its random word is ≥ threshold(ratio)."""
    kept: NDArray[np.bool_] = random_words(elements, seed, key, task) >= np.uint32(threshold(ratio))
    return kept
