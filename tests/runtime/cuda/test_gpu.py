"""The tests of whole training runs (`test_training.py`) that make sense on a GPU, on the one that --device names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crossbow import SMA, SSGD
from crossbow.synch import AsynchronousSGD, DiLoCo, Gossip, Hogwild, ModelAveraging, PolyakRuppert, Rule, TwoLevel
from tests.runtime.cuda import test_exchange as free
from tests.runtime.cuda import test_local_variables as kept
from tests.runtime.cuda import test_precision as mixed
from tests.runtime.cuda import test_timing as timing
from tests.runtime.cuda import test_training as engine
from tests.runtime.cuda import test_two_levels as levels

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

    def small(**options: Any) -> Any:
        return small_on_cuda(**{"precision": precision, **options, "devices": device})

    small_on_cuda = free.small
    monkeypatch.setattr(engine, "context", context)
    monkeypatch.setattr(free, "small", small)
    monkeypatch.setattr(engine, "fake_cuda", lambda *_: nullcontext())
    monkeypatch.setattr(levels, "fake_cuda", lambda *_, **__: nullcontext())
    monkeypatch.setattr(free, "gpu", lambda *_, **__: nullcontext())
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


@pytest.mark.parametrize("rule", [SMA(), SSGD(), AsynchronousSGD()])
def test_a_recorded_run(tmp_path: Path, rule: Any) -> None:
    timing.test_a_recorded_run(tmp_path, rule, "cuda:0")


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


single = pytest.mark.parametrize("precision", ["float32"], indirect=True)
"""For tests that choose their precision, or compare nothing that depends on it."""


@pytest.mark.parametrize("name", free.ONE)
def test_one_learner_without_a_barrier(name: str) -> None:
    free.test_one_learner_s_weights_are_those_of_the_cpu(name)


@single
@pytest.mark.parametrize("rule", [rule for rule in free.RULES if not isinstance(rule, Hogwild)], ids=str)
def test_several_learners_without_a_barrier_are_as_the_simulator_has_them(rule: Rule) -> None:
    free.test_several_learners_are_as_the_simulator_has_them(rule)


@single
@pytest.mark.parametrize("rule", [AsynchronousSGD(), Gossip(probability=0.7, tau=2), Hogwild()], ids=str)
def test_without_a_barrier(rule: Rule, tmp_path: Path) -> None:
    free.test_z_has_the_means_when_training_is_asked_to_stop(rule)
    free.test_testing_predicting_saving_and_loading(rule, tmp_path)
    free.test_weights_that_diverge(rule)
    free.test_a_slow_learner_keeps_back_the_others_as_far_as_rule_and_slack_say(rule, None, 30)


@single
def test_a_group_of_all_and_rules_in_turn() -> None:
    free.test_a_group_of_all_is_s_sgd_whoever_does_which_task()
    free.test_rules_in_turn()


@single
@pytest.mark.parametrize("narrow", mixed.NARROW)
def test_tensors_of_16_bits_without_a_barrier(narrow: str) -> None:
    free.test_tensors_of_16_bits(AsynchronousSGD(), narrow)
    free.test_several_learners_with_tensors_of_16_bits(narrow)


@single
def test_ctrl_c_and_numbers_that_are_checked_without_a_barrier() -> None:
    free.test_ctrl_c_while_a_learner_waits_for_another()
    free.test_numbers_are_checked_where_asked()


@single
@pytest.mark.parametrize("rule", [*kept.BARRIER, *kept.FREE], ids=str)
def test_variables_of_one_s_own(rule: Rule) -> None:
    if rule in kept.BARRIER:
        kept.test_z_and_every_learner_are_those_of_the_cpu(rule, "cuda:0")
    else:
        kept.test_without_a_barrier_what_is_kept_differs_and_z_has_the_mean(rule)


@single
@pytest.mark.parametrize("hosts", [[3], [2, 1]], ids=str)
def test_two_levels(hosts: list[int], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that share the GPU are threads here, of which none may wait for the GPU while another captures a graph."""
    monkeypatch.setitem(levels.GPUS, "graphs", len(hosts) == 1)
    device = request.config.getoption("--device")
    levels.test_as_the_simulator(TwoLevel(SMA(), DiLoCo(tau=2)), hosts, (device,) * len(hosts))
