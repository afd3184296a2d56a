"""The tasks of foreign models: weights, gradients, epochs and tests."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import ConfigurationError
from crossbow.foreign import IterationRecorder
from crossbow.foreign.learners import ForeignLearner, ForeignLearners
from tests.foreign.small_models import GradientRegression, Regression


def models(count: int) -> list[Regression]:
    return [Regression({"rank": rank, "size": count}) for rank in range(count)]


def test_what_an_iteration_changes_is_the_gradient() -> None:
    model = models(1)[0]
    learner = ForeignLearner(model, learners=1, tasks_per_epoch=6, by_gradients=False)
    weights = [np.full((3, 6), 0.5), np.ones(3)]
    before = [each.copy() for each in weights]
    learner.train(0, weights)
    gradients = [np.empty_like(each) for each in weights]
    learner.write_gradient(weights, gradients)
    for parameter, start, gradient in zip(model.params, before, gradients, strict=True):
        np.testing.assert_array_equal(start - gradient, parameter)
        assert np.abs(gradient).max() > 0
    for values, start in zip(weights, before, strict=True):
        np.testing.assert_array_equal(values, start)  # the engine makes the step


def test_gradients_are_those_that_the_model_computes() -> None:
    model = GradientRegression({"rank": 0, "size": 1})
    learner = ForeignLearner(model, learners=1, tasks_per_epoch=6, by_gradients=True)
    weights = [np.zeros((3, 6)), np.zeros(3)]
    reported = learner.train(0, weights)
    assert reported.cost == pytest.approx(np.log(3))
    gradients = [np.empty_like(each) for each in weights]
    learner.write_gradient(weights, gradients)
    expected = GradientRegression({"rank": 0, "size": 1})
    for parameter in expected.params:
        parameter[...] = 0
    for found, wanted in zip(gradients, expected.gradients(0, IterationRecorder()), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_passes_epochs_and_tests_end_once() -> None:
    """Tests end when training begins or another test does; passes and epochs, when the next one begins."""
    model = models(1)[0]
    learner = ForeignLearner(model, learners=1, tasks_per_epoch=6, by_gradients=False)
    weights = [each.copy() for each in model.params]
    for batch in (0, 1, 0):  # two tests in turn
        learner.test(batch, weights)
    for task in (4, 5, 6, 13):
        learner.train(task, weights)
    assert model.events == ["val", "val", 4, 5, "train", "adjust 0", 6, "adjust 1", 7]
    assert model.epoch == 2


def test_a_model_goes_through_its_batches_again_for_those_of_a_lost_rank() -> None:
    """Whose place it takes, in a test of four batches; it has two."""
    model = models(2)[0]
    learner = ForeignLearner(model, learners=2, tasks_per_epoch=6, by_gradients=False)
    assert model.data.n_batch_val == 2
    for batch in range(4):
        learner.test(batch, [each.copy() for each in model.params])
    assert model.events == ["val"]
    learner.test(0, [each.copy() for each in model.params])
    assert model.events == ["val", "val"]


def test_a_fast_learner_passes_through_its_batches_more_often() -> None:
    """It has three batches in an epoch of six tasks of two learners, and does all six."""
    model = models(2)[0]
    learner = ForeignLearner(model, learners=2, tasks_per_epoch=6, by_gradients=False)
    for task in range(6):
        learner.train(task, [each.copy() for each in model.params])
    assert model.events == [0, 1, 2, "train", 3, 4, 5]
    assert model.epoch == 0


def test_gradients_of_another_shape_are_refused() -> None:
    class Turned(GradientRegression):
        def gradients(self, count: int, recorder: IterationRecorder) -> list[np.ndarray]:  # type: ignore[type-arg]
            return [each.T for each in super().gradients(count, recorder)]

    model = Turned({"rank": 0, "size": 1})
    learner = ForeignLearner(model, learners=1, tasks_per_epoch=2, by_gradients=True)
    with pytest.raises(ConfigurationError, match=r"Received: \(6, 3\) instead of \(3, 6\) for params\[0\]"):
        learner.train(0, [each.copy() for each in model.params])


def test_learners_are_found_by_their_state_and_by_the_batches_of_a_test() -> None:
    of_rank = ForeignLearners(models(2), 4, 2, by_gradients=False)
    assert of_rank.tasks_per_epoch == 3 * 4
    assert of_rank.tasks_per_test == 2 * 4
    states = [np.zeros(8, np.int64) for _ in range(4)]  # of two engines with two learners each
    assert not of_rank.has_state(states[0])
    found = [of_rank.of_state(state).model for state in states]
    assert found == [*of_rank.models, *of_rank.models]
    assert of_rank.of_state(states[1]).model is of_rank.models[1]
    assert of_rank.has_state(states[0])
    assert [of_rank.tester(batch).model for batch in (2, 3, 6, 7)] == found
    assert repr(of_rank) == "Regression by train_iter"
    assert not of_rank.stopped
