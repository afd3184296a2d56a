"""Training calls of a context, one after the other. Ranks that leave and join are in tests/test_elastic_contexts.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crossbow import (
    Checkpoints,
    ConfigurationError,
    CrossbowError,
    Dataflow,
    Dataset,
    Monitor,
    Record,
    Sequential,
    SolverConf,
)
from crossbow.ops import EuclideanLoss, InnerProduct
from tests.support import blobs, context, perceptron


def test_a_monitor_cannot_train() -> None:
    class Trains(Monitor):
        def record(self, record: Record) -> None:
            running.train(1)

    with context(monitors=[Trains()]) as running:
        with pytest.raises(CrossbowError, match=r"a training call is under way\. Neither a monitor nor"):
            running.train(1)
        assert len(running.history.records) == 1
        running.test()


def test_an_accuracy_to_reach_needs_a_network_that_has_one() -> None:
    examples = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
    network = Dataflow(Sequential(InnerProduct(2), EuclideanLoss()))
    with context(network, data=Dataset(examples, examples)) as running:
        with pytest.raises(ConfigurationError, match=r"^target_accuracy: expected a network with an accuracy\. Rec"):
            running.train_and_test(1, target_accuracy=0.5)
        assert running.train_and_test(1).stopped == "count"


def test_a_rate_that_becomes_0_before_the_end_is_told_once() -> None:
    with context(solver=SolverConf(policy="cosine", decay_steps=30)) as running:
        running.train(1)
        with pytest.warns(RuntimeWarning, match=r"^the learning rate becomes 0 after 10 of the 45 ticks") as told:
            running.train(9)
        assert told[0].filename == __file__
        running.train(1)


def test_the_history_is_that_of_the_last_call_or_of_the_one_to_continue(tmp_path: Path) -> None:
    data = blobs()
    with context(perceptron(), data=data, checkpoints=Checkpoints(tmp_path)) as running:
        assert running.history.records == []
        first, last = running.train(1), running.train(2)
        assert running.history is last is not first
    with context(perceptron(), data=data, resume=tmp_path) as resumed:
        assert resumed.history.records == last.records
        continued = resumed.continue_training(count=3)
        assert resumed.history is continued
        assert continued.records[:2] == last.records
