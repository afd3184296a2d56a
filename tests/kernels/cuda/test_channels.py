"""How a tensor is divided among blocks: every element comes once, with its channel, in parts that fit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda.channels import CHUNK, GRID, MOST_THREADS, SECTOR, SIDE_BY_SIDE, Channels
from crossbow.kernels.cuda.launch import BLOCK
from crossbow.types import ConfigurationError, Layout, Shape, Tensor
from tests.kernels.cuda.fake import fake_cuda

FLOAT32 = np.dtype(np.float32)
PLAIN, LAST = Layout.PLAIN, Layout.CHANNELS_LAST
CASES: list[tuple[Shape, int, Shape, Layout]] = [
    ((16, 3, 40, 40), 1, (3,), PLAIN),
    ((16, 3, 40, 40), 1, (3,), LAST),
    ((4, 70, 9, 5), 1, (70,), LAST),
    ((6000, 5), 1, (5,), PLAIN),
    ((3, 2000), 1, (2000,), PLAIN),
    ((64, 4, 5, 20), 1, (4, 5), PLAIN),
    ((64, 4, 5, 20), 1, (4, 5), LAST),
    ((16, 20, 30, 3), 3, (3,), PLAIN),
    ((2, 3, 4, 5), 0, (2, 3), PLAIN),
    ((1, 1), 1, (1,), PLAIN),
    ((5, 1, 3, 3), 1, (1,), LAST),
]
cases = pytest.mark.parametrize(("shape", "axis", "variable", "layout"), CASES)


def structure(channels: Channels) -> dict[str, int]:
    """The numbers that a kernel receives, by the names that sources/channels.cu gives them."""
    names = (
        *("channels", "values", "width", "parts", "part"),
        *("minor", "major_stride", "minor_stride", "major_number", "minor_number"),
        *("inner", "outer_stride", "inner_stride"),
    )
    return dict(zip(names, map(int, channels._structure.values), strict=True))


def of_runs(channels: Channels) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of all elements, and the numbers of their variables, as `walk` of sources/channels.cuh has them."""
    s = structure(channels)
    channel, value = np.ogrid[: s["channels"], : s["values"]]
    major, minor = np.divmod(channel, s["minor"])
    outer, inner = np.divmod(value, s["inner"])
    runs = major * s["major_stride"] + minor * s["minor_stride"] + outer * s["outer_stride"] + inner * s["inner_stride"]
    numbers = np.broadcast_to(major * s["major_number"] + minor * s["minor_number"], runs.shape)
    run = channels.values * channels.channels
    element = np.arange(run)
    places = runs[..., np.newaxis] * run + element
    own = numbers[..., np.newaxis] * channels.channels + element % channels.channels
    return places.reshape(-1), own.reshape(-1)


@cases
def test_every_element_comes_once_with_its_variable(shape: Shape, axis: int, variable: Shape, layout: Layout) -> None:
    x = Tensor(shape, np.dtype(np.float32), layout)
    places, numbers = of_runs(Channels(x, axis, variable))
    assert sorted(places.tolist()) == list(range(x.elements))
    around = np.arange(np.prod(variable)).reshape(variable)
    expected = np.broadcast_to(around.reshape(*variable, *[1] * (len(shape) - axis - len(variable))), shape)
    in_memory = np.moveaxis(expected, 1, -1) if layout is LAST else expected
    np.testing.assert_array_equal(in_memory.reshape(-1)[places], numbers)


