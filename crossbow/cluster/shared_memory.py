"""Memory that the ranks of one host share."""

from __future__ import annotations

import mmap
import os
import secrets
import weakref

import numpy as np

from crossbow.cluster.ranks import Ranks
from crossbow.types import Array, ConfigurationError

MARK = 16
"""Bytes by which a rank recognises the memory."""
PAGE = mmap.ALLOCATIONGRANULARITY
SIZE = 1 << 44
"""Limit of the memory in bytes, more than any machine has: unused pages take no memory."""
CHUNK = 1 << 26
"""Bytes that are mapped at once, for several arrays, because each mapping needs a descriptor."""


class SharedMemory:
    """Memory without a name, which is freed when the last process that has it ends. Unlike a file in /dev/shm, it is
    limited only by the machine's memory, and nothing remains if a process is killed."""

    def __init__(self, file: int) -> None:
        """file: descriptor of the memory, which this object closes."""
        self.file = file
        self._chunk, self._begin, self._end = np.zeros(0, np.uint8), 0, PAGE
        """The last chunk, and its place in the memory. The mark is before the first one."""
        self._used = 0
        """Bytes of the chunk that are used."""
        self._close = weakref.finalize(self, os.close, file)

    @classmethod
    def new(cls, mark: bytes) -> SharedMemory:
        """New memory with this mark. Raises OSError."""
        memory = cls(os.memfd_create("crossbow"))
        os.ftruncate(memory.file, SIZE)
        os.pwrite(memory.file, mark, 0)
        return memory

    @classmethod
    def of(cls, process: int, file: int, mark: bytes) -> SharedMemory | None:
        """The memory of another process. file: its descriptor there. None if this process cannot open it."""
        try:
            memory = cls(os.open(f"/proc/{process}/fd/{file}", os.O_RDWR))
            return memory if os.pread(memory.file, len(mark), 0) == mark else None
        except OSError:  # this process is in another container, with other process numbers
            return None

    def zeros(self, nbytes: int) -> Array:
        """The next `nbytes` bytes (uint8, 1-D), aligned to a page, and zeroed unless another rank has written to them.
        All ranks call this with the same numbers in the same order, and get the same memory. Raises ConfigurationError
        if there is too little."""
        if not nbytes:
            return np.zeros(0, np.uint8)
        room = -(-nbytes // PAGE) * PAGE
        try:
            if self._used + room > self._chunk.size:
                size = max(CHUNK, room)
                self._chunk = np.frombuffer(mmap.mmap(self.file, size, offset=self._end), np.uint8)
                self._begin, self._end, self._used = self._end, self._end + size, 0
            os.posix_fallocate(self.file, self._begin + self._used, room)  # reserve the memory now, not on first use
        except OSError as error:
            raise ConfigurationError(
                f"expected {nbytes:,} bytes of shared memory. Received: {error.strerror}"
            ) from error
        start, self._used = self._used, self._used + room
        return self._chunk[start : start + nbytes]

    def close(self) -> None:
        """End allocation. The arrays remain valid."""
        self._close()


def shared_memory(ranks: Ranks) -> SharedMemory | None:
    """Memory that all ranks share; None if they run on several hosts, or in separate containers. All ranks
    must call this."""
    if len({rank.host for rank in ranks.view.ranks}) > 1:
        return None
    memory, mark = None, secrets.token_bytes(MARK)
    if ranks.is_first:
        memory = _new(mark)
    offer = ranks.agree(lambda: None if memory is None else [os.getpid(), memory.file, mark.hex()])
    if offer is not None and not ranks.is_first:
        process, file, text = offer
        memory = SharedMemory.of(process, file, bytes.fromhex(text))
    return memory if all(ranks.gather(memory is not None)) else None


def _new(mark: bytes) -> SharedMemory | None:
    if not hasattr(os, "memfd_create"):  # only Linux has it
        return None
    try:
        return SharedMemory.new(mark)
    except OSError:
        return None
