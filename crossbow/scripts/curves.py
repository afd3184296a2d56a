"""Plot of the learning curves."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossbow import Record
from crossbow.files import write_whole
from crossbow.types import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_learning_curves(records: Sequence[Record], path: str | os.PathLike[str], title: str) -> None:
    """Draw loss and accuracy by epoch as a PNG. The file is written atomically.

    Raises DataError if matplotlib is not installed, or if the file cannot be written.
    """
    try:
        # Imported here, because it takes a second and some 40 MB; and without pyplot, which would open windows.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import PercentFormatter
    except ImportError as error:
        raise DataError("the picture of the learning curves needs matplotlib: pip install 'crossbow[zoo]'") from error

    figure = Figure(figsize=(10, 4), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    loss, accuracy = figure.subplots(1, 2)
    tested = [(record.epoch, record.test) for record in records if record.test is not None]
    scored = [(epoch, test.accuracy) for epoch, test in tested if test.accuracy is not None]
    trained = [(record.epoch, record.accuracy) for record in records if record.accuracy is not None]
    _curve(loss, [(record.epoch, record.loss) for record in records], "training (mean of the learners)", "C0")
    _curve(loss, [(epoch, test.loss) for epoch, test in tested], "test (base model)", "C1")
    _curve(accuracy, trained, "training (mean of the learners)", "C0")
    _curve(accuracy, scored, "test (base model)", "C1")
    if all(record.loss > 0 for record in records):
        loss.set_yscale("log")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes, name in ((loss, "loss"), (accuracy, "accuracy")):
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())


def _curve(axes: Axes, points: Sequence[tuple[float, float]], label: str, colour: str) -> None:
    if points:
        epochs, values = zip(*points, strict=True)
        axes.plot(epochs, values, label=label, color=colour, marker="o" if len(points) < 40 else None, markersize=3)