@pytest.mark.parametrize(
    ("shape", "layout", "whole", "run"),
    [
        ((16, 3, 40, 40), PLAIN, False, (4, 1)),
        ((16, 3, 40, 40), PLAIN, True, (4, 1)),
        ((16, 3, 7, 7), PLAIN, False, (1, 1)),  # images begin between packs
        ((16, 64, 7, 7), LAST, False, (1, 4)),
        ((16, 64, 7, 7), LAST, True, (1, 1)),
        ((16, 6, 40, 40), LAST, False, (1, 1)),
        ((600, 64), PLAIN, False, (1, 4)),
    ],
)
def test_threads_take_packs(shape: Shape, layout: Layout, whole: bool, run: tuple[int, int]) -> None:
    for dtype, factor in ((np.float32, 1), (np.float64, 0.5), (np.float16, 2)):
        made = Channels(Tensor(shape, np.dtype(dtype), layout), 1, shape[1:2], whole=whole)
        pack = int(max(run) * factor)
        expected = (1, 1) if run == (1, 1) else (pack, 1) if run[0] > 1 else (1, pack)
        if (shape[1], dtype, layout) != (6, np.float64, LAST):  # packs of two
            assert (made.values, made.channels) == expected


@cases
def test_parts_cover_the_values_and_blocks_the_channels(
    shape: Shape, axis: int, variable: Shape, layout: Layout
) -> None:
    made = Channels(Tensor(shape, np.dtype(np.float32), layout), axis, variable)
    s = structure(made)
    assert (s["parts"] - 1) * s["part"] < s["values"] <= s["parts"] * s["part"]
    assert BLOCK % s["width"] == 0
    assert s["part"] % (BLOCK // s["width"]) == 0
    assert made.workspace == made.parts * 2 * 8 * made.count
    with fake_cuda():
        call = made.each("channels", "scaling_forward")
        assert (call.blocks, call.shared) == (-(-s["channels"] // s["width"]) * made.parts, 0)
        assert made.each("channels", "scaling_forward", sums=True).shared == BLOCK * 16
        assert made.totals("channels", "scaling_gradients").blocks == -(-s["channels"] // s["width"])


@cases
def test_one_block_can_take_all_values_of_its_channels(
    shape: Shape, axis: int, variable: Shape, layout: Layout
) -> None:
    made = Channels(Tensor(shape, np.dtype(np.float32), layout), axis, variable, whole=True)
    s = structure(made)
    assert made.parts == 1
    assert s["part"] >= s["values"]
    assert BLOCK <= made.threads <= MOST_THREADS
    assert made.threads % s["width"] == 0
    least = min(made.count, SECTOR // 4) if s["minor_stride"] == 1 and made.count > 1 else 1
    assert s["width"] >= least
    assert made.elements_of_whole >= least * s["values"] * made.values
    assert (made.threads == BLOCK) == (made.elements_of_whole <= BLOCK * CHUNK)


def test_tensors_between_packs_are_refused() -> None:
    memory = aligned_zeros(4 * 100).view(np.float32)
    with fake_cuda():
        Channels(Tensor((2, 4, 8), FLOAT32), 1, (4,)).each("channels", "slope_forward", memory[4:68])
        Channels(Tensor((3, 3, 7), FLOAT32), 1, (3,)).each("channels", "slope_forward", memory[1:64])
        with pytest.raises(ValueError, match="expected tensors at multiples of 16 bytes"):
            Channels(Tensor((2, 4, 8), FLOAT32), 1, (4,)).each("channels", "slope_forward", memory[1:65])


def test_long_channels_have_several_parts_and_short_ones_are_not_divided() -> None:
    float32 = np.dtype(np.float32)
    assert Channels(Tensor((512, 3, 100, 100), float32), 1, (3,)).parts > GRID // 4
    assert Channels(Tensor((CHUNK, 64), float32), 1, (64,)).parts == 1
    side_by_side = structure(Channels(Tensor((100_000, 1000), float32), 1, (1000,)))
    assert side_by_side["width"] * 4 == SIDE_BY_SIDE  # adjacent threads read adjacent packs of channels


def test_variables_of_three_runs_of_axes_are_refused() -> None:
    float32 = np.dtype(np.float32)
    Channels(Tensor((2, 3, 4, 5), float32), 0, (2, 3, 4))
    with pytest.raises(ConfigurationError, match=r"two runs of axes in memory\. Received: axis=0 and \(2, 3, 4\) "):
        Channels(Tensor((2, 3, 4, 5), float32, LAST), 0, (2, 3, 4))
