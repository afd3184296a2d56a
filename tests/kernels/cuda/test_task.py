"""Loading a batch, handing results over and looking for numbers that are not finite, with a GPU that is none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import BLOCK, Stream, on
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.task import SEARCH_BLOCKS, store_results
from crossbow.kernels.cuda.transfer import to_device
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import CheckFinite, LoadBatch
from crossbow.types import Layout, NonFiniteError
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.reference.running import DTYPES, channels_last, draw, nan, run, state, tensor


@pytest.fixture(autouse=True)
def fake() -> Iterator[FakeCuda]:
    """Calls go to a stream of their own, where they wait until somebody needs them."""
    with fake_cuda() as cuda, on(Stream(0, cuda.runtime.streamCreateWithFlags(cuda.runtime.streamNonBlocking))):
        yield cuda
        cuda.runtime.deviceSynchronize()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [*itertools.product([(2, 3, 4, 5), (2, 1, 4, 5), (70, 1, 31, 31)], Layout), ((3, 7), Layout.PLAIN)],
    ids=str,
)
def test_load_batch(fake: FakeCuda, shape: tuple[int, ...], kind: Any, dtype: Any, layout: Layout) -> None:
    generator = np.random.default_rng(0)
    slots = (255 * generator.random((3, *shape))).astype(kind)
    slot_labels = generator.integers(0, 10, (3, shape[0])).astype(np.int32)
    x, labels = nan(shape, dtype), np.zeros(shape[0], np.int32)
    if layout is Layout.CHANNELS_LAST:
        x = channels_last(x)
    kernel = Cuda(dtype).prepare(
        LoadBatch(
            tensor(slots.shape, kind),
            tensor(shape, dtype, layout),
            tensor(slot_labels.shape, np.int32),
            tensor(labels.shape, np.int32),
            1 / 255,
        )
    )
    for slot in (2, 0):
        now = state(SLOT=slot)
        run(kernel, slots=slots, slot_labels=slot_labels, input=x, labels=labels, state=now)
        fake.runtime.deviceSynchronize()
        np.testing.assert_array_equal(x, slots[slot].astype(dtype) * dtype(1 / 255))
        np.testing.assert_array_equal(labels, slot_labels[slot])


@pytest.mark.parametrize("kind", DTYPES)
def test_load_batch_with_values_as_labels(fake: FakeCuda, kind: Any) -> None:
    """More labels than inputs."""
    slots, slot_labels = np.ones((2, 3, 1), np.float32), np.arange(600).reshape(2, 3, 100).astype(kind)
    x, labels = nan((3, 1), np.float32), nan((3, 100), kind)
    kernel = Cuda().prepare(
        LoadBatch(
            tensor(slots.shape, np.float32),
            tensor(x.shape, np.float32),
            tensor(slot_labels.shape, kind),
            tensor(labels.shape, kind),
            2.0,
        )
    )
    now = state(SLOT=1)
    run(kernel, slots=slots, slot_labels=slot_labels, input=x, labels=labels, state=now)
    fake.runtime.deviceSynchronize()
    np.testing.assert_array_equal(x, np.full((3, 1), 2))
    np.testing.assert_array_equal(labels, slot_labels[1])


def test_types_that_no_kernel_is_for() -> None:
    t = tensor((2, 3))
    with pytest.raises(ValueError, match=r"expected slots of uint8, float32, float64\. Received: int16"):
        Cuda().prepare(LoadBatch(tensor((2, 3), np.int16), t, t, t, 1.0))
    with pytest.raises(ValueError, match=r"expected labels of the slots' type, int32\. Received: float64"):
        Cuda().prepare(LoadBatch(t, t, tensor((2, 3), np.int32), t, 1.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)])
def test_store_results(fake: FakeCuda, given: tuple[bool, bool], dtype: Any) -> None:
    """Into the task's row of pinned memory, and nowhere else."""
    values = [
        to_device(np.array([value], dtype)) if there else None for value, there in zip((0.1, 0.75), given, strict=True)
    ]
    now, rows = to_device(state(TURN=3)), api().pinned(5 * 16).view(np.float64).reshape(5, 2)
    rows[...] = -1
    launch = store_results(values[0], values[1], now, rows)
    assert launch.capturable
    launch()
    fake.runtime.deviceSynchronize()
    expected = np.full((5, 2), -1.0)
    expected[3] = [float(dtype(value)) if there else -1 for value, there in zip((0.1, 0.75), given, strict=True)]
    np.testing.assert_array_equal(rows, expected)


def test_results_of_two_types() -> None:
    loss, accuracy = np.zeros(1, np.float32), np.zeros(1, np.float64)
    with pytest.raises(ValueError, match=r"expected a loss and an accuracy of one type\. Received: float32, float64"):
        store_results(loss, accuracy, state(), np.zeros((1, 2)))


def message(library: KernelLibrary, value: Any) -> str | None:
    """What checking for finite numbers says."""
    try:
        run(library.prepare(CheckFinite("output of 'a'")), value=value)
    except NonFiniteError as error:
        return str(error)
    return None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        *((shape, Layout.PLAIN) for shape in [(1,), (700,), (3, 5), (5003,)]),
        *itertools.product([(4, 3, 5, 7), (4, 3, 1, 1), (4, 1, 3, 2)], Layout),
    ],
    ids=str,
)
def test_check_finite(shape: tuple[int, ...], dtype: Any, layout: Layout) -> None:
    value = draw(*shape, dtype=dtype)
    if layout is Layout.CHANNELS_LAST:
        value = channels_last(value)
    value.flat[0] = np.finfo(dtype).max
    assert message(Cuda(dtype), value) is None
    for place, wrong in (
        (-1, np.inf),
        (value.size // 2, np.nan),
        (value.size // 3, -np.inf),
        (value.size // 3, np.nan),
    ):
        value.flat[place] = wrong
        expected = message(Reference(dtype), value)
        assert expected is not None
        assert message(Cuda(dtype), value) == expected


def test_check_finite_of_more_than_the_threads() -> None:
    value = draw(SEARCH_BLOCKS * BLOCK + 300, dtype=np.float32)
    value[-2] = np.inf
    assert message(Cuda(), value) == message(Reference(), value) is not None


def test_check_finite_of_a_slice() -> None:
    value = draw(50, dtype=np.float32)
    value[5], value[40] = np.nan, np.inf
    assert message(Cuda(), value[6:40]) is None
    received = message(Cuda(), value[3:41])
    assert received == (
        "expected finite numbers in the output of 'a'. Received: 1 NaN and 1 infinite of 38, the first at (2)"
    )


def test_integers_are_finite(fake: FakeCuda) -> None:
    assert message(Cuda(), np.arange(3, dtype=np.int32)) is None
    assert not fake.calls


def test_checking_is_no_part_of_a_graph() -> None:
    """It waits, and may raise."""
    (call,) = Cuda().prepare(CheckFinite("output")).bind({"value": np.zeros(3, np.float32)})
    assert not getattr(call, "capturable", False)
