"""CRC-32C of any bytes, as computed bit by bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.data.crc32c import crc32c


def slow_crc32c(content: bytes) -> int:
    """Bit by bit."""
    value = 0xFFFFFFFF
    for byte in content:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("content", "checksum"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720, appendix B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_checksums_of_known_values(content: bytes, checksum: int) -> None:
    assert crc32c(content) == checksum


@given(st.binary(max_size=70))
def test_checksums(content: bytes) -> None:
    assert crc32c(content) == slow_crc32c(content)
