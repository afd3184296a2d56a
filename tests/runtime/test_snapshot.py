"""A run that is resumed from any of its checkpoints ends as the unbroken run does."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crossbow import (
    SMA,
    SSGD,
    Checkpoints,
    Dataflow,
    ExecutionContext,
    History,
    SolverConf,
    TrainingUnit,
)
from crossbow.ops import BatchNorm, Conv, DataTransform, Dropout, InnerProduct, ReLU
from crossbow.runtime.checkpoint import checkpoint_files
from crossbow.synch import EASGD, RULES, BarrierRule, DiLoCo, PolyakRuppert, RuleSequence
from tests.combinations import one_in
from tests.kernels.cuda.fake import fake_cuda
from tests.support import FAST, blobs, context, perceptron, pictures, same_weights, training

SOLVER = SolverConf(learning_rate=0.1, momentum=0.5, weight_decay=0.01, policy="step", gamma=0.5, step_size=7)
ADAM = SolverConf(method="adam", weight_decay=0.01, policy="step", gamma=0.5, step_size=7)
SOLVERS = pytest.mark.parametrize("solver", [SOLVER, ADAM], ids=["momentum", "adam"])
DATA = blobs(examples=30)
OPTIONS: dict[str, dict[str, Any]] = {
    "sma": {"base_momentum": 0.4, "tau": 2},
    "synchronous-easgd": {"alpha": 0.3},
    "model-averaging": {"tau": 2},
    "polyak-ruppert": {"alpha": 0.2},
    "diloco": {"tau": 2},
    "easgd": {"tau": 2},
    "grouping": {"groups": ((0,),)},
}
"""Options that give a rule more state than its defaults do."""


def made(name: str, learners: int = 1) -> Any:
    given = dict(OPTIONS.get(name, {}))
    if name == "grouping":
        given["groups"] = tuple((learner,) for learner in range(learners))
    return RULES[name](**given)


def same_records(first: History, second: History) -> None:
    """Everything is equal except times."""

    def timeless(history: History) -> list[Any]:
        times: dict[str, Any] = {"time": 0.0, "images_per_second": 0.0, "data_wait": 0.0, "memory": 0, "learners": ()}
        return [dataclasses.replace(record, **times) for record in history.records]

    assert timeless(first) == timeless(second)
    assert first.stopped == second.stopped


def two_epochs(running: ExecutionContext) -> History:
    return running.train_and_test(2)


def check_checkpoints(
    tmp_path: Path,
    make: Callable[..., ExecutionContext],
    train: Callable[[ExecutionContext], History] = two_epochs,
    *,
    every: bool = False,
) -> None:
    """An unbroken run, one that writes a checkpoint after every tick, and those that go on from the first, the last and
    the middle one of these, or from every one, agree."""
    with make() as unbroken:
        expected, weights = train(unbroken), unbroken.variables
    settings = Checkpoints(tmp_path / "run", interval="1task", keep=1000)
    with make(checkpoints=settings) as watched:
        same_records(expected, train(watched))
        assert same_weights(weights, watched.variables)
    files = checkpoint_files(settings.checkpoint_directory)
    assert len(files) > 2
    for file in files if every else {files[0], files[len(files) // 2], files[-1]}:
        other = tmp_path / file.stem
        (other / "checkpoints").mkdir(parents=True)
        shutil.copy(file, other / "checkpoints")
        with make(resume=other) as resumed:
            assert resumed.resumed is not None
            assert resumed.resumed.exact
            same_records(expected, resumed.continue_training())
            assert same_weights(weights, resumed.variables)


def maker(
    rule: Any, learners: int = 1, network: Dataflow | None = None, **options: Any
) -> Callable[..., ExecutionContext]:
    """A function that makes contexts, or resumes them."""
    settings: dict[str, Any] = {"data": DATA, "batch_size": 4, "solver": SOLVER, "kernels": "reference", **options}

    def make(**more: Any) -> ExecutionContext:
        return context(network or perceptron(), rule=rule, learners=learners, **{**settings, **more})

    return make


PLACES = [("cpu", 3), ("cpu:0/2,cpu:1/2", 2)]
WITH_BARRIER = [name for name, rule in RULES.items() if issubclass(rule, BarrierRule)]


EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])


@one_in(11)
@EVERY
@SOLVERS
@pytest.mark.parametrize("name", RULES)
def test_every_rule_with_one_learner(name: str, solver: SolverConf, tmp_path: Path, *, every: bool) -> None:
    check_checkpoints(tmp_path, maker(made(name), solver=solver), every=every)


@one_in(4)
@EVERY
@SOLVERS
@pytest.mark.parametrize("name", WITH_BARRIER)
def test_rules_with_a_barrier_with_several_learners(
    name: str, solver: SolverConf, tmp_path: Path, *, every: bool
) -> None:
    check_checkpoints(tmp_path, maker(made(name), learners=3, solver=solver), every=every)


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize(
    ("rule", "solver"),
    [
        (SMA(base_momentum=0.4), SOLVER),
        (SSGD(), SOLVER),
        (SSGD(), ADAM),
        (PolyakRuppert(alpha=0.2), SOLVER),
        (DiLoCo(tau=1), ADAM),
    ],
    ids=str,
)
def test_several_devices(rule: Any, solver: SolverConf, tmp_path: Path) -> None:
    check_checkpoints(tmp_path, maker(rule, learners=2, devices="cpu:0/2,cpu:1/2", solver=solver))


@pytest.mark.slow
@EVERY
def test_a_sequence_of_rules(tmp_path: Path, *, every: bool) -> None:
    sequence = RuleSequence(((SMA(base_momentum=0.4), 3), (SSGD(), 2), (EASGD(), 1)))
    check_checkpoints(tmp_path, maker(sequence, restart=False), every=every)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["reference", FAST])
def test_random_operators_and_statistics(kernels: str, tmp_path: Path) -> None:
    """Dropout and random windows depend on the task; batch norm has running statistics."""
    network = training(
        DataTransform(padding=1, mirror=True),
        Conv(number_of_outputs=4, kernel_size=3),
        BatchNorm(),
        ReLU(),
        Dropout(),
        InnerProduct(number_of_outputs=3),
    )
    make = maker(SMA(), learners=2, kernels=kernels, data=pictures(examples=30), network=network)
    check_checkpoints(tmp_path, make)


@pytest.mark.parametrize("limits", [{"target_loss": 0.9}, {"target_accuracy": 0.7}], ids=str)
def test_targets_are_reached_at_the_same_task(limits: dict[str, float], tmp_path: Path) -> None:
    def train(running: ExecutionContext) -> History:
        if "target_loss" in limits:
            return running.train_until_condition(0.9, 20)
        return running.train_and_test(20, **limits)

    check_checkpoints(tmp_path, maker(SMA(), learners=2), train=train)


@pytest.mark.parametrize("name", [name for name in RULES if name not in WITH_BARRIER])
def test_a_state_without_a_barrier_is_kept_as_it_is(name: str, tmp_path: Path) -> None:
    """With several learners training depends on timing, but what was saved is restored, bit for bit."""
    make = maker(made(name, 3), learners=3)
    with make(checkpoints=Checkpoints(tmp_path, keep=1)) as running:
        running.train(17, TrainingUnit.TASKS)
    (found,) = checkpoint_files(tmp_path / "checkpoints")
    with make(resume=tmp_path) as resumed:
        assert resumed.resumed is not None
        assert resumed.resumed.exact
        assert resumed.summary().tasks == 18
        before = found.read_bytes()
        found.unlink()
        resumed.checkpoint()
        assert found.read_bytes() == before


@pytest.mark.parametrize(
    ("before", "after", "exact"),
    [("adam", "adam", True), ("adamw", "adam", True), ("adagrad", "rmsprop", False), ("adam", "sgd", False)],
)
def test_the_state_of_another_method_is_not_kept(before: str, after: str, exact: bool, tmp_path: Path) -> None:
    with maker(SMA(), learners=2, solver=SolverConf(method=before))(checkpoints=Checkpoints(tmp_path)) as running:
        running.train(8, TrainingUnit.TASKS)
    with maker(SMA(), learners=2, solver=SolverConf(method=after))(resume=tmp_path) as resumed:
        assert resumed.resumed is not None
        assert resumed.resumed.exact == exact


@pytest.mark.slow
@one_in(6)
@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (SMA(base_momentum=0.4), {"learners": 2}),
        (SSGD(), {"learners": 1, "devices": "cuda:0,cuda:1"}),
        (EASGD(), {"learners": 1}),
        (SMA(), {"learners": 2, "precision": "float16"}),
        (SMA(), {"learners": 2, "solver": ADAM}),
    ],
    ids=["sma", "two devices", "without a barrier", "float16", "adam"],
)
def test_on_gpus(rule: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """The state of a loss scale is a part of it."""

    def train(running: ExecutionContext) -> History:
        return running.train(8, TrainingUnit.TASKS)

    with fake_cuda(2):
        make = maker(rule, **{"devices": "cuda:0", "kernels": "auto", "threads": None, **options})
        check_checkpoints(tmp_path, make, train=train)


@pytest.mark.parametrize(
    ("rule", "other", "same"),
    [
        (SMA(alpha=0.5), SMA(alpha=0.3), True),
        (EASGD(alpha=0.5), EASGD(alpha=0.5), True),
        (EASGD(alpha=0.5), EASGD(alpha=0.3), False),
    ],
)
def test_the_state_of_a_rule_without_a_barrier_fits_the_same_rule_only(rule: Any, other: Any, same: bool) -> None:
    """What learners wait for may depend on its numbers."""
    forms = []
    for each in (rule, other):
        with context(learners=1, rule=each) as running:
            forms.append(running.engine.snapshot().state["form"])
    assert (forms[0] == forms[1]) == same
