"""Launches: grids, arguments by value, types, and the stream of a thread's calls."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from crossbow.kernels.cuda import launch
from crossbow.kernels.cuda.api import api, replaced
from crossbow.kernels.cuda.launch import (
    BLOCK,
    MOST_BLOCKS,
    CudaKernel,
    Launch,
    Stream,
    Structure,
    computed_in,
    current,
    on,
    options_for,
)
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.types import address
from tests.kernels.cuda.fake import FakeCuda, fake_cuda

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
HALF, BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
REPEAT = CudaKernel("inner_product", "repeat", FLOAT32)


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with fake_cuda(2) as fake:
        yield fake


def test_tensors_of_16_bits_are_computed_with_in_float32() -> None:
    assert [computed_in(dtype) for dtype in (FLOAT32, FLOAT64, HALF, BRAIN)] == [FLOAT32, FLOAT64, FLOAT32, FLOAT32]
    assert options_for(FLOAT64) == ("-DREAL=double",)
    assert options_for(FLOAT32) == ("-DREAL=float",)
    assert options_for(HALF) == ("-DREAL=float", "-DSTORED=float16")
    assert options_for(BRAIN) == ("-DREAL=float", "-DSTORED=bfloat16")


def test_every_source_begins_with_what_all_share() -> None:
    common = (launch.SOURCES / "common.cuh").read_text()
    for path in launch.SOURCES.glob("*.cu"):
        source = launch.text_of("") + launch.text_of(path.stem)
        assert source.startswith(common)
        assert source.endswith(path.read_text().rpartition("#include")[2].partition('.cuh"\n')[2] or path.read_text())
        assert "#include" not in source


@pytest.mark.parametrize(
    ("elements", "blocks"),
    [(0, 1), (1, 1), (BLOCK, 1), (BLOCK + 1, 2), (BLOCK * MOST_BLOCKS, MOST_BLOCKS), (10**12, MOST_BLOCKS)],
)
def test_a_thread_for_each_element_or_for_several(cuda: FakeCuda, elements: int, blocks: int) -> None:
    call = REPEAT.each(elements, None, None, *map(np.int64, (0, 1, 1)))
    assert (call.name, call.blocks, call.threads, call.shared) == ("repeat", blocks, BLOCK, 0)


@pytest.mark.parametrize(("dtype", "pack"), [(FLOAT64, 2), (FLOAT32, 4), (HALF, 8), (BRAIN, 8)], ids=str)
def test_a_thread_of_a_pointwise_kernel_takes_16_bytes(cuda: FakeCuda, dtype: np.dtype[Any], pack: int) -> None:
    kernel = CudaKernel("copy", "copy", dtype)
    assert kernel.pack == pack
    for elements, blocks in ((1, 1), (BLOCK * pack, 1), (BLOCK * pack + 1, 2), (10**12, MOST_BLOCKS)):
        call = kernel.each(elements, None, None, np.int64(elements), pointwise=True)
        assert (call.blocks, call.elements) == (blocks, elements)


def test_positions_have_64_bits_if_an_array_needs_them(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "compile", lambda source, options: lambda name: int("-DWIDE=1" in options))
    monkeypatch.setattr(launch, "LEAST_WIDE", 100)
    kernel = CudaKernel("copy", "copy", FLOAT32)
    small, large = (api().zeros(4 * size).view(np.float32) for size in (99, 100))
    number = np.int64(99)
    assert kernel.each(99, small, small, number).function == 0
    assert kernel.each(99, small, large, number).function == 1
    assert kernel.each(100, small, small, number).function == 1
    assert [kernel.blocks(1, small, y, number).function for y in (small, large)] == [0, 1]


def arguments(call: Launch, *kinds: type[np.generic]) -> list[np.ndarray]:
    """The first number of each argument as the kernel receives it, in the given types."""
    places = (ctypes.c_uint64 * len(kinds)).from_address(call.parameters)
    return [
        np.frombuffer(ctypes.string_at(at, np.dtype(kind).itemsize), kind)
        for at, kind in zip(places, kinds, strict=True)
    ]


def test_arrays_are_passed_by_address_and_numbers_by_value(cuda: FakeCuda) -> None:
    array, structure = api().zeros(64), Structure(7, -8)
    call = REPEAT.blocks(3, array, None, np.int32(-5), np.float32(0.5), structure, threads=64, shared=128)
    assert (call.blocks, call.threads, call.shared) == (3, 64, 128)
    received = arguments(call, np.uint64, np.uint64, np.int32, np.float32, np.int64)
    assert [value.item() for value in received] == [address(array), 0, -5, 0.5, 7]
    assert any(each is array for each in call.references)
    assert any(each is structure for each in call.references)


def test_grids_have_one_dimension(cuda: FakeCuda) -> None:
    """As cuLaunchKernel takes it: function, grid, block, shared memory, stream, parameters, nothing more."""
    call = REPEAT.blocks(3, api().zeros(4), None, *map(np.int64, (0, 1, 1)), threads=64, shared=128)
    given: list[tuple[int, ...]] = []
    driver = SimpleNamespace(launchKernel=lambda *values: given.append(values))
    plain = dataclasses.replace(call, references=())
    with replaced(cast(Any, SimpleNamespace(driver=driver))):
        plain()
    assert given == [(call.function, 3, 1, 1, 64, 1, 1, 128, 0, call.parameters, 0)]


def test_kernels_of_one_source_are_compiled_once(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, ...]] = []
    compile_ = cuda.compile

    def noting(source: str, options: tuple[str, ...]) -> object:
        compiled.append(tuple(options))
        return compile_(source, options)

    monkeypatch.setattr(cuda, "compile", noting)
    functions = {CudaKernel("softmax", "softmax_forward", FLOAT32).blocks(1).function for _ in range(3)}
    assert len(functions) == 1
    assert CudaKernel("softmax", "softmax_backward", FLOAT32).blocks(1).function not in functions
    assert compiled == [("-std=c++17", "-DREAL=float")]
    CudaKernel("softmax", "softmax_forward", FLOAT64).blocks(1)
    CudaKernel("softmax", "softmax_forward", FLOAT32, "// more").blocks(1)
    assert len(compiled) == 3


def test_calls_go_to_the_stream_that_the_thread_has_set(cuda: FakeCuda) -> None:
    """And to its device; what was set before is set again."""
    first, second = CudaStream("learner-0", 0, libraries=True), CudaStream("learner-1", 1, libraries=True)
    runtime, seen = api().runtime, []
    assert current() == Stream(0, 0)
    with on(first.place):
        with on(second.place):
            assert (current(), runtime.getDevice()) == (second.place, 1)
            thread = threading.Thread(target=lambda: seen.append(current()))
            thread.start()
            thread.join()
        assert (current(), runtime.getDevice()) == (first.place, 0)
    assert (current(), runtime.getDevice()) == (Stream(0, 0), 0)
    assert seen == [Stream(0, 0)]  # of another thread


def test_a_thread_sets_its_device_once() -> None:
    """Also device 0, which is current from the beginning: only this gives a thread its CUDA context."""
    devices: list[int] = []
    runtime = SimpleNamespace(getDevice=lambda: 0, setDevice=devices.append)

    def run() -> None:
        for _ in range(2):
            with on(Stream(0, 7)):
                pass

    with replaced(cast(Any, SimpleNamespace(runtime=runtime))):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert devices == [0]


def fail() -> None:
    raise ZeroDivisionError


def test_the_stream_is_reset_after_an_exception(cuda: FakeCuda) -> None:
    second = CudaStream("learner-1", 1, libraries=True)
    with pytest.raises(ZeroDivisionError), on(second.place):
        fail()
    assert (current(), api().runtime.getDevice()) == (Stream(0, 0), 0)
