"""Two levels of rules on ranks with GPUs that are none: as the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from crossbow import SMA, SSGD, ConfigurationError, SystemConf
from crossbow.ops import BatchNorm
from crossbow.runtime.building import new_backend
from crossbow.runtime.cuda import backend
from crossbow.synch import DiLoCo, ModelAveraging, RuleSequence, SynchronousEASGD, TwoLevel
from tests.cluster.fake_network import FakeNetwork
from tests.combinations import one_in
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.runtime import test_regrouping as regrouping
from tests.runtime.test_hosts import SOLVER, check_as_simulated, train_on
from tests.support import same_weights

GPU = SystemConf(devices="cuda:0", learners_per_device=1, seed=3)
RULE = TwoLevel(SMA(), ModelAveraging(tau=2))
MODEL = replace(regrouping.MODEL, rule=RULE)
GPUS: dict[str, Any] = {"threads_per_learner": None}
TWO_EACH = ("cuda:0,cuda:1", "cuda:2,cuda:3")


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize(
    ("rule", "hosts", "devices"),
    [
        (TwoLevel(SMA(), ModelAveraging(tau=3)), [2, 1], ("cuda:0", "cuda:1")),
        (TwoLevel(SMA(base_momentum=0.25), DiLoCo(tau=2)), [2, 2], TWO_EACH),
        (TwoLevel(SSGD(), SMA(alpha=0.4, tau=2, base_momentum=0.5)), [2, 2], TWO_EACH),
        (TwoLevel(ModelAveraging(tau=2), SynchronousEASGD(tau=1)), [1, 2], ("cuda:0", "cuda:1,cuda:2")),
        (TwoLevel(SMA(), DiLoCo(tau=2)), [2, 2], ("cuda:0", "cuda:0")),
        (TwoLevel(SMA(tau=2), DiLoCo(tau=2)), [3], ("cuda:0",)),
    ],
    ids=["one GPU each", "two GPUs each", "gradients", "one and two", "the same GPU", "one rank"],
)
def test_as_the_simulator(rule: TwoLevel, hosts: list[int], devices: tuple[str, ...]) -> None:
    with fake_cuda(4, threads_tell=len(hosts) > 1):
        check_as_simulated(rule, hosts, sum(hosts) * rule.tau * 3, SOLVER, devices=devices, **GPUS)


@pytest.mark.slow
def test_numbers_are_checked() -> None:
    """No rank waits for another on its GPU, so a failure in one cannot keep the others there."""
    with fake_cuda(2, threads_tell=True):
        devices = ("cuda:0", "cuda:1")
        check_as_simulated(RULE, [2, 1], 12, SOLVER, devices=devices, check_numerics=True, **GPUS)


@pytest.mark.slow
def test_local_variables_in_a_sequence() -> None:
    levels = ((TwoLevel(within, DiLoCo(tau=2)), 2) for within in (SMA(), ModelAveraging()))
    with fake_cuda(2, seed=1, threads_tell=True):
        devices = ("cuda:0", "cuda:1")
        check_as_simulated(RuleSequence(tuple(levels)), [2, 1], 18, SOLVER, devices=devices, local=("*bias",), **GPUS)


@pytest.mark.slow
def test_all_gpus_test_z_with_its_statistics() -> None:
    """The check set has five batches."""
    rule = TwoLevel(SMA(), SMA(tau=2))
    options: dict[str, Any] = {"middle": [BatchNorm()], "check_batch_size": 2}
    expected = train_on([2, 2], rule, 24, sum_order="tree", **options)
    with fake_cuda(4, threads_tell=True):
        found = train_on([2, 2], rule, 24, TWO_EACH, **GPUS, **options)
    assert same_weights(found[0].weights, found[1].weights)
    assert found[0].tests == found[1].tests == pytest.approx(expected[0].tests, rel=1e-9)


def test_nccl_is_for_gpus_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(fake: FakeCuda) -> None:
        raise ConfigurationError("expected NCCL")

    (first, _), system = FakeNetwork(2).ranks(), SystemConf(devices="cuda:0", learners_per_device=2)
    monkeypatch.setattr(backend, "join", lambda: first)
    monkeypatch.setattr(FakeCuda, "nccl", property(missing, lambda fake, nccl: None), raising=False)
    with fake_cuda(2):
        assert new_backend(TwoLevel(), system).device_of == [0, 0]
        for rule, devices in ((SMA(), "cuda:0"), (TwoLevel(), "cuda:0,cuda:1")):
            with pytest.raises(ConfigurationError, match="expected NCCL"):
                new_backend(rule, replace(system, devices=devices))


@pytest.mark.slow
def test_a_rank_with_a_gpu_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on from the newest z, bit for bit as ranks that begin there."""
    with fake_cuda(threads_tell=True):
        expected = regrouping.ranks_continued(MODEL, 3, 2, 2, GPU)
        results, (departure,) = regrouping.train_and_lose(monkeypatch, "kill:1@4", 3, MODEL, system=GPU)
    assert [weights is None for weights, _ in results] == [False, True, False]
    assert all(same_weights(results[rank][0], expected) for rank in (0, 2))
    assert (departure.tick, departure.ranks) == (4, 2)


@pytest.mark.slow
def test_a_rank_with_a_gpu_is_lost_while_others_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    regrouping.fail_in_exchange(monkeypatch)
    with fake_cuda(threads_tell=True):
        results, (departure,) = regrouping.train_and_lose(monkeypatch, "", 3, MODEL, system=GPU)
    assert (departure.tick, departure.ranks) == (2, 2)
    assert same_weights(results[0][0], results[2][0])


@pytest.mark.slow
def test_a_rank_with_a_gpu_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(threads_tell=True):
        expected = regrouping.ranks_continued(MODEL, 2, 3, 2, GPU)
        results, events = regrouping.train_and_join(monkeypatch, "join@4", 2, MODEL, system=GPU)
    assert [(each.tick, each.ranks) for each in events.arrivals] == [(4, 3)]
    assert all(same_weights(weights, expected) for weights, _ in results)
