"""Images per second of whole training loops: Crossbow's learners and PyTorch, alternating in one run.

    python -m benchmarks.learners

Crossbow trains through the public ExecutionContext, everything included: a loader that gathers shuffled uint8 batches
from as many images as MNIST or CIFAR-10 has, the steps, SMA after every batch, reading of results. PyTorch trains the
same networks in its fastest configuration: prepared batches, channels-last, foreach SGD, no averaging; two models run
in threads and in processes, and the better result counts. Every contestant has its own processes; they take turns, and
ratios are computed round by round.

"k × t" is k learners (models) with t threads each. The cost of averaging is measured against the same engine that
averages only every 64th batch (8th, if tasks are long); the cost of Python, against the same bound task lists in a bare
loop without loader, scheduler and results. Both are differences of whole runs. They include waits and cache effects,
and are as noisy. They are not measured for ResNet-50, because all contestants together would need too much memory. If
even the others need too much together, `--apart` starts and ends a contestant's processes with each of its turns. The
report also has the share of a task's time inside the averaging's own calls (merge, waits, signals), and outside native
calls, from a clock inside the task lists.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from benchmarks.contest import Contest, Contestant, ContestError
from benchmarks.crossbow_runner import BareRunner, CrossbowRunner
from benchmarks.machine import describe_machine, has_torch
from benchmarks.networks import NETWORKS
from benchmarks.output import write_json
from benchmarks.report import (
    ALONE,
    BARE,
    ONE,
    SELDOM,
    TORCH_ONE,
    TORCH_TWO,
    TWO,
    Outcome,
    distance,
    disturbance,
    memory_table,
    profile_table,
    rates_table,
    shares_table,
    verdicts,
)
from benchmarks.torch_runner import TorchRunner
from crossbow.console import run_command
from crossbow.scripts.values import file_to_write

SELDOM_TAU, SELDOM_TAU_OF_LONG_TASKS = 64, 8
"""Number of batches between two averages if averaging is rare. A tick must not be longer than a turn."""
WARM_UP = 0.25
"""Length of the warm-up before every turn, as a fraction of the counted seconds."""


def contestants(network: str, batch: int, kernels: str, *, torch: bool, profile: bool) -> list[Contestant]:
    """The contestants of one network at one batch size."""
    same = {"network": network, "batch": batch}
    crossbow = {**same, "kernels": kernels}
    seldom = SELDOM_TAU if NETWORKS[network].seconds == 1 else SELDOM_TAU_OF_LONG_TASKS
    one, two = {"learners": 1, "threads": 2}, {"learners": 2, "threads": 1}
    made = [
        Contestant(ONE, CrossbowRunner, {**crossbow, **one}),
        Contestant(TWO, CrossbowRunner, {**crossbow, **two}),
    ]
    if not NETWORKS[network].large:
        made += [
            Contestant(SELDOM, CrossbowRunner, {**crossbow, **two, "tau": seldom}),
            Contestant(BARE, BareRunner, {**crossbow, **two}),
        ]
    if torch:
        threads, processes = TORCH_TWO
        made += [
            Contestant(TORCH_ONE, TorchRunner, {**same, "models": 1, "threads": 2}),
            Contestant(threads, TorchRunner, {**same, "models": 2, "threads": 1}),
            Contestant(processes, TorchRunner, {**same, "models": 1, "threads": 1}, processes=2),
        ]
    if profile:
        made.append(Contestant(ALONE, CrossbowRunner, {**crossbow, "learners": 1, "threads": 1}))
    return made


def measure(
    network: str,
    batch: int,
    kernels: str = "auto",
    *,
    rounds: int,
    seconds: float,
    patience: float = 0.0,
    torch: bool = True,
    profile: bool = False,
    apart: bool = False,
) -> Outcome:
    """Measure all contestants of one network at one batch size, in turns."""
    made = contestants(network, batch, kernels, torch=torch, profile=profile)
    with Contest(made, patience, apart=apart) as contest:
        seconds *= NETWORKS[network].seconds
        rates = contest.rounds(rounds, WARM_UP * seconds, seconds)
        with contest.running(TWO) as team:
            (name,), (memory,) = team.ask("library"), team.ask("memory")
            copy_rate = contest.ask(TWO, "copy_rate", seconds / 4)
            rows = contest.ask(TWO, "anatomy", seconds)
        alone = contest.ask(ALONE, "anatomy", seconds) if profile else ()
        others, handovers = contest.others, contest.handovers
        return Outcome(network, batch, name, rates, rows, memory, copy_rate, others, handovers, alone)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    number = partial(_number, int, 1)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learners",
        description="Images per second of whole training loops on two cores: Crossbow beside PyTorch.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--batches", type=number, nargs="+", metavar="N", help="images in a learner's batch, instead of the network's")
    add("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS), help="networks")
    add("--rounds", type=number, default=7, metavar="N", help="turns of every contestant")
    add(
        "--seconds",
        type=partial(_number, float, 0.01),
        default=1.0,
        metavar="S",
        help="seconds counted in a turn (times 3 or 15 for networks whose tasks are long)",
    )
    add(
        "--patience",
        type=partial(_number, float, 0.0),
        default=0.0,
        metavar="S",
        help="seconds, for each network and batch, to wait for a quiet machine whose cores share a cache, and to "
        "repeat disturbed rounds",
    )
    add("--apart", action="store_true", help="run a contestant's processes only during its turns, which saves memory")
    add("--kernels", default="auto", choices=["auto", "reference", "onednn"], help="Crossbow's kernel library")
    add("--json", type=file_to_write, metavar="PATH", help="also write the measurements to this file, as they come")
    add("--no-torch", action="store_true", help="do not measure PyTorch")
    add("--profile", action="store_true", help="also print a profile of a step, call by call")
    return parser.parse_args(arguments)


def _number(kind: type, least: float, text: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not value >= least:
        raise argparse.ArgumentTypeError(f"expected a number ≥ {least}. Received: {text!r}")
    return value  # type: ignore[no-any-return]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch = has_torch() and not options.no_torch
    machine = describe_machine()
    outcomes, failed = [], False
    for network in options.networks:
        for batch in options.batches or NETWORKS[network].batches:
            print(f"{network}, batch {batch} …", file=sys.stderr, flush=True)
            try:
                outcome = measure(
                    network,
                    batch,
                    options.kernels,
                    rounds=options.rounds,
                    seconds=options.seconds,
                    patience=options.patience,
                    torch=torch,
                    profile=options.profile,
                    apart=options.apart,
                )
            except ContestError as error:
                print(f"{network}, batch {batch}: {error}", file=sys.stderr, flush=True)
                failed = True
                continue
            outcomes.append(outcome)
            ratios = [f"{ratio.text('.2f')} × {name}" for name, ratio, _ in outcomes[-1].comparisons()]
            print(f"{network}, batch {batch}: {', '.join(ratios) or 'done'}", file=sys.stderr, flush=True)
            if options.json is not None:
                write_json(options.json, _content(machine, outcomes))
    machine["kernels"] = ", ".join(dict.fromkeys(outcome.kernels for outcome in outcomes))
    machine["measured"] = f"{options.rounds} rounds of {options.seconds:g} s each, in turns; median (least–most)"
    machine["other programs"] = disturbance(outcomes)
    machine["distance"] = distance(outcomes)
    print(text(outcomes, machine, profile=options.profile))
    if not torch:
        print(f"\nPyTorch was left out: {'--no-torch was given' if options.no_torch else 'it is not installed here'}.")
    if options.json is not None:
        write_json(options.json, _content(machine, outcomes))
    return 1 if failed else 0


def _content(machine: dict[str, str], outcomes: Sequence[Outcome]) -> dict[str, object]:
    return {"machine": machine, "outcomes": [asdict(outcome) for outcome in outcomes]}


def text(outcomes: Sequence[Outcome], machine: dict[str, str], *, profile: bool) -> str:
    """The report, in Markdown."""
    parts = [
        "\n".join(f"- {name}: {value}" for name, value in machine.items()),
        "Images per second, k learners (models) × t threads:",
        rates_table(outcomes),
        "Speed of Crossbow 2 × 1 relative to PyTorch, and the share of it that averaging and Python cost:",
        shares_table(outcomes),
        "Memory of a learner; the bytes that averaging moves in a task, and what share of it they take at the rate at "
        "which a learner copies while all of them do, between as many vectors as the run holds:",
        memory_table(outcomes),
    ]
    if lines := verdicts(outcomes):
        parts.append("Targets:\n\n" + "\n".join(f"- {line}" for line in lines))
    for outcome in outcomes if profile else ():
        parts += [f"A task of the {outcome.network} network, batch {outcome.batch}:", profile_table(outcome)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.learners", main))
