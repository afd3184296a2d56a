"""Promise 8: after warm-up a task allocates nothing."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import tracemalloc_domain

from crossbow import SMA, SSGD, Dataset, ExecutionContext, Monitor, SolverConf, TrainingUnit
from crossbow.host_memory import HUGE_PAGE
from crossbow.kernels.interface import State
from crossbow.ops import Conv, Dropout, InnerProduct, Kernel, Pool, ReLU
from crossbow.synch import EASGD, AsynchronousSGD, Gossip, Grouping, Hogwild, Rule
from models.lenet import lenet
from tests.combinations import one_in
from tests.support import FAST, KERNELS, context, pictures, training

TASKS = {"onednn": 5_000, "reference": 1_000}
"""The reference kernels do make temporaries; for them fewer tasks must do."""
EPOCH = 200
"""Tasks, where every object is counted, which takes long: one that a task leaves would show in an epoch."""
TRACED = {"onednn": 10 * EPOCH, "reference": 5 * EPOCH}
SOLVER = SolverConf(learning_rate=0.01, momentum=0.9, weight_decay=1e-4)
PLACES = pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])


def small(kernels: str, devices: str = "cpu", examples: int = 1000, **options: Any) -> ExecutionContext:
    """A network that is small enough for many tasks, each of two examples."""
    first: list[Kernel] = [InnerProduct(number_of_outputs=4)]
    if kernels != "reference":  # whose convolutions take long
        first = [Conv(number_of_outputs=4, kernel_size=3), ReLU(), Pool(kernel_size=2)]
    network = training(*first, InnerProduct(number_of_outputs=8), Dropout(ratio=0.3), InnerProduct(number_of_outputs=3))
    data = pictures(examples, check=50, size=5)
    learners = 2 if devices == "cpu" else 1
    return context(
        network, data=data, kernels=kernels, devices=devices, learners=learners, solver=SOLVER, batch_size=2, **options
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


class Meter(Monitor):
    """What is allocated at the end of every epoch."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def record(self, record: Any) -> None:
        gc.collect()
        self.sizes.append(tracemalloc.get_traced_memory()[0])


@pytest.mark.slow
@KERNELS
@PLACES
def test_training_does_not_grow(devices: str, kernels: str) -> None:
    """In one call. An epoch leaves its record, of a few hundred bytes; a task that left an object would leave more."""
    meter = Meter()
    with small(kernels, devices, 2 * EPOCH, monitors=[meter]) as running, traced():
        running.train(TRACED[kernels], TrainingUnit.TASKS)
    assert len(meter.sizes) == TRACED[kernels] // EPOCH
    warm = meter.sizes[2:]
    object_a_task = 16 * EPOCH * (len(warm) - 1)
    assert warm[-1] - warm[0] < object_a_task
    assert max(warm) - min(warm) < object_a_task


@pytest.mark.slow
@KERNELS
@pytest.mark.parametrize(
    "rule", [AsynchronousSGD(), Hogwild(), EASGD(tau=2), Gossip(probability=0.5), Grouping(2)], ids=str
)
def test_training_without_a_barrier_does_not_grow(rule: Rule, kernels: str) -> None:
    meter = Meter()
    with small(kernels, examples=2 * EPOCH, monitors=[meter], rule=rule) as running, traced():
        running.train(10 * EPOCH, TrainingUnit.TASKS)
    warm = meter.sizes[3:]
    assert len(warm) == 7  # enough that what is allocated once, at a moment that depends on timing, does not count
    assert warm[-1] - warm[0] < 16 * EPOCH * (len(warm) - 1)


def resident_sizes(kernels: str, devices: str, tasks: int, times: int) -> list[int]:
    """Resident bytes before, and after each of so many calls that train so many tasks."""
    with small(kernels, devices) as running:
        running.train_and_test(1000, TrainingUnit.TASKS)
        gc.collect()
        sizes = [resident_bytes()]
        for _ in range(times):
            running.train(tasks, TrainingUnit.TASKS)
            gc.collect()
            sizes.append(resident_bytes())
        assert running.engine.tasks >= times * tasks
    return sizes


