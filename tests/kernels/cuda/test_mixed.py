"""Tensors of 16 bits: how numbers are rounded, every operator that knows such, and the scale of gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.kernels.cuda.mixed import LARGEST_SCALE, RUN, SMALLEST_SCALE, STEADY_TASKS, Mixed, narrow_type
from crossbow.ops import ReLU, SoftMax
from crossbow.ops.kernel import Precision
from crossbow.testing import run_operator
from crossbow.types import ConfigurationError, Tensor
from tests.combinations import covering, one_in
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.operators.narrow import NARROW_CASES, compare, tolerance
from tests.operators.table import CASES, Case
from tests.operators.test_table import assert_close, operators

Numbers = NDArray[Any]
TYPES = ("float16", "bfloat16")
FLOAT32 = np.dtype(np.float32)

types = pytest.mark.parametrize("name", TYPES)
layouts = pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])


@pytest.fixture(autouse=True)
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as cuda:
        yield cuda


def widened(values: Numbers) -> Numbers:
    return values.astype(np.float32)


def converted(values: Numbers, source: np.dtype[Any], target: np.dtype[Any], scaling: Numbers | None = None) -> Numbers:
    """The kernel's result for an array."""
    mixed = Mixed(source if source != FLOAT32 else target)
    x, y = Tensor(values.shape, source), Tensor(values.shape, target)
    result: Numbers = np.zeros(values.shape, target)
    buffers = {"input0": values, "output": result}
    if scaling is not None:
        buffers["scaling"] = scaling
    for call in mixed.convert(x, y, gradient=scaling is not None).bind(buffers):
        call()
    return result


def bits(values: Numbers) -> Numbers:
    return values.view(np.uint16)


# Rounding


@types
def test_every_number_of_16_bits_is_widened_exactly(name: str) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(narrow_type(name))
    received, expected = converted(every, every.dtype, FLOAT32), widened(every)
    np.testing.assert_array_equal(np.isnan(received), np.isnan(expected))
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(received[finite].view(np.uint32), expected[finite].view(np.uint32))


@types
def test_numbers_are_rounded_to_the_nearest_and_from_the_middle_to_even(name: str) -> None:
    dtype = narrow_type(name)
    every = np.arange(2**16, dtype=np.uint16).view(dtype)
    some = np.sort(widened(every[np.isfinite(widened(every))])).astype(np.float64)
    middles = ((some[1:] + some[:-1]) / 2).astype(np.float32)
    values = np.concatenate(
        [
            middles,
            np.nextafter(middles, np.float32(np.inf)),
            np.nextafter(middles, np.float32(-np.inf)),
            np.random.default_rng(0).standard_normal(1000).astype(np.float32),
            np.array([0.0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 65504, 65519.9, 65520, 1e-45], np.float32),
        ]
    )
    with np.errstate(over="ignore"):
        expected = values.astype(dtype)
    np.testing.assert_array_equal(bits(converted(values, FLOAT32, dtype)), bits(expected))


@types
def test_nan_stays_nan(name: str) -> None:
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(widened(converted(nans, FLOAT32, narrow_type(name)))).all()


# Operators


@pytest.mark.slow
@one_in(4)
@pytest.mark.parametrize(
    ("case", "name", "channels_last"),
    covering(
        [pytest.param(case, id=str(case)) for case in NARROW_CASES],
        [
            pytest.param("float16", False, id="float16-plain"),
            pytest.param("float16", True, id="float16-channels-last"),
            pytest.param("bfloat16", True, id="bfloat16-channels-last"),
        ],
        together=1,
    ),
)
def test_operators_agree_with_the_reference(case: Case, name: str, channels_last: bool) -> None:
    received, expected = compare(case, name, device="cuda:0", channels_last=channels_last)
    assert_close(received, expected, tolerance(case, name))


@pytest.mark.parametrize("operator", [kind for kind in operators() if kind.precision is not Precision.WIDE])
def test_every_operator_of_16_bits_has_a_row(operator: type[Any]) -> None:
    assert any(type(case.kernel) is operator for case in CASES)


def test_operators_and_devices_without_16_bits_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"SoftMax: expected a type of at least 32 bits. Received: dtype=float16"
    ):
        run_operator(SoftMax(), [np.zeros((1, 2))], device="cuda:0", dtype="float16")
    with pytest.raises(ConfigurationError, match=r"expected float32 or float64, or on GPUs float16 or bfloat16.*'cpu'"):
        run_operator(ReLU(), [np.zeros((1, 2))], device="cpu", dtype="bfloat16")
    with pytest.raises(ConfigurationError, match=r"dtype must be float16 or bfloat16\. Received: float32"):
        Mixed(FLOAT32)


# The scale


def scaling_of(*numbers: float) -> Numbers:
    return np.array(numbers, np.float32)


