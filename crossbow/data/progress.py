"""Progress bars of downloads and conversions on standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ProgressBars:
    """Progress bars on standard error, one per call of `begin`. Nothing is drawn before the first call.

    unit: name of the counted items, such as "images"; None for bytes.
    """

    def __init__(self, unit: str | None = None) -> None:
        self._unit = unit
        self._bars: Any = None

    def __enter__(self) -> ProgressBars:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, name: str) -> Callable[[int, int], None]:
        """Add a bar. Returns a function that sets it to (done, total); a total of 0 means that it is unknown."""
        if self._bars is None:
            self._bars = _bars(self._unit)
            self._bars.start()
        row = self._bars.add_task(name, total=None)
        return lambda done, total: self._bars.update(row, completed=done, total=total or None)


def _bars(unit: str | None) -> Any:
    from rich import progress
    from rich.console import Console

    counters: tuple[Any, ...] = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    if unit is not None:
        counters = (progress.MofNCompleteColumn(), progress.TextColumn(unit), progress.TimeRemainingColumn())
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *counters)
    return progress.Progress(*columns, console=Console(stderr=True))
