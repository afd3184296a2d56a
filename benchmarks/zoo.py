"""Images per second and memory of every network of the zoo, compared with PyTorch.

    python -m benchmarks.zoo --csv zoo.csv

Each network of `crossbow models` is trained as in `benchmarks.learners`: with one learner on all cores, with one
learner per core, and in PyTorch, from prepared batches, with one model on all cores. The PyTorch network has the same
layers (`benchmarks/torch_network.py`). All take turns, each in its own process; the ratio is that of Crossbow's
learners, one per core, to PyTorch, computed round by round.

Networks for large images have a separate batch size (`--large-batch`). The CSV file is written after every network, so
it also has the rows of an interrupted run.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.contest import Contest, Contestant, ContestError
from benchmarks.crossbow_runner import CrossbowRunner
from benchmarks.machine import describe_machine, has_torch
from benchmarks.report import disturbance, markdown, paired, spread
from benchmarks.torch_runner import TorchRunner
from benchmarks.zoo_networks import is_large, torch_problem
from crossbow.console import run_command
from crossbow.files import write_whole
from crossbow.runtime.device import available_cores
from crossbow.scripts import ModelDescription
from crossbow.scripts.values import file_to_write, integer, number
from models.listing import descriptions

ONE, MANY, TORCH = "one learner", "one learner per core", "PyTorch"
WARM_UP = 0.25
"""Length of the warm-up before every turn, as a fraction of the counted seconds."""
RATINGS_BATCH = 4096
"""Batch of the network whose examples are pairs of a user and an item."""


@dataclass(frozen=True)
class Row:
    """The measurements of one network; PyTorch's are None if it has no equivalent, or is not installed."""

    network: str
    parameters: int
    batch: int
    """Number of images in a batch of a learner, and of PyTorch's model."""
    one_learner: float
    """Images per second with one learner: the median of the rounds, as for all rates."""
    learners: float
    pytorch: float | None
    ratio: float | None
    """Rate of the learners divided by PyTorch's: the median of the rounds' ratios."""
    memory: int | None
    """Peak resident memory with one learner per core, in bytes."""
    pytorch_memory: int | None
    others: float | None
    """Processors that other programs kept busy."""


def contestants(described: ModelDescription, batch: int, *, torch: bool) -> list[Contestant]:
    """The contestants of one network."""
    cores, network = len(available_cores()), {"network": described.command, "batch": batch}
    crossbow = {**network, "kernels": "auto"}
    made = [
        Contestant(ONE, CrossbowRunner, {**crossbow, "learners": 1, "threads": cores}),
        Contestant(MANY, CrossbowRunner, {**crossbow, "learners": cores, "threads": 1}),
    ]
    if torch:
        made.append(Contestant(TORCH, TorchRunner, {**network, "models": 1, "threads": cores}))
    return made


def measure(described: ModelDescription, batch: int, rounds: int, seconds: float, *, torch: bool) -> Row:
    """Measure one network in turns. Raises ContestError."""
    with Contest(contestants(described, batch, torch=torch)) as contest:
        rates = contest.rounds(rounds, WARM_UP * seconds, seconds)
        memory = {name: contest.ask(name, "peak_memory") for name in contest.contestants}
        return row(described, batch, rates, memory, contest.others)


def row(
    described: ModelDescription,
    batch: int,
    rates: Mapping[str, Sequence[float]],
    memory: Mapping[str, int | None],
    others: float | None,
) -> Row:
    """The medians of a network's rates, by contestant and round."""
    torch = rates.get(TORCH)
    return Row(
        network=described.name,
        parameters=described.parameters,
        batch=batch,
        one_learner=spread(rates[ONE]).median,
        learners=spread(rates[MANY]).median,
        pytorch=None if torch is None else spread(torch).median,
        ratio=None if torch is None else spread(paired(rates[MANY], torch)).median,
        memory=memory[MANY],
        pytorch_memory=memory.get(TORCH),
        others=others,
    )


