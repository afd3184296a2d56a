"""The tests of whole training runs (`test_training.py`) that make sense on a GPU, on the one that --device names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crossbow import SMA, SSGD
from crossbow.synch import ModelAveraging, PolyakRuppert
from tests.runtime.cuda import test_precision as mixed
from tests.runtime.cuda import test_training as engine

pytestmark = pytest.mark.gpu

TOLERANCES = {"float32": 1e-3, "float64": 1e-9}
"""Of weights after a few ticks, relative to the largest of a variable: sums are taken in other orders than the CPU's,
and what they differ by grows from task to task."""


@pytest.fixture(autouse=True, params=TOLERANCES)
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the tests' contexts be of a real GPU, in this precision; the algorithms are chosen as in every other run."""
    original, precision, device = engine.context, request.param, request.config.getoption("--device")

    def context(devices: str, *, system: Mapping[str, Any] | None = None, **options: Any) -> Any:
        system = {"precision": precision, "deterministic": True, **(system or {})}
        return original(devices.replace("cuda:0", device), system=system, **options)

    monkeypatch.setattr(engine, "context", context)
    monkeypatch.setattr(engine, "fake_cuda", lambda *_: nullcontext())
    monkeypatch.setattr(engine, "assert_same", partial(engine.assert_same, tolerance=TOLERANCES[precision]))
    return str(precision)


@pytest.mark.parametrize("name", engine.RUNS)
def test_weights_are_those_of_the_cpu(name: str) -> None:
    engine.test_weights_are_those_of_the_cpu(name, "cuda:0")


@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2), SSGD(), ModelAveraging(), PolyakRuppert(alpha=0.2)])
def test_graphs_change_no_bit_and_runs_are_alike(rule: Any) -> None:
    """Each twice, with graphs and without."""
    engine.test_graphs_and_the_order_of_streams_change_no_bit(rule)


def test_testing_predicting_saving_and_loading(tmp_path: Path) -> None:
    engine.test_testing_predicting_saving_and_loading(tmp_path)


def test_training_goes_on_where_it_stopped() -> None:
    engine.test_training_goes_on_where_it_stopped()


def test_a_learning_rate_that_drops_restarts_the_learners() -> None:
    engine.test_a_learning_rate_that_drops_restarts_the_learners()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_loss_that_is_not_finite_ends_the_run_and_the_context_stays_usable() -> None:
    engine.test_a_loss_that_is_not_finite_ends_the_run_and_the_context_stays_usable()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_numbers_are_checked_where_asked() -> None:
    engine.test_numbers_are_checked_where_asked()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("narrow", mixed.NARROW)
@pytest.mark.parametrize("name", mixed.RUNS)
def test_tensors_of_16_bits(name: str, narrow: str) -> None:
    mixed.test_weights_are_nearly_those_of_the_cpu(name, "cuda:0", narrow)
