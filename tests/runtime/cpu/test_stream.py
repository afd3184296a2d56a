from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from crossbow.runtime.cpu.stream import CpuStream
from crossbow.runtime.device import available_cores
from tests.support import SECONDS, raising, within

CORES = available_cores()


@pytest.fixture
def stream() -> Iterator[CpuStream]:
    made = CpuStream("learner-test", CORES, 1, lambda threads: None)
    yield made
    assert made.close(SECONDS)


def test_work_is_done_in_order(stream: CpuStream) -> None:
    done: list[int] = []
    for number in range(100):
        stream.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert stream.call(lambda: list(done)) == list(range(100))


def test_work_of_one_stream_is_done_on_one_thread_beside_the_caller(stream: CpuStream) -> None:
    names = {stream.call(lambda: threading.current_thread().name) for _ in range(5)}
    assert names == {"learner-test"}
    running = threading.Event()
    stream.submit(lambda: (running.wait(SECONDS), None)[1])
    running.set()  # would never be reached if submit waited for the work
    assert stream.call(lambda: 5) == 5


def test_streams_run_beside_each_other() -> None:
    meeting = threading.Barrier(2, timeout=SECONDS)
    streams = [CpuStream(f"learner-{i}", CORES, 1, lambda threads: None) for i in range(2)]
    streams[0].submit(lambda: (meeting.wait(), None)[1])
    streams[1].call(meeting.wait)  # both are inside at a time, or this breaks
    assert all(stream.close(SECONDS) for stream in streams)


def test_call_raises_what_the_work_raises(stream: CpuStream) -> None:
    error = KeyError("what")
    with pytest.raises(KeyError) as caught:
        stream.call(raising(error))
    assert caught.value is error
    assert stream.call(lambda: "still alive") == "still alive"


def test_the_thread_has_its_cores_and_threads() -> None:
    told: list[tuple[int, str]] = []
    stream = CpuStream(
        "learner-3", CORES[:1], 7, lambda threads: told.append((threads, threading.current_thread().name))
    )
    if hasattr(os, "sched_getaffinity"):
        assert stream.call(lambda: os.sched_getaffinity(0)) == set(CORES[:1])
        assert os.sched_getaffinity(0) == set(CORES)  # the caller's are as they were
    assert stream.close(SECONDS)
    assert told == [(7, "learner-3")]


def test_a_stream_that_cannot_begin_says_so_instead_of_hanging() -> None:
    def begin() -> None:
        stream = CpuStream("learner-0", CORES, 1, lambda threads: raising(OSError("no such team"))())
        stream.call(lambda: None)

    with pytest.raises(OSError, match="no such team"):
        within(SECONDS, begin)


def test_closing_waits_for_what_was_submitted() -> None:
    stream, done = CpuStream("learner-0", CORES, 1, lambda threads: None), []
    stream.submit(lambda: (time.sleep(0.05), done.append(1), None)[2])
    assert stream.close(SECONDS)
    assert done == [1]


def test_closing_gives_up_after_its_time() -> None:
    stream, end = CpuStream("learner-0", CORES, 1, lambda threads: None), threading.Event()
    stream.submit(lambda: (end.wait(SECONDS), None)[1])
    assert not stream.close(0.02)
    end.set()
    assert stream.close(SECONDS)


def test_closing_twice_does_nothing() -> None:
    stream = CpuStream("learner-0", CORES, 1, lambda threads: None)
    assert stream.close(SECONDS)
    assert stream.close(SECONDS)


def test_finished_work_is_forgotten(stream: CpuStream) -> None:
    """What a task holds must not live on in a thread that waits."""
    import weakref

    class Big:
        pass

    big = Big()
    gone = weakref.ref(big)
    stream.submit(lambda kept=big: None)  # type: ignore[misc]
    stream.call(lambda: None)
    del big
    deadline = time.monotonic() + SECONDS
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert gone() is None
