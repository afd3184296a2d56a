"""Foreign models in the tasks of learners."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.foreign.contract import ModelClass, wrong
from crossbow.foreign.parameters import host_array, host_arrays
from crossbow.foreign.recorder import IterationRecorder, Reported
from crossbow.types import Array

Arrays = Sequence[NDArray[Any]]


class ForeignLearner:
    """A model that trains as a learner. Crossbow stores the weights and copies them to the model before each iteration.
    The difference w − w' between the weights before and after the iteration is the gradient of the task.

    With `by_gradients`, the model's method `gradients` computes the gradient, and the solver makes the step.
    """

    def __init__(self, model: ModelClass, learners: int, tasks_per_epoch: int, *, by_gradients: bool) -> None:
        """learners: number of all learners. tasks_per_epoch: number of tasks of all learners in an epoch."""
        self.model, self._learners, self._tasks_per_epoch = model, learners, tasks_per_epoch
        self._by_gradients = by_gradients
        self._iterations_of_pass, self._passes = model.data.n_batch_train * model.n_subb, 0
        self.recorder = IterationRecorder()
        self.stopped = False
        """Whether `val_iter` has asked to end the training."""
        self._lock = threading.Lock()
        self._iterations: int | None = None
        self._iterations_of_test = model.data.n_batch_val * model.n_subb
        self._tested: int | None = None
        """Number of the last validation batch that was tested; None if no test is running."""
        self._tests = 0
        """Number of validation iterations since the model's first validation batch."""
        self._gradients: Arrays = ()

    def train(self, task: int, weights: Arrays) -> Reported:
        """Run a training iteration with these weights. task: number of the task over all learners. Raises
        ConfigurationError if the model reports nothing, or if its gradients do not fit the weights."""
        with self._lock:
            self._end_test()
            self._iterations = task // self._learners if self._iterations is None else self._iterations + 1
            self._begin(self._iterations // self._iterations_of_pass, task // self._tasks_per_epoch)
            self._load(weights)
            if self._by_gradients:
                computed = self.model.gradients(self._iterations, self.recorder)  # type: ignore[attr-defined]
                self._gradients = self._checked(computed, weights)
            else:
                self.model.train_iter(self._iterations, self.recorder)
            return self._reported("train_iter", "train_error")

    def write_gradient(self, weights: Arrays, gradients: Arrays) -> None:
        """Write the gradient of the last task: the arrays that `gradients` returned, or w − w' after an iteration from
        w to w'."""
        if self._by_gradients:
            for computed, gradient in zip(self._gradients, gradients, strict=True):
                gradient[...] = computed
            return
        for before, after, gradient in zip(weights, host_arrays(self.model.params), gradients, strict=True):
            np.subtract(before, after, out=gradient, casting="same_kind")

    def test(self, batch: int, weights: Arrays) -> Reported:
        """Test a validation batch with these weights. batch: number of the batch over all learners, from the start of
        the test."""
        with self._lock:
            # When ranks are lost, the remaining models also test in their place, and go through their batches again.
            if self._tests == self._iterations_of_test or (self._tested is not None and batch <= self._tested):
                self._end_test()
            self._tested, self._tests = batch, self._tests + 1
            self._load(weights)
            if self.model.val_iter(self._iterations or 0, self.recorder) == "stop":
                self.stopped = True
            return self._reported("val_iter", "val_error")

    def _end_test(self) -> None:
        if self._tested is not None:
            self._tested, self._tests = None, 0
            self.model.reset_iter("val")

    def _begin(self, number: int, epoch: int) -> None:
        """End the model's passes through its own batches before pass `number`, and the epochs of all learners before
        `epoch`. Without a barrier, fast learners pass through their batches more often than slow ones."""
        while self._passes < number:
            self._passes += 1
            self.model.reset_iter("train")
        while self.model.epoch < epoch:
            self.model.adjust_hyperp(self.model.epoch)
            self.model.epoch += 1

    def _load(self, weights: Arrays) -> None:
        """Copy the weights to the model."""
        for values, parameter in zip(weights, host_arrays(self.model.params), strict=True):
            parameter[...] = values

    def _reported(self, method: str, report: str) -> Reported:
        reported = self.recorder.take()
        if reported is None:
            raise wrong(self.model, f"`{method}` to call recorder.{report}", "no call")
        return reported

    def _checked(self, computed: Any, weights: Arrays) -> Arrays:
        """The gradients as arrays. Raises ConfigurationError if they do not fit the weights."""
        expected = f"`gradients` to return {len(weights)} arrays, of the shapes of `params`"
        if not isinstance(computed, list | tuple) or len(computed) != len(weights):
            count = f"{len(computed)} arrays" if isinstance(computed, list | tuple) else type(computed).__name__
            raise wrong(self.model, expected, count)
        arrays = [host_array(each) for each in computed]
        for index, (array, values) in enumerate(zip(arrays, weights, strict=True)):
            if array.shape != values.shape:
                raise wrong(self.model, expected, f"{array.shape} instead of {values.shape} for params[{index}]")
        return arrays


class ForeignLearners:
    """The models of a rank's learners."""

    def __init__(self, models: Sequence[ModelClass], learners: int, first: int, *, by_gradients: bool) -> None:
        """learners: number of all learners. first: number of this rank's first learner."""
        data = models[0].data
        self.tasks_per_epoch = data.n_batch_train * models[0].n_subb * learners
        """Number of iterations of all learners in an epoch."""
        self.tasks_per_test = data.n_batch_val * models[0].n_subb * learners
        """Number of validation iterations of all learners in a test."""
        self.by_gradients, self._first, self._all = by_gradients, first, learners
        self._own = [
            ForeignLearner(model, learners, self.tasks_per_epoch, by_gradients=by_gradients) for model in models
        ]
        self._of_states: dict[int, tuple[Array, ForeignLearner]] = {}

    @property
    def models(self) -> list[ModelClass]:
        """The models in the order of their learners."""
        return [each.model for each in self._own]

    @property
    def stopped(self) -> bool:
        """Whether a model has asked to end the training."""
        return any(each.stopped for each in self._own)

    def of_state(self, state: Array) -> ForeignLearner:
        """The learner that has this task state. An engine's learners are bound in order, so new states are assigned to
        the learners in turn; the engines of a sequence of rules share the models."""
        place = state.ctypes.data
        if place not in self._of_states:
            learner = self._own[len(self._of_states) % len(self._own)]
            self._of_states[place] = state, learner  # keeping the state prevents another one at the same address
        return self._of_states[place][1]

    def has_state(self, state: Array) -> bool:
        """Whether a training learner has this task state. Programs for prediction have other states."""
        return state.ctypes.data in self._of_states

    def tester(self, batch: int) -> ForeignLearner:
        """The learner whose model tests a validation batch. Each model goes through its batches in order, so batch n
        belongs to learner n mod k, regardless of which learner runs the task."""
        number = batch % self._all - self._first
        return self._own[number % len(self._own)]

    def __repr__(self) -> str:
        return f"{type(self._own[0].model).__name__} by {'gradients' if self.by_gradients else 'train_iter'}"
