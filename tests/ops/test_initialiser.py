from __future__ import annotations

import dataclasses
import doctest
import math

import numpy as np
import pytest

from crossbow.ops import (
    MSRA,
    BatchNorm,
    Constant,
    Conv,
    Gaussian,
    Initialiser,
    InnerProduct,
    Kernel,
    MatFact,
    Scale,
    Uniform,
    Values,
    VariableSpec,
    Xavier,
    initialiser,
)
from crossbow.ops.initialiser import fans
from crossbow.types import ConfigurationError

SHAPE = (200, 100, 3, 3)
ALL = [
    Constant(1.5),
    Uniform(minimum=-2, maximum=3),
    Gaussian(mean=1, std=0.5),
    Gaussian(std=0.5, truncate=True),
    Xavier(),
    MSRA(truncate=True),
]


def generator(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_doctests() -> None:
    assert doctest.testmod(initialiser).failed == 0


def test_constant_by_position_and_by_name() -> None:
    assert Constant(1.5) == Constant(value=1.5)
    np.testing.assert_array_equal(Constant(1.5).fill((2, 3), generator()), np.full((2, 3), 1.5))
    assert Constant().fill((2,), generator()).tolist() == [0, 0]


def test_positions_beyond_the_first_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Constant takes at most value by position"):
        Constant(1.5, 2.5)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="value twice"):
        Constant(1.5, value=2.5)  # type: ignore[misc]
    with pytest.raises(ConfigurationError, match="keywords only"):
        Gaussian(0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize("one", ALL, ids=repr)
def test_float64_of_the_shape_reproducible_and_hashable(one: Initialiser) -> None:
    values = one.fill((5, 4), generator())
    assert values.dtype == np.float64
    assert values.shape == (5, 4)
    np.testing.assert_array_equal(values, one.fill((5, 4), generator()))
    assert one.fill((3,), generator()).shape == (3,)
    assert len({one, one}) == 1


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        (Conv, {"number_of_outputs": 3}),
        (InnerProduct, {"number_of_outputs": 3}),
        (BatchNorm, {}),
        (Scale, {}),
        (MatFact, {"rows": 3, "columns": 4, "latents": 2}),
    ],
)
@pytest.mark.parametrize("value", [0.1, Gaussian, "xavier", None], ids=str)
def test_what_is_no_initialiser(kind: type[Kernel], needed: dict[str, int], value: object) -> None:
    names = [field.name for field in dataclasses.fields(kind) if "initialiser" in field.name]  # type: ignore[arg-type]
    assert len(names) >= 2
    for name in names:
        with pytest.raises(ConfigurationError, match=f"{kind.__name__}: {name} must be an initialiser, as .* Received"):
            kind(**needed, **{name: value})


def test_a_variable_without_an_initialiser() -> None:
    with pytest.raises(ValueError, match=r"expected an initialiser of 'factor', as Gaussian.* Received: 1.0"):
        VariableSpec("factor", (1,), 1.0)  # type: ignore[arg-type]


def test_uniform_stays_in_its_range_and_fills_it() -> None:
    values = Uniform(minimum=-2, maximum=3).fill(SHAPE, generator())
    assert -2 <= values.min() < -1.99
    assert 2.99 < values.max() < 3
    assert values.mean() == pytest.approx(0.5, abs=0.02)


def test_gaussian_has_its_mean_and_deviation_and_is_not_truncated() -> None:
    values = Gaussian(mean=1, std=0.5).fill(SHAPE, generator())
    assert values.mean() == pytest.approx(1, abs=0.01)
    assert values.std() == pytest.approx(0.5, rel=0.01)
    beyond = np.mean(np.abs(values - 1) > 2 * 0.5)
    assert beyond == pytest.approx(0.0455, abs=0.003)  # P(|z| > 2)


def test_truncated_gaussian_stays_within_two_deviations() -> None:
    values = Gaussian(mean=1, std=0.5, truncate=True).fill(SHAPE, generator())
    assert np.abs(values - 1).max() <= 1
    assert np.abs(values - 1).max() > 0.999
    assert values.std() == pytest.approx(0.5 * 0.8796, rel=0.01)  # of a normal cut at ± 2


