"""Plots of benchmarks.statistical_efficiency: accuracy by epoch, and epochs and time to the target."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.efficiency_report import Cell, count, percent
from benchmarks.report import Spread
from crossbow.files import write_whole
from crossbow.types import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BELOW = 0.05
"""Maximum distance below the target at which an accuracy axis begins."""


def write_pictures(cells: Sequence[Cell], directory: Path) -> list[str]:
    """Draw all trained cells. Returns the file names. Raises DataError if matplotlib is not installed."""
    trained = [cell for cell in cells if cell.trained]
    drawn = {f"accuracy-{rule}.png": _accuracies(trained, rule) for rule in dict.fromkeys(c.rule for c in trained)}
    if trained:
        target = percent(trained[0].settings[0].target)
        drawn["epochs.png"] = _to_target(trained, f"epochs to {target}", lambda cell: cell.epochs_to_target)
        if any(cell.seconds_to_target for cell in trained):
            drawn["seconds.png"] = _to_target(trained, f"seconds to {target}", lambda cell: cell.seconds_to_target)
    for name, figure in drawn.items():
        content = io.BytesIO()
        figure.savefig(content, format="png")
        write_whole(directory / name, content.getvalue())
    return list(drawn)


def _accuracies(cells: Sequence[Cell], rule: str) -> Figure:
    """First row: one panel per batch, with a line for each number of learners. Second row: the other way round."""
    of_rule = [cell for cell in cells if cell.rule == rule]
    figure, rows = _panels(of_rule, f"LeNet on MNIST, {rule}: test accuracy (median of the seeds, least to most)")
    for axes, group, by_learners in rows:
        values = sorted({cell.learners if by_learners else cell.batch_size for cell in of_rule})
        for cell in group:
            label = count(cell.learners, "learner") if by_learners else f"batch {cell.batch_size}"
            colour = values.index(cell.learners if by_learners else cell.batch_size)
            _curve(axes, cell.accuracies, label, f"C{colour}")
        axes.set_xlabel("epoch")
        axes.axhline(of_rule[0].settings[0].target, color="grey", linewidth=0.8, linestyle="--")
        _accuracy_axis(axes, group)
        axes.legend()
    return figure


def _curve(axes: Axes, accuracies: Sequence[Spread], label: str, colour: str) -> None:
    epochs = range(1, len(accuracies) + 1)
    axes.plot(epochs, [a.median for a in accuracies], label=label, color=colour, marker="o", markersize=3)
    axes.fill_between(epochs, [a.low for a in accuracies], [a.high for a in accuracies], color=colour, alpha=0.15)


def _accuracy_axis(axes: Axes, group: Sequence[Cell]) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    known = [accuracy for cell in group for accuracy in cell.accuracies]
    lowest = group[0].settings[0].target - BELOW
    if any(accuracy.high > lowest for accuracy in known):
        axes.set_ylim(bottom=max(lowest, min(accuracy.low for accuracy in known)))


def _to_target(cells: Sequence[Cell], title: str, measure: Callable[[Cell], Spread | None]) -> Figure:
    """First row: one panel per batch, against learners. Second row: one per number of learners, against batches. There
    is a line for each rule. Cells that did not reach the target are not drawn."""
    figure, rows = _panels(cells, f"LeNet on MNIST: {title} (median of the seeds, least to most)")
    rules = list(dict.fromkeys(cell.rule for cell in cells))
    for axes, group, by_learners in rows:
        ticks = sorted({cell.learners if by_learners else cell.batch_size for cell in group})
        for colour, rule in enumerate(rules):
            points = [
                (cell.learners if by_learners else cell.batch_size, found)
                for cell in group
                if cell.rule == rule and (found := measure(cell)) is not None and math.isfinite(found.median)
            ]
            if points:
                # Runs that did not reach the target are not drawn: the error bar ends at the median.
                highs = [f.high - f.median if math.isfinite(f.high) else 0.0 for _, f in points]
                axes.errorbar(
                    [x for x, _ in points],
                    [found.median for _, found in points],
                    yerr=[[found.median - found.low for _, found in points], highs],
                    label=rule,
                    color=f"C{colour}",
                    marker="o",
                    markersize=3,
                    capsize=2,
                )
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("learners" if by_learners else "batch of a learner")
        axes.set_ylim(bottom=0)
        if axes.containers:
            axes.legend()
    return figure


def _panels(cells: Sequence[Cell], title: str) -> tuple[Figure, list[tuple[Axes, list[Cell], bool]]]:
    """A figure with a panel for every batch in the first row, and for every number of learners in the second. Each
    panel comes with its cells, and with whether they differ in their number of learners."""
    try:
        # pyplot would open windows, so the figure is created without it.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DataError("the pictures need matplotlib: pip install 'crossbow[zoo]'") from error

    batches, learners = sorted({c.batch_size for c in cells}), sorted({c.learners for c in cells})
    columns = max(len(batches), len(learners))
    figure = Figure(figsize=(max(8, 4 * columns), 7.5), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    made = []
    for row, (values, by_learners) in enumerate(((batches, True), (learners, False))):
        for column, value in enumerate(values):
            axes = figure.add_subplot(2, columns, row * columns + column + 1)
            axes.set_title(f"batch {value}" if by_learners else count(value, "learner"))
            axes.grid(alpha=0.3)
            group = [c for c in cells if (c.batch_size if by_learners else c.learners) == value]
            made.append((axes, group, by_learners))
    return figure, made
