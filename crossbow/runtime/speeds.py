"""Speeds of learners, from the durations of their tasks, and detection of changes that affect a rule.

A learner's time is that of its computations, without queues and waits for others. It is added up in *windows*, in which
every learner does at least WINDOW_TASKS tasks, and computes for at least WINDOW_SECONDS. The first window determines
the speeds; later windows are compared with it, and several consecutive windows that differ update the speeds.

There is no clock and no thread here: the engine reports the duration of each task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossbow.synch.grouping import ALIKE, Groups, groups_text

WARMING_TASKS = 5
"""Number of first tasks of each learner that are not measured."""
WINDOW_TASKS, WINDOW_SECONDS = 30, 0.3
CHANGED_WINDOWS = 3
"""Number of consecutive windows that must differ; shorter changes are ignored."""


@dataclass(frozen=True)
class Regrouping:
    """Groups that were formed by speed."""

    groups: Groups
    speeds: tuple[float, ...]
    """Tasks/s of each learner, while it computes."""

    def __str__(self) -> str:
        speeds = ", ".join(f"{speed:.1f}" for speed in self.speeds)
        return f"groups {groups_text(self.groups)}: learners 0 to {len(self.speeds) - 1} do {speeds} tasks/s"


class Speeds:
    """Measures learners' speeds."""

    def __init__(self, learners: int) -> None:
        self._tasks, self._seconds = [-WARMING_TASKS] * learners, [0.0] * learners
        """Tasks and seconds in the current window."""
        self._known: tuple[float, ...] | None = None
        """The speeds that were reported last."""
        self._changed = 0
        """Number of consecutive windows that differ from these speeds."""
        self._news: tuple[float, ...] | None = None

    def add(self, learner: int, seconds: float) -> None:
        """Add a task of a learner, with its computing time."""
        self._tasks[learner] += 1
        if self._tasks[learner] > 0:
            self._seconds[learner] += seconds
        if min(self._tasks) >= WINDOW_TASKS and min(self._seconds) >= WINDOW_SECONDS:
            self._end_window()

    def news(self) -> tuple[float, ...] | None:
        """Tasks/s of each learner, if they are known for the first time or have changed lastingly; reported once."""
        news, self._news = self._news, None
        return news

    def state(self) -> dict[str, Any]:
        """All measurements, as JSON values."""
        return {
            "tasks": self._tasks,
            "seconds": self._seconds,
            "known": self._known,
            "changed": self._changed,
            "news": self._news,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the measurements of the same number of learners."""
        self._tasks, self._seconds, self._changed = list(state["tasks"]), list(state["seconds"]), state["changed"]
        self._known, self._news = (None if each is None else tuple(each) for each in (state["known"], state["news"]))

    def _end_window(self) -> None:
        speeds = tuple(tasks / seconds for tasks, seconds in zip(self._tasks, self._seconds, strict=True))
        self._tasks, self._seconds = [0] * len(speeds), [0.0] * len(speeds)
        self._changed = self._changed + 1 if self._known is not None and _differ(self._known, speeds) else 0
        if self._known is None or self._changed == CHANGED_WINDOWS:
            self._known = self._news = speeds
            self._changed = 0


def _differ(before: tuple[float, ...], now: tuple[float, ...]) -> bool:
    """Whether the ratio of two learners' speeds has changed by more than the factor that is allowed within a group. A
    comparison of the resulting groups would change them constantly if speeds differ by about that factor."""
    ratios = [new / old for old, new in zip(before, now, strict=True)]
    return max(ratios) > ALIKE * min(ratios)
