"""The GPU that is none finds faults: small programs, each with one."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from crossbow import TrainingUnit
from crossbow.kernels.cuda import cublas
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.cublas import CublasMatrix, matrix_product
from crossbow.kernels.cuda.launch import CudaKernel, Stream, on
from crossbow.kernels.cuda.task import store_results
from crossbow.kernels.cuda.transfer import to_device, to_host
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.memory import SMALL_RECORD, Input
from crossbow.runtime.cuda.stream import CudaStream, Event, WaitFor
from crossbow.runtime.task import Task
from crossbow.types import TaskError, address
from tests.combinations import covering
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.cuda.fake_memory import FakeError, RaceError
from tests.kernels.cuda.fake_runtime import FakeRuntime
from tests.runtime.cuda.test_training import RUNS, assert_same, context, train
from tests.support import SECONDS, engine_of

FLOAT, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
SIZE = 8
COPY = CudaKernel("inner_product", "repeat", FLOAT)
"""y[i] = x[i] with times = inner = 1: (x, y, n, times, inner)."""


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with fake_cuda(2) as fake:
        yield fake


@pytest.fixture
def stream(cuda: FakeCuda) -> Iterator[CudaStream]:
    made = CudaStream("learner-0", 0, libraries=True)
    api().runtime.deviceSynchronize()
    with on(made.place):
        yield made


def zeros(count: int = SIZE, dtype: Any = FLOAT) -> Any:
    return api().zeros(count * np.dtype(dtype).itemsize).view(dtype)


def copy(x: Any, y: Any, n: int = SIZE) -> None:
    """y ← x on the current stream."""
    COPY.each(n, x, y, np.int64(n), np.int64(1), np.int64(1))()


def test_what_is_right_is_done(stream: CudaStream) -> None:
    x, y = to_device(np.arange(SIZE, dtype=np.float32)), zeros()
    copy(x, y)
    np.testing.assert_array_equal(to_host(y), np.arange(SIZE))


# Arguments


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((np.int64(8), np.int64(1)), "repeat: expected 5 arguments. Received: 4"),
        ((np.int64(8), np.int64(1), np.int64(1), np.int64(1)), "expected 5 arguments. Received: 6"),
        (
            (np.int64(8), np.int32(1), np.int64(1)),
            "argument 4: expected Size times, 8 bytes. Received: int32, 4 bytes",
        ),
        ((np.int64(8), np.float64(1), np.int64(1)), "argument 4: expected Size times, 8 bytes. Received: float64"),
        ((np.int64(8), None, np.int64(1)), "argument 4: expected Size times, 8 bytes. Received: an array"),
    ],
)
def test_numbers_that_do_not_fit_the_kernel(stream: CudaStream, arguments: tuple[Any, ...], text: str) -> None:
    launch = COPY.each(SIZE, zeros(), zeros(), *arguments)
    with pytest.raises(FakeError, match=text):
        launch()


def test_arrays_that_do_not_fit_the_kernel(stream: CudaStream) -> None:
    with pytest.raises(FakeError, match=r"argument 2: expected stored \*y, 8 bytes. Received: an array of float64"):
        copy(zeros(), zeros(dtype=DOUBLE))
    with pytest.raises(
        FakeError, match=r"argument 1: expected const stored \*x, 8 bytes. Received: an array of float32"
    ):
        copy(api().zeros(4 * SIZE + 2)[2:].view(FLOAT), zeros())  # on no multiple of its elements' size
    launch = COPY.each(SIZE, np.int64(0), zeros(), *map(np.int64, (SIZE, 1, 1)))
    with pytest.raises(FakeError, match=r"argument 1: expected const stored \*x, 8 bytes. Received: int64"):
        launch()


# Memory


def test_a_kernel_that_writes_behind_an_array(stream: CudaStream) -> None:
    arena = zeros(4 * SIZE)
    with on(Stream(0, 0)), pytest.raises(FakeError, match="repeat writes beside an array"):
        copy(arena[2 * SIZE :], arena[:SIZE], SIZE + 1)
    api().runtime.deviceSynchronize()
    copy(arena[2 * SIZE :], arena[:SIZE], SIZE + 1)
    with pytest.raises(FakeError, match=r"repeat writes beside an array: repeat \(y\)"):
        api().runtime.deviceSynchronize()
    with on(Stream(0, 0)), pytest.raises(FakeError, match="repeat writes beside an array"):
        copy(arena[2 * SIZE :], arena[:0])


def test_a_kernel_that_reads_behind_an_array_gets_no_numbers(stream: CudaStream) -> None:
    arena, y = zeros(4 * SIZE), zeros()
    copy(arena[: SIZE - 1], y)
    assert np.isnan(to_host(y)).tolist() == [False] * (SIZE - 1) + [True]


def test_shared_memory_that_is_too_small(stream: CudaStream) -> None:
    launch = CudaKernel("vector", "add_up", FLOAT).blocks(
        1, zeros(dtype=DOUBLE), np.int64(8), zeros(1, DOUBLE), shared=64
    )
    launch()
    with pytest.raises(AssertionError, match="add_up writes behind its 64 bytes of shared memory"):
        api().runtime.deviceSynchronize()


def test_arrays_of_the_host_are_not_for_kernels(stream: CudaStream) -> None:
    with pytest.raises(FakeError, match=r"repeat \(x\): expected the GPU's memory. Received: 0x"):
        copy(np.zeros(SIZE, np.float32), zeros())


def test_a_copy_of_more_than_there_is(stream: CudaStream) -> None:
    x, y, runtime = zeros(), api().pinned(8 * SIZE), api().runtime
    with pytest.raises(FakeError, match=r"memcpyAsync \(source\): 64 bytes at \w+ are not within 32 bytes at"):
        runtime.memcpyAsync(address(y), address(x), 8 * SIZE, runtime.memcpyDeviceToHost, stream.place.pointer)
    with pytest.raises(FakeError, match=r"memcpyAsync: expected memory of the host. Received: 32 bytes"):
        runtime.memcpyAsync(address(x), address(x), 4 * SIZE, runtime.memcpyHostToDevice, stream.place.pointer)
    with pytest.raises(FakeError, match=r"memcpyAsync \(target\): expected the GPU's memory. Received: 64 bytes"):
        runtime.memcpyAsync(address(y), address(x), 4 * SIZE, runtime.memcpyDeviceToDevice, stream.place.pointer)


def test_a_product_of_more_than_there_is(stream: CudaStream) -> None:
    arena = zeros(12)
    product = matrix_product(
        (2, 2, 2), CublasMatrix(arena, 2), CublasMatrix(arena, 2, start=4), CublasMatrix(arena, 2, start=9), FLOAT
    )
    with pytest.raises(FakeError, match=r"cublasGemmEx \(c\): 16 bytes at \w+ are not within 48 bytes at"):
        product()


def test_memory_that_was_freed(stream: CudaStream) -> None:
    x, y = zeros(), zeros()
    launch = COPY.each(SIZE, x, y, *map(np.int64, (SIZE, 1, 1)))
    copied = Copy(y, x, stream)
    launch()
    copied()
    api().runtime.deviceSynchronize()
    copied()
    del x
    launch()  # which holds its arrays
    api().runtime.deviceSynchronize()
    copied()
    del launch
    gc.collect()
    with pytest.raises(FakeError, match=r"memcpyAsync \(source\): its memory was freed: 32 bytes"):
        api().runtime.deviceSynchronize()
    with pytest.raises(FakeError, match=r"memcpyAsync \(source\): its memory was freed"):
        copied()


def test_pinned_memory_that_was_freed(stream: CudaStream) -> None:
    x, y = api().pinned(4 * SIZE), zeros()
    runtime = api().runtime
    runtime.memcpyAsync(address(y), address(x), 4 * SIZE, runtime.memcpyHostToDevice, stream.place.pointer)
    del x
    with pytest.raises(FakeError, match=r"memcpyAsync \(source\): its memory was freed: 32 bytes at .* pinned memory"):
        runtime.deviceSynchronize()


def test_a_graph_whose_memory_was_freed(stream: CudaStream) -> None:
    runtime, y = api().runtime, zeros()

    def capture() -> int:
        x = zeros()
        launch = COPY.each(SIZE, x, y, *map(np.int64, (SIZE, 1, 1)))
        runtime.streamBeginCapture(stream.place.pointer, runtime.streamCaptureModeRelaxed)
        launch()
        return int(runtime.graphInstantiate(runtime.streamEndCapture(stream.place.pointer)))

    executable = capture()
    gc.collect()
    with pytest.raises(FakeError, match=r"repeat \(x\): its memory was freed"):
        runtime.graphLaunch(executable, stream.place.pointer)


def test_what_is_pinned_is_not_written_over_too_early(stream: CudaStream) -> None:
    x, y, runtime = api().pinned(4 * SIZE).view(np.float32), zeros(), api().runtime
    runtime.memcpyAsync(address(y), address(x), x.nbytes, runtime.memcpyHostToDevice, stream.place.pointer)
    x[0] = 1
    with pytest.raises(FakeError, match=r"32 bytes at .* were written over by the host before they were copied"):
        runtime.deviceSynchronize()


def test_a_result_that_is_read_too_early_is_no_number(stream: CudaStream) -> None:
    x, y, runtime = zeros(), api().pinned(4 * SIZE).view(np.float32), api().runtime
    runtime.memcpyAsync(address(y), address(x), y.nbytes, runtime.memcpyDeviceToHost, stream.place.pointer)
    assert np.isnan(y).all()
    stream.wait(1)
    assert not y.any()


def store(stream: CudaStream, turn: int) -> tuple[Any, Any]:
    """A loss of 0 on its way to row `turn` of (4, 2): what keeps its memory alive, and the rows."""
    loss, state = zeros(1), to_device(np.array([0, 0, 0, 0, turn, 0, 0, 0], np.int64))
    rows = api().pinned(64).view(np.float64).reshape(4, 2)
    rows[...] = -1
    launch = store_results(loss, None, state, rows)
    launch()
    return launch, rows


def test_what_a_kernel_writes_for_the_host(stream: CudaStream) -> None:
    launch, rows = store(stream, 2)
    event = Event(0)
    event.record(stream)
    assert rows[1].tolist() == [-1, -1]  # of another task
    event.wait()
    assert rows[2].tolist() == [0, -1]
    rows[2] = 5
    launch()  # which needs not wait for what was read before


def test_a_row_that_is_read_before_it_was_written(stream: CudaStream) -> None:
    _launch, rows = store(stream, 2)
    assert rows[2].tolist() == [-1, -1]
    with pytest.raises(RaceError, match=r"the host has read 8 bytes at \w+ of .* before store_results on stream \d+"):
        stream.wait(1)


def test_a_row_that_was_written_but_not_waited_for(stream: CudaStream) -> None:
    _launch, rows = store(stream, 2)
    while api().runtime._go_on():
        pass
    assert rows[3, 0] == -1
    with pytest.raises(RaceError, match=r"the host reads 16 bytes .*, which store_results on stream \d+ .* has not"):
        rows[2]
    with pytest.raises(RaceError, match=r"the host reads 8 bytes"):
        rows[2, 0]
    stream.wait(1)
    assert rows[2, 0] == 0


def test_a_row_that_is_not_there(stream: CudaStream) -> None:
    _launch, _rows = store(stream, 4)
    with pytest.raises(FakeError, match=r"store_results writes beside an array: store_results \(results\)"):
        stream.wait(1)


# Order


def test_two_streams_that_do_not_wait(stream: CudaStream) -> None:
    x, y, z, other, event = zeros(), zeros(), zeros(), CudaStream("other", 0), Event(0)
    copy(x, y)
    event.record(stream)
    with on(other.place):
        copy(x, z)  # both read x
        with pytest.raises(RaceError, match=r"a race: repeat \(x\) on .* reads memory that repeat \(y\) on stream"):
            copy(y, z)
        with pytest.raises(RaceError, match=r"a race: repeat \(y\) on .* writes memory that repeat \(x\) on stream"):
            copy(z, x)
        other.wait_for(event)
        copy(y, z)
        copy(z, x)


def test_halves_of_an_array_are_apart(stream: CudaStream) -> None:
    x, both, other = zeros(), zeros(2 * SIZE), CudaStream("other", 0)
    copy(x, both[:SIZE])
    with on(other.place):
        copy(x, both[SIZE:])


def test_an_event_that_was_recorded_too_early(stream: CudaStream) -> None:
    x, y, z, other, event = zeros(), zeros(), zeros(), CudaStream("other", 0), Event(0)
    event.record(stream)
    copy(x, y)
    other.wait_for(event)
    with on(other.place), pytest.raises(RaceError):
        copy(y, z)


def test_a_graph_waits_for_the_last_record_before_its_launch(stream: CudaStream) -> None:
    """Not for that before its capture, and not for a later one."""
    runtime, x, y, z, other, event = api().runtime, zeros(), zeros(), zeros(), CudaStream("other", 0), Event(0)
    wait = WaitFor(event)
    event.record(stream)
    copy(x, y)
    with on(other.place):
        runtime.streamBeginCapture(other.place.pointer, runtime.streamCaptureModeRelaxed)
        wait()
        copy(y, z)
        executable = runtime.graphInstantiate(runtime.streamEndCapture(other.place.pointer))
        with pytest.raises(RaceError):
            runtime.graphLaunch(executable, other.place.pointer)
    event.record(stream)
    with on(other.place):
        runtime.graphLaunch(executable, other.place.pointer)
        event.record(other)  # if the launch waited for this record, the stream would wait for itself
    assert other.wait(SECONDS)


def test_a_wait_in_a_capture_is_external(stream: CudaStream) -> None:
    runtime, event, pointer = api().runtime, Event(0), stream.place.pointer
    with pytest.raises(FakeError, match="flags 1"):
        runtime.streamWaitEvent(pointer, event.pointer, 1)
    runtime.streamBeginCapture(pointer, runtime.streamCaptureModeRelaxed)
    with pytest.raises(FakeError, match="flags 0"):
        runtime.streamWaitEvent(pointer, event.pointer)
    runtime.streamEndCapture(pointer)


def test_waiting_on_the_host_orders_streams(stream: CudaStream) -> None:
    x, y, z, other, event = zeros(), zeros(), zeros(), CudaStream("other", 0), Event(0)
    copy(x, y)
    event.record(stream)
    event.wait()
    with on(other.place):
        copy(y, z)


def test_zeros_that_are_not_there_yet(stream: CudaStream) -> None:
    y = zeros()
    with pytest.raises(
        RaceError, match=r"repeat \(x\) on stream \d+ .* that zeros on the default stream of cuda:0 uses"
    ):
        copy(api().runtime.zeros(4 * SIZE).view(FLOAT), y)


def test_what_the_host_writes_is_not_there_yet(stream: CudaStream) -> None:
    x, y = zeros(), zeros()
    x.set(np.ones(SIZE, np.float32))
    with pytest.raises(RaceError, match=r"that set on the default stream of cuda:0 uses"):
        copy(x, y)
    api().runtime.deviceSynchronize()
    copy(x, y)


def test_a_graph_meets_another_stream(stream: CudaStream) -> None:
    x, y, other, runtime = zeros(), zeros(), CudaStream("other", 0), api().runtime
    copy(x, y)
    runtime.streamBeginCapture(stream.place.pointer, runtime.streamCaptureModeRelaxed)
    copy(x, y)
    executable = runtime.graphInstantiate(runtime.streamEndCapture(stream.place.pointer))
    with on(other.place):
        runtime.deviceSynchronize()
        copy(y, x)
    with pytest.raises(RaceError, match=r"repeat \(\w\) on .* uses"):
        runtime.graphLaunch(executable, stream.place.pointer)


def test_a_deadlock(stream: CudaStream) -> None:
    runtime = api().runtime
    event, other = Event(0), CudaStream("other", 0)
    runtime._recorded[event.pointer] = 1  # as a record that never comes
    other.wait_for(event)
    with pytest.raises(FakeError, match="a deadlock"):
        runtime.streamSynchronize(other.place.pointer)
    runtime._happened[event.pointer] = 1


def test_threads_that_tell_each_other_what_they_have_waited_for() -> None:
    for tell in (False, True):
        with fake_cuda(threads_tell=tell) as fake:
            stream, other, event = CudaStream("learner-0", 0, libraries=True), CudaStream("other", 0), Event(0)
            fake.runtime.deviceSynchronize()
            with on(stream.place):
                x, y, z = zeros(), zeros(), zeros()
                copy(x, y)
                event.record(stream)
            with ThreadPoolExecutor(1, initializer=fake.runtime.setDevice, initargs=(0,)) as pool:
                pool.submit(event.wait).result()
            with on(other.place), nullcontext() if tell else pytest.raises(RaceError):
                copy(y, z)
            with on(stream.place):
                copy(x, x2 := zeros())
            with on(other.place), pytest.raises(RaceError):  # nobody has waited for this
                copy(x2, z)


# Devices, captures


def test_another_device_is_current(stream: CudaStream) -> None:
    x, y = zeros(), zeros()
    launch = COPY.each(SIZE, x, y, *map(np.int64, (SIZE, 1, 1)))
    runtime = api().runtime
    runtime.setDevice(1)
    with pytest.raises(FakeError, match="repeat: compiled for cuda:0, launched on cuda:1"):
        launch()
    with pytest.raises(FakeError, match="memcpyAsync: expected device 0, the stream's, to be current"):
        Copy(y, x, stream)()
    with pytest.raises(FakeError, match="eventRecord: expected device 0"):
        Event(0).record(stream)
    runtime.setDevice(0)
    with pytest.raises(FakeError, match="the event is of device 1, the stream of 0"):
        Event(1).record(stream)


def test_a_thread_without_a_context(stream: CudaStream) -> None:
    """Which `cudaGetDevice` does not make, though it says 0."""
    x, y = zeros(), zeros()
    launch = COPY.each(SIZE, x, y, *map(np.int64, (SIZE, 1, 1)))

    def launch_on_the_stream() -> None:
        assert api().runtime.getDevice() == 0
        with on(stream.place):
            api().runtime.deviceSynchronize()  # for the zeros of another thread
            launch()

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(FakeError, match="repeat: expected a thread that has set a device"):
            pool.submit(launch).result()
        pool.submit(launch_on_the_stream).result()


def test_memory_of_another_device(stream: CudaStream) -> None:
    with on(Stream(1, 0)):
        x = zeros()
    with pytest.raises(FakeError, match=r"repeat \(x\): expected memory of cuda:0. Received: .* memory of cuda:1"):
        copy(x, zeros())


def test_captures_that_would_wait_or_allocate(stream: CudaStream) -> None:
    x, host, runtime = zeros(), np.zeros(SIZE, np.float32), api().runtime
    product = matrix_product(
        (1, 1, 1), CublasMatrix(x, 1), CublasMatrix(x, 1, start=1), CublasMatrix(x, 1, start=2), FLOAT
    )
    runtime.streamBeginCapture(stream.place.pointer, runtime.streamCaptureModeRelaxed)
    with pytest.raises(FakeError, match="a copy of pageable memory in a capture"):
        runtime.memcpyAsync(address(x), address(host), x.nbytes, runtime.memcpyHostToDevice, stream.place.pointer)
    with pytest.raises(FakeError, match="streamSynchronize of a stream that is being captured"):
        runtime.streamSynchronize(stream.place.pointer)
    with pytest.raises(FakeError, match="recorded in a capture"):
        Event(0).record(stream)
    product()
    cublas.check("cublasSetStream_v2", stream.place.cublas, stream.place.pointer)  # which takes the workspace away
    with pytest.raises(FakeError, match="cublasGemmEx: without a workspace of ours"):
        product()
    runtime.streamEndCapture(stream.place.pointer)


class Copy:
    """A copy that knows addresses and keeps nothing alive."""

    def __init__(self, target: Any, source: Any, stream: CudaStream) -> None:
        runtime = api().runtime
        arguments = (address(target), address(source), source.nbytes, runtime.memcpyDeviceToDevice)
        self._copy = functools.partial(runtime.memcpyAsync, *arguments, stream.place.pointer)

    def __call__(self) -> None:
        self._copy()


# Whole runs: without any of the waits that keep the order, on the first order of streams


def pairs(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[], object], ignored: tuple[str, str] | None
) -> set[tuple[str, str]]:
    """The streams of a training run that wait for each other: (which one, for which). The `ignored` one does not."""
    names: dict[int, str] = {}
    recorded: dict[int, str] = {}
    seen: set[tuple[str, str]] = set()

    def create(stream: CudaStream, *arguments: Any, **options: Any) -> None:
        original_create(stream, *arguments, **options)
        names[stream.place.pointer] = stream.name

    def record(runtime: FakeRuntime, event: int, stream: int) -> None:
        recorded[event] = names[stream]
        original_record(runtime, event, stream)

    def wait_for(runtime: FakeRuntime, stream: int, event: int) -> None:
        """A wait by itself, or in the launch of a graph."""
        pair = names[stream], recorded.get(event, "")
        if pair[1]:
            seen.add(pair)
        if pair != ignored:
            original_wait(runtime, stream, event)

    original_create, original_record = CudaStream.__init__, FakeRuntime.eventRecord
    original_wait = FakeRuntime.wait_for
    with monkeypatch.context() as patch:
        patch.setattr(CudaStream, "__init__", create)
        patch.setattr(FakeRuntime, "eventRecord", record)
        patch.setattr(FakeRuntime, "wait_for", wait_for)
        run()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "devices", "small"),
    covering(
        ["sma", "sma every third task", pytest.param("s-sgd", marks=pytest.mark.slow)],
        ["cuda:0", "cuda:0,cuda:1"],
        [0, SMALL_RECORD],
        together=1,
    ),
)
def test_every_missing_wait_is_reported(rule: str, devices: str, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossbow.runtime.cuda.memory.SMALL_RECORD", small)
    run = functools.partial(train, devices, learners=2 // len(devices.split(",")), **RUNS[rule])
    waits = pairs(monkeypatch, run, None)
    # Of two learners: learner and synchroniser, in both directions; and copies and learner, if another stream copies.
    assert len(waits) == (4 if small else 8)
    for ignored in sorted(waits):
        with pytest.raises(TaskError) as caught:
            pairs(monkeypatch, run, ignored)
        assert isinstance(caught.value.__cause__, RaceError), ignored


@pytest.mark.slow
def test_a_copy_on_another_stream_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner alone, whose small batches need no events as long as its own stream copies them."""
    submit = Input._submit

    def elsewhere(place: Input, slot: int, stream: CudaStream) -> None:
        learner = owner[0]
        submit(place, slot, learner._streams.copies)

    owner: list[Any] = []
    with fake_cuda(), context("cuda:0", learners=1) as running:
        owner += engine_of(running).coordination.learners
        running.train(2, TrainingUnit.TASKS)
        monkeypatch.setattr(Input, "_submit", elsewhere)
        with pytest.raises(TaskError) as caught:
            running.train(4, TrainingUnit.TASKS)
    assert isinstance(caught.value.__cause__, RaceError)


