"""The command `crossbow timeline`: it shows how a profiled run spent its time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from crossbow.scripts.run_directory import RunDirectory
from crossbow.scripts.values import expanded_path
from crossbow.timeline.timeline import Timeline
from crossbow.types import DataError


def add_timeline_command(commands: Any) -> None:
    """Add `timeline` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "timeline",
        help="print where the time of a run with --profile went",
        description="Prints the shares of each learner's time, the largest loss, and the operators' times in a "
        "training task. ui.perfetto.dev shows the file itself.",
    )
    parser.add_argument(
        "run_or_file", type=expanded_path, metavar="RUN", help="output directory of the run, or its trace.json.gz"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object (default: tables)")
    parser.set_defaults(run=_print)


def _print(options: argparse.Namespace) -> None:
    timeline = Timeline.load(timeline_file(options.run_or_file))
    print(json.dumps(numbers(timeline), indent=2, ensure_ascii=False) if options.json else timeline.describe())


def timeline_file(path: Path) -> Path:
    """The file of a timeline; for a directory, the timeline of its run. Raises DataError if the run has none."""
    if not path.is_dir():
        return path
    file = RunDirectory(path).timeline
    if not file.exists():
        raise DataError(f"{path}: expected the directory of a run with --profile. Received: one without {file.name}")
    return file


def numbers(timeline: Timeline) -> dict[str, Any]:
    """The shares and times of a timeline, as JSON values."""
    return {
        "tasks": timeline.tasks,
        "learners": {learner: timeline.shares(learner) for learner in timeline.learners},
        "losses": [
            {"learner": loss.learner, "kind": loss.kind, "cause": loss.cause, "share": loss.share}
            for loss in timeline.losses()
        ],
        "operators": [
            {
                "name": each.name,
                "calls": each.calls,
                "milliseconds": each.milliseconds,
                "share": each.share,
                "gigaflops": each.gigaflops,
                "kernels": each.kernels,
            }
            for each in timeline.operators()
        ],
    }
