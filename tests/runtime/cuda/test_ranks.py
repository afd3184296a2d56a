"""Training on several ranks with GPUs that are none: the same bits as in one process with as many GPUs, where NCCL adds
up; and what CPUs compute, where the hosts do."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, ConfigurationError, Dataflow, ModelConf, Phase, SolverConf, SystemConf
from crossbow.cluster.admission import Admission
from crossbow.cluster.members import Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.sums import Waiting
from crossbow.cluster.transport import Transport
from crossbow.ops import InnerProduct
from crossbow.runtime import mean
from crossbow.runtime.changing_engine import new_engine
from crossbow.runtime.cuda import backend, synchroniser
from crossbow.runtime.cuda.backend import CudaBackend
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.runtime.cuda.synchroniser import CudaSynchroniser, NcclCollective
from crossbow.runtime.limits import Limits
from crossbow.runtime.run import TrainingRun
from crossbow.runtime.task import Failed, Task
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.synch import BarrierRule, ModelAveraging, PolyakRuppert, Rule, TwoLevel
from crossbow.types import Aborted, CrossbowError
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.cluster.ray.processes import Processes
from tests.combinations import one_in
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.fake_memory import FakeError, RaceError
from tests.kernels.cuda.test_fake import pairs
from tests.runtime import test_regrouping as regrouping
from tests.runtime.test_across_ranks import DATA, MODEL, SOLVER, Trained, losses, train
from tests.support import SECONDS, same_weights, training, until

pytestmark = [pytest.mark.slow]  # on the emulator; what they share with CPUs is tested there

FOUR = ("cuda:0", "cuda:1", "cuda:2", "cuda:3")


def train_on(
    devices: Sequence[str],
    rule: Rule | None = None,
    learners: int = 1,
    solver: SolverConf = SOLVER,
    seed: int = 0,
    **more: Any,
) -> list[Trained]:
    """Train on as many ranks, each with these devices. A single one is a process without others."""
    model = ModelConf(batch_size=MODEL.batch_size, rule=rule)

    def of(ranks: Ranks | None, names: str) -> Callable[[], Trained]:
        system = SystemConf(devices=names, learners_per_device=learners, seed=3, **more)
        return lambda: train(ranks, model, system, solver=solver)

    known = FakeNetwork(len(devices)).ranks() if len(devices) > 1 else [None]
    with fake_cuda(4, seed, threads_tell=True):
        return at_once([of(ranks, names) for ranks, names in zip(known, devices, strict=True)])


@one_in(6)
@pytest.mark.parametrize(
    ("rule", "devices", "learners", "solver"),
    [
        (SMA(), FOUR[:2], 1, SOLVER),
        (SMA(tau=2, base_momentum=0.3), ("cuda:0,cuda:1", "cuda:2,cuda:3"), 1, SOLVER),
        (SSGD(), FOUR[:3], 2, SolverConf(learning_rate=0.05, momentum=0.9, clip_gradient_norm=0.5)),
        (ModelAveraging(tau=3), ("cuda:0,cuda:1", "cuda:2"), 2, SOLVER),
    ],
    ids=["one learner", "two GPUs", "clipped", "unequal"],
)
def test_ranks_compute_the_bits_of_one_process(
    rule: BarrierRule, devices: Sequence[str], learners: int, solver: SolverConf
) -> None:
    (alone,) = train_on([",".join(devices)], rule, learners, solver)
    for seed in (0, 1):
        for each in train_on(devices, rule, learners, solver, seed):
            assert same_weights(alone.weights, each.weights)
            assert losses(alone) == losses(each)


def test_ranks_that_share_a_gpu_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the GPU 0000:00:00\.0 for rank 0 \(here\) and for rank 1"):
        _collectives(["here", "here"], [0, 0])


def test_gpus_of_different_hosts_may_have_one_address() -> None:
    for collective in _collectives(["here", "there"], [0, 0]):
        collective.close()


def _collectives(hosts: Sequence[str], devices: Sequence[int]) -> list[NcclCollective]:
    """Of ranks with a GPU each."""
    network = FakeNetwork(len(hosts))
    network.view = View(0, tuple(Rank(number, host) for number, host in enumerate(hosts)))
    with fake_cuda(2):
        streams = [CudaStream(f"s{number}", device) for number, device in enumerate(devices)]
        pairs = zip(streams, network.ranks(), strict=True)
        try:
            return at_once([lambda pair=pair: NcclCollective([pair[0]], pair[1]) for pair in pairs])
        finally:
            for stream in streams:
                stream.close()


def test_nccl_that_waits_for_other_ranks_does_not_keep_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may wait for this one to say that it has failed."""
    monkeypatch.setattr(synchroniser, "SECONDS_TO_END", 0.01)
    others = threading.Event()
    with fake_cuda(1) as fake:
        stream = CudaStream("s", 0)
        collective = NcclCollective([stream], FakeNetwork(1).ranks()[0])
        ((communicator,),) = fake.nccl.members.values()
        communicator.abort = others.wait
        collective.abort()
        collective.close()
        assert not communicator.ended
        others.set()
        stream.close()


