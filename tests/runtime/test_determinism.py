"""Promise 3: same seed, number of learners and threads of each, same weights, bit for bit, whatever the timing.

Every run here is disturbed at random, and differently each time: operators, the loader and the releasing of batches
dawdle, and the interpreter switches threads as often as it can.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, ExecutionContext, History, SolverConf, TrainingUnit
from crossbow.data.loader import Loader
from crossbow.ops import Conv, Dropout, InnerProduct, Pool, ReLU
from crossbow.runtime.cpu import backend
from crossbow.synch import DiLoCo, ModelAveraging, PolyakRuppert
from tests.combinations import covering
from tests.support import FAST, KERNELS, Probe, blobs, context, dawdle, perceptron, pictures, same_weights, training

SOLVER = SolverConf(learning_rate=0.1, momentum=0.5, weight_decay=0.01, policy="step", gamma=0.5, step_size=11)
DATA = blobs(examples=30)
RULES = [SMA(), SMA(tau=3), SMA(base_momentum=0.4), SMA(alpha=0.1, tau=3, base_momentum=0.4), SSGD()]
RULES += [ModelAveraging(tau=2), DiLoCo(tau=2), PolyakRuppert(alpha=0.2)]
PLACES = [("cpu", 1), ("cpu", 2), ("cpu", 4), ("cpu:0/2,cpu:1/2", 1), ("cpu:0/2,cpu:1/2", 2)]


class DawdlingLoader(Loader):
    """Fills now and then late, and takes back slots late."""

    def __init__(self, examples: Any, order: Any, slots: int, **options: Any) -> None:
        fill = examples.write

        def source(*arguments: Any) -> None:
            _sleep(0.002)
            fill(*arguments)

        super().__init__(examples, order, slots, source=source, **options)

    def release(self, slot: int) -> None:
        _sleep(0.002)
        super().release(slot)


def _sleep(most: float) -> None:
    if random.SystemRandom().random() < 0.3:
        time.sleep(random.SystemRandom().random() * most)


@contextmanager
def disturbed(where: str) -> Iterator[None]:
    """Everything but the operators dawdles."""
    interval = sys.getswitchinterval()
    with pytest.MonkeyPatch.context() as patch:
        if where in ("loader", "everywhere"):
            patch.setattr(backend, "Loader", DawdlingLoader)
        if where == "everywhere":
            sys.setswitchinterval(1e-6)
        try:
            yield
        finally:
            sys.setswitchinterval(interval)


Train = Callable[[ExecutionContext], History]


def outcome(where: str, train: Train, **options: Any) -> tuple[dict[str, Any], list[float]]:
    """The weights after a training, and the losses on the way."""
    probe = Probe(action=dawdle(0.003 if where in ("operators", "everywhere") else 0.0))
    options = {"data": DATA, "solver": SOLVER, **options}
    with disturbed(where), context(perceptron(Dropout(ratio=0.3), probe), **options) as running:
        history = train(running)
        return running.variables, [record.loss for record in history.records]


def assert_same(train: Train, where: str, **options: Any) -> None:
    weights, losses = outcome("nowhere", train, **options)
    again, losses_again = outcome(where, train, **options)
    assert losses_again == losses
    assert same_weights(again, weights)


@pytest.mark.parametrize(
    ("rule", "devices", "learners", "kernels"),
    covering(RULES, [pytest.param(*place) for place in PLACES], ["reference", FAST], together=1),
)
def test_same_seed_same_weights(rule: Any, devices: str, learners: int, kernels: str) -> None:
    train = functools.partial(ExecutionContext.train, count=26, unit=TrainingUnit.TASKS)
    assert_same(train, "everywhere", rule=rule, devices=devices, learners=learners, kernels=kernels)


@KERNELS
def test_the_number_of_cores_does_not_matter_where_learners_have_equally_many_threads(kernels: str) -> None:
    """The second convolution is Winograd's with one thread on the fast kernels."""
    weights = []
    for devices in ("cpu", "cpu:0/2", "cpu:1/2"):
        convolutions = [Conv(number_of_outputs=16, kernel_size=3, padding=1) for _ in range(2)]
        network = training(*convolutions, ReLU(), InnerProduct(number_of_outputs=3))
        options: dict[str, Any] = {"devices": devices, "learners": 2, "threads": 1, "kernels": kernels}
        with context(network, data=pictures(), **options) as running:
            assert running.engine.backend.threads == [1]
            running.train(10, TrainingUnit.TASKS)
            weights.append(running.variables)
    assert same_weights(weights[1], weights[0])
    assert same_weights(weights[2], weights[0])