def test_gradients_of_float16_are_scaled_and_those_of_bfloat16_are_not() -> None:
    values, scaling = np.array([2.0**-30, -(2.0**-28)], np.float32), scaling_of(2.0**12, 0, 0, 0)
    narrow = converted(values, FLOAT32, np.dtype(np.float16), scaling)
    np.testing.assert_array_equal(widened(narrow), values * 2**12)
    np.testing.assert_array_equal(converted(narrow, narrow.dtype, FLOAT32, scaling), values)
    np.testing.assert_array_equal(widened(converted(values, FLOAT32, narrow_type("bfloat16"), scaling)), values)


def narrow_weights(scaling: Numbers) -> None:
    """A task begins."""
    weights = np.array([1.0, -0.5, 3.0], np.float32)
    narrowed = np.zeros(3, np.float16)
    buffers = {"weights": weights, "narrow_weights": narrowed, "scaling": scaling}
    for call in Mixed(np.dtype(np.float16)).narrow_weights(training=True).bind(buffers):
        call()
    np.testing.assert_array_equal(widened(narrowed), weights)


def test_the_scale_is_halved_after_an_overflow_and_doubled_after_steady_tasks() -> None:
    scaling = scaling_of(64, 1, 7, 2)
    narrow_weights(scaling)
    assert scaling.tolist() == [32, 0, 0, 3]
    narrow_weights(scaling)
    assert scaling.tolist() == [32, 0, 1, 3]
    scaling[2] = STEADY_TASKS - 1
    narrow_weights(scaling)
    assert scaling.tolist() == [64, 0, 0, 3]


def test_the_scale_stays_between_the_smallest_and_the_largest() -> None:
    scaling = scaling_of(SMALLEST_SCALE, 1, 0, 0)
    narrow_weights(scaling)
    assert scaling[0] == SMALLEST_SCALE
    scaling = scaling_of(LARGEST_SCALE, 0, STEADY_TASKS - 1, 0)
    narrow_weights(scaling)
    assert scaling[0] == LARGEST_SCALE


def test_scales_are_between_what_float16_can_hold() -> None:
    """Of a gradient as small as its smallest number, the largest scale makes one."""
    limits = np.finfo(np.float16)
    assert (limits.smallest_normal, limits.smallest_subnormal) == (SMALLEST_SCALE, 1 / LARGEST_SCALE)


def test_weights_are_narrowed_without_a_scale_where_nothing_is_trained() -> None:
    """Tests and predictions have no gradient, and the scale must not count them as steady tasks."""
    for name in ("float16", "bfloat16"):
        assert Mixed(narrow_type(name)).narrow_weights(training=False).reads == ("weights",)
    assert Mixed(narrow_type("float16")).narrow_weights(training=True).reads == ("weights", "scaling")


def widen_gradient(name: str, narrow: Numbers, gradient: Numbers, scaling: Numbers | None) -> None:
    """A task ends: the first half of its gradient is of 16 bits, the second in its place, the last quarter ready."""
    half = len(gradient) // 2
    mixed = Mixed(narrow_type(name))
    third = half + (len(gradient) - half) // 2
    parts = [(slice(0, half), "narrow"), (slice(half, third), "scaled"), (slice(third, len(gradient)), "ready")]
    kernel = mixed.widen_gradient(parts)
    buffers = {"narrow_gradient": narrow.astype(mixed.dtype), "gradient": gradient}
    if scaling is not None:
        buffers["scaling"] = scaling
    assert set(kernel.reads) == set(buffers)
    for call in kernel.bind(buffers):
        call()


def test_a_gradient_is_widened_and_its_scale_removed() -> None:
    elements = 2 * (RUN + 5)
    narrow = np.random.default_rng(0).integers(-8, 8, elements).astype(np.float32)
    gradient, scaling = narrow[::-1].copy(), scaling_of(16, 0, 0, 0)
    half = elements // 2
    quarter = elements - (half + half // 2)
    expected = np.concatenate([narrow[:half], gradient[half:]])
    widen_gradient("float16", narrow, gradient, scaling)
    np.testing.assert_array_equal(gradient[:-quarter], expected[:-quarter] / 16)
    np.testing.assert_array_equal(gradient[-quarter:], expected[-quarter:])
    assert scaling.tolist() == [16, 0, 0, 0]
    gradient = narrow[::-1].copy()
    widen_gradient("bfloat16", narrow, gradient, None)
    np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize("place", [3, 8 + 2, 14], ids=["of 16 bits", "in its place", "ready"])
@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_a_gradient_that_is_too_large_counts_as_zero(place: int, number: float) -> None:
    narrow, gradient, scaling = np.ones(16, np.float32), np.ones(16, np.float32), scaling_of(16, 0, 5, 1)
    (narrow if place < 8 else gradient)[place] = number
    widen_gradient("float16", narrow, gradient, scaling)
    np.testing.assert_array_equal(gradient, np.zeros(16))
    assert scaling.tolist() == [16, 1, 5, 1]


def test_at_the_smallest_scale_a_gradient_stays_what_it_is() -> None:
    narrow, gradient, scaling = np.ones(16, np.float32), np.ones(16, np.float32), scaling_of(SMALLEST_SCALE, 0, 5, 1)
    narrow[3] = np.inf
    widen_gradient("float16", narrow, gradient, scaling)
    assert np.isinf(gradient[3])