def alone(kernels: str, devices: str, tasks: int, times: int) -> list[int]:
    """As `resident_sizes`, in a process of its own: what thousands of other tests have left to the allocator, which it
    may give back or take up again at any moment, is as much as what is looked for."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(resident_sizes, kernels, devices, tasks, times).result()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "kernels"),
    [
        ("cpu", "reference"),
        ("cpu:0/2,cpu:1/2", "reference"),
        pytest.param("cpu:0/2,cpu:1/2", "onednn", marks=FAST.marks),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_resident_memory_stays(devices: str, kernels: str) -> None:
    """On one device and the fast kernels: the test below."""
    before, after = alone(kernels, devices, TASKS[kernels], 1)
    assert abs(after - before) < 2**20


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_a_hundred_thousand_tasks_need_no_more_memory(kernels: str) -> None:
    sizes = alone(kernels, "cpu", 25_000, 4)
    assert max(sizes) - min(sizes) < 2**20


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [FAST])
def test_a_learner_costs_its_vectors_an_arena_and_its_batches(kernels: str) -> None:
    sizes = []
    with traced():
        for learners in (1, 2, 3):
            with context(
                lenet(),
                data=pictures(examples=256, size=28),
                kernels=kernels,
                learners=learners,
                solver=SOLVER,
                batch_size=256,  # an arena of 30 MB: a second one would be seen beside what large pages round up
            ) as running:
                parts = running.engine.parts
                member, loader, arena = running.engine.members[0], parts.training.loader, parts.needs.arena
                sizes.append(living_arrays())
    vectors = (member.replica.weights, member.replica.gradient, member.replica.velocity, *member.replica.statistics)
    own = sum(vector.nbytes for vector in vectors if vector is not None)
    batches = (loader.images.nbytes + loader.labels.nbytes) // learners
    assert parts.check is not None
    batches += (parts.check.loader.images.nbytes + parts.check.loader.labels.nbytes) // learners
    for before, after in itertools.pairwise(sizes):
        pages = 2 * 3 * HUGE_PAGE  # vectors, arena and slots each begin and end on a large page
        assert pages < arena / 2
        assert after - before <= own + arena + batches + pages + 2**16
        assert after - before > own  # or nothing of this was measured


def living_arrays() -> int:
    """Bytes that NumPy holds."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot()
    domain = tracemalloc.DomainFilter(True, tracemalloc_domain)
    return sum(trace.size for trace in snapshot.filter_traces([domain]).traces)


@KERNELS
def test_no_array_is_left_behind(kernels: str) -> None:
    with traced(), small(kernels, examples=200) as running:
        sizes = []
        for _ in range(4):  # each time at the end of an epoch, where the loader holds one permutation
            running.train_and_test(1)
            running.predict(running.data.train.images[:5])
            sizes.append(living_arrays())
        assert sizes[-1] == sizes[1]


def most_allocated(running: ExecutionContext, key: str) -> int:
    """Run a task of the first learner, in its own thread: the most bytes that it allocated at a time."""
    member, flags = running.engine.members[0], running.engine.parts.flags
    state, task = member.learner.state, member.learner.tasks[key, 0].calls

    def run() -> int:
        # All others are there already, so that the task waits for nobody.
        for flag in (flags.ready, flags.contributed, flags.merged):
            flag[:] = 2**40
        state[State.EXAMPLES] = running.model.batch_size
        state[State.SLOT] = 0
        task.run()  # once before: caches
        gc.collect()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        task.run()
        return tracemalloc.get_traced_memory()[1] - before

    return member.learner.stream.call(run)


@one_in(2)
@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (SMA(tau=2, base_momentum=0.5), "synchronise"),
        (SMA(tau=2), "local"),
        (SMA(), "check"),
        (SSGD(), "synchronise"),
    ],
    ids=str,
)
@PLACES
def test_a_step_on_the_fast_kernels_makes_no_temporary(devices: str, rule: Any, key: str, kernels: str) -> None:
    """Neither NumPy nor Python allocates a kilobyte at a time in a whole task of LeNet."""
    images = np.zeros((32, 1, 28, 28), np.uint8)
    data = Dataset((images, np.zeros(32, np.int64)), (images, np.zeros(32, np.int64)), number_of_classes=10)
    network = lenet(dropout=0.4)
    with (
        context(
            network,
            data=data,
            kernels=kernels,
            solver=SOLVER,
            rule=rule,
            devices=devices,
            batch_size=8,
            check_batch_size=8,
        ) as running,
        traced(),
    ):
        assert most_allocated(running, key) <= 1024


def test_the_measurement_sees_temporaries() -> None:
    """The reference kernels make them: otherwise the test above would show nothing."""
    with small("reference") as running, traced():
        assert most_allocated(running, "synchronise") > 1024


@pytest.mark.parametrize("kernels", [FAST])
def test_a_step_on_the_fast_kernels_is_one_native_list(kernels: str) -> None:
    """No Python between the kernels, so that learners do not wait for each other's."""
    with context(lenet(), data=pictures(size=28), kernels=kernels, solver=SOLVER, rule=SMA(tau=2)) as running:
        for member in running.engine.members:
            for (purpose, _), task in member.learner.tasks.items():
                assert task.calls.native_calls == len(task.calls.calls), purpose