@pytest.mark.slow
@pytest.mark.parametrize("where", ["operators", "loader"])
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_one_disturbance_at_a_time(rule: Any, where: str) -> None:
    assert_same(lambda running: running.train(4), where, rule=rule, learners=3)


@KERNELS
def test_training_and_testing_by_turns(kernels: str) -> None:
    def train(running: ExecutionContext) -> History:
        running.train_and_test(2)
        assert running.test() == running.test()
        running.predict(DATA.train.images[:5])
        return running.train_and_test(9, TrainingUnit.TASKS)

    assert_same(train, "everywhere", rule=SMA(), learners=2, kernels=kernels)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "learners", "tau", "target"),
    covering(
        [pytest.param(*each) for each in (("cpu", 1, 1), ("cpu", 2, 3), ("cpu", 3, 3), ("cpu:0/2,cpu:1/2", 1, 1))],
        [0.7, 0.66, 0.6],
        together=1,
    ),
)
def test_when_the_loss_is_small_enough(target: float, devices: str, learners: int, tau: int) -> None:
    """Where training ends depends on results, and they come when they come: the end must not."""
    ends = []

    def train(running: ExecutionContext) -> History:
        history = running.train_until_condition(target, 5)
        assert history.stopped == "loss"
        ends.append(running.engine.tasks)
        return history

    # The epoch is long, so that the loss falls below the target in the middle of one.
    options = {"data": blobs(200), "batch_size": 2, "solver": SolverConf(learning_rate=0.02), "seed": 3}
    assert_same(train, "everywhere", rule=SMA(tau=tau), learners=learners, devices=devices, **options)
    assert ends[0] == ends[1]
    assert ends[0] > 105  # not at the end of the first epoch, where every result is in


@KERNELS
def test_a_convolutional_network(kernels: str) -> None:
    def weights(where: str) -> dict[str, Any]:
        layers = [
            Conv(number_of_outputs=4, kernel_size=3),
            ReLU(),
            Pool(kernel_size=2),
            Probe(action=dawdle(0.003 if where == "everywhere" else 0.0)),
            InnerProduct(number_of_outputs=8),
            Dropout(ratio=0.5),
            InnerProduct(number_of_outputs=3),
        ]
        with disturbed(where), context(training(*layers), data=pictures(), rule=SMA(), kernels=kernels) as running:
            running.train(3)
            return running.variables

    assert same_weights(weights("nowhere"), weights("everywhere"))


@KERNELS
def test_another_seed_other_weights(kernels: str) -> None:
    def train(running: ExecutionContext) -> History:
        return running.train(1)

    results = [outcome("nowhere", train, rule=SMA(), seed=seed, kernels=kernels)[0] for seed in range(3)]
    assert len({weights["InnerProduct0.weights"].tobytes() for weights in results}) == 3


@pytest.mark.parametrize("what", ["weights", "order", "dropout"])
def test_what_the_seed_decides(what: str) -> None:
    """Initial weights, the order of the examples and dropout, each by itself."""
    results = []
    for seed in (1, 2):
        dropout = [Dropout(ratio=0.5)] if what == "dropout" else []
        with context(perceptron(*dropout), data=DATA, rule=SMA(), seed=seed, batch_size=30) as running:
            start = running.variables
            if what != "weights":
                running.engine.load({name: np.full_like(value, 0.1) for name, value in start.items()}, "the test")
            if what == "order":
                running.engine.loader.start(0)
                batch = running.engine.loader.next()
                results.append(running.engine.loader.images[batch.slot].copy())
                running.engine.loader.stop()
            elif what == "dropout":
                # A batch is the whole set, and the weights are all alike: only dropout tells the runs apart.
                losses = [running.train(2, TrainingUnit.TASKS).loss for _ in range(2)]
                results.append(np.array(losses))
            else:
                results.append(start["InnerProduct0.weights"])
    assert not np.array_equal(*results)


def test_learners_differ_in_dropout() -> None:
    """The mask belongs to the task, so learners do not draw the same one."""
    data = blobs(examples=4, check=0)
    with context(perceptron(Dropout(ratio=0.5)), data=data, rule=SMA(alpha=0.01), learners=2) as running:
        running.train(2, TrainingUnit.TASKS)  # both learners have seen all four examples, once
        first, second = (member.replica.weights for member in running.engine.members)
        assert not np.array_equal(first, second)
