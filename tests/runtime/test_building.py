"""Options that cannot be combined are refused, and what is refused leaves nothing behind."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow import SMA, SSGD, ExecutionContext, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.cluster.placement import Placement
from crossbow.cluster.ranks import Ranks
from crossbow.data.rank_shares import RankShare
from crossbow.runtime import building
from crossbow.runtime.building import close_all
from crossbow.runtime.changing_engine import new_engine
from crossbow.synch import SSP, AsynchronousSGD, Rule
from crossbow.testing import FakeCollective
from crossbow.types import ConfigurationError
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.runtime.test_engine import FIXED, assert_equal, logistic, simulate
from tests.support import blobs, context, engine_of, perceptron


def test_wpc_gives_tau() -> None:
    with logistic(rule=SMA(alpha=0.3), wpc=6, learners=2) as running:
        expected = simulate(running, 2, FIXED)
        running.train(4 * 6, TrainingUnit.TASKS)
        for _ in range(4):
            expected.sma_tick(0.3, 3, 0.0)
        assert_equal(running, expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"wpc": 5}, "multiple of the number of learners, 2"),
        ({"wpc": 8, "rule": SMA(tau=3)}, "means tau=4"),
        ({"rule": SMA(alpha=0.9)}, r"alpha must be < 2/\(k \+ 1\) = 0.6667 with k = 2 learners"),
        ({"slack": 1}, "slack must be 0 under a rule with a barrier"),
        ({"batch_size": 31}, "batch_size must be at most the number of training examples, 30. Received: batch_size=31"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        logistic(**options)


def test_a_collective_needs_a_barrier() -> None:
    expected = "collective must be None under a rule without a barrier"
    before = set(threading.enumerate())
    with pytest.raises(ConfigurationError, match=expected):
        context(rule=SSP(), devices="cpu:0/2,cpu:1/2", learners=1, collective=FakeCollective(2))
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("seed", [0, 7])
def test_variables_have_the_initial_values_of_the_seed(seed: int) -> None:
    """On every device, in both buffers, and in every learner."""
    with context(devices="cpu:0/2,cpu:1/2", learners=1, seed=seed) as running:
        parts = engine_of(running).parts
        layout = parts.program.model
        expected = layout.new_vector()
        layout.initialise(expected, seed)
        assert expected.any()
        for base in parts.bases:
            assert all((buffer == expected).all() for buffer in base.buffers)
        for replica in parts.replicas:
            assert (replica.weights == expected).all()  # type: ignore[union-attr]


@pytest.mark.parametrize(("devices", "learners", "merging"), [("cpu", 3, 3), ("cpu:0/2,cpu:1/2", 2, 1)])
def test_on_one_device_every_learner_merges_a_part(devices: str, learners: int, merging: int) -> None:
    with context(devices=devices, learners=learners) as running:
        flags = engine_of(running).parts.flags
        assert len(flags.contributed) == learners * (1 if devices == "cpu" else 2)
        assert len(flags.merged) == merging


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("*bias",), {"InnerProduct0.bias", "InnerProduct2.bias"}),
        (("InnerProduct0.*", "*0.bias"), {"InnerProduct0.weights", "InnerProduct0.bias"}),
    ],
)
def test_local_variables_are_found_by_their_names(names: tuple[str, ...], expected: set[str]) -> None:
    with context(local_variables=names) as running:
        parts = engine_of(running).parts
        kept = parts.arithmetic.ranges.kept
        found = {segment.name for segment in parts.program.model if segment.place in kept}
        assert found == expected
        assert list(kept) == sorted(kept, key=lambda place: place.start)


def test_an_order_by_files_needs_files() -> None:
    with pytest.raises(ConfigurationError, match="order must be 'examples' with a data set that is not stored"):
        ExecutionContext(
            [perceptron(), None],
            data=blobs(),
            model=ModelConf(batch_size=4),
            solver=SolverConf(),
            system=SystemConf(devices="cpu", kernels="reference", order="files"),
        )


def test_what_is_closed_is_stopped_before_it_is_destroyed() -> None:
    """A stream that is destroyed may not be used by a thread any more."""
    log: list[str] = []

    class Member:
        def __init__(self, name: str) -> None:
            self.name = name

        def stop(self, timeout: float) -> None:
            log.append(f"stop {self.name}")

        def close(self, timeout: float) -> None:
            log.append(f"close {self.name}")

    members: list[Any] = [Member("a"), Member("b")]
    backend: Any = Member("backend")
    close_all(members, backend)
    assert log == ["stop a", "stop b", "close a", "close b", "close backend"]


@pytest.mark.parametrize(
    ("sizes", "ranks", "count", "barrier", "text"),
    [
        ((8, 8), 3, 8, True, r"of this rank, one of 3\. Received: 8 training examples, and shares of 8, 8$"),
        ((8, 7), 2, 8, False, r"one of 2\. Received: 8 training examples, and shares of 8, 7$"),
        ((9, 7), 2, 7, True, r"equal shares under a rule with a barrier\. Received: shares of 9, 7 examples$"),
        ((9, 7), 2, 7, False, None),
        ((8, 7), 2, 7, True, None),  # up to one example
        ((8, 8), 2, 8, True, None),
    ],
)
def test_shares_fit_the_ranks(sizes: tuple[int, ...], ranks: int, count: int, barrier: bool, text: str | None) -> None:
    """On the second rank."""
    share = RankShare(sum(sizes), sizes, "stride", "")
    setting: Any = SimpleNamespace(
        data=SimpleNamespace(share=share, train=range(count)), model=ModelConf(batch_size=2), system=SystemConf(),
        ranks=SimpleNamespace(size=ranks, rank=1), barrier=barrier, placement=Placement(2, 1, 1),
    )  # fmt: skip
    if text is None:
        assert building._shuffled(setting, None, 1).batch_size == 2
        return
    with pytest.raises(ConfigurationError, match=text):
        building._shuffled(setting, None, 1)


@pytest.mark.parametrize(("wpc", "refused"), [(4, False), (3, True), (None, False)])
def test_across_ranks_wpc_is_a_multiple_of_all_learners(wpc: int | None, refused: bool) -> None:
    def on(ranks: Ranks) -> Callable[[], str]:
        def build() -> str:
            flow = perceptron()
            model, system = ModelConf(batch_size=4, wpc=wpc), SystemConf(learners_per_device=1, kernels="reference")
            try:
                new_engine(flow.graph, flow.graph, blobs(), model, SolverConf(), system, ranks=ranks).close()
            except ConfigurationError as error:
                return str(error)
            return ""

        return build

    expected = "ModelConf: wpc must be a multiple of the number of learners, 2, across ranks. Received: wpc=3"
    assert at_once([on(ranks) for ranks in FakeNetwork(2).ranks()]) == [expected if refused else ""] * 2


CLIPPING = SolverConf(clip_gradient_norm=1.0)


@pytest.mark.parametrize(
    ("rule", "solver", "servers", "ranks", "refused"),
    [
        (AsynchronousSGD(sends="gradient"), CLIPPING, 2, 2, True),
        (AsynchronousSGD(sends="gradient"), CLIPPING, 1, 2, False),
        (AsynchronousSGD(sends="gradient"), CLIPPING, 2, 1, False),
        (AsynchronousSGD(sends="gradient"), SolverConf(), 2, 2, False),
        (AsynchronousSGD(), CLIPPING, 2, 2, False),
        (SSGD(), CLIPPING, 2, 2, False),  # in turn with a rule that has servers
    ],
)
def test_servers_do_not_clip_parts_of_gradients(
    rule: Rule, solver: SolverConf, servers: int, ranks: int, refused: bool
) -> None:
    of: Any = SimpleNamespace(size=ranks)
    with pytest.raises(ConfigurationError, match="clipped by their norm") if refused else contextlib.nullcontext():
        building._check_servers(rule, solver, SystemConf(servers=servers), of)
