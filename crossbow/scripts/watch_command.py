"""The command `crossbow watch`: it shows the progress of a run in another terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from crossbow import ConsoleMonitor
from crossbow.monitors.console import learner_table
from crossbow.monitors.status import read_status
from crossbow.scripts.logged_run import LoggedRun, read_run
from crossbow.scripts.values import expanded_path

STATUS = "progress.json"
"""File in the output directory that has the progress of a run."""
INTERVAL = 0.5
"""Interval in seconds at which the files are read."""


def add_watch_command(commands: Any) -> None:
    """Add `watch` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "watch",
        help="show the progress of a run, live or afterwards",
        description="Shows what the training script shows in its terminal: a line for each record, a progress bar "
        "and a row for each learner. It ends with the run, or with Ctrl-C, which does not affect the run.",
    )
    parser.add_argument("run_directory", type=expanded_path, metavar="RUN", help="output directory of the run")
    parser.set_defaults(run=lambda options: watch(options.run_directory))


def watch(directory: Path) -> None:
    """Print the records of a run, and follow it until it ends."""
    shown = 0
    run, status = read_run(directory), read_status(directory / STATUS)
    with ConsoleMonitor(
        epochs=None if status is None else status.epochs, seconds=None if status is None else status.seconds
    ) as console:
        while True:
            for record in run.records[shown:]:
                console.record(record)
            shown = len(run.records)
            if status is None or not status.running:
                break
            if status.progress is not None:
                console.progress(status.progress)
            time.sleep(INTERVAL)
            # In this order, so that all records that are logged before the run ends are shown.
            status, run = read_status(directory / STATUS), read_run(directory)
    _print_end(run)


def _print_end(run: LoggedRun) -> None:
    """Print the learners of the last record, and the best record."""
    if not run.records:
        print("nothing was recorded")
        return
    table = learner_table(run.records[-1].learners, ())
    if table is not None:
        from rich.console import Console

        Console().print(table)
    if run.best is not None and run.best.test is not None and run.best.test.accuracy is not None:
        print(f"best test accuracy {run.best.test.accuracy:.2%} in epoch {run.best.epoch:g}")
