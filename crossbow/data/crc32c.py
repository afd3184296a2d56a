"""CRC-32C (Castagnoli), the checksum of TFRecord files, computed for eight bytes at a time."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.compiled import native, uint8_at, uint32_at
from crossbow.kernels.native import NativeCall
from crossbow.types import address

POLYNOMIAL = 0x82F63B78
"""The polynomial of CRC-32C, in reversed bit order."""
AT_ONCE = 8
"""Bytes per step."""


def crc32c(content: bytes) -> int:
    """The checksum of the bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    state = np.full(1, 0xFFFFFFFF, np.uint32)
    if content:
        values = np.frombuffer(content, np.uint8)
        arguments = (address(values), len(values), address(tables()), address(state))
        NativeCall("crc32c", _update.address, arguments)()
    return int(state[0]) ^ 0xFFFFFFFF


@functools.cache
def tables() -> NDArray[np.uint32]:
    """The tables (8, 256): entry (k, b) is the remainder of byte b, followed by k zero bytes."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(POLYNOMIAL)
    rows = [table]
    while len(rows) < AT_ONCE:
        rows.append((rows[-1] >> np.uint32(8)) ^ table[rows[-1] & np.uint32(0xFF)])
    return np.ascontiguousarray(rows)


@native
def _update(content: int, length: int, table: int, state: int) -> int:
    """Continue the remainder in `state` over the bytes."""
    data, rows = uint8_at(content), uint32_at(table)
    count, position = np.int64(length), np.int64(0)
    remainder = np.int64(uint32_at(state)[0])
    while position + AT_ONCE <= count:
        after = np.int64(0)
        for k in range(AT_ONCE):
            byte = np.int64(data[position + k])
            if k < 4:
                byte ^= (remainder >> (8 * k)) & 255
            after ^= np.int64(rows[(AT_ONCE - 1 - k) * 256 + byte])
        remainder, position = after, position + AT_ONCE
    while position < count:
        byte = (remainder ^ np.int64(data[position])) & 255
        remainder = (remainder >> 8) ^ np.int64(rows[byte])
        position += 1
    uint32_at(state)[0] = np.uint32(remainder)
    return 0
