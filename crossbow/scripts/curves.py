"""Plots of learning curves, of one run or of several."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossbow import Record
from crossbow.files import write_whole
from crossbow.types import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"epochs": "epoch", "seconds": "seconds of training", "images": "images"}
"""Names of the horizontal axes, and their labels."""
NEUTRAL = "0.4"
"""Colour of the lines in the legend that do not belong to a run: grey."""


@dataclass(frozen=True)
class Curves:
    """The records of one run."""

    records: Sequence[Record]
    batch_size: int | None = None
    """Number of images in a batch; required for the axis "images"."""

    def place(self, record: Record, x: str) -> float:
        """The position of the record on a horizontal axis."""
        if x == "images":
            assert self.batch_size is not None
            return record.tasks * self.batch_size
        return record.epoch if x == "epochs" else record.time


def write_learning_curves(records: Sequence[Record], path: str | os.PathLike[str], title: str) -> None:
    """Draw loss and accuracy of one run by epoch as a PNG. The file is written atomically.

    Raises DataError if matplotlib is not installed, or if the file cannot be written.
    """
    write_whole(path, curves_picture({"": Curves(records)}, title))


def curves_picture(runs: Mapping[str, Curves], title: str, x: str = "epochs", form: str = "png") -> bytes:
    """Loss and accuracy of runs, by name, as a picture: training dashed, tests solid. x: one of `AXES`. form: "png" or
    "svg". Raises DataError if matplotlib is not installed."""
    figure = new_figure()
    figure.suptitle(title)
    loss, accuracy = figure.subplots(1, 2)
    single = len(runs) == 1
    for number, (name, run) in enumerate(runs.items()):
        colours = ("C0", "C1") if single else (f"C{number % 10}",) * 2
        tested = [(run.place(record, x), record.test) for record in run.records if record.test is not None]
        without = "" if tested else name  # the name of a run that has not been tested
        training, test = ("training (mean of the learners)", "test (base model)") if single else (without, name)
        scored = [(place, test.accuracy) for place, test in tested if test.accuracy is not None]
        trained = [(run.place(record, x), record.accuracy) for record in run.records if record.accuracy is not None]
        losses = [(run.place(record, x), record.loss) for record in run.records]
        dashes = "-" if single else "--"
        _curve(loss, losses, training, colours[0], dashes)
        _curve(loss, [(place, test.loss) for place, test in tested], test, colours[1])
        _curve(accuracy, trained, training, colours[0], dashes)
        _curve(accuracy, scored, test, colours[1])
    for axes in () if single else (loss, accuracy):
        axes.plot([], [], label="test", color=NEUTRAL)
        axes.plot([], [], label="training", color=NEUTRAL, linestyle="--")
    _finish(loss, accuracy, AXES[x], all(record.loss > 0 for run in runs.values() for record in run.records))
    picture = io.BytesIO()
    figure.savefig(picture, format=form)
    return picture.getvalue()


def picture_format(path: Path) -> str:
    """The format that the file's ending selects, "png" or "svg". Raises DataError for another ending."""
    ending = path.suffix.removeprefix(".").lower()
    if ending not in ("png", "svg"):
        raise DataError(f"{path}: expected a file name that ends with .png or .svg. Received: {path.name!r}")
    return ending


def new_figure() -> Figure:
    """An empty figure. Raises DataError if matplotlib is not installed."""
    try:
        # Imported here, because it takes a second and about 40 MB; pyplot is not used, because it would open windows.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DataError("the picture needs matplotlib: pip install 'crossbow[zoo]'") from error
    figure = Figure(figsize=(10, 4), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _finish(loss: Axes, accuracy: Axes, label: str, logarithmic: bool) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    if logarithmic:
        loss.set_yscale("log")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes, name in ((loss, "loss"), (accuracy, "accuracy")):
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()


def _curve(axes: Axes, points: Sequence[tuple[float, float]], label: str, colour: str, line: str = "-") -> None:
    if points:
        places, values = zip(*points, strict=True)
        marker = "o" if len(points) < 40 else None
        axes.plot(places, values, label=label or None, color=colour, linestyle=line, marker=marker, markersize=3)
