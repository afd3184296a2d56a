"""Where the time of learners goes, and how far they are from the average."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, Monitor, Record
from crossbow.kernels.interface import State
from crossbow.runtime.activity import Activity, Spent
from crossbow.runtime.memory import new_state
from crossbow.runtime.monitor import Progress
from crossbow.runtime.observation import (
    BLOCK,
    BLOCKS,
    RECENT,
    Measured,
    Measurement,
    RecentLearners,
    arrived,
    distances,
)
from crossbow.runtime.results import LearnerRecord
from crossbow.synch import RULES, FreeRule, Rule
from tests.support import Probe, blobs, context, engine_of, perceptron


def test_shares_of_the_time() -> None:
    state = new_state()
    activity = Activity(state)
    activity.add(5.0, 0.0, 100)  # before the stretch
    observed: Any = SimpleNamespace(
        activities=[activity],
        distances=lambda blocks: [0.25],
        data_wait_seconds=3.0,
        barrier=True,
    )
    stretch = Measurement(observed)
    state[State.WAITED], state[State.AVERAGED] = 2e9, 0.5e9
    assert activity.spent.waiting == 0.0, "a task counts when it ends"
    activity.add(6.0, 1.0, 300)
    observed.data_wait_seconds = 3.5
    assert activity.spent == Spent(11.0, 2.0, 1.5, 1.0, 400)
    for barrier, waiting in ((True, 0.2), (False, 0.25)):
        observed.barrier = barrier
        measured = stretch.measure(observed, 10.0)
        assert measured.data_wait == pytest.approx(0.05)
        (record,) = measured.learners
        assert record.computing == pytest.approx(0.35)
        assert record.averaging == pytest.approx(0.15)
        assert record.waiting == pytest.approx(waiting)
        assert record.data == pytest.approx(0.05)
        assert record.images_per_second == pytest.approx(30)
        assert record.distance == 0.25
    (record,) = stretch.measure(observed, 3.5).learners
    assert record.computing == pytest.approx(0.5), "the task began before"
    assert record.averaging == pytest.approx(1.5 / 7)
    other: Any = SimpleNamespace(data_wait_seconds=4.0)  # another engine trains now, with other learners
    assert stretch.measure(other, 10.0) == Measured(pytest.approx(0.1))


def test_progress_shows_the_last_stretch_and_then_the_last_second() -> None:
    asked = list[int | None]()
    activity = Activity(new_state())
    observed: Any = SimpleNamespace(activities=[activity], data_wait_seconds=0.0, barrier=True)
    observed.distances = lambda blocks: asked.append(blocks) or [None]
    recent, whole = RecentLearners(), (LearnerRecord(0, 0.5, 0.0, 0.0, 0.0, 50.0, None),)
    assert recent.at(10.0, observed) == ()
    recent.end_stretch(whole)
    recent.begin_stretch()
    activity.add(0.25, 0.0, 100)
    assert recent.at(20.0, observed) == whole
    activity.add(0.5, 0.0, 300)
    assert recent.at(20.0 + RECENT / 2, observed) == whole
    (record,) = recent.at(20.0 + 2 * RECENT, observed)
    assert (record.images_per_second, record.computing) == (300 / (2 * RECENT), 0.5 / (2 * RECENT))
    assert recent.at(20.0 + 2.5 * RECENT, observed) == (record,)
    assert recent.at(20.0 + 3 * RECENT, observed)[0].images_per_second == 0.0
    assert asked == [BLOCKS] * 2


def test_staleness_and_dropped_contributions() -> None:
    assert arrived((10, 1, 12), (14, 3, 22)) == (2.5, 2)
    assert arrived((10, 1, 12), (10, 1, 12)) == (None, 0)
    assert arrived(None, (1, 0, 1)) == arrived((1, 0, 1), None) == (None, None)


def test_distances() -> None:
    generator = np.random.default_rng(0)
    z = generator.normal(size=3 * BLOCK + 7).astype(np.float32)
    w = z + 0.01 * generator.normal(size=z.size).astype(np.float32)
    exact = float(np.linalg.norm((w - z).astype(np.float64)) / np.linalg.norm(z.astype(np.float64)))
    assert distances([w, None, z], z) == [pytest.approx(exact, rel=1e-5), None, 0.0]
    assert distances([w], z, blocks=2) == [pytest.approx(exact, rel=0.02)]
    assert distances([w], np.zeros_like(z)) == [math.inf]


def test_an_estimate_is_of_blocks_from_the_first_to_the_last() -> None:
    """Of four blocks: the last one has seven elements."""
    z = np.ones(3 * BLOCK + 7, np.float32)
    for place, counted in ((0, (2, 3, 4, 5, None)), (-1, (2, 3, 4, 5, None)), (BLOCK, (3, 4, 5, None))):
        w = z.copy()
        w[place] = 2
        elements = {2: BLOCK + 7, 3: 2 * BLOCK + 7}
        for blocks in (2, 3, 4, 5, None):
            expected = math.sqrt(1 / elements.get(blocks or 0, z.size)) if blocks in counted else 0.0
            assert distances([w], z, blocks) == [pytest.approx(expected, rel=1e-12)], (place, blocks)


class Watcher(Monitor):
    """Keeps records and progress."""

    interval = 0.0

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.heard: list[Progress] = []

    def record(self, record: Record) -> None:
        self.records.append(record)

    def progress(self, progress: Progress) -> None:
        self.heard.append(progress)


@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2), SSGD(), RULES["async"](), RULES["weed-out"]()])
def test_every_record_has_the_learners(rule: Rule) -> None:
    watcher = Watcher()
    with context(data=blobs(64), learners=2, rule=rule, monitors=[watcher]) as running:
        running.train(2)
        distances = engine_of(running).observation.distances()
    for record in watcher.records:
        assert [each.learner for each in record.learners] == [0, 1]
        for each in record.learners:
            shares = (each.computing, each.averaging, each.waiting, each.data)
            assert min(shares) >= 0
            assert sum(shares) <= 1 + 1e-3
            assert each.computing > 0
            assert each.averaging > 0
        rate = sum(each.images_per_second for each in record.learners)
        assert rate == pytest.approx(record.images_per_second, rel=1e-6)
        assert record.memory is None or record.memory > 1e6
        assert (record.staleness is not None) == isinstance(rule, FreeRule)
        if record.staleness is not None:
            assert record.staleness >= 1
            assert record.dropped is not None
    assert [each.distance for each in watcher.records[-1].learners] == distances
    assert all(len(progress.doing) == 2 for progress in watcher.heard)
    assert watcher.heard[-1].learners == watcher.records[0].learners, "an epoch is shorter than a second"


def test_a_learner_that_waits_for_a_slow_one_is_seen() -> None:
    """Learner 1 computes in every task; learner 0 waits for it."""
    slow = Probe(action=lambda where, learner, call: time.sleep(0.05 * learner))
    watcher = Watcher()
    with context(perceptron(slow), data=blobs(40), learners=2, rule=SMA(), monitors=[watcher]) as running:
        running.train(1)
    first, second = watcher.records[0].learners
    assert first.waiting > max(0.3, first.computing)
    assert second.computing > max(0.3, second.waiting)


DISTANCES = """
import time
import numpy as np
from crossbow.runtime.observation import distances

weights, base = (np.random.default_rng(seed).random(1 << 20, np.float32) for seed in (0, 1))
process, thread = time.process_time(), time.thread_time()
for _ in range(20):
    distances([weights], base)
own = time.thread_time() - thread
time.sleep(0.2)
print((time.process_time() - process - own) / own)
"""


@pytest.mark.slow
def test_the_distance_keeps_no_other_thread_busy() -> None:
    """The learners need the cores: NumPy's threads for dot products keep them for a while after each."""
    own_threads = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", DISTANCES], env=own_threads, stdout=subprocess.PIPE, text=True, check=True
    )
    assert float(done.stdout) < 0.5
