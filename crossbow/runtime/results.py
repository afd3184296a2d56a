"""Results of training and testing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from crossbow.dataflow.graph import Vertex
from crossbow.runtime.recorded import tuples
from crossbow.runtime.speeds import Regrouping
from crossbow.runtime.tuner import Decision, Retuning, TunerDecision
from crossbow.types import Array

AnyDecision = TunerDecision | Regrouping
"""A decision that training made by itself, with its measurements."""


@dataclass(frozen=True)
class TestResult:
    """Result of testing the base model on the check set. Every example counts once, except for bad examples, which are
    left out."""

    __test__ = False  # pytest would take the class for a test, because of its name

    loss: float
    """Mean loss, times its weight. Auxiliary losses are not tested."""
    accuracy: float | None
    """Fraction of correctly classified examples, in [0, 1]; None if the graph has no accuracy."""
    examples: int
    """Number of examples that count."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Values of the check dataflow's other metrics, such as `Accuracy(top_k=5)`, by the names of their operators, which
    must not be "loss", "accuracy" or "examples"."""


@dataclass(frozen=True)
class LearnerRecord:
    """A learner in a stretch of training: shares of the time in [0, 1], its rate, and its distance from the average.

    The remaining share is time without a task although data were available: the learner waited for the scheduler.
    """

    learner: int
    """Number of the learner, from 0."""
    computing: float
    """Share of the time spent computing outputs, gradients and steps."""
    averaging: float
    """Share of the time spent computing averages or, without a barrier, in exchanges."""
    waiting: float
    """Share of the time spent waiting for other learners."""
    data: float
    """Share of the time spent waiting for data."""
    images_per_second: float
    """Images that the learner trained on, per second."""
    distance: float | None
    """‖w_i − z‖ / ‖z‖; None if unknown."""


@dataclass(frozen=True)
class Record:
    """A stretch of training: an epoch, or the completed part of one."""

    epoch: float
    """Number of epochs from the start of the context to the end of the stretch."""
    tasks: int
    """Number of tasks since the start of the context."""
    time: float
    """Seconds of training since the start of this call, without tests."""
    loss: float
    """Mean training loss in the stretch: with auxiliary losses, the sum of all losses, each times its weight."""
    accuracy: float | None
    """Mean training accuracy in the stretch, that of the main loss's input; None if the training graph has none."""
    images_per_second: float
    """Images per second of training, of all learners together, without tests."""
    learning_rate: float
    """Learning rate of the last tick."""
    test: TestResult | None = None
    """Result of the test at the end of the stretch; None without one."""
    data_wait: float = 0.0
    """Share of the stretch's time in which learners waited for data, in [0, 1]: the mean over the learners. Time during
    which they waited for other learners does not count."""
    staleness: float | None = None
    """Mean staleness of the contributions in the stretch; None under rules that do not count it."""
    dropped: int | None = None
    """Number of contributions in the stretch that were dropped; None under rules that drop none."""
    memory: int | None = None
    """Memory of the process at the end of the stretch, in bytes; None if the system does not report it."""
    learners: tuple[LearnerRecord, ...] = ()
    """The learners of CPU devices, if their number did not change."""

    def numbers(self) -> dict[str, float | None]:
        """The record's numbers by name, those of the test as "test_loss", "test_accuracy", "test_examples" and, of
        another metric, "test_NAME". Missing numbers are None."""
        of_test = {name: None if self.test is None else getattr(self.test, name) for name in OF_TEST}
        own = {name: getattr(self, name) for name in OWN}
        others = {} if self.test is None else self.test.metrics
        return own | {f"test_{name}": value for name, value in {**others, **of_test}.items()}

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, Any]) -> Record:
        """The record with these numbers, as `numbers` returns them; others are ignored. A loss or a rate that is None
        was not finite. Raises KeyError if a required number is missing."""
        known = {name: numbers[name] for name in numbers if name in OWN}
        for name in ("epoch", "tasks", "time", "loss", "images_per_second", "learning_rate"):
            known[name] = math.nan if numbers[name] is None else numbers[name]
        learners = tuple(LearnerRecord(**each) for each in numbers.get("learners", ()))
        test: dict[str, Any] = {name: numbers.get(f"test_{name}") for name in OF_TEST}
        others = {name: numbers[name] for name in numbers if name.startswith("test_") and name not in COLUMNS}
        metrics = {name.removeprefix("test_"): value for name, value in others.items()}
        tested = None if test["examples"] is None else TestResult(**test, metrics=metrics)
        return cls(**{"accuracy": None, **known, "test": tested, "learners": learners})


OF_TEST = tuple(field.name for field in fields(TestResult) if field.name != "metrics")
OWN = tuple(field.name for field in fields(Record) if field.name not in ("test", "learners"))
COLUMNS = (*OWN, *(f"test_{name}" for name in OF_TEST))
"""Names of the numbers that every record has."""


