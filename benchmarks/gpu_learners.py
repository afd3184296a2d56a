"""Images per second of whole training loops on one GPU: Crossbow's learners beside PyTorch, in turns, in the same run.

    python -m benchmarks.gpu_learners

Crossbow trains through the public ExecutionContext, everything included: a loader that gathers shuffled uint8 batches
on the host, their copies to the GPU, the steps, SMA after every batch, results read. PyTorch trains the same networks
at its best: batches that lie on the GPU before, the faster memory format, fused SGD, no averaging; eager, with the
whole step as a CUDA graph, and with replicas as one model by vmap. Both compute in the same precision.

The contestants take turns; ratios are taken round by round. In a last turn, which does not count, nvidia-smi samples
how busy the GPU is, and a clock in the host's calls says what a task costs the host. Every network and batch is
printed, and written as JSON, as soon as it is measured, the most important first; what does not fit into the time that
is given is left out, and named.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contest import ContestError
from benchmarks.gpu_host import SECONDS_TO_ANSWER, HostTime, Kind, Place, Ready, Refused, start_process
from benchmarks.gpu_networks import CASES, GPU_NETWORKS
from benchmarks.gpu_occupancy import Occupancy, driver_version
from benchmarks.gpu_report import (
    CROSSBOW,
    PYTORCH,
    TORCH_EAGER,
    TORCH_GRAPHS,
    Observation,
    Outcome,
    content,
    crossbow,
    report,
    verdicts,
    vmapped,
)
from benchmarks.gpu_runner import CrossbowGpuRunner
from benchmarks.gpu_torch_runner import TorchGpuRunner
from benchmarks.learners import _number
from benchmarks.machine import describe_machine, has_torch
from benchmarks.output import write_json
from crossbow import SystemConf
from crossbow.types import ConfigurationError
from models.values import file_to_write

KINDS: dict[str, Any] = {CROSSBOW: CrossbowGpuRunner, PYTORCH: TorchGpuRunner}
PRECISIONS = {
    "float32": "float32, without TF32",
    "tf32": "TF32 in convolutions and matrix products",
    "bfloat16": "bfloat16 in convolutions, matrix products and what is between them (in PyTorch, as autocast has it)",
}
SETTINGS = ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE")
"""Variables of the environment that change what is measured."""

SHARE_OF_TARGETS = 3.0
"""How much longer a case that has targets may take than another."""
SHARE_OF_BUILDING = 0.5
"""Of a case's time. Contestants for which none of it is left are left out."""
ALWAYS = 2
"""The first contestants are not."""
LEAST_ROUNDS = 2
LEAST_SECONDS = 10.0
"""A case is not begun with less left."""
WARM_UP = 0.25
"""Of the seconds counted, before every turn."""
STRETCHES = 4
"""A turn is at least so many of the shortest stretches that its contestant can run."""
SECONDS_TO_OBSERVE = 0.8
SECONDS_TO_RUN = 60.0
"""Beyond a turn, until a process is given up."""

LEGEND = """"GPU busy" is the time in which any kernel ran, however small (nvidia-smi). "host" is the time that
submitting a task takes on the host: for Crossbow copies, events and the launches of its work (two graphs, or all its
calls); for PyTorch a step. Where launches are many, they may have to wait for room in the GPU's queue."""

Start = Callable[[str, Kind, int], Place]


@dataclass(frozen=True, eq=False)
class Entry:
    """A contestant."""

    name: str
    side: str
    arguments: dict[str, Any]
    images: int
    """In a batch of all its learners or replicas."""
    learners: int = 0
    """With CUDA graphs, of Crossbow; else 0."""


