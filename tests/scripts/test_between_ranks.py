"""How often ranks on several hosts average by default."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossbow import SMA, ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.cluster.members import Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.data import Dataset
from crossbow.data.examples import ArrayExamples, BadExample, Selection
from crossbow.data.rank_shares import Sharding, share_of_rank
from crossbow.ops import InnerProduct
from crossbow.scripts import between_ranks
from crossbow.scripts.between_ranks import SHARE, WAITING, chosen_between, chosen_later, ticks_between
from crossbow.scripts.data_sources import DataSource
from crossbow.scripts.parser import Configurations
from crossbow.synch import EASGD, ModelAveraging, TwoLevel
from tests.cluster.fake_network import FakeNetwork, FakeTransport, at_once
from tests.cluster.test_mpi import NEEDS_MPI, mpirun
from tests.support import blobs, same_weights, training
from tests.test_elastic_contexts import Launched

DATA = blobs(240, 20)
CONFS = Configurations(
    DataSource("synthetic", None, (4,), number_of_classes=3, training=240, check=20),
    ModelConf(batch_size=4),
    SolverConf(),
    SystemConf(learners_per_device=1, kernels="reference"),
)


def choose_apart(
    seconds: float, monkeypatch: pytest.MonkeyPatch, of_ranks: Sequence[tuple[Configurations, Dataset]]
) -> list[tuple[ModelConf, str]]:
    """What each of several ranks chooses that need so long to add up a vector."""
    monkeypatch.setattr(between_ranks, "SECONDS", 0.02)
    monkeypatch.setattr(between_ranks, "measure_sum", lambda *given, **how: seconds)
    flow = training(InnerProduct(number_of_outputs=3))
    given = zip(FakeNetwork(len(of_ranks)).ranks(), of_ranks, strict=True)
    return at_once([functools.partial(chosen_between, ranks, confs, flow, data) for ranks, (confs, data) in given])


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


@pytest.mark.parametrize(("exchange", "tick"), [(0.001, 0.01), (0.03, 0.01), (0.1, 0.004)])
def test_the_exchange_takes_its_share_at_most(exchange: float, tick: float) -> None:
    tau = ticks_between(exchange, tick, 1e9)
    lost = WAITING * (exchange + tick)  # with two levels
    assert tau > 1
    assert lost / (tau * tick + lost) <= SHARE < lost / ((tau - 2) * tick + lost)
    assert ticks_between(0.05 * tick, tick, 1e9) == 1


def test_exchanges_are_not_minutes_apart() -> None:
    assert ticks_between(0.7, 3.0, 1e9) == 4  # instead of 94
    assert ticks_between(0.2, 0.004, 1e9) == 2500  # 10 s, although exchanges take more than 5 %
    assert ticks_between(0.7, 7.0, 46.9) == ticks_between(0.7, 30.0, 46.9) == 1


@pytest.mark.parametrize("epoch", [19.0, 46.9, 47.0, 300.2])
def test_an_epoch_has_a_whole_number_of_exchanges(epoch: float) -> None:
    for exchange in (0.001, 0.01, 0.1, 1.0):
        tau = ticks_between(exchange, 0.01, epoch)
        exchanges = round(epoch / tau)
        assert 0 <= tau * exchanges - epoch < exchanges


def test_a_fast_network_averages_at_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = choose(1e-12, monkeypatch)
    assert model == CONFS.model
    assert text.endswith("the ranks average at every tick")


def test_a_slow_network_averages_at_least_once_in_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = choose(60.0, monkeypatch)
    assert isinstance(model.rule, TwoLevel)
    assert model.rule.between == ModelAveraging(tau=30)  # 240 examples, of which a tick has 8
    assert text.startswith("between  an exchange of 0.000192 MB takes 60 s, a tick ")
    assert text.endswith("the ranks average once in 30 ticks (--between none: at every tick)")


def test_if_more_learners_may_come_ranks_average_twice_in_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossbow.runtime.device.available_cores", lambda: (0, 0))  # one learner to begin with
    auto = replace(CONFS, system=SystemConf(devices="cpu:0/2", kernels="reference"))
    model, _ = choose(60.0, monkeypatch, auto)
    assert isinstance(model.rule, TwoLevel)
    assert model.rule.between == ModelAveraging(tau=15)


def test_the_number_of_learners_is_searched_for_by_all_ranks_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks whose options differ choose the same; one that is given a number of learners ends the search."""
    monkeypatch.setattr("crossbow.runtime.device.available_cores", lambda: (0, 0))
    auto = replace(CONFS, system=SystemConf(devices="cpu:0/2", kernels="reference"))
    for model, _ in choose_apart(60.0, monkeypatch, [(CONFS, DATA), (auto, DATA)]):
        assert isinstance(model.rule, TwoLevel)
        assert model.rule.between == ModelAveraging(tau=30)


def test_what_depends_on_timing_is_not_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = replace(CONFS, system=replace(CONFS.system, deterministic=True))
    assert choose(60.0, monkeypatch, fixed) == (fixed.model, "")


def test_bad_examples_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    write = ArrayExamples.write_images

    def broken(self: ArrayExamples, selection: Selection, images: np.ndarray) -> None:
        for index in selection.indices.tolist():
            if index % 3 == 0:
                raise BadExample(index, f"file {index}", "broken")
        write(self, selection, images)

    monkeypatch.setattr(ArrayExamples, "write_images", broken)
    skips = replace(CONFS, system=replace(CONFS.system, on_bad_record="skip"))
    assert isinstance(choose(60.0, monkeypatch, skips)[0].rule, TwoLevel)


