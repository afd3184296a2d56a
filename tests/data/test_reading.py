"""No more of a file is read than its format needs."""

from __future__ import annotations

import io

import pytest

from crossbow.data.reading import PIECE, Bounded, read_at_most
from crossbow.types import DataError


class Noting(io.BytesIO):
    """A file that notes how much is asked for, and gives less than that."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.asked: list[int] = []

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        self.asked.append(size)
        return super().read(min(size, 1000))


def test_no_more_is_read_than_asked_for() -> None:
    file = io.BytesIO(bytes(5 << 20))
    assert len(read_at_most(file, (3 << 20) + 7)) == (3 << 20) + 7 == file.tell()
    assert len(read_at_most(file, 1 << 40)) == (2 << 20) - 7
    bounded = Bounded(io.BytesIO(bytes(100)), 99, "here")
    assert bounded.read(60) == bytes(60)
    with pytest.raises(DataError, match=r"^here: expected at most 99 B, unpacked\. Received: more than that$"):
        bounded.read(60)


def test_a_file_that_gives_less_than_asked_for_is_read_to_its_end() -> None:
    """As decompressors and sockets do."""
    content = bytes(range(256)) * 20
    file = Noting(content)
    assert read_at_most(file, 1 << 40) == content
    assert max(file.asked) == PIECE  # no memory is reserved for what may not be there
    file.seek(0)
    assert read_at_most(file, 2500) == content[:2500]
    assert file.asked[-1] == 500


def test_as_many_bytes_as_the_limit_are_no_error() -> None:
    bounded = Bounded(io.BytesIO(bytes(99)), 99, "here")
    assert bounded.read(50) + bounded.read(60) == bytes(99)
    assert bounded.read() == b""
