"""The interface of engines for contexts and training runs, implemented by one engine or a sequence of engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from crossbow.compile import Program
from crossbow.data.bad_examples import BadExamples
from crossbow.data.order import TrainingOrder
from crossbow.runtime.clock import WorkClock
from crossbow.runtime.observation import Observation
from crossbow.runtime.results import TestResult
from crossbow.runtime.scheduler import Callbacks
from crossbow.runtime.snapshot import Snapshot
from crossbow.runtime.summary import RunSummary
from crossbow.types import Array, Phase


class TrainingEngine(Protocol):
    """Implemented by `Engine` and `ChangingEngine`, whose docstrings have details."""

    @property
    def program(self) -> Program: ...

    @property
    def check_program(self) -> Program | None: ...

    @property
    def clock(self) -> WorkClock: ...

    @property
    def order(self) -> TrainingOrder: ...

    @property
    def tasks_per_epoch(self) -> float: ...

    @property
    def tick(self) -> int: ...

    @property
    def tasks(self) -> int: ...

    @property
    def boundary(self) -> int: ...

    @property
    def learning_rate(self) -> float: ...

    @property
    def weights(self) -> dict[str, Array]: ...

    @property
    def observation(self) -> Observation: ...

    @property
    def bad_examples(self) -> Mapping[Phase, BadExamples]: ...

    def summary(self) -> RunSummary: ...

    def run(self, until: int, callbacks: Callbacks) -> None: ...

    def snapshot(self) -> Snapshot: ...

    def salvage(self) -> Snapshot: ...

    def restore(self, snapshot: Snapshot, source: str) -> bool: ...

    def test(self) -> TestResult: ...

    def predict(self, images: Array) -> Array: ...

    def load(self, variables: dict[str, Array], source: str) -> None: ...

    def check_process(self) -> None: ...

    def check_usable(self) -> None: ...

    def close(self) -> None: ...
