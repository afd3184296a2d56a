"""The command `crossbow compare`: the settings in which runs differ, and their results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from crossbow.scripts.logged_run import LoggedRun
from crossbow.scripts.plot_command import add_runs, named
from crossbow.scripts.values import number

UNKNOWN = "–"


def add_compare_command(commands: Any) -> None:
    """Add `compare` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "compare",
        help="print what differs in the settings of runs, and what they reached",
        description="Prints a table with a column for each run: the settings that differ, the length of training, the "
        "best test accuracy and, with --target, the epochs and seconds of training until it was reached.",
    )
    add_runs(parser)
    parser.add_argument(
        "--target", type=number(0, 1), metavar="A", help="a test accuracy, a fraction in [0, 1] (default: none)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object (default: a table)")
    parser.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> None:
    runs = named(options.runs)
    settings = differing(runs)
    results = {name: result(run, options.target) for name, run in runs.items()}
    if options.json:
        found = {name: {"settings": settings[name], "results": results[name]} for name in runs}
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    print(table(list(runs), [*_rows(settings, value_text), *_rows(results, result_text)]))


def differing(runs: Mapping[str, LoggedRun]) -> dict[str, dict[str, Any]]:
    """The settings of each run that differ between the runs. A missing setting is None."""
    names = dict.fromkeys(name for run in runs.values() for name in run.settings)
    differ = [name for name in names if len({_key(run.settings.get(name)) for run in runs.values()}) > 1]
    return {run: {name: found.settings.get(name) for name in differ} for run, found in runs.items()}


def result(run: LoggedRun, target: float | None) -> dict[str, float | None]:
    """The results of a run by name; None for missing results. Times are seconds of training, without tests."""
    last, best = (run.records[-1] if run.records else None), run.best
    found = {
        "epochs trained": None if last is None else last.epoch,
        "seconds of training": None if last is None else last.time,
        "images/s": _images_per_second(run),
        "best test accuracy": None if best is None or best.test is None else best.test.accuracy,
        "at epoch": None if best is None else best.epoch,
    }
    if target is not None:
        reached = run.reaching(target)
        found[f"epochs to {target:g}"] = None if reached is None else reached.epoch
        found[f"seconds to {target:g}"] = None if reached is None else reached.time
    return found


def table(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table as text: a heading, and rows with a name and a value for each column."""
    lines = [("", tuple(columns)), *((name, tuple(values)) for name, values in rows)]
    cells = [(name, *values) for name, values in lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def _rows(values: Mapping[str, Mapping[str, Any]], text: Any) -> list[tuple[str, list[str]]]:
    """Rows for `table`, from values by run and name."""
    names = next(iter(values.values()))
    return [(name, [text(name, run[name]) for run in values.values()]) for name in names]


def _images_per_second(run: LoggedRun) -> float | None:
    """Mean rate of all records, weighted by their time."""
    images = before = 0.0
    for record in run.records:
        images, before = images + record.images_per_second * (record.time - before), record.time
    return images / before if before else None


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def value_text(name: str, value: Any) -> str:
    """A setting as text."""
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def result_text(name: str, value: float | None) -> str:
    """A number of `result` as text."""
    if value is None:
        return UNKNOWN
    if "accuracy" in name:
        return f"{value:.2%}"
    return f"{value:,.0f}" if name == "images/s" else f"{value:,.1f}" if "second" in name else f"{value:,.4g}"
