"""Small networks and data sets, operators that misbehave on purpose, and the kernel libraries to run them on."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow import (
    Checkpoints,
    Dataflow,
    DataflowNode,
    Dataset,
    ExecutionContext,
    ModelConf,
    Operator,
    Phase,
    SolverConf,
    SubGraph,
    SystemConf,
)
from crossbow.conf import configuration
from crossbow.kernels import why_not_compiled
from crossbow.kernels.cpu.onednn.shared_library import why_unusable
from crossbow.ops import Accuracy, InnerProduct, Kernel, ReLU, SoftMax, SoftMaxLoss
from crossbow.runtime.changing_engine import ChangingEngine
from crossbow.runtime.engine import Engine
from crossbow.types import Shape

Array = NDArray[Any]
T = TypeVar("T")


def _why_not_fast() -> str | None:
    if importlib.util.find_spec("crossbow.kernels.cpu.library") is None:
        return "the oneDNN library is not there"
    return why_not_compiled()


WHY_NOT_FAST = _why_not_fast()
FAST_KERNELS = "onednn" if why_unusable() is None else "compiled"
FAST = pytest.param(
    FAST_KERNELS, marks=pytest.mark.skipif(WHY_NOT_FAST is not None, reason=f"no fast kernels: {WHY_NOT_FAST}")
)
KERNELS = pytest.mark.parametrize("kernels", ["reference", FAST])
"""Runs a test on the reference kernels and, if they work, on the fast ones."""
NEEDS_ONEDNN = pytest.mark.skipif(why_unusable() is not None, reason=f"needs oneDNN: {why_unusable()}")
"""For tests of how much the kernels do without Python."""


def blobs(examples: int = 40, check: int = 13, *, features: int = 6, classes: int = 3, seed: int = 0) -> Dataset:
    """Points around one centre for each class."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, features)) * 2
    labels = generator.integers(0, classes, examples + check)
    points = centres[labels] + generator.normal(size=(examples + check, features))
    both = [(points[part], labels[part]) for part in (slice(examples), slice(examples, None))]
    return Dataset(both[0], both[1] if check else None, number_of_classes=classes)


def pictures(examples: int = 24, check: int = 10, *, size: int = 8, classes: int = 3, seed: int = 0) -> Dataset:
    """Gray uint8 images: noise, with a bright row that tells the class."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, examples + check)
    images = generator.integers(0, 100, (examples + check, 1, size, size)).astype(np.uint8)
    images[np.arange(len(labels)), 0, labels + 1] += 150
    both = [(images[part], labels[part]) for part in (slice(examples), slice(examples, None))]
    return Dataset(both[0], both[1], number_of_classes=classes)


def chain(*kernels: Kernel) -> list[DataflowNode]:
    """Nodes connected one after the other, named by class and position: "InnerProduct0", "ReLU1", …"""
    nodes = [DataflowNode(Operator(f"{type(kernel).__name__}{i}", kernel)) for i, kernel in enumerate(kernels)]
    for before, after in itertools.pairwise(nodes):
        before.connect_to(after)
    return nodes


def training(*kernels: Kernel) -> Dataflow:
    """The training dataflow of a chain of operators, SoftMax and its loss appended."""
    return Dataflow(SubGraph(chain(*kernels, SoftMax(), SoftMaxLoss())[0])).set_phase(Phase.TRAIN)


def with_metrics(flow: Dataflow, *ranks: int) -> Dataflow:
    """The dataflow with an accuracy for each of these numbers of classes (`top_k`), named "top1", "top2", …"""
    softmax = next(node for node in flow.subgraph.nodes if isinstance(node.operator.kernel, SoftMax))
    for rank in ranks:
        softmax.connect_to(DataflowNode(Operator(f"top{rank}", Accuracy(top_k=rank))))
    return Dataflow(SubGraph(flow.subgraph.head)).set_phase(flow.phase)


def perceptron(*middle: Kernel, hidden: int = 8, classes: int = 3) -> Dataflow:
    """Two inner products with `middle` and a ReLU between them."""
    return training(InnerProduct(number_of_outputs=hidden), *middle, ReLU(), InnerProduct(number_of_outputs=classes))


def context(
    dataflow: Dataflow | None = None,
    *,
    check: Dataflow | None = None,
    data: Dataset | None = None,
    learners: int | str = 2,
    devices: str = "cpu",
    kernels: str = "reference",
    precision: str = "float32",
    check_numerics: bool = False,
    seed: int = 0,
    sum_order: str = "auto",
    threads: int | None = 1,
    solver: SolverConf | None = None,
    monitors: Sequence[Any] = (),
    collective: Any = None,
    batch_size: int = 4,
    checkpoints: Checkpoints | None = None,
    resume: Checkpoints | str | Path | None = None,
    **model: Any,
) -> ExecutionContext:
    """A context of small things. Without oneDNN, kernels="onednn" means the compiled ones. resume: the directory of a
    run to go on from."""
    if kernels == "onednn":
        kernels = FAST_KERNELS
    make: Callable[..., ExecutionContext] = ExecutionContext
    if resume is not None:
        make = functools.partial(ExecutionContext.resume, resume)
    elif checkpoints is not None:
        make = functools.partial(ExecutionContext, checkpoints=checkpoints)
    return make(
        [dataflow or perceptron(), check],
        data=data or blobs(),
        model=ModelConf(batch_size=batch_size, **model),
        solver=solver or SolverConf(learning_rate=0.1),
        system=SystemConf(
            devices=devices,
            learners_per_device=learners,
            threads_per_learner=threads,
            kernels=kernels,
            precision=precision,
            check_numerics=check_numerics,
            seed=seed,
            sum_order=sum_order,
        ),
        monitors=monitors,
        collective=collective,
    )


def same_weights(first: Mapping[str, Array], second: Mapping[str, Array]) -> bool:
    """Whether two models are equal bit for bit."""
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and first[name].tobytes() == second[name].tobytes() for name in first
    )


# Operators that misbehave.

Action = Callable[[str, int, int], None]
"""Called with "forward" or "backward", the learner's number, and how many such calls its thread made before."""