def entries(
    network: str, batch: int, learners: Sequence[int], replicas: int, precision: str, *, torch: bool, targets: bool
) -> list[Entry]:
    """The contestants of a case, the most important first.

    Where there are targets, every number of learners is measured without graphs, too; else one learner.
    """
    same = {"network": network, "batch": batch, "precision": precision}

    def ours(number: int, graphs: bool) -> Entry:
        arguments = {**same, "learners": number, "graphs": graphs}
        return Entry(crossbow(number, graphs), CROSSBOW, arguments, number * batch, number if graphs else 0)

    def theirs(name: str, number: int, graphs: bool) -> Entry:
        return Entry(name, PYTORCH, {**same, "graphs": graphs, "replicas": number}, max(number, 1) * batch)

    one, *more = sorted({1, *learners})
    without = [ours(number, False) for number in (one, *more)]
    found = [
        ours(one, True),
        theirs(TORCH_GRAPHS, 0, True),
        *(ours(number, True) for number in more),
        theirs(TORCH_EAGER, 0, False),
        theirs(vmapped(replicas, False), replicas, False),
        without[0],
        theirs(vmapped(replicas, True), replicas, True),
        *(without[1:] if targets else ()),
    ]
    return [entry for entry in found if torch or entry.side == CROSSBOW]


class Benchmark:
    """The processes of both sides, and what can be measured with them."""

    def __init__(self, start: Start, device: int, bus: str | None) -> None:
        self._start, self._device, self._bus = start, device, bus
        self._places: dict[str, Place] = {}
        self._broken: set[str] = set()

    def call(self, side: str, timeout: float, method: str, *arguments: Any) -> Any:
        """Call a method of a side's host. A process that does not answer counts as broken."""
        if side in self._broken:
            return Refused("its process had failed before")
        try:
            if side not in self._places:
                self._places[side] = self._start(side, KINDS[side], self._device)
            return self._places[side].call(timeout, method, *arguments)
        except ContestError as error:
            self._broken.add(side)
            return Refused(str(error).split("\n", 1)[0], str(error))

    def measure(self, case: tuple[str, int], of: Sequence[Entry], rounds: int, seconds: float, until: float) -> Outcome:
        """All contestants of a network and batch, in turns. It ends at about `until`, on the clock of `time.monotonic`;
        so late that nothing was measured, or with fewer rounds, where time is short."""
        outcome, began = Outcome(*case), time.monotonic()
        ready = self._add(outcome, of, began + SHARE_OF_BUILDING * (until - began))
        turns = {entry: max(seconds, STRETCHES * answer.shortest) for entry, answer in ready.items()}
        self._rounds(outcome, turns, rounds, until)
        self._observe(outcome, {entry: turn for entry, turn in turns.items() if outcome.measured(entry.name)}, ready)
        self._end(outcome)
        return outcome

    def close(self) -> None:
        for place in self._places.values():
            place.close()
        self._places.clear()

    def _add(self, outcome: Outcome, of: Sequence[Entry], until: float) -> dict[Entry, Ready]:
        """Make the contestants."""
        ready: dict[Entry, Ready] = {}
        most = GPU_NETWORKS[outcome.network].most_images
        for number, entry in enumerate(of):
            if entry.images > most:
                outcome.failed[entry.name] = f"{entry.images} images at a time, more than {most}"
            elif number >= ALWAYS and time.monotonic() >= until:
                outcome.failed[entry.name] = "no time was left for it"
            else:
                answer = self.call(entry.side, SECONDS_TO_ANSWER, "add", entry.name, entry.arguments)
                if isinstance(answer, Refused):
                    self._fail(outcome, entry, answer)
                    continue
                ready[entry] = answer
                outcome.rates[entry.name] = []
                if entry.learners:
                    outcome.learners[entry.name] = entry.learners
        return ready

    def _rounds(self, outcome: Outcome, turns: dict[Entry, float], rounds: int, until: float) -> None:
        """Turns of all, in an order that rotates, so that none is always first."""
        alive = list(turns)
        observing = sum(max(turn, SECONDS_TO_OBSERVE) for turn in turns.values())
        for number in range(rounds):
            began = time.monotonic()
            start = number % max(len(alive), 1)
            for entry in (*alive[start:], *alive[:start]):
                turn = turns[entry]
                timeout = SECONDS_TO_RUN + 10 * turn
                rate = self.call(entry.side, timeout, "run", entry.name, WARM_UP * turn, turn)
                if isinstance(rate, Refused):
                    self._fail(outcome, entry, rate)
                    alive.remove(entry)
                else:
                    outcome.rates[entry.name].append(rate)
            now = time.monotonic()
            if number + 1 >= LEAST_ROUNDS and now + (now - began) + observing > until:
                break

    def _observe(self, outcome: Outcome, turns: dict[Entry, float], ready: dict[Entry, Ready]) -> None:
        """How busy the GPU is, and the host's time: in a turn that does not count."""
        with Occupancy(self._bus) as occupancy:
            for entry, turn in turns.items():
                begin, seconds = time.monotonic(), max(turn, SECONDS_TO_OBSERVE if occupancy.known else 0.0)
                timeout = SECONDS_TO_RUN + 10 * seconds
                host: HostTime | Refused | None = self.call(entry.side, timeout, "observe", entry.name, seconds)
                if isinstance(host, Refused):
                    outcome.traces[entry.name], host = host.trace, None
                busy = occupancy.busy(begin, min(begin + seconds, time.monotonic()))
                outcome.seen[entry.name] = Observation(host, busy, ready[entry].memory)

    def _end(self, outcome: Outcome) -> None:
        """Close all runners; after a failure the process, too: an error on a GPU may stay with it."""
        for side, place in list(self._places.items()):
            failed = any(name.startswith(side) for name in outcome.traces)
            if side not in self._broken and not failed:
                failed = isinstance(self.call(side, SECONDS_TO_RUN, "clear"), Refused)
            if side in self._broken or failed:
                place.close()
                del self._places[side]
                self._broken.discard(side)

    def _fail(self, outcome: Outcome, entry: Entry, refused: Refused) -> None:
        outcome.rates.pop(entry.name, None)
        outcome.learners.pop(entry.name, None)
        outcome.failed[entry.name], outcome.traces[entry.name] = refused.reason, refused.trace
        print(f"{entry.name}: {refused.trace or refused.reason}", file=sys.stderr, flush=True)