@dataclass
class History:
    """The history of a training call."""

    records: list[Record] = field(default_factory=list)
    """The records of training, in order: one per epoch, or per part between two tests."""
    stopped: str = ""
    """The reason why training ended: "count", "duration", "loss", "accuracy", "monitor", "interrupt", or
    "error" if an exception was raised."""
    message: str = ""
    """The reason that the monitor gave, if a monitor ended training, or the error."""
    decisions: list[AnyDecision] = field(default_factory=list)
    """Comparisons of numbers of learners, with learners_per_device="auto", and the reasons for new ones; groups of
    learners by speed."""

    def __repr__(self) -> str:
        text = f"epoch {self.records[-1].epoch:.4g}, loss {self.loss:.4g}" if self.records else "no records"
        if tests := self.tests:
            test = tests[-1].test
            assert test is not None
            text += f", test loss {test.loss:.4g}" if test.accuracy is None else f", test accuracy {test.accuracy:.1%}"
        reason = ", ".join(filter(None, (self.stopped, self.message)))
        return f"History({text}; stopped: {reason})" if reason else f"History({text})"

    def explain(self, message: str) -> None:
        """Set the reason of a monitor that ends training, unless another monitor has already given one."""
        self.message = self.message or message

    def stop(self, reason: str) -> None:
        """Set the reason why training ended; "" if it continues."""
        self.stopped = reason

    @property
    def time(self) -> float:
        """Seconds of training, without tests."""
        return self.records[-1].time if self.records else 0.0

    @property
    def data_wait(self) -> float:
        """Share of the training time in which learners waited for data, in [0, 1]."""
        waited = before = 0.0
        for record in self.records:
            waited, before = waited + record.data_wait * (record.time - before), record.time
        return waited / before if before else 0.0

    @property
    def loss(self) -> float:
        """Mean training loss in the last stretch."""
        return self.records[-1].loss if self.records else float("nan")

    @property
    def tests(self) -> list[Record]:
        """The records with a test."""
        return [record for record in self.records if record.test is not None]

    @property
    def best(self) -> Record | None:
        """The record with the best test accuracy or, if there are no accuracies, as in a regression, with the lowest
        test loss; the first one if several are equal."""
        accuracies: list[tuple[float, Record]] = []
        losses: list[tuple[float, Record]] = []
        for record in self.records:
            if record.test is not None and record.test.accuracy is not None:
                accuracies.append((record.test.accuracy, record))
            elif record.test is not None and math.isfinite(record.test.loss):
                losses.append((-record.test.loss, record))
        return max(accuracies or losses, key=lambda pair: pair[0], default=(0.0, None))[1]


_DECISIONS: dict[str, type[AnyDecision]] = {kind.__name__: kind for kind in (Decision, Retuning, Regrouping)}


def history_state(history: History) -> dict[str, Any]:
    """Records and decisions as JSON values, for `restored_history`."""
    return {
        "records": [asdict(record) for record in history.records],
        "decisions": [[type(decision).__name__, asdict(decision)] for decision in history.decisions],
    }


def restored_history(state: Mapping[str, Any]) -> History:
    """The history of an unfinished training call."""
    history = History()
    for values in state["records"]:
        learners = tuple(LearnerRecord(**each) for each in values["learners"])
        test = None if values["test"] is None else TestResult(**values["test"])
        history.records.append(Record(**{**values, "test": test, "learners": learners}))
    for name, values in state["decisions"]:
        history.decisions.append(_DECISIONS[name](**{field: tuples(value) for field, value in values.items()}))
    return history


class RunningMean:
    """Means of the tasks' losses and accuracies since the last `take`, and of the loss in a moving window."""

    def __init__(self, window: int) -> None:
        self._size = max(1, window)
        self._window: deque[float] = deque()
        self._window_sum = 0.0
        self.loss_sum = self.accuracy_sum = 0.0
        self.count = 0
        self.measured = False

    def add(self, loss: float, accuracy: float | None) -> None:
        self._window.append(loss)
        self._window_sum += loss
        if len(self._window) > self._size:
            self._window_sum -= self._window.popleft()
        self.loss_sum += loss
        self.count += 1
        if accuracy is not None:
            self.accuracy_sum += accuracy
            self.measured = True

    def losses(self) -> Array:
        """The losses of the last tasks, the oldest first: (n,), float64."""
        return np.array(self._window, np.float64)

    def state(self) -> dict[str, Any]:
        """The sums, as JSON values, for `restore`."""
        return {
            "window_sum": self._window_sum,
            "loss_sum": self.loss_sum,
            "accuracy_sum": self.accuracy_sum,
            "count": self.count,
            "measured": self.measured,
        }

    def restore(self, state: Mapping[str, Any], losses: Array) -> None:
        """Continue with these sums and losses."""
        self._window = deque(losses.tolist())
        self._window_sum = state["window_sum"]
        self.loss_sum, self.accuracy_sum = state["loss_sum"], state["accuracy_sum"]
        self.count, self.measured = state["count"], state["measured"]

    @property
    def moving_loss(self) -> float:
        """Mean loss of the last tasks, at most one epoch; NaN before the first task."""
        return self._window_sum / len(self._window) if self._window else float("nan")

    @property
    def full(self) -> bool:
        """Whether the window is full."""
        return len(self._window) == self._size

    def take(self) -> tuple[float, float | None]:
        """Mean loss and accuracy since the last `take`."""
        count = self.count or 1
        loss, accuracy = self.loss_sum / count, self.accuracy_sum / count if self.measured else None
        self.loss_sum = self.accuracy_sum = 0.0
        self.count = 0
        return loss, accuracy


class SetMean:
    """The value of a loss or metric on a whole data set, from its values on batches."""

    def __init__(self, vertex: Vertex | None) -> None:
        """vertex: the vertex of the values, or None."""
        self._kernel = None if vertex is None else vertex.forward
        self._sum = 0.0

    def add(self, value: float | None, labels: Array) -> None:
        """Add the value of a batch, given its labels without padding."""
        if self._kernel is not None and value is not None:
            self._sum += value * self._kernel.counts(labels)

    def value(self, labels: Array) -> float | None:
        """The value, given the labels of all batches; None without a vertex."""
        return None if self._kernel is None else self._sum / max(self._kernel.counts(labels), 1.0)
