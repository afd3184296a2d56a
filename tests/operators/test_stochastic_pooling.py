"""Stochastic pooling: which element is picked depends on seed, task and position, and is as likely as it is large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.kernels import why_not_compiled
from crossbow.kernels.random import random_words
from crossbow.ops import Pool
from crossbow.testing import run_operator
from crossbow.testing.arguments import library_of
from crossbow.testing.bench import Bench
from crossbow.types import Phase

Numbers = NDArray[Any]

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
devices = pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
POOL = Pool(method="stochastic")


def pool(x: Any, device: str, layer: Pool = POOL, **options: Any) -> Numbers:
    return run_operator(layer, [np.asarray(x, np.float32)], device=device, **options).outputs[0]


@pytest.mark.slow
@devices
@pytest.mark.parametrize("task", [0, 7, 2**32 + 3])
@pytest.mark.parametrize("seed", [0, 2**40 + 1])
def test_numbers_are_those_of_the_generator_in_nchw_order(device: str, seed: int, task: int) -> None:
    """With windows of equal elements, r falls on element ⌊4 r⌋."""
    shape = (3, 5, 4, 6)
    picked = (random_words(90, seed, key=0, task=task).reshape(3, 5, 2, 3) / 2**32 * 4).astype(int)
    x = np.ones(shape)
    run = run_operator(POOL, [x], device=device, seed=seed, task=task)
    expected = (np.arange(4) == picked[..., None]).reshape(3, 5, 2, 3, 2, 2).swapaxes(3, 4).reshape(shape)
    np.testing.assert_array_equal(run.input_gradients[0], expected)


@devices
def test_an_element_is_as_likely_as_it_is_large(device: str) -> None:
    windows = 20000
    x = np.tile([[1.0, 2.0], [-3.0, 5.0]], (1, 1, 1, windows))
    counts = {value: np.mean(pool(x, device) == value) for value in (1, 2, -3, 5)}
    assert counts[-3] == 0
    for value in (1, 2, 5):
        deviation = np.sqrt(value / 8 * (1 - value / 8) / windows)
        assert abs(counts[value] - value / 8) < 4 * deviation


@devices
def test_checking_gives_the_mean_of_what_training_gives(device: str) -> None:
    window = np.random.default_rng(0).standard_normal((5, 4))
    layer, x = Pool(method="stochastic", kernel_size=(5, 4), stride=(5, 4)), np.tile(window, (1, 1, 1, 20000))
    draws = pool(x, device, layer).astype(np.float64)
    expected = pool(window[None, None], device, layer, phase=Phase.CHECK).item()
    assert abs(expected - draws.mean()) < 4 * draws.std() / np.sqrt(draws.size)


@devices
def test_checking_by_hand(device: str) -> None:
    x = [[[[1.0, 3.0, -1.0], [0.0, -4.0, -2.0]]]]
    # (1 + 9) / (1 + 3); the second window has no positive element.
    np.testing.assert_array_equal(pool(x, device, phase=Phase.CHECK), [[[[2.5, -1]]]])


@devices
@pytest.mark.parametrize("phase", Phase)
def test_a_window_without_a_positive_element_gives_its_first_one(device: str, phase: Phase) -> None:
    layer = Pool(method="stochastic", kernel_size=3, padding=((1, 0), (2, 1)), dilation=(1, 2))
    x = -np.arange(1.0, 21.0).reshape(1, 1, 4, 5)
    # Rows −1 0 1 and 1 2 3, columns −2 0 2, 0 2 4 and 2 4 6: padding is never picked.
    np.testing.assert_array_equal(pool(x, device, layer, phase=phase), [[[[-1, -1, -3], [-6, -6, -8]]]])
    if phase is Phase.TRAIN:
        run = run_operator(layer, [x], device=device, output_gradient=[[[[1, 2, 3], [4, 5, 6]]]])
        expected = np.zeros((1, 1, 4, 5))
        expected[0, 0, 0, 0], expected[0, 0, 0, 2], expected[0, 0, 1, 0], expected[0, 0, 1, 2] = 3, 3, 9, 6
        np.testing.assert_array_equal(run.input_gradients[0], expected)


@pytest.mark.parametrize(("word", "picked"), [(0, 2.0), (2**32 - 1, 3.0)])
def test_the_ends_of_the_range_pick_the_first_and_the_last_positive_element(
    word: int, picked: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = np.array([word], np.uint32)
    monkeypatch.setattr("crossbow.kernels.reference.pooling.random_words", lambda *arguments: words)
    x = [[[[-1.0, 2.0, 0.5], [3.0, 0.0, -1.0]]]]
    assert pool(x, "reference", Pool(method="stochastic", kernel_size=3)).item() == picked


@devices
def test_other_tasks_and_seeds_pick_others(device: str) -> None:
    x = np.random.default_rng(0).random((2, 3, 8, 8))
    outputs = [pool(x, device, seed=seed, task=task) for seed in (0, 1) for task in (0, 1, 2**32)]
    assert len({output.tobytes() for output in outputs}) == len(outputs)
    np.testing.assert_array_equal(pool(x, device, seed=1, task=1), pool(x, device, seed=1, task=1))


@fast
def test_every_library_picks_the_same_in_any_type() -> None:
    """Sums are float64 in the same order, so that rounding never decides."""
    x = np.random.default_rng(0).standard_normal((4, 17, 13, 11)).astype(np.float32)
    layer = Pool(method="stochastic", kernel_size=(5, 4), stride=(1, 2), padding=((3, 2), (0, 1)))
    outputs = [pool(x, device, layer, task=9) for device in ("reference", "cpu")]
    outputs.append(run_operator(layer, [x], dtype=np.float64, task=9).outputs[0])
    for output in outputs[1:]:
        np.testing.assert_array_equal(output, outputs[0])


@devices
@pytest.mark.parametrize("phase", Phase)
def test_nan_comes_through(device: str, phase: Phase) -> None:
    x = np.ones((1, 1, 2, 6), np.float32)
    x[0, 0, 1, 2] = np.nan
    bench = Bench(POOL, library_of(device, np.dtype(np.float32)), np.dtype(np.float32), [x.shape], None, phase=phase)
    for task in range(20):
        bench.load([x], {}, task=task, examples=1)
        np.testing.assert_array_equal(bench.forward(), [[[[1, np.nan, 1]]]])
