"""The GPUs of a run: settings, memory and learners."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from crossbow import (
    ExecutionContext,
    ModelConf,
    SystemConf,
)
from crossbow.runtime.assembly import SLOTS
from crossbow.testing import FakeCollective
from crossbow.types import ConfigurationError
from tests.kernels.cuda.fake import fake_cuda
from tests.runtime.cuda.test_training import DATA, context, network
from tests.support import engine_of


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ({"kernels": "onednn"}, "kernels must be 'auto' on GPUs"),
        ({"threads_per_learner": 1}, "threads_per_learner must be None on GPUs"),
    ],
)
def test_settings_that_mean_nothing_on_gpus_are_refused(system: dict[str, Any], text: str) -> None:
    with fake_cuda(), pytest.raises(ConfigurationError, match=text):
        context("cuda:0", system=system)


def test_a_collective_is_for_the_cpu() -> None:
    model, system = ModelConf(batch_size=4), SystemConf(devices="cuda:0,cuda:1")
    with fake_cuda(2), pytest.raises(ConfigurationError, match="collective must be None on GPUs"):
        ExecutionContext([network(), None], data=DATA, model=model, system=system, collective=FakeCollective(2))


def test_a_gpu_that_is_not_there() -> None:
    with fake_cuda(2), pytest.raises(ConfigurationError, match=r"cuda:0 to cuda:1\. Received: 'cuda:2'"):
        context("cuda:2")


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 3])
def test_the_learners_of_a_gpu(learners: int) -> None:
    with fake_cuda(), context("cuda:0", learners=learners) as running:
        assert len(running.engine.members) == learners


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_batches_are_filled_by_as_many_threads_as_asked_for(threads: int) -> None:
    with fake_cuda(), context("cuda:0", learners=2, system={"loader_threads": threads}) as running:
        loader = engine_of(running).parts.training.loader
        assert loader.slots == 2 * SLOTS + threads - 1
        before = set(threading.enumerate())
        loader.start(0, tasks=100)
        assert len(set(threading.enumerate()) - before) == threads
        loader.stop()


def test_tf32_is_for_gpus() -> None:
    with pytest.raises(ConfigurationError, match="'tf32' is for GPUs"):
        context("cpu", system={"precision": "tf32"})
