"""Report of benchmarks.statistical_efficiency: medians over the seeds, tables in Markdown, and the check."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contest import QUIET
from benchmarks.efficiency_run import DIVERGED, REFUSED, RunResult, RunSettings, Speed, speed_settings
from benchmarks.report import Spread, markdown, spread
from crossbow.synch import BarrierRule, rule_class

RULE, BATCH, FEW, MANY, MORE = "sma", 32, 1, 8, 1
"""The check: with this rule and batch, MANY learners need at most MORE epochs more than FEW to reach the target."""

SOLVER = "momentum", "weight_decay", "clip_gradient_norm", "policy"
"""Settings that all runs share, and that the report states."""


@dataclass(frozen=True)
class Cell:
    """Runs that differ only in their seed."""

    settings: tuple[RunSettings, ...]
    """One for each seed of the grid."""
    results: tuple[RunResult, ...]
    """Results of the completed runs, including refused ones."""
    speeds: tuple[Speed, ...] = ()
    """Speeds by round, if measured."""

    @property
    def rule(self) -> str:
        return self.settings[0].rule

    @property
    def batch_size(self) -> int:
        return self.settings[0].batch_size

    @property
    def learners(self) -> int:
        return self.settings[0].learners

    @property
    def trained(self) -> list[RunResult]:
        """Results that were not refused."""
        return [result for result in self.results if result.status != REFUSED]

    @property
    def refused(self) -> list[RunResult]:
        return [result for result in self.results if result.status == REFUSED]

    @property
    def missing_seeds(self) -> list[int]:
        done = {result.settings.seed for result in self.results}
        return [settings.seed for settings in self.settings if settings.seed not in done]

    @property
    def epochs_to_target(self) -> Spread | None:
        """Epochs until the target was reached: infinite if a run did not reach it; None if there are no runs."""
        return _spread([_or_never(result.epochs_to_target) for result in self.trained])

    @property
    def seconds_per_epoch(self) -> Spread | None:
        return _spread([speed.seconds for speed in self.speeds])

    @property
    def seconds_to_target(self) -> Spread | None:
        """Seconds of training: epochs to the target at the median speed."""
        epochs, speed = self.epochs_to_target, self.seconds_per_epoch
        if epochs is None or speed is None:
            return None
        return Spread(*(speed.median * number for number in (epochs.median, epochs.low, epochs.high)))

    @property
    def best_accuracy(self) -> Spread | None:
        return _spread([max((epoch.accuracy for epoch in r.epochs), default=0.0) for r in self.trained])

    @property
    def accuracies(self) -> list[Spread]:
        """Test accuracies by epoch, up to the last epoch of the shortest run. After it, the remaining runs are the slow
        ones, so their median would be biased."""
        length = min((len(result.epochs) for result in self.trained), default=0)
        return [spread([result.epochs[i].accuracy for result in self.trained]) for i in range(length)]


def _or_never(value: float | None) -> float:
    return math.inf if value is None else value


def _spread(values: Sequence[float]) -> Spread | None:
    return spread(values) if values else None


def cells(
    grid: Sequence[RunSettings], results: Mapping[str, RunResult], speeds: Mapping[str, Sequence[Speed]]
) -> list[Cell]:
    """The cells of the grid, sorted by rule in the grid's order, then by batch and learners. `results` and `speeds` are
    keyed by the name of their settings."""
    rules = list(dict.fromkeys(settings.rule for settings in grid))
    groups: dict[tuple[int, int, int], list[RunSettings]] = {}
    for settings in grid:
        groups.setdefault((rules.index(settings.rule), settings.batch_size, settings.learners), []).append(settings)
    return [
        Cell(
            tuple(group),
            tuple(results[settings.name] for settings in group if settings.name in results),
            tuple(speeds.get(speed_settings(group[0]).name, ())),
        )
        for _, group in sorted(groups.items())
    ]


# Tables


def results_table(cells: Sequence[Cell], target: str) -> str:
    """A row for every cell with at least one run."""
    head = [
        "rule",
        "batch",
        "learners",
        "seeds",
        f"epochs to {target}",
        "seconds an epoch",
        f"seconds to {target}",
        "best",
    ]
    rows = [
        [
            cell.rule,
            str(cell.batch_size),
            str(cell.learners),
            f"{len(cell.trained)} of {len(cell.settings)}",
            _cell_text(cell.epochs_to_target, ".0f"),
            _cell_text(cell.seconds_per_epoch, ".2f"),
            _cell_text(cell.seconds_to_target, ",.1f"),
            _cell_text(cell.best_accuracy, ".2%"),
        ]
        for cell in cells
        if cell.trained
    ]
    return markdown(head, rows)


def accuracy_table(cells: Sequence[Cell]) -> str:
    """Median test accuracy after every epoch, for cells of one batch size."""
    shown = [cell for cell in cells if cell.accuracies]
    longest = max((len(cell.accuracies) for cell in shown), default=0)
    rows = []
    for cell in shown:
        medians = [f"{accuracy.median:.2%}" for accuracy in cell.accuracies]
        rows.append([cell.rule, str(cell.learners), *medians, *[""] * (longest - len(medians))])
    return markdown(["rule", "learners", *(str(epoch) for epoch in range(1, longest + 1))], rows)


def _cell_text(found: Spread | None, form: str) -> str:
    """A median with the minimum and the maximum, if they differ.

    >>> [_cell_text(Spread(*found), ".0f") for found in ((5, 4, math.inf), (4.5, 4, 5), (4, 4, 4))]
    ['5 (4–∞)', '4.5 (4–5)', '4']
    """
    if found is None:
        return "–"
    median, low, high = (
        f"{value:{'.1f' if form == '.0f' and value % 1 else form}}" for value in (found.median, found.low, found.high)
    )
    text = median if low == high else f"{median} ({low}–{high})"
    return text.replace("inf", "∞")


# Missing and failed runs


def missing(cells: Sequence[Cell], speed_rounds: int = 0) -> list[str]:
    """Missing runs, one line for each rule and batch; then missing measurements of speed.

    speed_rounds: number of rounds; 0 is the maximum over all cells.
    """
    lines = []
    for rule, batch, group in _by_rule_and_batch(cells):
        number = sum(len(cell.missing_seeds) for cell in group)
        if not number:
            continue
        runs = sum(len(cell.settings) for cell in group)
        which = "; ".join(
            f"{count(cell.learners, 'learner')}: {_numbers('seed', cell.missing_seeds)}"
            for cell in group
            if cell.missing_seeds
        )
        lines.append(f"{rule}, batch {batch}: " + ("all" if number == runs else f"{number} of {runs} ({which})"))
    return lines + _missing_speeds(cells, speed_rounds or max(len(cell.speeds) for cell in cells))


def _missing_speeds(cells: Sequence[Cell], rounds: int) -> list[str]:
    """Missing measurements of cells that the engine does not refuse."""
    lines = []
    for rule, batch, group in _by_rule_and_batch([cell for cell in cells if cell.trained or not cell.refused]):
        short = [cell for cell in group if len(cell.speeds) < rounds]
        if not short:
            continue
        which = "; ".join(
            f"{count(cell.learners, 'learner')}: {rounds - len(cell.speeds)} of {count(rounds, 'round')}"
            for cell in short
        )
        lines.append(f"{rule}, batch {batch}, speed: " + (which if any(cell.speeds for cell in group) else "all"))
    return lines


def _by_rule_and_batch(cells: Sequence[Cell]) -> list[tuple[str, int, list[Cell]]]:
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.rule, cell.batch_size), []).append(cell)
    return [(rule, batch, group) for (rule, batch), group in groups.items()]


def refused(cells: Sequence[Cell]) -> list[str]:
    """Runs that the engine refused, with the reasons, one line for each reason."""
    sentences: dict[tuple[str, str], int] = {}
    for cell in cells:
        for result in cell.refused:
            key = cell.rule, result.sentence
            sentences[key] = sentences.get(key, 0) + 1
    return [f"{rule}, {count(number, 'run')}: {sentence}" for (rule, sentence), number in sentences.items()]


def diverged(cells: Sequence[Cell]) -> list[str]:
    """Runs with non-finite numbers."""
    return [f"{r.settings}: {r.sentence}" for cell in cells for r in cell.trained if r.status == DIVERGED]


def verdict(cells: Sequence[Cell]) -> str:
    """Whether the check is met, missed or not measured, with its numbers."""
    found = {cell.learners: cell for cell in cells if (cell.rule, cell.batch_size) == (RULE, BATCH)}
    claim = (
        f"with {RULE.upper()} at batch {BATCH}, {MANY} learners reach the accuracy of {FEW} within one more epoch "
        "(median of the seeds)"
    )
    for learners in (FEW, MANY):
        if learners not in found:
            return f"not measured: {claim}: the grid has no run of {count(learners, 'learner')}"
        cell = found[learners]
        if cell.refused:
            return f"not measured: {claim}: {cell.refused[0].sentence}"
        if cell.missing_seeds:
            return (
                f"not measured: {claim}: {count(learners, 'learner')}, {_numbers('seed', cell.missing_seeds)} missing"
            )
    few, many = ([_or_never(result.epochs_to_target) for result in found[n].trained] for n in (FEW, MANY))
    first = found[FEW].settings[0]
    target = percent(first.target)
    before, after = statistics.median(few), statistics.median(many)
    if before == math.inf:
        epochs = count(first.max_epochs, "epoch")
        return f"not measured: {claim}: {count(FEW, 'learner')} did not reach {target} in {epochs}"
    word = "met" if after <= before + MORE else "missed"
    reached = f"{MANY} learners " + (
        f"did not reach {target} in {count(first.max_epochs, 'epoch')}"
        if after == math.inf
        else f"reached {target} after {count(after, 'epoch')}"
    )
    return f"{word}: {claim}: {reached}, {count(FEW, 'learner')} after {before:g}"


# The whole report


def report(cells: Sequence[Cell], pictures: Sequence[str], speed_rounds: int = 0) -> str:
    """The report, in Markdown. pictures: names of plots in the same directory; speed_rounds: as in `missing`."""
    first = cells[0].settings[0]
    target, parts = percent(first.target), ["# Statistical efficiency"]
    trained = [result for cell in cells for result in cell.trained]
    runs = sum(len(cell.settings) for cell in cells)
    parts.append(f"{len(trained)} of {count(runs, 'run')} trained. The check is {verdict(cells)}.")
    parts.append("\n".join(f"- {name}: {text}" for name, text in _about(cells, trained).items()))
    if trained:
        speeds = (
            "Seconds an epoch, tests not included, were measured by themselves, in turns; seconds to the target are "
            "epochs to it at the median speed. "
        )
        parts += [
            f"Median (least–most) over the seeds; ∞: a run did not reach {target} in "
            f"{count(first.max_epochs, 'epoch')}, or diverged. "
            f"{speeds if any(cell.speeds for cell in cells) else ''}Best is the best test accuracy of a run.",
            results_table(cells, target),
        ]
        for batch in sorted({cell.batch_size for cell in cells if cell.trained}):
            parts.append(f"## Test accuracy by epoch, batch {batch}")
            parts.append(f"Median over the seeds, as far as all of them went: a run ends {_end(first)}.")
            parts.append(accuracy_table([cell for cell in cells if cell.batch_size == batch]))
    for title, lines in (
        ("Diverged", diverged(cells)),
        ("Refused by the engine", refused(cells)),
        ("Missing", missing(cells, speed_rounds)),
    ):
        if lines:
            parts.append(f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines))
    parts += [f"![{name.removesuffix('.png')}]({name})" for name in pictures]
    return "\n\n".join(parts) + "\n"


def _end(settings: RunSettings) -> str:
    later = settings.further_epochs
    further = f"{count(later, 'epoch')} after the one" if later else "with the epoch"
    further += f" that reaches {percent(settings.target)}"
    return f"{further}, or after {settings.max_epochs}"


def _about(cells: Sequence[Cell], trained: Sequence[RunResult]) -> dict[str, str]:
    """Settings, machines and commits of the runs, in printing order."""
    first = cells[0].settings[0]
    solver = {name: value for name, value in first.solver.items() if name in SOLVER}
    rules = {c.rule: c.settings[0].rule_parameters for c in cells}
    momenta = [f"{m:g}" for parameters in rules.values() if (m := parameters.get("base_momentum"))]
    about = {
        "network": f"LeNet, {first.variant}, on MNIST (data {first.data or 'unknown'})",
        "learning rate": _rates(cells),
        **{name.replace("_", " "): "none" if value is None else str(value) for name, value in solver.items()},
        "momentum of SMA's average model": ", ".join(momenta),
        "devices": first.devices,
        "threads of a learner": str(first.threads_per_learner or "its share of the cores, one at the least"),
    }
    for name in ("processor", "cores", "memory", "system", "versions"):
        about[name] = "; ".join(dict.fromkeys(result.machine.get(name, "unknown") for result in trained))
    about["commit"] = ", ".join(dict.fromkeys(result.commit for result in trained))
    held, free = (
        [result for result in trained if issubclass(rule_class(result.settings.rule), BarrierRule) == barrier]
        for barrier in (True, False)
    )
    about["other programs"] = _busy(held, "with a barrier epochs do not depend on it")
    about["other programs, runs without a barrier"] = _busy(free, "without a barrier epochs depend on it")
    about["date"] = _dates(trained)
    speeds = [speed for cell in cells for speed in cell.speeds]
    about["other programs, speeds"] = _busy(speeds, "seconds depend on it: measure again")
    about["commit, speeds"] = ", ".join(dict.fromkeys(speed.commit for speed in speeds))
    about["date, speeds"] = _dates(speeds)
    return {name: text for name, text in about.items() if text}


def _rates(cells: Sequence[Cell]) -> str:
    """A text with the learning rate of most batch sizes, then the other rates, each with the cells that use it."""
    batches: dict[tuple[str, str], list[int]] = {}
    """Batch sizes by their usual learning rate and by a text about the cells with another one."""
    for batch in sorted({cell.batch_size for cell in cells}):
        group = [cell for cell in cells if cell.batch_size == batch]
        rates = [f"{cell.settings[0].solver['learning_rate']:g}" for cell in group]
        usual = max(rates, key=lambda rate: (rates.count(rate), -float(rate)))
        others = [
            f", {cell.rule} of {count(cell.learners, 'learner')}: {rate}"
            for cell, rate in zip(group, rates, strict=True)
            if rate != usual
        ]
        batches.setdefault((usual, "".join(others)), []).append(batch)
    common = max(batches, key=lambda key: (len(batches[key]), max(batches[key])))
    of_others = [
        f"{usual} with batch {', '.join(map(str, of))}{others}"
        for (usual, others), of in batches.items()
        if (usual, others) != common
    ]
    return "; ".join(["".join(common), *of_others])


def _busy(measured: Sequence[RunResult | Speed], if_busy: str) -> str:
    """A sentence on the load that other programs put on the machine. if_busy: the consequence of a high load."""
    others = [each.others for each in measured if each.others is not None]
    if not others:
        return ""
    text = f"kept {statistics.mean(others):.2f} processors busy (at worst {max(others):.2f})"
    return text + (f": not a quiet machine; {if_busy}" if max(others) > QUIET else "")


def _dates(measured: Sequence[RunResult | Speed]) -> str:
    dates = sorted({each.date for each in measured})
    return " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else ""


def percent(fraction: float) -> str:
    """A target accuracy.

    >>> percent(0.99), percent(0.985)
    ('99 %', '98.5 %')
    """
    return f"{100 * fraction:g} %"


def count(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"


def _numbers(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
