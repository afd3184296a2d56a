"""The command `crossbow report`: it writes a report of a run as one HTML file."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from crossbow.files import reason, write_whole
from crossbow.scripts.compare_command import UNKNOWN, result, result_text, value_text
from crossbow.scripts.curves import Curves, curves_picture
from crossbow.scripts.logged_run import LoggedRun, read_run
from crossbow.scripts.run_directory import RunDirectory
from crossbow.scripts.run_summary import SUMMARY
from crossbow.scripts.timeline_picture import timeline_picture
from crossbow.scripts.values import expanded_path
from crossbow.timeline.timeline import SHOWN, Timeline
from crossbow.types import DataError

STYLE = """
body { font-family: sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 0.5em 0 1.5em }
th, td { border: 1px solid #ccc; padding: 0.2em 0.6em; text-align: left }
td.number { text-align: right; font-variant-numeric: tabular-nums }
figure { display: inline-block; margin: 0.5em; text-align: center; font-size: small }
figure img { width: 84px; image-rendering: pixelated; border: 1px solid #ccc }
img.curves { max-width: 100% }
svg.timeline { width: 100%; margin: 0.5em 0 1.5em }
"""
SLOWEST = 12
"""Number of operators that are listed with a timeline."""


def add_report_command(commands: Any) -> None:
    """Add `report` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "report",
        help="write a run as one HTML file, which needs no network",
        description="Writes results, learning curves, settings, learners, the timeline of a run with --profile and, "
        "once training has ended, the operators, the confusion matrix and the worst images as one HTML file without "
        "references to others.",
    )
    parser.add_argument("run_directory", type=expanded_path, metavar="RUN", help="output directory of the run")
    parser.add_argument(
        "-o",
        "--output",
        type=expanded_path,
        metavar="FILE",
        default=Path("report.html"),
        help="file to write (default: %(default)s)",
    )
    parser.set_defaults(run=_write)


def _write(options: Any) -> None:
    run = read_run(options.run_directory)
    file = RunDirectory(run.directory).timeline
    timeline = None
    if file.exists():
        try:
            timeline = Timeline.load(file)
        except DataError as error:  # the rest of the report does not need it
            print(f"no timeline: {error}")
    write_whole(options.output, report(run, read_summary(run.directory / SUMMARY), timeline).encode())
    print(options.output)


def read_summary(path: Path) -> dict[str, Any]:
    """The summary that a script wrote at the end of training; empty if there is none. Raises DataError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected a summary of a run (JSON). Received: {reason(error)}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a summary of a run, a JSON object. Received: {type(content).__name__}")
    return content


def report(run: LoggedRun, summary: dict[str, Any], timeline: Timeline | None = None) -> str:
    """The HTML file of a run, which is also well-formed XML."""
    name = escape(run.name)
    results = [(label, result_text(label, value)) for label, value in result(run, None).items()]
    settings = [(label, value_text(label, value)) for label, value in run.settings.items()]
    sections = [
        f"<h1>{name}</h1>",
        _table((), results),
        _curves(run),
        _section("Settings", _table(("setting", "value"), settings)),
        _learners(run),
        "" if timeline is None else _timeline(timeline),
        _section("Decisions", "".join(f"<p>{escape(text)}</p>" for text in run.decisions)),
        _operators(summary.get("operators", [])),
        _confusion(summary.get("classes", []), summary.get("confusion", [])),
        _worst(summary.get("classes", []), summary.get("worst", [])),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml">\n<head>\n<meta charset="utf-8"/>\n'
        f"<title>{name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{''.join(sections)}\n</body>\n</html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>\n{content}\n" if content else ""


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of texts and of right-aligned numbers; empty if there are no rows."""
    lines = []
    for row in rows:
        cells = [
            f'<td class="number">{cell:,}</td>' if isinstance(cell, int) else f"<td>{escape(str(cell))}</td>"
            for cell in row
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    if not lines:
        return ""
    heading = f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in headings)}</tr>\n" if headings else ""
    return f"<table>\n{heading}" + "\n".join(lines) + "\n</table>\n"