def as_csv(rows: Sequence[Row]) -> str:
    """All fields of all rows, with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def table(rows: Sequence[Row]) -> str:
    """The table for docs/results.md."""
    cores = len(available_cores())
    head = (
        *("network", "batch", "parameters", f"1 learner, {cores} threads", f"{cores} learners", "PyTorch"),
        *("ratio", "memory", "PyTorch's"),
    )
    cells = [
        (
            *(row.network, str(row.batch), f"{row.parameters:,}", _rate(row.one_learner), _rate(row.learners)),
            *(_rate(row.pytorch), "–" if row.ratio is None else f"{row.ratio:.2f}"),
            *(_megabytes(row.memory), _megabytes(row.pytorch_memory)),
        )
        for row in rows
    ]
    return markdown(head, cells)


def _rate(rate: float | None) -> str:
    if rate is None:
        return "–"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _megabytes(memory: int | None) -> str:
    return "–" if memory is None else f"{memory / 1e6:,.0f} MB"


def chosen(patterns: Sequence[str], found: Sequence[ModelDescription]) -> list[ModelDescription]:
    """The models whose name, or whose script's name, matches one of the patterns; all without patterns.

    Raises ValueError for a pattern that matches nothing.
    """
    kept: dict[str, ModelDescription] = {}
    for pattern in patterns or ("*",):
        matching = {model.name: model for model in found if _matches(model.name, pattern)}
        if not matching:
            names = ", ".join(dict.fromkeys(model.name.partition(" ")[0] for model in found))
            raise ValueError(f"expected a name of `crossbow models`, or of a script, of {names}. Received: {pattern!r}")
        kept |= matching
    return [model for model in found if model.name in kept]


def _matches(name: str, pattern: str) -> bool:
    return name.partition(" ")[0] == pattern or name == pattern or fnmatch.fnmatchcase(name, pattern)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo",
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--networks", nargs="+", default=[], metavar="NAME", help="names of models or scripts; * is any text")
    add("--batch", type=integer(1), default=32, metavar="N", help="images in a learner's batch, if they are small")
    add("--large-batch", type=integer(1), default=4, metavar="N", help="the same for images of 128×128 and more")
    add("--rounds", type=integer(1), default=3, metavar="N", help="turns of each contestant")
    add("--seconds", type=number(0, above=True), default=1.0, metavar="S", help="seconds counted in a turn")
    add("--csv", type=file_to_write, metavar="PATH", help="also write every row to this file")
    add("--no-torch", action="store_true", help="do not measure PyTorch")
    options = parser.parse_args(arguments)
    try:
        options.networks = chosen(options.networks, descriptions())
    except ValueError as error:
        parser.error(f"--networks: {error}")
    return options


def batch_of(described: ModelDescription, options: argparse.Namespace) -> int:
    """The batch that the options choose for a network."""
    if described.input_shape == (2,):
        return RATINGS_BATCH
    batch: int = options.large_batch if is_large(described) else options.batch
    return batch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 0, or 1 if a network could not be measured."""
    options = parse(arguments)
    rows: list[Row] = []
    failed = 0
    for described in options.networks:
        torch = has_torch() and not options.no_torch
        problem = torch_problem(described) if torch else ""
        print(f"{described.name} …{f' without PyTorch: {problem}' if problem else ''}", file=sys.stderr, flush=True)
        batch = batch_of(described, options)
        try:
            measured = measure(described, batch, options.rounds, options.seconds, torch=torch and not problem)
        except ContestError as error:
            failed += 1
            print(f"{described.name}: not measured: {error}", file=sys.stderr, flush=True)
            continue
        rows.append(measured)
        if options.csv is not None:
            write_csv(options.csv, rows)
    machine = describe_machine()
    machine["measured"] = f"{options.rounds} rounds of {options.seconds:g} s each, in turns; medians"
    machine["other programs"] = disturbance(rows)
    print("\n".join(f"- {name}: {value}" for name, value in machine.items()))
    print("\nImages per second in training, and peak memory of a process:\n\n" + table(rows))
    return 1 if failed else 0


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows measured so far. Raises DataError."""
    write_whole(path, as_csv(rows).encode())


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.zoo", main))
