"""Images per second of whole training loops on one GPU: Crossbow's learners and PyTorch, alternating in one run.

    python -m benchmarks.gpu_learners

Crossbow trains through the public ExecutionContext, everything included: a loader that gathers shuffled uint8 batches
on the host, their copies to the GPU, the steps, SMA after every batch, reading of results. PyTorch trains the same
networks in its fastest configuration: batches that are already on the GPU, the faster memory format, fused SGD, no
averaging. It runs eagerly, with the whole step as a CUDA graph, with several such graphs on as many streams, and with
replicas as one model by vmap. Both compute in the same precision.

The contestants take turns; ratios are computed round by round. In a last turn, which does not count, nvidia-smi samples
the GPU's utilisation, and the host's calls are timed. Every network and batch is printed as soon as it is measured, the
most important first, and written as JSON after every round. Cases that do not fit into the given time are omitted and
listed. The time to build the most important contestants (compiling kernels, timing algorithms, on both sides) does not
count towards a case's time.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contest import ContestError
from benchmarks.gpu_host import SECONDS_TO_ANSWER, HostConnection, HostTime, Kind, Ready, Refused, start_process
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
    streamed,
    verdicts,
    vmapped,
)
from benchmarks.gpu_runner import CrossbowGpuRunner
from benchmarks.gpu_torch_runner import TorchGpuRunner
from benchmarks.learners import _number
from benchmarks.machine import describe_machine, has_torch
from benchmarks.output import write_json
from crossbow import SystemConf
from crossbow.console import run_command
from crossbow.scripts.values import file_to_write
from crossbow.types import ConfigurationError

KINDS: dict[str, Any] = {CROSSBOW: CrossbowGpuRunner, PYTORCH: TorchGpuRunner}
PRECISIONS = {
    "float32": "float32, without TF32",
    "tf32": "TF32 in convolutions and matrix products",
    "bfloat16": "bfloat16 in convolutions, matrix products and what is between them (in PyTorch, as autocast has it)",
}
SETTINGS = ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE")
"""Environment variables that affect the measurements."""

SHARE_OF_TARGETS = 3.0
"""Time of a case with targets relative to other cases."""
SHARE_OF_BUILDING = 0.5
"""Fraction of a case's time for building contestants that are not essential. Those that are not built by then are
omitted."""
LEAST_ROUNDS = 2
LEAST_SECONDS = 10.0
"""Minimum remaining time in seconds to start a case."""
WARM_UP = 0.25
"""Length of the warm-up before every turn, as a fraction of the counted seconds."""
STRETCHES = 4
"""Minimum length of a turn as a multiple of the contestant's shortest possible run."""
SECONDS_TO_OBSERVE = 0.8
SECONDS_TO_RUN = 60.0
"""Time limit of a process beyond its turn."""

LEGEND = """"GPU busy" is the time in which any kernel ran, however small (nvidia-smi). "host" is the time that
submitting a task takes on the host: for Crossbow copies, events and the launches of its work (two graphs, or all its
calls); for PyTorch a step. Where launches are many, they may have to wait for room in the GPU's queue."""

Start = Callable[[str, Kind, int], HostConnection]


@dataclass(frozen=True, eq=False)
class Entry:
    """A contestant."""

    name: str
    side: str
    arguments: dict[str, Any]
    images: int
    """Images in a batch of all its learners or replicas."""
    learners: int = 0
    """Number of learners of a Crossbow contestant with CUDA graphs; else 0."""
    essential: bool = False
    """Whether it is measured regardless of the time that building takes."""


@dataclass(frozen=True)
class Case:
    """A network, a batch, and the contestants to measure."""

    network: str
    batch: int
    others: bool = False
    """For cases with targets: whether to measure contestants without targets, with one learner and one PyTorch
    graph."""

    @property
    def has_targets(self) -> bool:
        return self.batch in GPU_NETWORKS[self.network].targets

    def __str__(self) -> str:
        return f"{self.network}, batch {self.batch}{', other contestants' if self.others else ''}"


def entries(case: Case, learners: Sequence[int], replicas: int, precision: str, *, torch: bool) -> list[Entry]:
    """The contestants of a case, the most important first.

    In a case with targets, learners with graphs, and PyTorch with one and several graphs, are essential, and at first
    are the only ones. In a case without targets, one learner and one graph are essential.
    """
    same = {"network": case.network, "batch": case.batch, "precision": precision}

    def ours(number: int, graphs: bool, *, essential: bool = False) -> Entry:
        arguments = {**same, "learners": number, "graphs": graphs}
        name, images = crossbow(number, graphs), number * case.batch
        return Entry(name, CROSSBOW, arguments, images, number if graphs else 0, essential)

    def theirs(name: str, number: int, graphs: bool, *, kind: str = "replicas", essential: bool = False) -> Entry:
        arguments = {**same, "graphs": graphs, kind: number}
        return Entry(name, PYTORCH, arguments, max(number, 1) * case.batch, essential=essential)

    one, *more = sorted({1, *learners})
    anchors = [ours(one, True, essential=True), theirs(TORCH_GRAPHS, 0, True, essential=True)]
    named = [
        *(ours(number, True, essential=case.has_targets) for number in more),
        *(theirs(streamed(number), number, True, kind="streams", essential=case.has_targets) for number in more),
    ]
    others = [
        theirs(TORCH_EAGER, 0, False),
        ours(one, False),
        theirs(vmapped(replicas, False), replicas, False),
        theirs(vmapped(replicas, True), replicas, True),
        *(ours(number, False) for number in more if case.has_targets),
    ]
    measured = [*named, *others] if not case.has_targets else others if case.others else named
    return [entry for entry in (*anchors, *measured) if torch or entry.side == CROSSBOW]


