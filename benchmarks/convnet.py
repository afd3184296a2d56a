"""The convnet benchmarks: forward and backward of a batch, in total and layer by layer, compared with PyTorch.

    python -m benchmarks.convnet

AlexNet, OverFeat, VGG-A and GoogLeNet as in github.com/soumith/convnet-benchmarks, without dropout and softmax.
Crossbow splits a batch over its learners (`--learners`); PyTorch has one model, channels-last, with one thread per
core. Each has a separate process. They take turns, and ratios are computed round by round. `--batch` sets a smaller
batch for machines with little memory.

The ratios are Crossbow's times divided by PyTorch's. The targets: at most 1 in total, and at most 0.7 for VGG-A.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.contest import Contest, Contestant
from benchmarks.convnet_runners import NETWORKS, CrossbowRunner, TorchRunner, Turn
from benchmarks.machine import describe_machine, has_torch
from benchmarks.output import write_json
from benchmarks.report import Spread, disturbance, markdown, paired, spread
from crossbow.console import run_command
from crossbow.runtime.device import available_cores
from crossbow.scripts.values import file_to_write, integer, number
from crossbow.types import bytes_text

CROSSBOW, TORCH = "Crossbow", "PyTorch"
PARTS = ("forward", "backward", "total")


@dataclass(frozen=True)
class Outcome:
    """The measurements of one network."""

    network: str
    batch: int
    turns: Mapping[str, Sequence[Turn]]
    """By system: a turn of every round."""
    memory: Mapping[str, int | None]
    """By system: peak resident memory in bytes; None if unknown."""
    others: float | None = None
    """Processors that other programs kept busy."""

    def seconds(self, system: str, part: str) -> Spread:
        """Seconds of a part: forward, backward or total."""
        return spread([getattr(turn, part) for turn in self.turns[system]])

    def ratio(self, part: str) -> Spread:
        """Crossbow's time divided by PyTorch's, round by round."""
        ours, theirs = ([getattr(turn, part) for turn in self.turns[system]] for system in (CROSSBOW, TORCH))
        return spread(paired(ours, theirs))

    def layer(self, system: str, name: str) -> tuple[float, float]:
        """Median seconds of forward and backward of a layer; 0 for one that a system does not have."""
        times = [turn.layers.get(name, (0.0, 0.0)) for turn in self.turns[system]]
        return statistics.median(time[0] for time in times), statistics.median(time[1] for time in times)

    def layers(self) -> list[str]:
        """The names of the layers, in order."""
        return list(dict.fromkeys(name for turns in self.turns.values() for name in turns[0].layers))


def measure(
    name: str, batch: int | None, learners: int, threads: int, *, rounds: int, seconds: float, patience: float
) -> Outcome:
    """Measure one network in turns."""
    network = NETWORKS[name]
    images = network.batch if batch is None else batch
    contestants = [
        Contestant(
            CROSSBOW,
            CrossbowRunner,
            {"network": name, "batch": images, "learners": learners, "threads": threads},
        )
    ]
    if has_torch():
        cores = len(available_cores())
        contestants.append(Contestant(TORCH, TorchRunner, {"network": name, "batch": images, "threads": cores}))
    with Contest(contestants, patience) as contest:
        turns = contest.turns(rounds, "turn", seconds)
        memory = {system: contest.ask(system, "peak_memory") for system in turns}
        return Outcome(name, images, turns, memory, contest.others)


def totals_table(outcomes: Iterable[Outcome]) -> str:
    """Milliseconds of both systems, and the ratios."""
    rows = []
    for outcome in outcomes:
        for part in PARTS:
            ours = outcome.seconds(CROSSBOW, part)
            row = [outcome.network, str(outcome.batch), part, _milliseconds(ours)]
            if TORCH in outcome.turns:
                row += [_milliseconds(outcome.seconds(TORCH, part)), outcome.ratio(part).text(".2f")]
            else:
                row += ["–", "–"]
            rows.append(row)
    return markdown(("network", "batch", "part", "Crossbow, ms", "PyTorch, ms", "Crossbow ÷ PyTorch"), rows)


def _milliseconds(seconds: Spread) -> str:
    return Spread(*(1e3 * value for value in (seconds.median, seconds.low, seconds.high))).text(",.0f")


def layers_table(outcome: Outcome) -> str:
    """Milliseconds of forward and backward of every layer, and the ratio of their sums."""
    rows = []
    for name in outcome.layers():
        forward, backward = outcome.layer(CROSSBOW, name)
        cells = [f"{1e3 * forward:,.1f}", f"{1e3 * backward:,.1f}", "–", "–", "–"]
        if TORCH in outcome.turns:
            theirs = outcome.layer(TORCH, name)
            cells[2:4] = (f"{1e3 * seconds:,.1f}" for seconds in theirs)
            if all(theirs):
                cells[4] = f"{(forward + backward) / sum(theirs):.2f}"
        rows.append([outcome.network, name, *cells])
    head = ("network", "layer", "forward", "backward", "PyTorch forward", "PyTorch backward", "Crossbow ÷ PyTorch")
    return markdown(head, rows)


def verdicts(outcomes: Iterable[Outcome]) -> list[str]:
    """Targets met or missed, one line each. They hold for the full batches; for others, the line says so."""
    lines = []
    for outcome in outcomes:
        if TORCH not in outcome.turns:
            continue
        network, ratio = NETWORKS[outcome.network], outcome.ratio("total").median
        word = "met" if ratio <= network.target else "MISSED"
        full = "" if outcome.batch == network.batch else f"; it is for batch {network.batch}"
        lines.append(
            f"{word}: {outcome.network}, batch {outcome.batch}: {ratio:.2f} of PyTorch's time "
            f"(target: at most {network.target}{full})"
        )
    return lines


def memory_line(outcome: Outcome) -> str:
    """Peak memory of both systems."""
    parts = [f"{system} {bytes_text(size)}" for system, size in outcome.memory.items() if size is not None]
    return f"- {outcome.network}: {', '.join(parts) or 'unknown'}"


def text(outcomes: Sequence[Outcome]) -> str:
    """The report, in Markdown."""
    parts = ["Milliseconds of a batch:", totals_table(outcomes)]
    if lines := verdicts(outcomes):
        parts.append("Targets:\n\n" + "\n".join(f"- {line}" for line in lines))
    parts.append("Peak memory:\n\n" + "\n".join(map(memory_line, outcomes)))
    for outcome in outcomes:
        parts += [f"Layers of {outcome.network}, batch {outcome.batch}, milliseconds:", layers_table(outcome)]
    return "\n\n".join(parts)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convnet",
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS), help="networks")
    add("--batch", type=integer(1), metavar="N", help="images in a batch, instead of the benchmark's 128 or 64")
    add("--learners", type=integer(1), default=len(available_cores()), metavar="K", help="Crossbow's learners")
    add("--threads-per-learner", type=integer(1), default=1, metavar="T", help="threads of each learner")
    add("--rounds", type=integer(1), default=5, metavar="N", help="turns of both systems")
    add("--seconds", type=number(0), default=0.0, metavar="S", help="least length of a turn; at least one batch runs")
    add("--patience", type=number(0), default=0.0, metavar="S", help="seconds a network to repeat disturbed rounds")
    add("--json", type=file_to_write, metavar="PATH", help="also write every measurement to this file")
    options = parser.parse_args(arguments)
    for name in options.networks:
        images = options.batch or NETWORKS[name].batch
        if images % options.learners:
            parser.error(f"--learners: expected a divisor of the batch, {images}. Received: {options.learners}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    machine = describe_machine()
    outcomes = []
    for name in options.networks:
        print(f"{name} …", file=sys.stderr, flush=True)
        outcomes.append(
            measure(
                name,
                options.batch,
                options.learners,
                options.threads_per_learner,
                rounds=options.rounds,
                seconds=options.seconds,
                patience=options.patience,
            )
        )
    split = f"{options.learners} × {options.threads_per_learner}"
    machine["Crossbow"] = f"{split}, learners × threads; PyTorch: 1 × {len(available_cores())}"
    machine["measured"] = f"{options.rounds} rounds, in turns; median (least–most)"
    machine["other programs"] = disturbance(outcomes)
    print("\n".join(f"- {name}: {value}" for name, value in machine.items()) + "\n\n" + text(outcomes))
    if not has_torch():
        print("\nPyTorch was left out: it is not installed here.")
    if options.json is not None:
        write_json(options.json, {"machine": machine, "outcomes": [asdict(outcome) for outcome in outcomes]})
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.convnet", main))