@pytest.mark.parametrize("sharding", ["stride", ((0.0, 0.5), (0.5, 1.0))])
def test_with_a_part_of_the_data_each_an_epoch_is_that_of_all(
    sharding: Sharding, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = blobs(255, 20)
    parts = [share_of_rank(odd, sharding, ranks) for ranks in FakeNetwork(2).ranks()]
    assert {len(part.train) for part in parts} == {127, 128}
    for model, _ in choose_apart(60.0, monkeypatch, [(CONFS, part) for part in parts]):
        assert isinstance(model.rule, TwoLevel)
        assert model.rule.between == ModelAveraging(tau=32)  # 255 examples, of which a tick has 8
    assert all(part.share is not None for part in parts)


@pytest.mark.parametrize(
    "other",
    [
        replace(CONFS, system=replace(CONFS.system, sum_order="tree")),
        replace(CONFS, system=replace(CONFS.system, precision="float64")),
        replace(CONFS, system=SystemConf(devices="cuda")),
        replace(CONFS, model=ModelConf(batch_size=8)),
    ],
    ids=["order", "precision", "device", "batch"],
)
def test_ranks_that_differ_do_not_wait_for_each_other(other: Configurations, monkeypatch: pytest.MonkeyPatch) -> None:
    """The context says in what they differ."""
    monkeypatch.setattr(between_ranks, "SECONDS", 0.02)
    flow = training(InnerProduct(number_of_outputs=3))
    for first, second in ((CONFS, other), (other, CONFS)):
        confs = zip(FakeNetwork(2).ranks(), (first, second), strict=True)
        works = [functools.partial(chosen_between, ranks, each, flow, DATA) for ranks, each in confs]
        assert at_once(works) == [(first.model, ""), (second.model, "")]


def test_one_host_and_rules_without_a_barrier_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    free = replace(CONFS, model=ModelConf(batch_size=4, rule=EASGD()))
    assert choose(60.0, monkeypatch, free) == (free.model, "")
    alone = Ranks(View(0, (Rank(0, "here"),)))
    monkeypatch.setattr(FakeTransport, "elastic", True)
    for ranks in (alone, *FakeNetwork(1).ranks()):
        assert chosen_between(ranks, CONFS, training(InnerProduct(number_of_outputs=3)), DATA) == (CONFS.model, "")


@pytest.mark.parametrize("elastic", [False, True])
def test_ranks_of_one_host_are_measured_on_ray(elastic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTransport, "elastic", elastic)
    monkeypatch.setattr(between_ranks, "SECONDS", 0.02)
    monkeypatch.setattr(between_ranks, "measure_sum", lambda *given, **how: 60.0)
    flow, both = training(InnerProduct(number_of_outputs=3)), FakeNetwork(2).ranks()
    for ranks in both:
        ranks.view = View(0, (Rank(0, "here"), Rank(1, "here")))
    one, other = at_once([functools.partial(chosen_between, ranks, CONFS, flow, DATA) for ranks in both])
    assert one == other
    assert isinstance(one[0].rule, TwoLevel) == bool(one[1]) == elastic


def test_gpus_have_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = replace(CONFS, system=SystemConf(devices="cuda"))
    assert choose(60.0, monkeypatch, gpus) == (gpus.model, "")


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["join@8", "join@8,kill:0@30"])
def test_a_rank_that_begins_alone_measures_when_another_joins(faults: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setenv("CROSSBOW_FAULT", faults)
    monkeypatch.setattr(between_ranks, "SECONDS", 0.02)
    monkeypatch.setattr(between_ranks, "measure_sum", lambda *given, **how: 60.0)

    def program(ranks: Ranks) -> tuple[ModelConf, dict[str, np.ndarray]]:
        flow = training(InnerProduct(number_of_outputs=3))
        assert chosen_between(ranks, CONFS, flow, DATA) == (CONFS.model, "")
        with ExecutionContext(flow, data=DATA, model=CONFS.model, system=CONFS.system, monitors=[]) as context:
            context.on_new_ranks = chosen_later(ranks, CONFS, flow, DATA, told.append)
            context.train(3)
            return context.model, context.variables

    found = Launched(monkeypatch, 1).run(program, joins=True)
    living = [each for each in found if each is not None]
    assert len(living) == (1 if "kill" in faults else 2)
    for model, weights in living:
        assert model == replace(CONFS.model, rule=TwoLevel(SMA(), ModelAveraging(tau=30)))
        assert same_weights(weights, living[0][1])
    (sentence,) = told
    assert sentence.endswith(": the ranks average once in 30 ticks (--between none: at every tick)")


def test_ranks_that_join_later_get_the_same_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(FakeTransport, "elastic", True)
    monkeypatch.setattr(between_ranks, "SECONDS", 0.02)
    flow, both = training(InnerProduct(number_of_outputs=3)), FakeNetwork(2).ranks()

    def functions() -> list[Callable[[], ModelConf]]:
        found = [chosen_later(ranks, CONFS, flow, DATA, told.append) for ranks in both]
        return [each for each in found if each is not None]

    first, second = functions()
    monkeypatch.setattr(between_ranks, "measure_sum", lambda *given, **how: 1e-12)
    assert at_once([first, second]) == [CONFS.model, CONFS.model]
    assert [sentence.rpartition(": ")[2] for sentence in told] == ["the ranks average at every tick"]
    monkeypatch.setattr(between_ranks, "measure_sum", lambda *given, **how: 60.0)
    assert at_once([first, functions()[1]]) == [CONFS.model, CONFS.model]
    assert len(told) == 1
    assert chosen_later(both[0], replace(CONFS, model=ModelConf(rule=EASGD())), flow, DATA, told.append) is None


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
    assert "between  an exchange of " in done.stdout
    done = mpirun(2, "-c", HOSTS, "--between", "none", "--output-directory", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    assert "between  " not in done.stdout
    assert "an average every 2 tasks" in done.stdout