class Benchmark:
    """The processes of both sides, and the measurements."""

    def __init__(self, start: Start, device: int, bus: str | None) -> None:
        self._start, self._device, self._bus = start, device, bus
        self._places: dict[str, HostConnection] = {}
        self._broken: set[str] = set()

    def call(self, side: str, timeout: float, method: str, *arguments: Any) -> Any:
        """Call a method of a side's host. A process that does not answer is considered broken."""
        if side in self._broken:
            return Refused("its process had failed before")
        try:
            if side not in self._places:
                self._places[side] = self._start(side, KINDS[side], self._device)
            return self._places[side].call(timeout, method, *arguments)
        except ContestError as error:
            self._broken.add(side)
            return Refused(str(error).split("\n", 1)[0], str(error))

    def measure(
        self,
        case: Case,
        of: Sequence[Entry],
        rounds: int,
        seconds: float,
        until: float,
        latest: float = math.inf,
        progress: Callable[[Outcome], None] = lambda outcome: None,
    ) -> Outcome:
        """Measure all contestants of a network and batch, in turns.

        It ends at about `until`, a time of `time.monotonic`, with fewer rounds if time is short; building the essential
        contestants may extend it, but not beyond `latest`. `progress` is called after every round.
        """
        outcome, began = Outcome(case.network, case.batch, others=case.others), time.monotonic()
        ready = self._add(outcome, [entry for entry in of if entry.essential], latest)
        built = time.monotonic() - began
        until = min(until + built, latest)
        rest = [entry for entry in of if not entry.essential]
        ready |= self._add(outcome, rest, began + built + SHARE_OF_BUILDING * (until - began - built))
        turns = {entry: max(seconds, STRETCHES * answer.shortest) for entry, answer in ready.items()}
        chosen = self.call(CROSSBOW, SECONDS_TO_RUN, "convolutions")
        if not isinstance(chosen, Refused):
            outcome.convolutions = [one for one in chosen if one["input"][0] == case.batch]
        self._rounds(outcome, turns, rounds, until, progress)
        self._observe(outcome, {entry: turn for entry, turn in turns.items() if outcome.measured(entry.name)}, ready)
        self._end(outcome)
        return outcome

    def close(self) -> None:
        for place in self._places.values():
            place.close()
        self._places.clear()

    def _add(self, outcome: Outcome, of: Sequence[Entry], until: float) -> dict[Entry, Ready]:
        """Create contestants, as many as can be started before `until`."""
        ready: dict[Entry, Ready] = {}
        most = GPU_NETWORKS[outcome.network].most_images
        for entry in of:
            if entry.images > most:
                outcome.failed[entry.name] = f"{entry.images} images at a time, more than {most}"
            elif time.monotonic() >= until:
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

    def _rounds(
        self,
        outcome: Outcome,
        turns: dict[Entry, float],
        rounds: int,
        until: float,
        progress: Callable[[Outcome], None],
    ) -> None:
        """Turns of all contestants, in rotating order, so that none is always first."""
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
            progress(outcome)
            now = time.monotonic()
            if number + 1 >= LEAST_ROUNDS and now + (now - began) + observing > until:
                break

    def _observe(self, outcome: Outcome, turns: dict[Entry, float], ready: dict[Entry, Ready]) -> None:
        """Measure the GPU's utilisation and the host's time, in a turn that does not count."""
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
        """Close all runners. After a failure, also end the process, because GPU errors may persist in it."""
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


def share(case: Case, rest: Sequence[Case], left: float) -> float:
    """The time for a case, out of the seconds that are left for it and the remaining cases.

    >>> share(Case("resnet-32", 32), [Case("lenet", 16)], 40.0)
    30.0
    """
    weights = [SHARE_OF_TARGETS if one.has_targets and not one.others else 1.0 for one in (case, *rest)]
    return left * weights[0] / sum(weights)


def cases(networks: Sequence[str], batches: Sequence[int] | None) -> list[Case]:
    """The cases, the most important first: those with targets, then their other contestants.

    >>> [str(case) for case in cases(["resnet-32"], [16])]
    ['resnet-32, batch 16', 'resnet-32, batch 16, other contestants']
    """
    if batches:
        found = [Case(network, batch) for network in networks for batch in batches]
    else:
        found = [Case(*case) for case in CASES if case[0] in networks]
    first = [case for case in found if case.has_targets]
    return [*first, *(replace(case, others=True) for case in first), *(case for case in found if case not in first)]


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
    """Run the benchmark from the command line. Returns the exit status, which is 2 if nothing can be measured."""
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
    """The reason why PyTorch is not available; None if it is, after adding it to the machine's description."""
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
    """Measure all cases for which there is time."""
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
    with Occupancy(bus) as occupancy:  # both processes exist, and are idle
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
        if left < min(LEAST_SECONDS, options.budget / 2):
            left_out.append(str(case))
            continue
        print(f"{case} …", file=sys.stderr, flush=True)
        of = entries(case, options.learners, options.replicas, options.precision, torch=without is None)
        later = [*left_out, *map(str, todo)]

        def progress(partial: Outcome, later: Sequence[str] = later) -> None:
            _write(options.json, machine, [*outcomes, partial], later)

        now = time.monotonic()
        until, latest = now + share(case, todo, left), now + left
        outcome = benchmark.measure(case, of, options.rounds, options.seconds, until, latest, progress)
        outcomes.append(outcome)
        print(f"\n{report(outcome)}", flush=True)
        _write(options.json, machine, outcomes, later)
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
    raise SystemExit(run_command("python -m benchmarks.gpu_learners", main))
