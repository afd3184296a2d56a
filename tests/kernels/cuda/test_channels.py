"""How a tensor is divided among blocks: every element comes once, with its channel, in parts that fit."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cuda.channels import CHUNK, GRID, MOST_THREADS, SECTOR, SIDE_BY_SIDE, Channels
from crossbow.kernels.cuda.launch import BLOCK
from crossbow.types import ConfigurationError, Layout, Shape, Tensor
from tests.kernels.cuda.fake import fake_cuda

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


@cases
def test_every_element_comes_once_with_its_variable(shape: Shape, axis: int, variable: Shape, layout: Layout) -> None:
    x = Tensor(shape, np.dtype(np.float32), layout)
    s = structure(Channels(x, axis, variable))
    channel, value = np.ogrid[: s["channels"], : s["values"]]
    major, minor = np.divmod(channel, s["minor"])
    outer, inner = np.divmod(value, s["inner"])
    places = (
        major * s["major_stride"] + minor * s["minor_stride"] + outer * s["outer_stride"] + inner * s["inner_stride"]
    )
    assert sorted(places.reshape(-1).tolist()) == list(range(x.elements))
    numbers = (major * s["major_number"] + minor * s["minor_number"] + 0 * value).reshape(-1)
    around = np.arange(np.prod(variable)).reshape(variable)
    expected = np.broadcast_to(around.reshape(*variable, *[1] * (len(shape) - axis - len(variable))), shape)
    in_memory = np.moveaxis(expected, 1, -1) if layout is LAST else expected
    np.testing.assert_array_equal(in_memory.reshape(-1)[places.reshape(-1)], numbers)


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
        assert (call.blocks, call.shared) == (-(-made.count // s["width"]) * made.parts, 0)
        assert made.each("channels", "scaling_forward", sums=True).shared == BLOCK * 16
        assert made.totals("channels", "scaling_gradients").blocks == -(-made.count // s["width"])


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
    assert made.elements_of_whole >= least * s["values"]
    assert (made.threads == BLOCK) == (made.elements_of_whole <= BLOCK * CHUNK)


def test_long_channels_have_several_parts_and_short_ones_are_not_divided() -> None:
    float32 = np.dtype(np.float32)
    assert Channels(Tensor((512, 3, 100, 100), float32), 1, (3,)).parts > GRID // 4
    assert Channels(Tensor((CHUNK, 64), float32), 1, (64,)).parts == 1
    side_by_side = structure(Channels(Tensor((100_000, 1000), float32), 1, (1000,)))
    assert side_by_side["width"] == SIDE_BY_SIDE  # neighbouring threads read neighbouring channels


def test_variables_of_three_runs_of_axes_are_refused() -> None:
    float32 = np.dtype(np.float32)
    Channels(Tensor((2, 3, 4, 5), float32), 0, (2, 3, 4))
    with pytest.raises(ConfigurationError, match=r"two runs of axes in memory\. Received: axis=0 and \(2, 3, 4\) "):
        Channels(Tensor((2, 3, 4, 5), float32, LAST), 0, (2, 3, 4))
