"""Records in Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from crossbow.extras import optional_module
from crossbow.files import checked_path, make_directory
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.results import Record
from crossbow.types import ConfigurationError

MODES = ("online", "offline")


class WandbMonitor(Monitor):
    """Sends the numbers of every record to Weights & Biases; the step is the number of tasks.

    `mode="offline"` writes the run to the directory only; `wandb sync` sends it later. The run begins with training
    and ends when the monitor or its context is closed. Needs the package wandb: `pip install 'crossbow[wandb]'`. Raises
    ConfigurationError if it is not installed; training raises it if the run cannot begin, for example without an API
    key.
    """

    def __init__(
        self,
        project: str = "crossbow",
        *,
        name: str | None = None,
        directory: str | os.PathLike[str] = ".",
        mode: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """project, name: project and name of the run in Weights & Biases. directory: the directory in which its folder
        `wandb` is created. mode: "online" or "offline"; None means the value of the environment variable WANDB_MODE, or
        else "online". settings: a description of the run."""
        if mode is not None and mode not in MODES:
            raise ConfigurationError(f"WandbMonitor: mode must be one of {', '.join(MODES)}. Received: mode={mode!r}")
        self.directory = checked_path("WandbMonitor", directory)
        self.settings: dict[str, Any] = dict(settings or {})
        self._project, self._name, self._mode = project, name, mode
        self._wandb = optional_module("wandb", "WandbMonitor", "wandb")
        self._run: Any = None

    def progress(self, progress: Progress) -> None:
        if self._run is None:
            make_directory(self.directory)
            self._run = self._begin()

    def _begin(self) -> Any:
        try:
            return self._wandb.init(
                project=self._project,
                name=self._name,
                dir=str(self.directory),
                mode=self._mode,
                config=self.settings,
                settings=self._wandb.Settings(console="off"),  # otherwise it replaces standard output
            )
        except self._wandb.Error as error:  # no API key, or no connection
            raise ConfigurationError(
                f"WandbMonitor: expected a run to begin in Weights & Biases. Received: {error} Without an account, set "
                "WANDB_MODE=offline"
            ) from error

    def record(self, record: Record) -> None:
        numbers = {name: value for name, value in record.numbers().items() if value is not None}
        self._run.log(numbers, step=record.tasks)

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()
