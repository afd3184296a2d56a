"""Memory that the ranks of a host share."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crossbow.cluster import shared_memory as module
from crossbow.cluster.shared_memory import CHUNK, PAGE, SharedMemory, shared_memory
from crossbow.types import ConfigurationError
from tests.cluster.fake_network import FakeNetwork, at_once

if not hasattr(os, "memfd_create"):
    pytest.skip("needs Linux", allow_module_level=True)

MARK = bytes(range(16))


def of_ranks(network: FakeNetwork) -> list[SharedMemory | None]:
    return at_once([lambda ranks=ranks: shared_memory(ranks) for ranks in network.ranks()])


def descriptors() -> int:
    """Number of open descriptors of shared memory."""
    gc.collect()
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the directory
            count += "memfd:crossbow" in str(file.readlink())
    return count


def test_all_ranks_have_the_same_memory() -> None:
    memories = of_ranks(FakeNetwork(3, one_host=True))
    sizes = [8, 0, 3 * PAGE + 1, 24, CHUNK - 6 * PAGE, PAGE, CHUNK + 5, CHUNK // 2, 100]
    arrays = []
    for memory in memories:
        assert memory is not None
        arrays.append([memory.zeros(size) for size in sizes])
        memory.close()
    for number, size in enumerate(sizes):
        same = [of_rank[number] for of_rank in arrays]
        assert [array.shape for array in same] == [(size,)] * 3
        assert not any(array.any() for array in same)
        assert all(array.ctypes.data % 64 == 0 for array in same if size)
    for number in range(len(sizes)):
        arrays[number % 3][number][[0, -1] if sizes[number] else []] = number + 1
    for number, size in enumerate(sizes):
        ends = [number + 1] * 2 if size else []
        assert [of_rank[number][[0, -1] if size else []].tolist() for of_rank in arrays] == [ends] * 3


def test_descriptors_are_closed() -> None:
    before = descriptors()
    memories = of_ranks(FakeNetwork(2, one_host=True))
    assert descriptors() == before + 2
    assert memories[0] is not None
    arrays = [memories[0].zeros(16) for _ in range(10)]
    assert descriptors() == before + 3
    memories[0].close()
    memories[0].close()
    arrays[-1][:] = 1
    arrays.clear()
    memories.clear()  # the second one's, without `close`
    assert descriptors() == before


def test_ranks_of_several_hosts_have_none() -> None:
    assert of_ranks(FakeNetwork(2)) == [None, None]


def test_if_one_rank_cannot_open_it_none_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers of their own, where the number of a process is that of another one."""
    before, opened = descriptors(), SharedMemory.of
    monkeypatch.setattr(SharedMemory, "of", lambda process, file, mark: opened(2**30, file, mark))
    assert of_ranks(FakeNetwork(2, one_host=True)) == [None, None]
    monkeypatch.setattr(SharedMemory, "of", lambda process, file, mark: opened(process, file, bytes(16)))
    assert of_ranks(FakeNetwork(3, one_host=True)) == [None] * 3
    assert descriptors() == before


def test_a_descriptor_that_is_no_memory() -> None:
    """That of another program, which has the same numbers in another container."""
    read, write = os.pipe()
    try:
        assert SharedMemory.of(os.getpid(), write, MARK) is None
    finally:
        os.close(read)
        os.close(write)


def test_a_system_that_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        assert of_ranks(FakeNetwork(2, one_host=True)) == [None, None]
    memory = SharedMemory.new(MARK)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    expected = r"^expected 9,000 bytes of shared memory\. Received: No space left on device$"
    with pytest.raises(ConfigurationError, match=expected):
        memory.zeros(9000)
    monkeypatch.delattr(os, "memfd_create")
    assert of_ranks(FakeNetwork(2, one_host=True)) == [None, None]


@pytest.mark.slow
def test_another_process_has_it() -> None:
    memory = SharedMemory.new(MARK)
    code = (
        "import sys\n"
        "from crossbow.cluster.shared_memory import SharedMemory\n"
        "process, file = map(int, sys.argv[1:])\n"
        "memory = SharedMemory.of(process, file, bytes(range(16)))\n"
        "first, second = memory.zeros(5000), memory.zeros(8)\n"
        "memory.close()\n"
        "assert (first == 7).all()\n"
        "second[:] = 9\n"
    )
    first, second = memory.zeros(5000), memory.zeros(8)
    first[:] = 7
    command = [sys.executable, "-c", code, str(os.getpid()), str(memory.file)]
    root = Path(module.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run(command, check=True, timeout=60, env=environment)
    assert (second == 9).all()
