"""Rules without a barrier on a GPU that is none: as the CPU and the simulator; and who has to wait for whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
    Dataset,
    ExecutionContext,
    SolverConf,
    TrainingUnit,
)
from crossbow.runtime.cuda.exchange import CudaMeeting
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.runtime.cuda.work import Work
from crossbow.runtime.engine import Engine
from crossbow.runtime.exchange import PeerExchange
from crossbow.runtime.memory import on_host
from crossbow.synch import (
    EASGD,
    SSP,
    AsynchronousSGD,
    Default,
    Gossip,
    Grouping,
    Hogwild,
    PartiallySynchronous,
    PolyakRuppert,
    Rule,
    RuleSequence,
    WeedOut,
    has_barrier,
    simulate,
)
from crossbow.testing import FakeCollective
from crossbow.types import ConfigurationError, CrossbowError, NonFiniteError, NonFiniteLossError, TaskError
from tests.combinations import one_in
from tests.conftest import _ours
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.fake_memory import RaceError
from tests.kernels.cuda.test_fake import pairs
from tests.runtime import test_free as cpu
from tests.runtime.cuda import test_training as engine
from tests.runtime.cuda.test_precision import NARROW, assert_near
from tests.runtime.test_free import RULES, SECONDS, SEED, SOLVERS
from tests.runtime.test_tuning import Scripted, tuning_of
from tests.support import context as small_context
from tests.support import within

pytestmark = [pytest.mark.slow]  # on the emulator; what they share with CPUs is tested there

TASKS = TrainingUnit.TASKS


def gpu(rule: Any, seed: int = 0, devices: int = 1) -> Any:
    """The fake, for a rule. Hogwild's learners race on purpose; without a barrier their threads submit work."""
    return fake_cuda(devices, seed, races=not isinstance(rule, Hogwild), threads_tell=not has_barrier(rule))


def context(**options: Any) -> ExecutionContext:
    return engine.context("cuda:0", **options)


def small(devices: str = "cuda:0", **options: Any) -> ExecutionContext:
    """A small perceptron on blobs."""
    return small_context(devices=devices, kernels="auto", threads=None, **options)


# One learner: what the CPU computes

ONE: dict[str, dict[str, Any]] = {
    **{
        str(rule): {"rule": rule} for rule in (Default(tau=2), WeedOut(), Hogwild(), EASGD(tau=3), Gossip(), Grouping())
    },
    "staleness": {"rule": AsynchronousSGD(weight="1/staleness")},
    "own gradients clipped": {"rule": AsynchronousSGD(), "clip_gradient_norm": 0.1},
    "the mean clipped": {"rule": Grouping(), "clip_gradient_norm": 0.1},
    "z's own solver, nesterov": {"rule": SSP(), "momentum_method": "nesterov", "weight_decay": 1e-3},
    "l1": {"rule": Hogwild(), "weight_decay": 1e-3, "regularisation": "l1"},
    "a rate that changes every task": {"rule": EASGD(), "policy": "inv", "gamma": 0.1, "power": 0.7},
    "a rate that drops": {"rule": AsynchronousSGD(), "policy": "step", "gamma": 0.1, "step_size": 4},
}


@one_in(2)
@pytest.mark.parametrize("name", ONE)
def test_one_learner_s_weights_are_those_of_the_cpu(name: str) -> None:
    options = {"learners": 1, "tasks": 8, **ONE[name]}
    tasks = options.pop("tasks")
    with gpu(options["rule"]), context(**options) as running:
        running.train(tasks, TASKS)
        received = running.variables
    engine.assert_same(received, engine.train("cpu", tasks=tasks, **options))


# Several: what the simulator has, in an order that is drawn