@configuration
class Probe(Kernel):
    """The identity. It tells `action` where it is, before doing anything."""

    train_only: ClassVar[bool] = True

    action: Action

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        tell(self.action, "forward")
        return inputs[0]

    def backward(
        self,
        xp: ModuleType,
        inputs: Sequence[Array],
        output: Array,
        variables: Mapping[str, Array],
        output_gradient: Array,
    ) -> tuple[Sequence[Array], Mapping[str, Array]]:
        tell(self.action, "backward")
        return [output_gradient], {}


@configuration
class CheckProbe(Probe):
    """A probe that stays in the check dataflow."""

    train_only: ClassVar[bool] = False


_calls: dict[tuple[int, str], int] = defaultdict(int)
"""By thread and place. Threads die with their context, but a thread's number may come again: see `new_calls`."""


def new_calls() -> None:
    """Count the probes' calls from 0 again."""
    _calls.clear()


def tell(action: Action, where: str) -> None:
    thread = threading.current_thread()
    number = _calls[thread.ident or 0, where]
    _calls[thread.ident or 0, where] += 1
    action(where, int(thread.name.rpartition("-")[2]), number)


class Trap:
    """An action that does something once, at one call of one learner."""

    def __init__(self, act: Callable[[], None], *, where: str = "forward", learner: int = 0, call: int = 3) -> None:
        new_calls()
        self.act, self.place, self.sprung = act, (where, learner, call), False

    def __call__(self, where: str, learner: int, call: int) -> None:
        if (where, learner, call) == self.place:
            self.sprung = True
            self.act()


def raising(error: BaseException) -> Callable[[], None]:
    """What raises `error`."""

    def act() -> None:
        raise error

    return act


def dawdle(most: float, *, share: float = 0.3) -> Action:
    """An action that sleeps now and then, at times that no seed repeats."""

    def act(where: str, learner: int, call: int) -> None:
        if random.SystemRandom().random() < share:
            time.sleep(random.SystemRandom().random() * most)

    return act


# Time.

SECONDS = 60.0
"""How long what takes a fraction of a second may take on a machine that is busy with other things. It bounds what would
else hang, and is no measure of speed."""


def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait for a condition that another thread brings about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not so after {seconds} s"
        time.sleep(0.001)


def engine_of(running: ExecutionContext) -> Engine:
    """The engine that trains now."""
    engine = running.engine.now if isinstance(running.engine, ChangingEngine) else running.engine
    assert isinstance(engine, Engine)
    return engine


def within(seconds: float, work: Callable[[], T]) -> T:
    """The result, or the exception, of `work`, done on a thread of its own; fails if it takes longer: it hangs."""
    outcome: list[Callable[[], T]] = []

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            caught = error

            def again() -> T:
                raise caught

            outcome.append(again)
        else:
            outcome.append(lambda: result)

    thread = threading.Thread(target=run, name="within", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise AssertionError(f"still running after {seconds} s")
    return outcome[0]()
