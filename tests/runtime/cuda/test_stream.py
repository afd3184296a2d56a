"""Streams of a GPU, with their libraries, and events between them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current, on
from crossbow.runtime.cuda import stream as module
from crossbow.runtime.cuda.stream import NOT_READY, CudaStream, Event
from tests.kernels.cuda.fake import fake_cuda
from tests.support import SECONDS


@pytest.fixture(autouse=True)
def gpus() -> Iterator[None]:
    with fake_cuda(2):
        yield


def test_work_runs_on_the_stream_and_its_device() -> None:
    stream = CudaStream("test", 1)
    assert stream.device == 1
    seen = stream.call(lambda: (current().device, current().pointer))
    assert seen == (1, stream.place.pointer)
    assert stream.close()


def test_call_raises_what_the_work_raises() -> None:
    stream = CudaStream("test", 0)

    def fail() -> None:
        raise KeyError("what")

    with pytest.raises(KeyError):
        stream.call(fail)
    assert stream.call(lambda: 5) == 5
    assert stream.close()


@pytest.mark.parametrize("libraries", [False, True])
def test_libraries_have_handles_only_if_they_are_asked_for(libraries: bool) -> None:
    stream = CudaStream("test", 0, libraries=libraries)
    assert (bool(stream.place.cudnn), bool(stream.place.cublas)) == (libraries, libraries)
    assert stream.close()


@pytest.mark.parametrize("tf32", [False, True])
def test_products_round_to_tf32_only_if_they_may(tf32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, tuple[Any, ...]] = {}
    check = module.cublas.check

    def noting(name: str, *arguments: Any) -> None:
        calls[name] = arguments
        check(name, *arguments)

    monkeypatch.setattr(module.cublas, "check", noting)
    stream = CudaStream("test", 0, libraries=True, tf32=tf32)
    mode = calls["cublasSetMathMode"][1]
    assert bool(mode & module.cublas.CUBLAS_TF32_TENSOR_OP_MATH) == tf32
    assert mode & module.cublas.CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
    # Setting the stream resets the workspace, which is set afterwards.
    names = list(calls)
    assert names.index("cublasSetStream_v2") < names.index("cublasSetWorkspace_v2")
    assert stream.close()


def test_closing_destroys_stream_and_handles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, destroyed = CudaStream("test", 0, libraries=True), list[int]()
    original = api().runtime.streamDestroy
    monkeypatch.setattr(api().runtime, "streamDestroy", lambda p: (destroyed.append(p), original(p))[1])
    pointer = stream.place.pointer
    assert stream.close()
    assert stream.close()
    assert destroyed == [pointer]
    assert (stream.place.pointer, stream.place.cudnn, stream.place.cublas) == (0, 0, 0)
    assert stream.wait(0)


def test_a_stream_with_work_is_waited_for_and_not_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, status = CudaStream("test", 0), [NOT_READY]
    original = api().runtime.streamQuery
    monkeypatch.setattr(api().runtime, "streamQuery", lambda pointer: status[0] or original(pointer))
    assert not stream.wait(0.01)
    assert not stream.close(0.01)
    assert stream.place.pointer
    timer = threading.Timer(0.02, lambda: status.__setitem__(0, 0))
    timer.start()
    assert stream.wait(SECONDS)
    timer.join()
    assert stream.close(SECONDS)


def test_a_permanent_error_does_not_end_in_success(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = CudaStream("test", 0)
    with monkeypatch.context() as patch:
        patch.setattr(api().runtime, "streamQuery", lambda pointer: 700)
        assert not stream.wait(SECONDS)
        assert not stream.close(SECONDS)
    assert stream.close()


def test_an_event_is_a_point_of_a_stream() -> None:
    first, second, event = CudaStream("first", 0), CudaStream("second", 0), Event(0)
    with on(first.place):
        event.record(first)
    second.wait_for(event)
    event.wait()
    assert first.close()
    assert second.close()


def test_the_event_that_is_waited_for_is_the_one_that_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, first, second = CudaStream("test", 0), Event(0), Event(0)
    waits: list[tuple[int, int]] = []
    monkeypatch.setattr(api().runtime, "streamWaitEvent", lambda *arguments: waits.append(arguments[:2]))
    stream.wait_for(second)
    assert waits == [(stream.place.pointer, second.pointer)]
    assert first.pointer != second.pointer
    assert stream.close()