def test_gpus_and_cpus_are_refused() -> None:
    message = r"expected GPUs, as on rank 0 \(host0\)\. Received: CPUs on rank 1 \(host1\)"
    with pytest.raises(ConfigurationError, match=message):
        train_on(("cuda:0", "cpu"))


def test_numbers_are_not_checked_across_ranks() -> None:
    """The host would wait for a sum to which a rank that has failed does not come."""
    with pytest.raises(ConfigurationError, match="check_numerics must be False across ranks with GPUs"):
        train_on(FOUR[:2], check_numerics=True)


def test_each_rank_of_a_host_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it sees only one, as where a cluster's own scheduler shares them out."""
    hosts = "there", "here", "there", "here", "here"
    view = View(0, tuple(Rank(number, host) for number, host in enumerate(hosts)))
    for rank, there, expected in ((4, 4, "cuda:2"), (4, 1, "cuda:0"), (3, 4, "cuda:1"), (3, 1, "cuda:0")):
        monkeypatch.setattr(backend, "join", functools.partial(Ranks, view, rank))
        with fake_cuda(there):
            assert [device.name for device in CudaBackend(SystemConf(devices="cuda")).devices] == [expected]
    with fake_cuda(4):
        assert [device.name for device in CudaBackend(SystemConf(devices="cuda:1")).devices] == ["cuda:1"]


@pytest.mark.slow
def test_a_failure_in_one_rank_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' streams wait for a sum that does not come. So all abort their sums, and no rank trains again."""
    original = NcclCollective.all_reduce

    def all_reduce(self: NcclCollective, vectors: Sequence[Any]) -> None:
        (communicator,) = self._communicators
        if communicator.number == 1 and communicator.sums == 6:
            raise MemoryError("no luck")
        original(self, vectors)

    monkeypatch.setattr(NcclCollective, "all_reduce", all_reduce)
    errors: dict[int, tuple[str, str]] = {}

    def of(ranks: Ranks, name: str) -> Callable[[], None]:
        def work() -> None:
            engine = engine_on(ranks, name)
            try:
                with pytest.raises(CrossbowError) as first:
                    TrainingRun(engine, MODEL, Limits(count=2), (), test=True, ranks=ranks).run()
                with pytest.raises(CrossbowError) as second:
                    engine.check_usable()
                errors[ranks.rank] = str(first.value), str(second.value)
            finally:
                engine.close()

        return work

    with fake_cuda(2, threads_tell=True) as fake:
        at_once([of(ranks, name) for ranks, name in zip(FakeNetwork(2).ranks(), FOUR, strict=False)])
        assert [each.ended for each in next(iter(fake.nccl.members.values()))] == ["aborted", "aborted"]
        assert not fake.nccl.faults
    assert "rank 1 (host1) failed: " in errors[0][0]
    assert "no luck" in errors[1][0]
    assert all("Make another context" in second for _, second in errors.values())


def engine_on(ranks: Ranks, devices: str, model: ModelConf = MODEL) -> TrainingEngine:
    """With one learner on each device."""
    flow = training(InnerProduct(number_of_outputs=3))
    check = Dataflow(flow.subgraph).set_phase(Phase.CHECK)
    system = SystemConf(devices=devices, learners_per_device=1, seed=3)
    return new_engine(flow.graph, check.graph, DATA, model, SOLVER, system, ranks=ranks)


# If ranks may join and leave, their hosts add up

GPU = SystemConf(devices="cuda:0", learners_per_device=1, seed=3)
BARRIERS = (SMA(), SMA(tau=2, base_momentum=0.3), SSGD(), ModelAveraging(tau=2), PolyakRuppert())


