"""Winograd tiles: speed of whole training steps and rounding errors of convolutions, by the rule that selects tiles.

    python -m benchmarks.winograd_tiles

A 3×3 convolution may be computed in tiles of 2×2 or 4×4 outputs: larger tiles need fewer products and have larger
errors. Four rules are compared: the rule of the kernels, which compares the estimated work; the larger tiles only if
their transformed weights fit into the cache; always the smaller tiles; no Winograd. One learner on one thread trains
with each in turn. Seconds are CPU time; ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.networks import NETWORKS
from benchmarks.networks import dataset as pictures
from benchmarks.numerics import Sample, error, results, samples
from benchmarks.report import markdown, paired, spread
from crossbow import SSGD, Dataflow, ExecutionContext, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.console import run_command
from crossbow.kernels.cpu.onednn import shared_library
from crossbow.kernels.cpu.simd import winograd_tiles
from crossbow.ops import Conv
from crossbow.scripts.values import integer
from models.resnet import resnet
from models.vgg import vgg

CHOSEN, CACHED, SMALL, DIRECT = "as chosen", "4×4 in cache only", "2×2 only", "no Winograd"
RULES: Mapping[str, Callable[[winograd_tiles.Tiling, winograd_tiles.Tiling], bool]] = {
    CHOSEN: winograd_tiles.larger_tiles_pay,
    CACHED: lambda tiling, smallest: tiling.in_cache,
    SMALL: lambda tiling, smallest: False,
    DIRECT: lambda tiling, smallest: False,
}
BUILDERS: Mapping[str, Callable[[], Dataflow]] = {"VGG-16": vgg, "ResNet-20": lambda: resnet(20)}
RESULTS = ("output", "input gradient", "weights gradient")


@dataclass(frozen=True)
class Speed:
    """Seconds of a task in every round, by rule."""

    network: str
    batch: int
    seconds: Mapping[str, Sequence[float]]

    @property
    def row(self) -> tuple[str, ...]:
        first = self.seconds[CHOSEN]
        others = (spread(paired(times, first)).text(".3f") for rule, times in self.seconds.items() if rule != CHOSEN)
        return (self.network, str(self.batch), f"{1e3 * median(first):.1f}", *others)


@contextmanager
def rule(name: str) -> Iterator[None]:
    """Select tiles by this rule for convolutions that are compiled in the context."""
    before = winograd_tiles.larger_tiles_pay
    try:
        winograd_tiles.larger_tiles_pay = RULES[name]
        winograd_tiles.best_tiling.cache_clear()
        yield
    finally:
        winograd_tiles.larger_tiles_pay = before
        winograd_tiles.best_tiling.cache_clear()


def speed(network: str, batch: int, rounds: int, seconds: float) -> Speed:
    """Measure turns of at least the given time, in an order that reverses from round to round."""
    data = pictures(NETWORKS["resnet-32"])
    times: dict[str, list[float]] = {name: [] for name in RULES}
    with ExitStack() as stack:
        contexts = {}
        for name in RULES:
            system = SystemConf(learners_per_device=1, threads_per_learner=1, winograd=name != DIRECT)
            model, solver = ModelConf(batch_size=batch, rule=SSGD()), SolverConf(learning_rate=0.002, momentum=0.9)
            with rule(name):
                context = ExecutionContext(
                    [BUILDERS[network]()], monitors=(), data=data, model=model, solver=solver, system=system
                )
            contexts[name] = stack.enter_context(context)
            context.train(1, TrainingUnit.TASKS)
        began = time.process_time()
        contexts[CHOSEN].train(2, TrainingUnit.TASKS)
        tasks = max(1, round(seconds / ((time.process_time() - began) / 2)))
        for number in range(rounds):
            for name in list(RULES)[:: 1 if number % 2 else -1]:
                began = time.process_time()
                contexts[name].train(tasks, TrainingUnit.TASKS)
                times[name].append((time.process_time() - began) / tasks)
    return Speed(network, batch, times)


def error_rows(network: str, found: Sequence[Sample]) -> list[tuple[str, ...]]:
    """Median (largest) error of the network's convolutions, by result and rule."""
    exact = [results(sample, "reference", np.float64) for sample in found]
    errors: dict[str, dict[str, list[float]]] = {result: {name: [] for name in RULES} for result in RESULTS}
    for name in RULES:
        with rule(name):
            for sample, right in zip(found, exact, strict=True):
                received = results(sample, "cpu", np.float32, winograd=name != DIRECT)
                for result in RESULTS:
                    errors[result][name].append(error(received[result], right[result]))
    return [
        (network, result, *(f"{median(values):.1e} ({max(values):.1e})" for values in by_rule.values()))
        for result, by_rule in errors.items()
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.winograd_tiles", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--networks", nargs="+", choices=list(BUILDERS), default=list(BUILDERS), help="(default: all)")
    add("--batches", nargs="+", type=integer(1), metavar="N", default=[4, 16, 64], help="(default: 4 16 64)")
    add("--rounds", type=integer(1), default=7, metavar="N", help="turns of each rule (default: %(default)s)")
    add("--seconds", type=float, default=0.5, metavar="S", help="of a turn, at least a task (default: %(default)s)")
    add("--error-batch", type=integer(1), default=4, metavar="N", help="images for the errors (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    print("\n".join(f"- {name}: {value}" for name, value in describe_machine().items()), flush=True)
    rows = []
    for network in options.networks:
        for batch in options.batches:
            print(f"{network}, batch {batch} …", file=sys.stderr, flush=True)
            rows.append(speed(network, batch, options.rounds, options.seconds).row)
            print(rows[-1], file=sys.stderr, flush=True)
    head = ("network", "batch", f"{CHOSEN}, ms", *(name for name in RULES if name != CHOSEN))
    print("\nMilliseconds of a task, and how many times as long it takes by the other rules, median (least–most):\n")
    print(markdown(head, rows), flush=True)
    shared_library.omp_set_num_threads(1)
    found: list[tuple[str, ...]] = []
    for network in options.networks:
        print(f"{network}, errors …", file=sys.stderr, flush=True)
        every = samples(
            network, BUILDERS[network](), pictures(NETWORKS["resnet-32"]), batch=options.error_batch, tasks=5
        )
        found += error_rows(network, [sample for sample in every if isinstance(sample.kernel, Conv)])
    print("\nErrors of the convolutions, median (largest):\n")
    print(markdown(("network", "result", *RULES), found))
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.winograd_tiles", main))
