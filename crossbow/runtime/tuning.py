"""Training while the auto-tuner (`crossbow.runtime.tuner`) searches: one engine for each number of learners.

Every rank has a tuner. All of them get rank 0's measurements of images/s at the same tick, and so make the same
decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from crossbow.runtime.engines import Engines
from crossbow.runtime.results import AnyDecision
from crossbow.runtime.scheduler import Callbacks
from crossbow.runtime.summary import RunSummary
from crossbow.runtime.task import Completed
from crossbow.runtime.tuner import Tuner, TunerDecision
from crossbow.types import ConfigurationError

WARMING_TICKS = 2
"""Number of ticks that new learners run before measurements begin."""


class Tuning:
    """Trains window by window, with the numbers of learners that a tuner requests.

    New learners start from the base model, as after a restart. The engines of the numbers that are being compared are
    kept until there is a decision.
    """

    def __init__(self, engines: Engines) -> None:
        """engines: engines by their number of learners on each device."""
        setting = engines.now.parts.setting
        self._engines, self._ranks = engines, setting.ranks
        self._devices = setting.learners // engines.kind
        """Number of devices of all ranks."""
        self._images, self._seconds = 0, 0.0
        """Images and seconds of the current window. The values of rank 0 are used."""
        self.decisions: list[TunerDecision] = []
        """Decisions so far."""
        self._on_decision: Callable[[AnyDecision], None] = _ignore_decision
        self.tuner = Tuner(engines.kind, self._decided)

    def _decided(self, decision: TunerDecision) -> None:
        decision = replace(decision, devices=self._devices)
        self.decisions.append(decision)
        self._on_decision(decision)

    def describe(self, summary: RunSummary) -> RunSummary:
        """The summary of the current engine, and whether the number of learners may change."""
        return replace(summary, tuning=not self.tuner.settled)

    def state(self) -> dict[str, Any]:
        return {"learners": self._engines.kind, "best": self.tuner.best, "settled": self.tuner.settled}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Continue with the final number of learners, or search again from the best one so far. If that is impossible,
        search from the first number."""
        if "settled" not in state:
            return True
        engines, wanted = self._engines, state["best"]
        if wanted not in engines.kinds:
            try:
                engines.add(wanted)
            except ConfigurationError:
                return True
        before = engines.kind
        engines.select(wanted)
        if before != wanted:
            engines.drop(before)
        self.tuner = Tuner(wanted, self._decided)
        if state["settled"]:
            self.tuner.settle()
        return True

    def run(self, until: int, callbacks: Callbacks) -> None:
        """Train until the given number of tasks is done, window by window."""
        self._on_decision, stop = callbacks.on_decision, callbacks.stop
        try:
            while self._engines.now.tasks < until and not stop() and not callbacks.pause():
                if not self._change(self.tuner.learners, until, callbacks):
                    continue
                before = self._engines.now.tasks
                self._window(until, callbacks)
                if self._engines.now.tasks == before:
                    return  # a tick was abandoned
        finally:
            self._on_decision = _ignore_decision  # the engine outlives a run, and must not keep the callback alive

    def _change(self, learners: int, until: int, callbacks: Callbacks) -> bool:
        """Change the number of learners. Returns whether it was possible."""
        engines, compared = self._engines, self.tuner.compared
        for other in engines.kinds - compared - {engines.kind}:
            engines.drop(other)
        if learners in engines.kinds:
            self._switch(learners)
            return True
        if engines.kind not in compared and (kept := compared & engines.kinds):
            self._switch(min(kept))  # so that an engine that is no longer compared is closed before another is created
        try:
            engines.add(learners)
        except ConfigurationError as error:  # not enough memory on some rank, or rejected by the rule
            self.tuner.refused(str(error))
            return False
        self._switch(learners)
        warm = engines.now.tasks + WARMING_TICKS * engines.now.clock.tasks_per_host_tick
        engines.now.run(min(until, warm), callbacks)  # with two levels, up to the end of a tick of z
        return True

    def _switch(self, learners: int) -> None:
        """Continue with the existing engine for this number."""
        engines, before = self._engines, self._engines.kind
        if learners == before:
            return
        engines.go_on_with(learners)
        if before not in self.tuner.compared:
            engines.drop(before)
        self._images, self._seconds = 0, 0.0

    def _window(self, until: int, callbacks: Callbacks) -> None:
        """Train until the window, which may have begun in an earlier call, is over, and report its speed to the tuner.
        If nothing is compared, training continues without a break."""
        tuner, now, began = self.tuner, self._engines.now, time.perf_counter()

        def count(result: Completed) -> None:
            self._images += result.examples
            callbacks.on_result(result)

        def passed() -> None:
            nonlocal began
            present = time.perf_counter()
            self._seconds, began = self._seconds + present - began, present

        def rate() -> float | None:
            passed()
            over = self._images > 0 and self._seconds >= tuner.window_seconds
            return self._images / self._seconds if over else None

        def over() -> bool:
            return self._ranks.agree(rate) is not None

        def tell() -> None:
            if (found := self._ranks.agree(rate)) is not None:
                self._tell_tuner(found)

        def look() -> bool:
            tell()
            return callbacks.stop() or not tuner.settled

        if tuner.settled:
            now.run(until, replace(callbacks, on_result=count, stop=look))
            passed()
        else:
            now.run(until, replace(callbacks, on_result=count, stop=lambda: callbacks.stop() or over()))
            tell()

    def _tell_tuner(self, rate: float) -> None:
        """Report a window to the tuner, with its images/s."""
        self._images, self._seconds = 0, 0.0
        self.tuner.add(rate)


def _ignore_decision(decision: AnyDecision) -> None:
    """Do nothing."""