@one_in(8)
@pytest.mark.parametrize("fault", ["kill:1@3", "kill:0@3", "leave:1@3", "join@3"])
@pytest.mark.parametrize("rule", BARRIERS, ids=str)
def test_ranks_leave_and_join_as_those_with_cpus(monkeypatch: pytest.MonkeyPatch, rule: Rule, fault: str) -> None:
    model, joins = replace(regrouping.MODEL, rule=rule), fault.startswith("join")
    with fake_cuda(threads_tell=True):
        if joins:
            results, events = regrouping.train_and_join(monkeypatch, fault, 2, model, system=GPU)
            assert [(each.tick, each.ranks) for each in events.arrivals] == [(3, 3)]
        else:
            results, (departure,) = regrouping.train_and_lose(monkeypatch, fault, 3, model, system=GPU)
            assert (departure.tick, departure.ranks) == (3, 2)
    expected = regrouping.continued(model, *((2, 3) if joins else (3, 2)), 3)
    first, *others = (weights for weights, _ in results if weights is not None)
    assert len(others) == (2 if joins else 1)
    assert all(same_weights(first, weights) for weights in others)
    for name, value in expected.items():
        np.testing.assert_allclose(first[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [SMA(), SSGD(), ModelAveraging()], ids=str)
def test_every_missing_wait_is_reported_where_hosts_add_up(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(regrouping.MODEL, rule=rule)

    def run() -> None:
        with fake_cuda(threads_tell=True):
            regrouping.train_and_lose(monkeypatch, "", 2, model, system=GPU)

    waits = {(one, other) for one, other in pairs(monkeypatch, run, None) if one != other}
    assert waits == {("learner-0", "synchroniser-0"), ("synchroniser-0", "learner-0")}
    for ignored in sorted(waits):
        with pytest.raises((CrossbowError, FakeError)) as caught:
            pairs(monkeypatch, run, ignored)
        assert any(isinstance(error, RaceError) for error in causes(caught.value)), ignored


def causes(error: BaseException | None) -> list[BaseException]:
    """The exception, and those that have led to it."""
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def test_a_task_runs_while_hosts_add_up_the_weights_from_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    submitted, submit = list[bool](), CudaSynchroniser.submit

    def noted(synchroniser: CudaSynchroniser, task: Task) -> None:
        (learner,) = synchroniser.devices[0].learners
        submitted.append(learner._work is not None)
        submit(synchroniser, task)

    monkeypatch.setattr(CudaSynchroniser, "submit", noted)
    with fake_cuda(threads_tell=True):
        regrouping.train_and_lose(monkeypatch, "", 2, replace(regrouping.MODEL, rule=SMA()), system=GPU)
    assert all(submitted)


@pytest.mark.slow
def test_a_sum_that_is_aborted_is_not_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner of rank 1 has failed, but its report comes later."""
    engines, add_up, sums = dict[int, Any](), mean.tree, list[int]()

    def aborted(transport: Transport, vector: Any, wait: Waiting) -> None:
        if transport.rank == 1:
            sums.append(len(sums))
            if sums[-1] == 5:
                failed = Failed(5, 1, "task", ValueError("the cause"))
                threading.Timer(0.1, engines[1].flow._reports.put, [failed]).start()
                raise Aborted
        add_up(transport, vector, wait)

    def of(ranks: Ranks) -> Callable[[], str]:
        def work() -> str:
            engine = engines[ranks.rank] = regrouping.new_engine(MODEL, ranks, GPU)
            try:
                with pytest.raises(CrossbowError) as caught:
                    TrainingRun(engine, MODEL, Limits(count=100), (), test=False, ranks=ranks).run()
                return str(caught.value)
            finally:
                engine.close()

        return work

    monkeypatch.setattr(mean, "tree", aborted)
    with fake_cuda(threads_tell=True):
        first, second = at_once([of(ranks) for ranks in Processes(["host"] * 2).ranks()])
    assert "rank 1 (host) failed: " in first
    assert "ValueError: the cause" in second


@pytest.mark.slow
def test_a_context_is_closed_while_its_host_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are late for the sixth sum."""
    engines, errors, late = dict[int, Any](), dict[int, str](), threading.Event()
    submit = CudaSynchroniser.submit

    def wait(synchroniser: CudaSynchroniser, task: Task) -> None:
        if task.tick == 5 and synchroniser is engines[1].coordination.synchroniser:
            late.set()
            until(lambda: 0 in errors)
        submit(synchroniser, task)

    def of(ranks: Ranks) -> Callable[[], None]:
        def work() -> None:
            engine = engines[ranks.rank] = regrouping.new_engine(MODEL, ranks, GPU)
            try:
                with pytest.raises(CrossbowError) as caught:
                    TrainingRun(engine, MODEL, Limits(count=100), (), test=False, ranks=ranks).run()
                errors[ranks.rank] = str(caught.value)
            finally:
                engine.close()

        return work

    def close() -> None:
        assert late.wait(SECONDS)
        until(lambda: engines[0].coordination.synchroniser.devices[0].stream.wait(0))  # it waits for the other rank
        engines[0].close()

    monkeypatch.setattr(CudaSynchroniser, "submit", wait)
    with fake_cuda(threads_tell=True):
        at_once([*map(of, Processes(["host"] * 2).ranks()), close])
    assert errors[0] == "the context was closed while training"
    assert "rank 0 (host) failed: " in errors[1]


def test_several_gpus_of_ranks_that_may_leave_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    system = replace(GPU, devices="cuda:0,cuda:1")
    with fake_cuda(2), pytest.raises(ConfigurationError, match="devices must be one GPU for each rank that may join"):
        regrouping.train_and_lose(monkeypatch, "", 2, system=system)


@pytest.mark.parametrize(
    ("devices", "rule", "joinable"),
    [("cuda:0,cuda:1", None, False), ("cuda", None, True), ("cpu", None, True), ("cuda:0,cuda:1", TwoLevel(), True)],
)
def test_no_rank_joins_one_with_several_gpus_and_one_level(devices: str, rule: Any, joinable: bool) -> None:
    """They could not train together, and training would end."""
    admission, network = Admission(), FakeNetwork(1)
    ranks = Ranks(network.view, 0, network.transports()[0], admission=admission)
    with fake_cuda(2):
        engine_on(ranks, devices, replace(MODEL, rule=rule)).close()
    admission.open(ranks.view.ranks)
    assert (admission.journal() is not None) == joinable