@pytest.mark.slow
def test_a_slot_that_is_given_back_before_it_was_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader fills it again, and the next task's state goes there."""
    submit, result = CudaLearner.submit, CudaLearner._result

    def releasing(learner: CudaLearner, task: Task) -> None:
        submit(learner, task)
        next(iter(learner.tasks.values())).release(task.slot)

    def keeping(learner: CudaLearner, submitted: Any) -> Any:
        bound = dataclasses.replace(submitted.bound, release=lambda slot: None)
        return result(learner, submitted._replace(bound=bound))

    monkeypatch.setattr("crossbow.runtime.cuda.backend.SLOTS", 1)
    expected = train("cuda:0")
    monkeypatch.setattr(CudaLearner, "submit", releasing)
    monkeypatch.setattr(CudaLearner, "_result", keeping)
    with pytest.raises((TaskError, FakeError), match="were written over by the host before they were copied"):
        train("cuda:0")
    monkeypatch.undo()
    assert_same(train("cuda:0"), expected, 0)


def test_results_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there, by chance."""

    def happens(event: Event) -> None:
        runtime: Any = api().runtime
        runtime._until(lambda: runtime._happened[event.pointer] >= runtime._recorded[event.pointer])

    monkeypatch.setattr(Event, "wait", happens)
    with pytest.raises(TaskError, match="a race: the host reads 16 bytes") as caught:
        train("cuda:0")
    assert isinstance(caught.value.__cause__, RaceError)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the error ends the watcher
def test_results_that_are_read_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CudaLearner._result

    def result(learner: CudaLearner, submitted: Any) -> Any:
        assert learner._turns.results[0][submitted.turn].shape == (2,)
        return original(learner, submitted)

    monkeypatch.setattr(CudaLearner, "_result", result)
    with pytest.raises((TaskError, RaceError), match="a race: the host has read 8 bytes"):
        train("cuda:0")


@pytest.mark.slow
def test_numbers_of_the_host_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRuntime, "deviceSynchronize", lambda runtime: None)
    with pytest.raises(TaskError, match=r"a race: .* uses, and neither waits for the other"):
        train("cuda:0,cuda:1")