class Turns(cpu.InOrder):
    """Lets learners do what comes of their tasks in one order only."""

    def behind(self, finished: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
        counted = super().behind(finished)

        def turn(learner: int, pace: Any) -> None:
            self.wait("backward", learner, 0)
            counted(learner, pace)

        return turn


def ordered(
    rule: Rule, learners: int, events: Sequence[int], solver: SolverConf, *, bias: bool = False, **options: Any
) -> tuple[Any, Any]:
    """z and the replicas after tasks whose learners come in this order."""
    order = Turns(events)
    common: dict[str, Any] = {"data": Dataset((cpu.rows, cpu.targets)), "batch_size": 1, "wpc": 1, "seed": SEED}
    common |= {"precision": "float64", "rule": rule, "learners": learners, "solver": solver}
    with gpu(rule), small(dataflow=cpu.linear(bias=bias), **common, **options) as running:
        for member in running.engine.members:
            member.learner.finished = order.behind(member.learner.finished)
        within(SECONDS, lambda: running.train(len(events), TASKS))
        layout = running.engine.program.model
        replicas = [cpu._flat(layout.export(weights)) for weights in replicas_of(running)]
        return cpu._flat(running.variables), replicas


def replicas_of(running: ExecutionContext) -> list[Any]:
    return [on_host(member.replica.weights) for member in running.engine.members]


@one_in(2)
@pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule, Hogwild)], ids=str)
def test_several_learners_are_as_the_simulator_has_them(rule: Rule) -> None:
    tasks, learners, solver = 16, 3, SOLVERS[2]
    wishes = np.random.default_rng(1).integers(0, learners, 20 * tasks).tolist()
    made = cpu.expected(rule, learners, wishes, tasks, solver)
    z, replicas = ordered(rule, learners, made.events.tolist(), solver)
    np.testing.assert_allclose(replicas, made.replicas[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


def test_a_group_of_all_is_s_sgd_whoever_does_which_task() -> None:
    """The mean of their gradients clipped, too."""
    options: dict[str, Any] = {"learners": 3, "batch_size": 4, "solver": SolverConf(clip_gradient_norm=0.5)}
    with gpu(Grouping(1)), small(rule=Grouping(1), **options) as running:
        running.train(18, TASKS)
        received = running.variables
    with small_context(rule=SSGD(), **options) as running:
        running.train(18, TASKS)
        engine.assert_same(received, running.variables)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [AsynchronousSGD(), Default(), SSP(), Gossip(probability=1)], ids=str)
def test_every_missing_wait_is_reported(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a learner for its copies, and of the learners for each other's exchanges. (Copies wait for tasks that have
    been reported.)"""
    monkeypatch.setattr("crossbow.runtime.cuda.memory.SMALL_RECORD", 0)

    def run() -> None:
        with gpu(rule), small(rule=rule) as running:
            within(SECONDS, lambda: running.train(12, TASKS))

    waits = {(one, other) for one, other in pairs(monkeypatch, run, None) if one != other and "copies" not in one}
    assert len(waits) == 4
    for ignored in sorted(waits):
        with pytest.raises(TaskError) as caught:
            pairs(monkeypatch, run, ignored)
        assert isinstance(caught.value.__cause__, RaceError), ignored


def test_graphs_and_the_order_of_streams_change_no_bit() -> None:
    runs = []
    for seed, graphs in ((0, True), (1, False)):
        with gpu(EASGD(), seed), context(rule=EASGD(tau=2), learners=1, system={"graphs": graphs}) as running:
            running.train(8, TASKS)
            works = [bound.compute for bound in running.engine.members[0].learner.tasks.values()]
            assert any(work.is_graph for work in works) == graphs
            runs.append(running.variables)
    for name, value in runs[0].items():
        np.testing.assert_array_equal(runs[1][name], value)


def test_variables_are_left_out_as_in_the_simulator() -> None:
    """Weights and bias, each with a probability of 0.4."""
    rule, tasks, wishes = AsynchronousSGD(weight=0.5, sends="gradient"), 20, [0, 1] * 200
    common: dict[str, Any] = {**cpu.WITH_BIAS, "learners": 2, "tasks": tasks, "events": wishes, "solver": SOLVERS[1]}
    made = simulate(rule, **common, skip=0.4)
    z, replicas = ordered(rule, 2, made.events.tolist(), SOLVERS[1], bias=True, skip=0.4)
    np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(replicas, made.replicas[-1], rtol=0, atol=1e-12)


# Who waits for whom


class Held:
    """Lets learner 0's first task last until the others have done so many, and could have done more."""

    def __init__(self, running: ExecutionContext, tasks: int, seconds: float = SECONDS) -> None:
        """seconds: that it may last."""
        self.tasks, self.others, self.enough, self.found = tasks, 0, threading.Event(), -1
        self.seconds = seconds
        first, *others = [member.learner for member in running.engine.members]
        first._result = self.slowly(first._result)
        for other in others:
            other.finished = self.counted(other.finished)

    def slowly(self, result: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def held(submitted: Any) -> Any:
            if self.found < 0:
                if self.enough.wait(self.seconds):
                    time.sleep(0.05)
                self.found = self.others
            return result(submitted)

        return held

    def counted(self, finished: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
        def count(learner: int, pace: Any) -> None:
            self.others += 1
            if self.others >= self.tasks:
                self.enough.set()
            finished(learner, pace)

        return count


@one_in(4)
@pytest.mark.parametrize(
    ("rule", "slack", "done"),
    [
        (AsynchronousSGD(), None, 30),
        (Gossip(probability=0.5), None, 30),
        (Hogwild(), None, 30),
        (SSP(bound=3), None, 4),
        (PartiallySynchronous(max_advance=5), None, 5),
        (Default(), None, 1),
        (Grouping(1), None, 1),
        (AsynchronousSGD(), 2, 5),
    ],
    ids=str,
)
def test_a_slow_learner_keeps_back_the_others_as_far_as_rule_and_slack_say(
    rule: Rule, slack: int | None, done: int
) -> None:
    """30 tasks are more than batches that wait, and than tasks that are handed out ahead."""
    with gpu(rule), small(rule=rule, slack=slack, data=cpu.LONG) as running:
        held = Held(running, done)
        within(SECONDS, lambda: running.train(40, TASKS))
    assert held.found >= done if done == 30 else held.found == done


# What else they promise


@one_in(3)
@pytest.mark.parametrize("rule", [AsynchronousSGD(), Gossip(probability=0.7, tau=2), Hogwild()], ids=str)
def test_z_has_the_means_when_training_is_asked_to_stop(rule: Rule) -> None:
    """Of running statistics; and, without a base model, of weights by mass."""
    with gpu(rule), context(rule=rule, learners=3) as running:
        for _ in range(2):
            running.train(15, TASKS)
            parts = running.engine.parts
            mean = np.mean([on_host(member.replica.statistics[0]) for member in running.engine.members], axis=0)
            np.testing.assert_allclose(on_host(parts.bases[0].statistics[0]), mean, rtol=1e-5, atol=1e-7)
            if isinstance(running.engine.coordination.exchange, PeerExchange):
                masses = running.engine.coordination.exchange.masses
                assert sum(masses.own) + sum(masses.coming) == pytest.approx(1, abs=1e-12)
                vectors = replicas_of(running) + [on_host(member.replica.received) for member in running.engine.members]
                terms = zip((*masses.own, *masses.coming), vectors, strict=True)
                weights = sum(mass * vector.astype(np.float64) for mass, vector in terms)
                np.testing.assert_allclose(on_host(parts.bases[0].buffers[0]), weights, atol=1e-6)


@pytest.mark.parametrize("rule", [AsynchronousSGD(), Gossip(probability=1)], ids=str)
def test_a_drop_of_the_learning_rate_restarts_the_learners(rule: Rule) -> None:
    solver = SolverConf(learning_rate=0.1, policy="step", gamma=0.1, step_size=10, momentum=0.5)
    restarts = []
    with gpu(rule), small(rule=rule, solver=solver) as running:
        parts, restart = running.engine.parts, running.engine.coordination.exchange.restart

        def seen() -> None:
            restart()
            z = on_host(parts.bases[0].buffers[0])
            restarts.append(all(np.array_equal(weights, z) for weights in replicas_of(running)))
            assert not any(on_host(member.replica.velocity).any() for member in running.engine.members)
            assert all(
                m.replica.received is None or not on_host(m.replica.received).any() for m in running.engine.members
            )

        running.engine.coordination.exchange.restart = seen
        within(SECONDS, lambda: running.train(30, TASKS))
    assert restarts == [True, True]


@one_in(2)
@pytest.mark.parametrize("rule", [EASGD(), Hogwild()], ids=str)
def test_testing_predicting_saving_and_loading(rule: Rule, tmp_path: Any) -> None:
    path, images = tmp_path / "model.safetensors", engine.DATA.train.images
    with gpu(rule), context(rule=rule) as running:
        running.train(12, TASKS)
        tested, predicted = running.test(), running.predict(images)
        running.train_and_test(6, TASKS)
        running.save(path)
        trained = running.predict(images)
    assert not np.allclose(predicted, trained)
    assert tested.examples == len(engine.DATA.check.labels)  # type: ignore[union-attr]
    with engine.context("cpu") as on_cpu:
        on_cpu.load(path)
        np.testing.assert_allclose(on_cpu.predict(images), trained, rtol=1e-4, atol=1e-5)
    with gpu(rule), context(rule=rule) as running:
        running.load(path)
        np.testing.assert_allclose(running.predict(images), trained, rtol=1e-5, atol=1e-6)
        running.train(6, TASKS)


@pytest.mark.slow
@pytest.mark.parametrize("precision", NARROW)
@pytest.mark.parametrize("rule", [AsynchronousSGD(), Hogwild()], ids=str)
def test_tensors_of_16_bits(rule: Rule, precision: str) -> None:
    options: dict[str, Any] = {"rule": rule, "learners": 1}
    with gpu(rule), context(**options, system={"precision": precision}) as running:
        running.train(6, TASKS)
        received = running.variables
    assert_near(received, engine.train("cpu", tasks=6, **options), precision)


@pytest.mark.slow
@pytest.mark.parametrize("precision", NARROW)
def test_several_learners_with_tensors_of_16_bits(precision: str) -> None:
    rule = AsynchronousSGD()
    with gpu(rule), context(rule=rule, learners=3, system={"precision": precision}) as running:
        before = running.train(6, TASKS).loss
        assert running.train(30, TASKS).loss < before


def test_rules_in_turn() -> None:
    """S-SGD's weights from asynchronous SGD's, with a single learner: that is plain SGD all along."""
    turns = RuleSequence(((AsynchronousSGD(sends="gradient"), 4), (SSGD(), 4)))
    options: dict[str, Any] = {"learners": 1, "momentum": 0.0}
    with gpu(turns), context(rule=turns, **options) as running:
        running.train(10, TASKS)
        received = running.variables
    engine.assert_same(received, engine.train("cpu", tasks=10, rule=SSGD(), **options))


@pytest.mark.slow
def test_polyak_ruppert_in_turn() -> None:
    """Its clock, from which the numbers of a merge follow, begins with its phase; as the simulator has it."""
    turns = RuleSequence(((SSGD(), 2), (PolyakRuppert(alpha=0.25), 3)))
    made = simulate(turns, **cpu.WITH_BIAS, learners=2, events=[0, 1] * 8, solver=SOLVERS[1])
    data = Dataset((cpu.rows, cpu.targets))
    options: dict[str, Any] = {"rule": turns, "data": data, "learners": 2, "batch_size": 1, "solver": SOLVERS[1]}
    with gpu(turns), small(dataflow=cpu.linear(bias=True), precision="float64", seed=SEED, **options) as running:
        running.train(16, TASKS)
        np.testing.assert_allclose(cpu._flat(running.variables), made.base[-1], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [AsynchronousSGD(), Gossip(probability=1)], ids=str)
def test_the_number_of_learners_may_change(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the next number all begin with the z of those before."""
    original, changes = Engine.continue_from, list[tuple[int, int]]()

    def seen(following: Engine, before: Engine) -> None:
        z = on_host(before.parts.bases[0].buffers[0])
        assert not np.array_equal(on_host(following.parts.bases[0].buffers[0]), z)
        original(following, before)
        changes.append((before.parts.setting.learners, following.parts.setting.learners))
        assert following.tasks == before.tasks > 0
        for vector in (
            following.parts.bases[0].buffers[0],
            *(each.replica.weights for each in following.members),
        ):
            np.testing.assert_array_equal(on_host(vector), z)

    monkeypatch.setattr(Engine, "continue_from", seen)
    with gpu(rule), small(rule=rule, learners="auto") as running:
        tuning_of(running).tuner = Scripted([4, 3, 5, 4, 5])
        while len(changes) < 5 and running.engine.tasks < 2000:
            within(SECONDS, lambda: running.train(20, TASKS))
        assert running.summary().learners == 5
    assert changes == [(4, 3), (3, 4), (4, 5), (5, 4), (4, 5)]  # 3 is not wanted any more: it goes before 5 comes


@pytest.mark.parametrize("rule", [SMA(), AsynchronousSGD()], ids=str)
def test_no_thread_of_a_context_is_overlooked(rule: Rule) -> None:
    """By the fixture that looks for threads which are left behind."""
    before = set(threading.enumerate())
    with gpu(rule), small(rule=rule) as running:
        running.train(4, TASKS)
        own = set(threading.enumerate()) - before
        assert {thread.name for thread in own if thread.name.startswith("watcher-")} == {"watcher-0", "watcher-1"}
        assert [thread.name for thread in own if not _ours(thread)] == []


# Failures


def assert_usable(running: ExecutionContext) -> None:
    parts, tasks = running.engine.parts, running.engine.tasks
    z = on_host(parts.bases[0].buffers[0])
    assert np.isfinite(z).all()
    for member in running.engine.members:
        assert member.replica.weights is None or np.array_equal(on_host(member.replica.weights), z)
    assert running.test().examples > 0
    assert np.isfinite(within(SECONDS, lambda: running.train(12, TASKS)).loss)
    assert running.engine.tasks >= tasks + 12


@pytest.mark.parametrize("rule", [AsynchronousSGD(), Hogwild(), Gossip(probability=1)], ids=str)
def test_weights_that_diverge(rule: Rule) -> None:
    with gpu(rule), small(rule=rule, solver=SolverConf(learning_rate=1e30)) as running:
        with pytest.raises(NonFiniteLossError):
            within(SECONDS, lambda: running.train(50))
        assert all(np.isfinite(value).all() for value in running.variables.values())


@pytest.mark.parametrize("rule", [AsynchronousSGD(), Default()], ids=str)
def test_a_call_that_fails_names_operator_and_task(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """On whatever thread it was made."""
    original, tasks = Work._call, iter(range(1000))

    def fail(work: Work) -> None:
        if any(step.operator == "InnerProduct4" for step in work.steps) and next(tasks) == 9:
            work.failed = "InnerProduct4"
            raise RuntimeError("no luck")
        original(work)

    with gpu(rule), context(rule=rule, system={"graphs": False}) as running:
        monkeypatch.setattr(Work, "_call", fail)
        with pytest.raises(TaskError, match=r"in operator 'InnerProduct4' on learner [01]: RuntimeError: no luck"):
            within(SECONDS, lambda: running.train(100, TASKS))
        assert_usable(running)


@pytest.mark.parametrize("rule", [AsynchronousSGD(), Gossip(probability=1)], ids=str)
def test_behind_an_exchange_that_fails_there_is_no_other(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    original, exchanges = CudaMeeting.exchange, list[int]()

    def arriving(arrive: Callable[[], list[int]]) -> list[int]:
        exchanges.append(len(exchanges))
        if exchanges[-1] == 4:
            raise RuntimeError("no luck")
        return arrive()

    def exchange(meeting: CudaMeeting, learner: int, arrive: Callable[[], list[int]]) -> list[int]:
        try:
            return original(meeting, learner, lambda: arriving(arrive))
        except RuntimeError:
            time.sleep(0.05)  # others come
            raise

    with gpu(rule), small(rule=rule) as running:
        with monkeypatch.context() as patch:
            patch.setattr(CudaMeeting, "exchange", exchange)
            with pytest.raises(TaskError, match=r"in operator 'exchange' on learner [01]: RuntimeError: no luck"):
                within(SECONDS, lambda: running.train(100, TASKS))
            assert exchanges[-1] == 4
        assert_usable(running)


def test_numbers_are_checked_where_asked() -> None:
    system, rule = {"check_numerics": True}, AsynchronousSGD(sends="gradient")
    with gpu(rule), context(rule=rule, learners=1, system=system) as running:
        running.train(6, TASKS)
        received = running.variables
    engine.assert_same(received, engine.train("cpu", tasks=6, rule=rule, learners=1))
    solver = SolverConf(learning_rate=1e38, weight_decay=1e10)
    with gpu(rule), small(rule=rule, check_numerics=True, solver=solver) as running:
        with pytest.raises(TaskError, match=r"'exchange' on learner .* base model's new value of") as caught:
            within(SECONDS, lambda: running.train(12, TASKS))
        assert isinstance(caught.value.__cause__, NonFiniteError)


def test_ctrl_c_while_a_learner_waits_for_another() -> None:
    """As the second Ctrl-C, which is raised at once."""

    def stop() -> None:
        time.sleep(0.1)
        raise KeyboardInterrupt

    with gpu(SSP()), small(rule=SSP()) as running:
        Held(running, 10**9, 0.3)
        running.engine.loader.next = stop
        with pytest.raises(KeyboardInterrupt):
            within(SECONDS, lambda: running.train(50))
        del running.engine.loader.next
        assert_usable(running)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.03, 0.1])
def test_what_is_closed_from_another_thread_gives_no_handle_back_while_it_is_used(seconds: float) -> None:
    with gpu(AsynchronousSGD()), small(rule=AsynchronousSGD()) as running:
        closing = threading.Timer(seconds, running.close)
        closing.start()
        with pytest.raises(CrossbowError, match="closed"):
            running.train(10_000, TASKS)
        closing.join()


@pytest.mark.slow
def test_who_has_just_done_a_task_when_all_is_closed_exchanges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its stream is given back behind its thread."""
    original, late = CudaStream.close, threading.Event()
    alive, exchanged = list[str](), list[int]()

    def close(stream: CudaStream, timeout: float | None = None) -> bool:
        alive.extend(t.name for t in threading.enumerate() if t.name.startswith("watcher") and t.is_alive())
        return original(stream, timeout)

    with gpu(AsynchronousSGD()), small(rule=AsynchronousSGD()) as running:
        exchange, learner = running.engine.coordination.exchange, running.engine.members[0].learner
        abort, arrive = running.engine.parts.flags.abort, exchange._arrive

        def finished(number: int, pace: Any) -> None:
            late.set()
            while not abort[0]:
                time.sleep(0.001)
            exchange.finished(number, pace)

        def arriving(number: int, pace: Any) -> list[int]:
            if number == 0 and abort[0]:  # the other one may have begun before
                exchanged.append(number)
            return arrive(number, pace)  # type: ignore[no-any-return]

        def close_all() -> None:
            assert late.wait(SECONDS)
            running.close()

        learner.finished, exchange._arrive = finished, arriving
        monkeypatch.setattr(CudaStream, "close", close)
        closing = threading.Thread(target=close_all)
        closing.start()
        with pytest.raises(CrossbowError, match="closed"):
            within(SECONDS, lambda: running.train(1000, TASKS))
        closing.join()
    assert (alive, exchanged) == ([], [])


# What does not go together


@pytest.mark.parametrize("rule", [AsynchronousSGD(), RuleSequence(((SMA(), 1), (Gossip(), 1)))], ids=str)
def test_several_gpus_are_refused(rule: Any) -> None:
    text = r"rule must be one with a barrier on several GPUs; .* Received: rule=.*, devices=cuda:0,cuda:1"
    with fake_cuda(2), pytest.raises(ConfigurationError, match=text):
        engine.context("cuda:0,cuda:1", rule=rule)


def test_a_collective_is_for_the_cpu_and_a_barrier() -> None:
    rule, text = AsynchronousSGD(), "collective must be None under a rule without a barrier"
    with gpu(rule), pytest.raises(ConfigurationError, match=text):
        small(rule=rule, collective=FakeCollective(1))
