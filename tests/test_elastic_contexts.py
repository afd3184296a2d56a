"""Programs with contexts whose ranks leave and join: several contexts, and what a rank that joins passes over."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, Dataflow, ExecutionContext, History, ModelConf, Record, SolverConf, SystemConf, TrainingUnit
from crossbow.cluster.admission import Admission, Joining
from crossbow.cluster.failure import LOST
from crossbow.cluster.fault import Fault
from crossbow.cluster.members import NotJoined, RankFailedError
from crossbow.cluster.ranks import Ranks
from crossbow.data.examples import BadExample
from crossbow.data.rank_shares import share_of_rank
from crossbow.ops import BatchNorm, InnerProduct, ReLU
from crossbow.runtime.checkpointing import Checkpoints
from crossbow.runtime.keeper import find_checkpoint
from crossbow.runtime.monitor import Monitor
from crossbow.synch import AsynchronousSGD, Gossip, Rule
from crossbow.training_calls import TrainingCalls
from crossbow.types import CrossbowError, MonitorError, Phase, TaskError
from tests.cluster.fake_network import at_once
from tests.cluster.ray.processes import Processes
from tests.combinations import one_in
from tests.runtime.test_loading import dataset
from tests.runtime.test_regrouping import Killed
from tests.support import FAST_KERNELS, Probe, blobs, new_calls, same_weights, training, until

DATA = blobs(83, 29)
SYSTEM = SystemConf(kernels=FAST_KERNELS, threads_per_learner=1, seed=3, learners_per_device=1)

Program = Callable[[Ranks], Any]


def flow() -> Dataflow:
    return training(InnerProduct(number_of_outputs=8), BatchNorm(), ReLU(), InnerProduct(number_of_outputs=3))


def new_context(rule: Rule | None = None, network: Dataflow | None = None, **more: Any) -> ExecutionContext:
    model = ModelConf(batch_size=4, rule=rule or SMA())
    solver = SolverConf(learning_rate=0.05, momentum=0.9)
    confs = {"model": model, "solver": solver, "system": SYSTEM, "monitors": [], "data": DATA}
    return ExecutionContext([network or flow()], **{**confs, **more})


def train(context: ExecutionContext, tasks: int) -> History:
    return context.train(tasks, TrainingUnit.TASKS, verbose=False)


class Launched:
    """Ranks as threads, whose faults come from CROSSBOW_FAULT. One may join."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        self.admission, self._here = Admission(), threading.local()
        self.processes = Processes(["host"] * size)
        self.ranks = self.processes.ranks(self.admission)
        self._joiner: list[Joining] = []
        monkeypatch.setattr(Fault, "strike", lambda fault: self._strike(fault))
        for module in ("context", "runtime.run", "runtime.engine", "runtime.changing_engine"):
            monkeypatch.setattr(f"crossbow.{module}.join", lambda: self._here.ranks)

    def _strike(self, fault: Fault) -> None:
        self.lose(fault.rank)

    def lose(self, rank: int) -> None:
        """End the calling thread, which is this rank."""
        self.processes.lose(self.processes.roster.alive[rank])
        raise Killed

    def run(self, program: Program, *, joins: bool = False) -> list[Any]:
        """What the program returns on each rank; None if it was killed. The last one is that which joins."""
        works = [self._work(program, ranks) for ranks in self.ranks]
        if not joins:
            return at_once(works)
        return at_once([*works, lambda: self._join(program), self._launch])[:-1]

    def _work(self, program: Program, ranks: Ranks) -> Callable[[], Any]:
        def work() -> Any:
            self._here.ranks = ranks
            try:
                return program(ranks)
            except Killed:
                return None

        return work

    def _join(self, program: Program) -> Any:
        ranks, joining = self.processes.new("new", self.admission)
        self._joiner.append(joining)
        try:
            return self._work(program, ranks)()
        finally:
            joining.end()

    def _launch(self) -> None:
        until(lambda: self._joiner)
        (joining,) = self._joiner
        while (arrived := joining.await_arrival()) is not None:
            answer = self.admission.request(arrived[0], trains=arrived[1])
            if answer is None:
                self.processes.join(len(self.ranks))
                return
            joining.go_on(answer)