def share(case: tuple[str, int], rest: Sequence[tuple[str, int]], left: float) -> float:
    """The seconds that a case may take, of those that are left for it and the rest.

    >>> share(("resnet-32", 32), [("lenet", 16)], 40.0)
    30.0
    """
    weights = [SHARE_OF_TARGETS if batch in GPU_NETWORKS[network].targets else 1.0 for network, batch in (case, *rest)]
    return left * weights[0] / sum(weights)


def cases(networks: Sequence[str], batches: Sequence[int] | None) -> list[tuple[str, int]]:
    """Networks and batches, in order of importance where the batches are not given.

    >>> cases(["lenet"], None)
    [('lenet', 16), ('lenet', 64), ('lenet', 4), ('lenet', 256), ('lenet', 1)]
    """
    if batches:
        return [(network, batch) for network in networks for batch in batches]
    return [case for case in CASES if case[0] in networks]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    number = partial(_number, int, 1)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_learners",
        description="Images per second of whole training loops on one GPU: Crossbow beside PyTorch.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--networks", nargs="+", default=list(GPU_NETWORKS), choices=list(GPU_NETWORKS), help="networks")
    add("--batches", type=number, nargs="+", metavar="N", help="images in a learner's batch, instead of the network's")
    add(
        "--learners",
        type=number,
        nargs="+",
        default=[1, 2, 4, 8],
        metavar="N",
        help="learners; one is always among them",
    )
    add("--replicas", type=number, default=4, metavar="N", help="replicas of PyTorch's vmap")
    add("--rounds", type=number, default=7, metavar="N", help="turns of every contestant, at most")
    add(
        "--seconds",
        type=partial(_number, float, 0.01),
        default=0.4,
        metavar="S",
        help="seconds counted in a turn (more where tasks are long)",
    )
    add(
        "--budget",
        type=partial(_number, float, 1.0),
        default=510.0,
        metavar="S",
        help="seconds that all may take; rounds, contestants and cases for which none is left are left out",
    )
    add(
        "--precision",
        default="float32",
        choices=list(PRECISIONS),
        help="of Crossbow and PyTorch; float32: without TF32",
    )
    add("--device", type=partial(_number, int, 0), default=0, metavar="N", help="the GPU, as CUDA counts them")
    add("--json", type=file_to_write, metavar="PATH", help="also write every measurement to this file")
    add("--no-torch", action="store_true", help="leave PyTorch out")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, start: Start = start_process) -> int:
    """Measure as the command line says; returns the exit status: 2 where nothing can be measured."""
    began, options = time.monotonic(), parse(arguments)
    try:
        SystemConf(precision=options.precision)
    except ConfigurationError as error:
        return _refuse(str(error))
    probe = Benchmark(start, options.device, None)
    try:
        about = probe.call(CROSSBOW, SECONDS_TO_ANSWER, "about")
        if isinstance(about, Refused):
            return _refuse(f"expected an NVIDIA GPU that Crossbow can use. Received: {about.reason}")
        machine = {**describe_machine(), **about}
        without = _without_torch(probe, options, machine)
        return _measure(probe, options, machine, without, began)
    finally:
        probe.close()