@pytest.mark.parametrize(
    ("norm", "fan"), [("fan_in", 100 * 9), ("fan_out", 200 * 9), ("average", 150 * 9)], ids=lambda value: str(value)
)
def test_scale_follows_the_fan(norm: str, fan: int) -> None:
    bound = math.sqrt(3 / fan)
    xavier = Xavier(norm=norm).fill(SHAPE, generator())
    assert np.abs(xavier).max() <= bound
    assert xavier.std() == pytest.approx(math.sqrt(1 / fan), rel=0.01)
    np.testing.assert_allclose(Xavier(norm=norm, gain=4).fill(SHAPE, generator()), 4 * xavier)
    msra = MSRA(norm=norm).fill(SHAPE, generator())
    assert msra.std() == pytest.approx(math.sqrt(2 / fan), rel=0.01)
    assert np.abs(msra).max() > 2.5 * math.sqrt(2 / fan)
    assert np.abs(MSRA(norm=norm, truncate=True).fill(SHAPE, generator())).max() <= 2 * math.sqrt(2 / fan)


def test_fans() -> None:
    assert fans((10, 784)) == (784, 10)
    assert fans((32, 3, 5, 5)) == (75, 800)
    assert fans((7,)) == (1, 7)
    assert fans(()) == (1, 1)
    assert fans((0, 3)) == fans((3, 0)) == (1, 1)


def test_the_largest_numbers_and_the_narrowest_range() -> None:
    largest = float(np.finfo(np.float32).max)
    assert Constant(largest).fill((1,), generator()).astype(np.float32).tolist() == [largest]
    assert Constant(-largest).value == -largest
    assert Uniform(minimum=2, maximum=2).fill((3,), generator()).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(float("nan")), "value must be a finite number"),
        (lambda: Uniform(minimum=2, maximum=1), "maximum must be ≥ minimum=2"),
        (lambda: Gaussian(std=0), "std must be a finite number > 0. Received: std=0"),
        (
            lambda: Constant(1e39),
            r"Constant: value must be a number that float32 can represent. Received: value=1e\+39",
        ),
        (lambda: Constant(10**400), "value must be a finite number"),
        (lambda: Gaussian(std=1e300), "std must be a number that float32 can represent"),
        (lambda: Gaussian(mean=-1e39, std=1), "mean must be a number that float32 can represent"),
        (lambda: Uniform(minimum=-1e308, maximum=1e308), "minimum must be a number that float32 can represent"),
        (lambda: Uniform(minimum=0, maximum=1e39), "maximum must be a number that float32 can represent"),
        (lambda: Gaussian(std=float("nan")), "std must be a finite number > 0"),
        (lambda: MSRA(truncate=1), "truncate must be True or False"),  # type: ignore[arg-type]
        (lambda: Values([[1.0, 2.0], [3.0]]), r"Values: array must be an array \(.*Received: array='list'"),  # type: ignore[arg-type]
        (lambda: Gaussian(std=1, truncate=1), "truncate must be True or False"),  # type: ignore[arg-type]
        (lambda: Xavier(norm="fan"), "norm must be one of 'fan_in', 'fan_out', 'average'"),
        (lambda: Xavier(gain=0), "gain must be a finite number > 0. Received: gain=0"),
        (lambda: MSRA(norm="avg"), "norm must be one of"),
        (lambda: Gaussian(), "Gaussian needs std"),  # type: ignore[call-arg]
        (lambda: Gaussian(deviation=1, std=1), "Gaussian has no 'deviation'"),  # type: ignore[call-arg]
    ],
)
def test_bad_configurations(make: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()  # type: ignore[operator]


def test_values_fill_what_they_fit() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    values = Values(array)
    array[...] = 0  # it was copied
    with pytest.raises(ValueError, match="read-only"):
        values.array[...] = 0  # its hash would change
    np.testing.assert_array_equal(values.fill((2, 3), generator()), np.arange(6).reshape(2, 3))
    assert repr(values) == "Values(float32 (2, 3))"
    with pytest.raises(ValueError, match=r"'weights' has the shape of its values, \(2, 3\).*the shape \(3, 2\)"):
        VariableSpec("weights", (3, 2), values)


def test_values_are_equal_where_every_value_is() -> None:
    first, second = (Values(np.array([1.0, 2.0])) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    others = [Values(np.array([1.0, 3.0])), Values(np.array([[1.0, 2.0]])), Values(np.array([1.0, 2.0], np.float32)), 1]
    assert not any(first == other for other in others)


@pytest.mark.parametrize("array", [np.array([1, 2]), np.array([np.nan]), np.array([np.inf]), "no"])
def test_values_are_finite_floating_point_numbers(array: object) -> None:
    with pytest.raises(ConfigurationError, match="Values: array must be of finite floating-point numbers"):
        Values(array)  # type: ignore[arg-type]
