"""The commands `crossbow resume` and `crossbow runs`."""

from __future__ import annotations

import argparse
import importlib
import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crossbow.files import file_error
from crossbow.runtime.directory_lock import check_unused
from crossbow.scripts.run_directory import RunDirectory
from crossbow.scripts.values import expanded_path
from crossbow.types import DataError


def add_run_commands(commands: Any) -> None:
    """Add the commands to the parser of `crossbow`."""
    resume = commands.add_parser(
        "resume",
        help="continue an interrupted run, or a finished one with more --epochs",
        usage="%(prog)s RUN [options of the run's script]",
        description="Continue a run from its newest checkpoint. Options of its script may be given anew, as "
        "--epochs 20 or --learners 4; the network, the data set, the batch size and the seed stay.",
    )
    resume.add_argument("directory", metavar="RUN", type=expanded_path, help="output directory of the run")
    resume.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    resume.set_defaults(run=lambda options: resume_run(options.directory, options.options))
    runs = commands.add_parser("runs", help="list runs: state, epochs, best test accuracy, images/s")
    runs.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        type=expanded_path,
        default=Path("output"),
        help="directory of a run, or directory with the directories of runs (default: %(default)s)",
    )
    runs.add_argument("--json", action="store_true", help="print a JSON list of objects (default: a table)")
    runs.set_defaults(run=lambda options: print(list_runs(options.directory, as_json=options.json)))


def resume_run(directory: Path, options: Sequence[str]) -> int:
    """Run the script of a run again, from the newest checkpoint. Returns the exit status. Raises DataError if the run
    cannot be resumed."""
    run = RunDirectory(directory)
    found = run.read()
    if run.state(found) == "finished" and not options:
        print(f"{directory}: this run has finished; --epochs N continues it up to N epochs")
        return 0
    check_unused(directory)
    arguments = [*found["arguments"], *options, "--output-directory", str(directory), "--resume"]
    sys.path.insert(0, found["working_directory"])  # as `python -m` does
    try:
        if found["module"].endswith(".py"):
            sys.argv = [found["module"], *arguments]
            runpy.run_path(found["module"], run_name="__main__")
            return 0
        status: int = importlib.import_module(found["module"]).main(arguments)
    except (ImportError, AttributeError) as error:
        expected = "expected a script that can be imported and has a function `main`"
        raise DataError(f"{run.description}: {expected}. Received: {error}") from error
    return status


def list_runs(directory: Path, *, as_json: bool) -> str:
    """The output of `crossbow runs`, as text or as JSON."""
    found = [_summary(RunDirectory(path.parent)) for path in _descriptions(directory)]
    if as_json:
        return json.dumps(found, indent=2)
    if not found:
        return f"{directory}: no runs"
    rows = [("run", "state", "epochs", "best test accuracy", "images/s"), *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _descriptions(directory: Path) -> list[Path]:
    """The descriptions of a run, or of all runs below a directory."""
    try:
        if not directory.is_dir():
            raise DataError(f"{directory}: expected a directory with runs. Received: no directory")
        own = directory / "run.json"
        return [own] if own.is_file() else sorted(directory.rglob("run.json"))
    except OSError as error:
        raise file_error(error, directory, "a directory with runs") from error


def _summary(run: RunDirectory) -> dict[str, Any]:
    try:
        description = run.read()
    except DataError as error:
        return {"run": str(run.path), "state": "unknown", "error": str(error)}
    records = _records(run.log)
    accuracies = [each["test_accuracy"] for each in records if each.get("test_accuracy") is not None]
    last: Mapping[str, Any] = records[-1] if records else {}
    return {
        "run": str(run.path),
        "state": run.state(description),
        "started": description.get("started"),
        "command": description.get("command"),
        "epochs": last.get("epoch", 0.0),
        "epochs_wanted": description.get("settings", {}).get("epochs"),
        "best_test_accuracy": max(accuracies, default=None),
        "images_per_second": last.get("images_per_second"),
    }


def _records(log: Path) -> list[dict[str, Any]]:
    """The records in a log. The last line may be incomplete if the run is training."""
    records = []
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "epoch" in found and "loss" in found:
            records.append(found)
    return records


def _row(summary: Mapping[str, Any]) -> tuple[str, ...]:
    if "error" in summary:
        return summary["run"], summary["state"], "", "", ""
    best, rate, wanted = (summary[name] for name in ("best_test_accuracy", "images_per_second", "epochs_wanted"))
    return (
        summary["run"],
        summary["state"],
        f"{summary['epochs']:g}" + (f"/{wanted:g}" if wanted else ""),
        "" if best is None else f"{best:.2%}",
        "" if rate is None else f"{rate:,.0f}",
    )