def _refuse(text: str) -> int:
    print(f"benchmarks.gpu_learners: {text}", file=sys.stderr)
    return 2


def _without_torch(benchmark: Benchmark, options: argparse.Namespace, machine: dict[str, str]) -> str | None:
    """Why there is no PyTorch; None where there is, of which the machine's description then tells."""
    if options.no_torch:
        return "--no-torch was given"
    if not has_torch():
        return "it is not installed here"
    about = benchmark.call(PYTORCH, SECONDS_TO_ANSWER, "about")
    if isinstance(about, Refused):
        return about.reason
    machine.update(about)
    return None


def _measure(
    benchmark: Benchmark, options: argparse.Namespace, machine: dict[str, str], without: str | None, began: float
) -> int:
    """All cases that there is time for."""
    bus = machine.pop("bus", None)
    benchmark._bus = bus
    if bus is not None:
        machine["driver"] = driver_version(bus)
    machine["precision"] = f"{PRECISIONS[options.precision]}, in Crossbow{'' if without else ' and in PyTorch'}"
    machine["settings"] = ", ".join(f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ) or "none"
    machine["measured"] = (
        f"up to {options.rounds} rounds of {options.seconds:g} s each, in turns, within {options.budget:g} s; median "
        "(least–most)"
    )
    with Occupancy(bus) as occupancy:  # both processes are there, and do nothing
        begin = time.monotonic()
        time.sleep(SECONDS_TO_OBSERVE if occupancy.known else 0.0)
        idle = occupancy.busy(begin, time.monotonic())
    machine["other programs"] = "not known" if idle is None else f"keep the GPU busy {idle:.0%} of the time"
    print("\n".join(f"- {name}: {value}" for name, value in machine.items()), flush=True)
    if without:
        print(f"\nPyTorch was left out: {without}.", flush=True)
    print(f"\n{LEGEND}", flush=True)
    outcomes: list[Outcome] = []
    left_out: list[str] = []
    todo = cases(options.networks, options.batches)
    while todo:
        case, *todo = todo
        left = began + options.budget - time.monotonic()
        network, batch = case
        if left < min(LEAST_SECONDS, options.budget / 2):
            left_out.append(f"{network}, batch {batch}")
            continue
        print(f"{network}, batch {batch} …", file=sys.stderr, flush=True)
        targets = batch in GPU_NETWORKS[network].targets
        of = entries(
            *(network, batch, options.learners, options.replicas, options.precision),
            torch=without is None,
            targets=targets,
        )
        until = time.monotonic() + share(case, todo, left)
        outcome = benchmark.measure(case, of, options.rounds, options.seconds, until)
        outcomes.append(outcome)
        print(f"\n{report(outcome)}", flush=True)
        _write(options.json, machine, outcomes, [*left_out, *(f"{name}, batch {size}" for name, size in todo)])
    if left_out:
        print(f"\nLeft out for want of time (--budget): {'; '.join(left_out)}.")
    if lines := verdicts(outcomes):
        print("\nTargets:\n\n" + "\n".join(f"- {line}" for line in lines), flush=True)
    _write(options.json, machine, outcomes, left_out)
    return 0


def _write(path: Path | None, machine: dict[str, str], outcomes: Sequence[Outcome], left_out: Sequence[str]) -> None:
    if path is not None:
        write_json(path, content(machine, outcomes, left_out))


if __name__ == "__main__":
    raise SystemExit(main())
