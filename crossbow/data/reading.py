"""Reading of untrusted files in pieces, and only as much as their format needs."""

from __future__ import annotations

from typing import Protocol

from crossbow.types import DataError, bytes_text

PIECE = 1 << 20
"""Bytes to read at a time. A larger request would allocate memory that a shorter file does not need."""
LARGEST_ARRAY = 1 << 30
"""Maximum size in bytes of an array in a data set's file."""


class Readable(Protocol):
    """A file, or a decompressor of one."""

    def read(self, size: int, /) -> bytes: ...


def read_at_most(file: Readable, limit: int) -> bytes:
    """The next bytes of a file, up to its end or the limit."""
    content = bytearray()
    while len(content) < limit and (piece := file.read(min(PIECE, limit - len(content)))):
        content += piece
    return bytes(content)


class Bounded:
    """A file that raises DataError, which begins with `source`, if more bytes than the limit are read."""

    def __init__(self, file: Readable, limit: int, source: str) -> None:
        self._file, self._limit, self._source = file, limit, source
        self._read = 0

    def read(self, size: int = PIECE, /) -> bytes:
        content = self._file.read(size)
        self._read += len(content)
        if self._read > self._limit:
            raise DataError(
                f"{self._source}: expected at most {bytes_text(self._limit)}, unpacked. Received: more than that"
            )
        return content
