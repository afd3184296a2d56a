"""How often ranks on several hosts average by default."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossbow import ModelConf, SolverConf, SystemConf
from crossbow.cluster.members import Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.ops import InnerProduct
from crossbow.scripts import between_ranks
from crossbow.scripts.between_ranks import SHARE, chosen_between, ticks_between
from crossbow.scripts.data_sources import DataSource
from crossbow.scripts.parser import Configurations
from crossbow.synch import EASGD, ModelAveraging, TwoLevel
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.cluster.test_mpi import NEEDS_MPI, mpirun
from tests.support import blobs, training

DATA = blobs(240, 20)
CONFS = Configurations(
    DataSource("synthetic", None, (4,), number_of_classes=3, training=240, check=20),
    ModelConf(batch_size=4),
    SolverConf(),
    SystemConf(learners_per_device=1, kernels="reference"),
)


def choose(seconds: float, monkeypatch: pytest.MonkeyPatch, confs: Configurations = CONFS) -> tuple[ModelConf, str]:
    """What two ranks choose that need so long to add up a vector."""
    monkeypatch.setattr(between_ranks, "SECONDS", 0.02)
    summed = []

    def measure(ranks: Ranks, elements: int, dtype: np.dtype[np.generic], *, chained: bool) -> float:
        summed.append((elements, dtype, chained))
        return seconds

    monkeypatch.setattr(between_ranks, "measure_sum", measure)
    flow = training(InnerProduct(number_of_outputs=3))
    works = [functools.partial(chosen_between, each, confs, flow, DATA) for each in FakeNetwork(2).ranks()]
    first, second = at_once(works)
    assert first == second
    assert all(each == (48, np.float32, True) for each in summed), summed  # 12 weights and 3 biases, aligned
    return first


@pytest.mark.parametrize(("exchange", "tick"), [(0.001, 0.01), (0.03, 0.01), (1.0, 0.004)])
def test_the_exchange_takes_its_share_at_most(exchange: float, tick: float) -> None:
    tau = ticks_between(exchange, tick, 10**6)
    assert exchange / (tau * tick + exchange) <= SHARE
    assert tau == 1 or exchange / ((tau - 1) * tick + exchange) > SHARE


def test_a_fast_network_averages_at_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = choose(1e-12, monkeypatch)
    assert model == CONFS.model
    assert text.endswith("the ranks average at every tick")


def test_a_slow_network_averages_at_least_once_in_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = choose(60.0, monkeypatch)
    assert isinstance(model.rule, TwoLevel)
    assert model.rule.between == ModelAveraging(tau=30)  # 240 examples, of which a tick has 8
    assert text.startswith("hosts    an exchange of 0.000192 MB takes 6e+04 ms, a tick ")
    assert text.endswith("the ranks average once in 30 ticks (--between none: at every tick)")


def test_if_more_learners_may_come_ranks_average_twice_in_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossbow.runtime.device.available_cores", lambda: (0, 0))  # one learner to begin with
    auto = replace(CONFS, system=SystemConf(devices="cpu:0/2", kernels="reference"))
    model, _ = choose(60.0, monkeypatch, auto)
    assert isinstance(model.rule, TwoLevel)
    assert model.rule.between == ModelAveraging(tau=15)


def test_one_host_and_rules_without_a_barrier_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    free = replace(CONFS, model=ModelConf(batch_size=4, rule=EASGD()))
    assert choose(60.0, monkeypatch, free) == (free.model, "")
    alone = Ranks(View(0, (Rank(0, "here"),)))
    assert chosen_between(alone, CONFS, training(InnerProduct(number_of_outputs=3)), DATA) == (CONFS.model, "")


def test_gpus_have_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = replace(CONFS, system=SystemConf(devices="cuda"))
    assert choose(60.0, monkeypatch, gpus) == (gpus.model, "")


HOSTS = """
import sys
from crossbow import cluster
from models import lenet
ranks = cluster.join()
ranks.view = cluster.View(0, tuple(cluster.Rank(number, f"host{number}") for number in range(ranks.size)))
sys.exit(lenet.main(["--dataset", "digits", "--learners", "1", "--epochs", "1", *sys.argv[1:]]))
"""


@NEEDS_MPI
@pytest.mark.slow
def test_a_script_prints_what_it_has_measured(tmp_path: Path) -> None:
    done = mpirun(2, "-c", HOSTS, "--output-directory", str(tmp_path / "one"))
    assert done.returncode == 0, done.stderr
    assert "hosts    an exchange of " in done.stdout
    done = mpirun(2, "-c", HOSTS, "--between", "none", "--output-directory", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    assert "hosts    " not in done.stdout
    assert "an average every 2 tasks" in done.stdout
