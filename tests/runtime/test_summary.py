from __future__ import annotations

import dataclasses

import pytest

from crossbow import SMA, SSGD, TrainingUnit
from crossbow.runtime.summary import DeviceSummary
from crossbow.synch import AsynchronousSGD, RuleSequence
from tests.kernels.cuda.fake import fake_cuda
from tests.support import blobs, context

TASKS = TrainingUnit.TASKS


def test_what_trains_and_how_far_it_has_come() -> None:
    with context(devices="cpu:0/2,cpu:1/2", learners=2, data=blobs(42), batch_size=4, rule=SMA(tau=3)) as running:
        before = running.summary()
        assert [(device.name, device.learners) for device in before.devices] == [("cpu:0/2", 2), ("cpu:1/2", 2)]
        assert all(device.cores and device.threads_per_learner == 1 for device in before.devices)
        assert before.learners == 4
        assert before.library == "reference"
        assert before.rule == SMA(tau=3)
        assert (before.tasks_per_tick, before.tasks_per_epoch) == (12, 10.5)
        assert (before.tick, before.tasks) == (0, 0)
        assert not before.tuning
        # 6 × 8 + 8 + 8 × 3 + 3
        assert before.parameters == 83 == sum(value.size for value in running.variables.values())
        assert before.memory.vector == 4 * before.elements >= 4 * before.parameters
        assert before.memory.lower_bound <= before.memory.arena <= before.memory.without_reuse
        running.train(13, TASKS)
        assert running.summary() == dataclasses.replace(before, tick=2, tasks=24)
        assert before.tick == 0
        with pytest.raises(dataclasses.FrozenInstanceError):
            before.tick = 1  # type: ignore[misc]


def test_a_gpu_has_no_cores() -> None:
    with fake_cuda(1), context(devices="cuda:0", learners=3, kernels="auto", threads=None) as running:
        (device,) = running.summary().devices
        assert device == DeviceSummary("cuda:0", (), 3, None)


def test_a_sequence_of_rules_is_named_whole() -> None:
    phases = RuleSequence(((AsynchronousSGD(), 2), (SSGD(), 2)))
    with context(rule=phases) as running:
        for tasks in (4, 8):
            assert running.summary().rule == phases
            running.train(4, TASKS)
            assert running.summary().tasks == tasks


def test_whether_the_number_of_learners_is_being_looked_for() -> None:
    with context(learners="auto") as running:
        assert running.summary().tuning
    with context(learners=2) as running:
        assert not running.summary().tuning