def _image(data: str, kind: str, alternative: str, css: str = "") -> str:
    """An image that is embedded in the file. data: the image in base64."""
    class_name = f' class="{css}"' if css else ""
    return f'<img{class_name} src="data:image/{kind};base64,{data}" alt="{escape(alternative)}"/>'


def _curves(run: LoggedRun) -> str:
    if not run.records:
        return "<p>Nothing was recorded.</p>"
    picture = curves_picture({run.name: Curves(run.records)}, "", "epochs", "svg")
    return _image(base64.b64encode(picture).decode(), "svg+xml", "loss and accuracy by epoch", "curves")


def _learners(run: LoggedRun) -> str:
    """A table of the learners in the last record."""
    if not run.records:
        return ""
    record = run.records[-1]
    rows = [
        (
            each.learner,
            *(f"{share:.0%}" for share in (each.computing, each.averaging, each.waiting, each.data)),
            round(each.images_per_second),
            UNKNOWN if each.distance is None else f"{each.distance:.2e}",
        )
        for each in record.learners
    ]
    headings = ("learner", "computing", "averaging", "waiting for others", "waiting for data", "images/s", "‖w−z‖/‖z‖")
    return _section(f"Learners in epoch {record.epoch:g}", _table(headings, rows))


def _timeline(timeline: Timeline) -> str:
    """A table of the shares of the learners' time, and a picture of some tasks."""
    rows = [(learner, *(f"{timeline.shares(learner)[kind]:.1%}" for kind in SHOWN)) for learner in timeline.learners]
    slowest = sorted(timeline.operators(), key=lambda each: -each.milliseconds)[:SLOWEST]
    operators = [(each.name, f"{each.milliseconds:.3f}", f"{each.share:.1%}", each.kernels) for each in slowest]
    parts = [
        _table(("", *SHOWN.values()), rows),
        f"<p>Largest loss: {escape(timeline.largest_loss())}.</p>\n",
        timeline_picture(timeline),
        _table(("operator", "ms per task", "share", "kernels"), operators),
    ]
    return _section(f"Timeline of {timeline.tasks:,} tasks", "".join(parts))


def _operators(rows: Sequence[dict[str, Any]]) -> str:
    cells = [(row["name"], row["type"], row["output"], row["parameters"]) for row in rows]
    return _section("Operators", _table(("operator", "type", "output", "parameters"), cells))


def _confusion(classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """The confusion matrix, with a row for each label and a column for each predicted class. The colour of a cell shows
    its share of the row."""
    if not matrix:
        return ""
    lines = ["<tr><th>label \\ predicted</th>" + "".join(f"<th>{escape(name)}</th>" for name in classes) + "</tr>"]
    for name, row in zip(classes, matrix, strict=True):
        total = max(1, sum(row))
        cells = "".join(
            f'<td class="number" style="background: rgba(31, 119, 180, {0.8 * count / total:.3f})">{count:,}</td>'
            for count in row
        )
        lines.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return _section("Confusion matrix of the test set", "<table>\n" + "\n".join(lines) + "\n</table>")


def _worst(classes: Sequence[str], entries: Sequence[dict[str, Any]]) -> str:
    """The wrongly classified examples with the largest errors."""
    figures = []
    for entry in entries:
        label, predicted = classes[entry["label"]], classes[entry["predicted"]]
        right, wrong = entry["outputs"]
        text = f"{entry['index']}: {label} ({right:.2g}), predicted {predicted} ({wrong:.2g})"
        picture = _image(entry["png"], "png", text) if "png" in entry else ""
        figures.append(f"<figure>{picture}<figcaption>{escape(text)}</figcaption></figure>")
    return _section("Worst test examples", "\n".join(figures))
