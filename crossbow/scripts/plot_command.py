"""The command `crossbow plot`: learning curves of runs in one picture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crossbow.console import WRONG, say
from crossbow.files import write_whole
from crossbow.scripts.curves import AXES, Curves, curves_picture, picture_format
from crossbow.scripts.logged_run import LoggedRun, read_run
from crossbow.scripts.values import expanded_path
from crossbow.types import DataError


def add_plot_command(commands: Any) -> None:
    """Add `plot` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "plot",
        help="draw the learning curves of runs in one picture",
        description="Draws loss and accuracy of one or more runs: of tests solid and, with several runs, of training "
        "dashed. A run may still be training. Runs that cannot be drawn are named on stderr, and the exit status is "
        "then 2.",
    )
    add_runs(parser)
    parser.add_argument(
        "--x", choices=tuple(AXES), default="epochs", help="horizontal axis: %(choices)s (default: %(default)s)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=expanded_path,
        metavar="FILE",
        default=Path("curves.png"),
        help="file to write, which ends with .png or .svg (default: %(default)s)",
    )
    parser.set_defaults(run=_plot)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the argument of one or more runs."""
    parser.add_argument("runs", nargs="+", type=expanded_path, metavar="RUN", help="output directory of a run")


def named(directories: Sequence[Path]) -> dict[str, LoggedRun]:
    """The runs by the names of their directories, or by their paths if several names are equal. Raises DataError if a
    directory is not that of a run, or is given twice."""
    return by_name([read_run(directory) for directory in directories])


def by_name(runs: Sequence[LoggedRun]) -> dict[str, LoggedRun]:
    """The runs by the names of `named`. Raises DataError if a run is given twice."""
    names = [run.name for run in runs]
    found: dict[str, LoggedRun] = {}
    for run in runs:
        name = run.name if names.count(run.name) == 1 else str(run.directory)
        if name in found:
            raise DataError(f"{name}: expected every run once. Received: this one twice")
        found[name] = run
    return found


def _plot(options: argparse.Namespace) -> int:
    """Draw all runs that can be drawn. Returns the exit status."""
    form = picture_format(options.output)
    status, found = 0, []
    for directory in options.runs:
        try:
            found.append(_drawable(directory, options.x))
        except DataError as error:
            status = WRONG
            say(f"crossbow: error: {error}")
    if not found:
        return status
    runs = by_name(found)
    curves = {name: Curves(run.records, run.batch_size) for name, run in runs.items()}
    title = next(iter(runs)) if len(runs) == 1 else ""
    write_whole(options.output, curves_picture(curves, title, options.x, form))
    print(options.output)
    return status


def _drawable(directory: Path, axis: str) -> LoggedRun:
    """The run of a directory. Raises DataError if it has no curves over this axis."""
    run = read_run(directory)
    if not run.records:
        raise DataError(f"{directory}: expected a run with records. Received: one without, so far")
    if axis == "images" and run.batch_size is None:
        raise DataError(f"{directory}: --x images needs the batch size, which its log does not have")
    return run