RULES = (SMA(), AsynchronousSGD(), Gossip())


def two_models(rule: Rule) -> Program:
    """Trains two models in turns. Returns their variables, the records of all calls, and a test of the first one after
    the first call of the second one. Only that call has a tick 5, or a tick 8 of two ranks."""

    def program(ranks: Ranks) -> Any:
        with new_context(rule) as one, new_context(rule) as other:
            records = [*train(one, 9).records, *train(other, 21).records]
            tested = one.test()
            records += [*train(one, 21).records, *train(other, 21).records]
            assert one.engine.summary().learners == ranks.size
            return one.variables, other.variables, [(each.tasks, each.loss) for each in records], tested

    return program


def check_equal(found: Sequence[Any]) -> None:
    """All ranks must have what the first one has."""
    for each in found[1:]:
        assert same_weights(each[0], found[0][0])
        assert same_weights(each[1], found[0][1])
        assert each[2:] == found[0][2:]


def named(rule: Rule) -> str:
    return type(rule).__name__


def test_without_a_ranks_part_of_the_data_training_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit status of a loss, for which `crossbow launch --restarts` begins again."""
    monkeypatch.setenv("CROSSBOW_FAULT", "kill:1@3")

    def program(ranks: Ranks) -> Any:
        with new_context(data=share_of_rank(blobs(84, 29), "stride", ranks)) as context:
            with pytest.raises(SystemExit) as ended:
                train(context, 40)
            return ended.value.code

    assert Launched(monkeypatch, 2).run(program) == [LOST, None]
    assert re.search(r"error: rank 1 \(host\) left: .*\. With --data-sharding, its ex", capsys.readouterr().err)


@pytest.mark.slow
def test_models_in_turns_have_the_bits_of_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank hears of the results of the model that trains, while the other one waits."""

    def one_after_the_other(ranks: Ranks) -> Any:
        found = []
        for count in (9, 21):
            with new_context() as context:
                train(context, count)
                train(context, 21)
                found.append(context.variables)
        return found

    found = Launched(monkeypatch, 2).run(two_models(SMA()))
    check_equal(found)
    first, second = Launched(monkeypatch, 2).run(one_after_the_other)[0]
    assert same_weights(found[0][0], first)
    assert same_weights(found[0][1], second)


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize("rule", RULES, ids=named)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_is_lost_while_another_model_trains(monkeypatch: pytest.MonkeyPatch, rule: Rule, lost: int) -> None:
    monkeypatch.setenv("CROSSBOW_FAULT", f"kill:{lost}@5")
    found = Launched(monkeypatch, 3).run(two_models(rule))
    assert found.pop(lost) is None
    assert len(found) == 2
    check_equal(found)


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize("rule", RULES, ids=named)
def test_a_rank_joins_while_another_model_trains(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    """It gets the base model of the first one, too."""
    monkeypatch.setenv("CROSSBOW_FAULT", "join@8")
    found = Launched(monkeypatch, 2).run(two_models(rule), joins=True)
    assert len(found) == 3
    check_equal(found)


@pytest.mark.slow
def test_the_next_rank_goes_on_with_the_files_of_every_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also of one that did not train when rank 0 was lost."""

    class Notes(Monitor):
        def __init__(self) -> None:
            self.tasks: list[int] = []
            self.taken_over: list[int] = []

        def record(self, record: Record) -> None:
            self.tasks.append(record.tasks)

        def take_over(self, history: History) -> None:
            self.taken_over += [record.tasks for record in history.records]

    def program(ranks: Ranks) -> Notes:
        notes, checkpoints = Notes(), Checkpoints(tmp_path / "one", interval="1epochs")
        with new_context(monitors=[notes], checkpoints=checkpoints) as one, new_context() as other:
            train(one, 9)
            train(other, 21)
            train(one, 21)
            return notes

    monkeypatch.setenv("CROSSBOW_FAULT", "kill:0@5")
    lost, first, second = Launched(monkeypatch, 3).run(program)
    assert lost is None
    assert (first.taken_over, second.taken_over) == ([9], [])
    assert (len(first.tasks), second.tasks) == (2, [])  # an epoch ends after 20 tasks
    assert find_checkpoint(tmp_path / "one" / "checkpoints").checkpoint.state["tasks"] == first.tasks[-1]


@pytest.mark.slow
def test_what_a_rank_that_joins_passes_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It saves nothing, for it does not have the base model, and cannot predict."""
    predicts = threading.Event()
    monkeypatch.setenv("CROSSBOW_FAULT", "join@1000")  # it does not

    def program(ranks: Ranks) -> Any:
        file = tmp_path / f"{ranks.own.host}.safetensors"
        with new_context() as context:
            history = train(context, 20)
            context.save(file)
            if not ranks.joins:
                assert file.exists()
                predicts.wait(60)  # for the rank that joins: the others are in a training call then
                train(context, 400)
                return history
            tested = history.records[-1].tasks, file.exists()
            with pytest.raises(NotJoined) as ended:
                context.predict(DATA.train.images)
            predicts.set()
            return *tested, ended.value.code

    *others, joined = Launched(monkeypatch, 2).run(program, joins=True)
    assert all(each.records[-1].tasks == 20 for each in others)
    assert joined == (20, False, 2)
    assert "error: a rank cannot join where the program uses the base model between two" in capsys.readouterr().err


def test_a_rank_that_has_joined_has_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that trained before: a program may use it at once, as in an ensemble."""
    monkeypatch.setenv("CROSSBOW_FAULT", "join@8")

    def program(ranks: Ranks) -> Any:
        with new_context() as one, new_context() as other:
            train(one, 9)
            train(other, 21)
            return one.variables, one.predict(DATA.train.images), one.test()

    found = Launched(monkeypatch, 2).run(program, joins=True)
    assert len(found) == 3
    for variables, probabilities, tested in found:
        assert same_weights(variables, found[0][0])
        np.testing.assert_array_equal(probabilities, found[0][1])
        assert tested == found[0][2]


def test_two_ranks_are_lost_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one while the others build engines for its first model."""
    monkeypatch.setenv("CROSSBOW_FAULT", "kill:1@5")
    launched, rebuilds = Launched(monkeypatch, 3), list[int]()
    rebuild = TrainingCalls.rebuild

    def lost(calls: TrainingCalls) -> Any:
        if calls._ranks is launched.ranks[2] and not rebuilds:
            rebuilds.append(calls._number)
            launched.lose(calls._ranks.rank)
        return rebuild(calls)

    monkeypatch.setattr(TrainingCalls, "rebuild", lost)
    found = launched.run(two_models(SMA()))
    assert rebuilds == [0]
    assert [each is None for each in found] == [False, True, True]
    assert [tasks for tasks, _ in found[0][2]][-1] > 21


@pytest.mark.slow
def test_a_model_that_not_all_ranks_use_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSBOW_FAULT", "kill:1@5")

    def program(ranks: Ranks) -> Any:
        with new_context() as one, new_context() as other:
            train(one, 9)
            if ranks.rank == 0:
                ranks.models.pop(0)  # as if it had been collected there
            train(other, 21)
            assert one.predict(DATA.train.images).shape == (83, 3)
            with pytest.raises(CrossbowError, match=r"^ranks have left or joined while another context trained"):
                train(one, 9)
            with pytest.raises(CrossbowError, match="the context can only predict"):
                one.test()
            return other.variables

    first, lost, last = Launched(monkeypatch, 3).run(program)
    assert lost is None
    assert same_weights(first, last)


@pytest.mark.slow
def test_a_failure_of_one_model_that_is_caught_does_not_reach_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first model rests while one rank fails to train the second one."""

    class Fails(Monitor):
        def record(self, record: Record) -> None:
            raise ValueError("no space")

    def program(ranks: Ranks) -> Any:
        with new_context() as one, new_context(monitors=[Fails()]) as other:
            train(one, 9)
            with pytest.raises((MonitorError, RankFailedError)):
                train(other, 30)
            time.sleep(0.05)  # for the thread that listens to other ranks
            train(one, 21)
            return one.variables

    first, second = Launched(monkeypatch, 2).run(program)
    assert same_weights(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=named)
def test_another_context_goes_on_after_an_operator_that_failed(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    """What was on its way when it failed in the middle of a tick does not reach the next call."""
    new_calls()
    failed: list[int] = []

    def fail_once(where: str, learner: int, call: int) -> None:
        if call == 7 and not failed:
            failed.append(call)
            raise ValueError("the operator is broken")

    def program(ranks: Ranks) -> Any:
        network = training(
            InnerProduct(number_of_outputs=8), Probe(action=fail_once), ReLU(), InnerProduct(number_of_outputs=3)
        )
        with new_context(rule, network=network) as context:
            with pytest.raises((TaskError, RankFailedError)):
                train(context, 41)
            for work in (context.test, lambda: train(context, 41)):
                with pytest.raises(CrossbowError, match="ranks may have come to different places"):
                    work()
            model = ranks.agree(lambda: {name: each.tolist() for name, each in context.variables.items()})
        with new_context(rule, network=network) as context:
            context.set_variables({name: np.array(each, np.float32) for name, each in model.items()})
            history = train(context, 41)
            return context.variables, context.test(), [record.loss for record in history.records]

    first, second = Launched(monkeypatch, 2).run(program)
    assert failed == [7]
    assert same_weights(first[0], second[0])
    assert first[1:] == second[1:]


@pytest.mark.slow
def test_bad_examples_are_known_after_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to another model, and monitors hear of each once."""

    class Notes(Monitor):
        def __init__(self) -> None:
            self.bad: list[int] = []

        def bad_example(self, phase: Phase, example: BadExample) -> None:
            self.bad.append(example.index)

    def program(ranks: Ranks) -> Any:
        notes, confs = Notes(), {"data": dataset([3, 8]), "system": replace(SYSTEM, on_bad_record="skip")}
        with new_context(monitors=[notes], **confs) as one, new_context() as other:
            train(one, 9)
            found = [each.index for each in one.bad_examples()]
            assert found
            train(other, 21)
            assert [each.index for each in one.bad_examples()][: len(found)] == found
            train(one, 21)
            return notes.bad, sorted(each.index for each in one.bad_examples())

    monkeypatch.setenv("CROSSBOW_FAULT", "kill:1@5")
    first, lost, last = Launched(monkeypatch, 3).run(program)
    assert lost is None
    assert sorted(first[0]) == first[1] == last[1] == [3, 8]


@pytest.mark.slow
def test_a_rank_that_joins_after_a_call_has_the_state_of_that_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rank 0 has it, so that it could write a checkpoint."""
    monkeypatch.setenv("CROSSBOW_FAULT", "join@8")

    def program(ranks: Ranks) -> Any:
        with new_context() as one, new_context() as other:
            train(one, 9)
            train(other, 21)
            state = one._calls._run.state()
            return state.values, state.losses.tolist()

    found = Launched(monkeypatch, 2).run(program, joins=True)
    assert len(found[0][1]) == 10  # whole ticks
    assert found[2] == found[0]


@pytest.mark.slow
@pytest.mark.parametrize("trains", [False, True], ids=["", "continues"])
def test_a_run_that_was_resumed_has_its_history_after_the_loss_of_rank_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, trains: bool
) -> None:
    heard: list[list[int]] = []

    class Notes(Monitor):
        def take_over(self, history: History) -> None:
            heard.append([record.tasks for record in history.records])

    def begin(ranks: Ranks) -> None:
        with new_context(checkpoints=Checkpoints(tmp_path / "one", interval="1epochs")) as context:
            train(context, 30)

    def program(ranks: Ranks) -> Any:
        one = ExecutionContext.resume(tmp_path / "one", [flow()], data=DATA, monitors=[Notes()])
        with one, new_context() as other:
            known = [record.tasks for record in one.history.records]
            train(other, 21)
            if trains:
                one.continue_training(count=60, verbose=False)
            return known, [record.tasks for record in one.history.records]

    Launched(monkeypatch, 3).run(begin)
    monkeypatch.setenv("CROSSBOW_FAULT", "kill:0@5")
    lost, first, second = Launched(monkeypatch, 3).run(program)
    assert lost is None
    assert heard == [first[0]]
    assert first[0] == second[0] == [21, 30]
    assert first[1] == second[1]
    assert (len(first[1]) > 2) == trains
