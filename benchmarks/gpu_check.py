"""Whether everything works on a GPU: a table for docs/hardware.md, and JSON.

    python -m benchmarks.gpu_check --mnist DIR --cifar10 DIR --json FILE

Every part is a process of its own, so that one that fails, hangs or loses the GPU leaves the others alone. The exit
status is 0 if all passed, 1 if one did not, and 2 without a GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import gpu_parts
from benchmarks.gpu_machine import describe_gpu
from benchmarks.gpu_parts import SHOWN, Clock, Finding, Settings
from benchmarks.machine import describe_machine
from benchmarks.output import write_json
from benchmarks.report import markdown
from crossbow.testing.arguments import gpu_number, is_gpu
from crossbow.types import ConfigurationError
from models.values import expanded_path, file_to_write

FAILED, NO_GPU = 1, 2
QUICK = Settings(every=10, tasks=16, leak_tasks=400, examples=512, lenet_epochs=2, resnet_epochs=1, depth=20)
STARTING = 30.0
"""Seconds that a part's process may take beside the part itself, before it is ended."""


@dataclass(frozen=True)
class Part:
    """A check with a time of its own."""

    run: Callable[[Settings, Clock], Finding]
    seconds: float
    """That it may take."""


PARTS = {
    **{
        f"operators-{precision}": Part(functools.partial(gpu_parts.operators, precision=precision), seconds)
        for precision, seconds in (("float32", 60.0), ("tf32", 20.0), ("float64", 50.0))
    },
    **{
        f"operators-{precision}": Part(functools.partial(gpu_parts.narrow_operators, precision=precision), 15.0)
        for precision in ("bfloat16", "float16")
    },
    "gradients": Part(gpu_parts.gradients, 45.0),
    "weights": Part(gpu_parts.weights, 25.0),
    "graphs": Part(gpu_parts.graphs, 30.0),
    "determinism": Part(gpu_parts.determinism, 30.0),
    "nccl": Part(gpu_parts.nccl, 10.0),
    "leak": Part(gpu_parts.leak, 15.0),
    "lenet": Part(gpu_parts.learn_lenet, 45.0),
    "resnet": Part(gpu_parts.learn_resnet, 55.0),
}
"""By name, in order. All their time is less than eight minutes."""


@dataclass(frozen=True)
class Outcome:
    """What became of a part."""

    name: str
    passed: bool
    number: str
    seconds: float
    faults: list[str] = field(default_factory=list)
    error: str | None = None
    """The traceback, or how the process ended, where the part did not come to its end."""
    details: dict[str, Any] = field(default_factory=dict)


def run_part(name: str, settings: Settings, seconds: float | None = None) -> Outcome:
    """Run a part here. What it raises is recorded."""
    part, began = PARTS[name], time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = part.run(settings, Clock(part.seconds if seconds is None else seconds))
        except Exception as error:
            took = time.perf_counter() - began
            return Outcome(name, False, "–", took, [f"{type(error).__name__}: {error}"], traceback.format_exc())
    took = time.perf_counter() - began
    warned = list(dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in caught))
    # The results are right without a graph, but that is not what was to be checked.
    faults = found.faults + [text for text in warned if "CUDA graph" in text]
    return Outcome(name, not faults, found.number, took, faults, details={**found.details, "warnings": warned})


def run_apart(name: str, arguments: Sequence[str], seconds: float | None = None) -> Outcome:
    """Run a part in a process of its own, which gets the same arguments, and is ended where it takes much longer."""
    limit = STARTING + 1.5 * (PARTS[name].seconds if seconds is None else seconds)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.json"
        command = [sys.executable, "-m", "benchmarks.gpu_check", *arguments]
        command += ["--only", name, "--in-process", "--json", str(path)]
        try:
            done = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=limit)
            end = f"ended with status {done.returncode}"
        except subprocess.TimeoutExpired:
            end = f"was ended after {limit:.0f} s"
        if path.is_file():
            (outcome,) = json.loads(path.read_text())["parts"]
            return Outcome(**outcome)
    text = f"the process {end}, and left no result"
    return Outcome(name, False, "–", time.perf_counter() - began, [text], text)


def table(outcomes: Sequence[Outcome]) -> str:
    rows = [
        [outcome.name, "passed" if outcome.passed else "FAILED", outcome.number, f"{outcome.seconds:.1f} s"]
        for outcome in outcomes
    ]
    return markdown(["check", "result", "number", "time"], rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda:0", help="the GPU (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="NAME", help=f"only these of: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, few tasks and epochs, ResNet-20")
    parser.add_argument(
        "--seconds", type=float, help="that a part may take (default: each its own, 6.9 minutes in all)"
    )
    parser.add_argument("--mnist", type=expanded_path, metavar="DIR", help="where MNIST lies (default: digits)")
    parser.add_argument(
        "--cifar10", type=expanded_path, metavar="DIR", help="where CIFAR-10 lies (default: made-up images)"
    )
    parser.add_argument("--learners", type=int, help=f"on the GPU (default: {Settings.learners})")
    parser.add_argument("--resnet-epochs", type=int, help=f"(default: {Settings.resnet_epochs})")
    parser.add_argument(
        "--precision", choices=("float32", "tf32", "bfloat16", "float16"), help="of lenet and resnet (default: float32)"
    )
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write everything there too")
    parser.add_argument("--in-process", action="store_true", help="run the parts in this process, for debugging")
    return parser


def settings_of(options: argparse.Namespace) -> Settings:
    names = ("device", "mnist", "cifar10", "learners", "resnet_epochs", "precision")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return replace(QUICK if options.quick else Settings(), **given)


def main(arguments: Sequence[str] | None = None, settings: Settings | None = None) -> int:
    """Check as the command line says; `settings`, where given, instead of what it says of them."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    options = parser.parse_args(arguments)
    if settings is None:
        settings = settings_of(options)
    try:
        if not is_gpu(settings.device):
            raise ConfigurationError(f"device: expected a GPU, as 'cuda:0'. Received: {settings.device!r}")
        machine = {**describe_gpu(gpu_number(settings.device)), **describe_machine()}
    except ConfigurationError as error:
        print(f"{parser.prog}: nothing was checked: {error}", file=sys.stderr)
        return NO_GPU
    outcomes = []
    for name in options.only or PARTS:
        print(f"{name} …", file=sys.stderr, flush=True)
        if options.in_process:
            outcome = run_part(name, settings, options.seconds)
        else:
            outcome = run_apart(name, arguments, options.seconds)
        outcomes.append(outcome)
        for fault in outcome.faults[:SHOWN]:
            print(f"{name}: {fault}", file=sys.stderr, flush=True)
        if len(outcome.faults) > SHOWN:
            print(f"{name}: and {len(outcome.faults) - SHOWN} more", file=sys.stderr, flush=True)
        if options.json is not None:  # after every part: what is known stays, whatever happens
            _write(options.json, machine, settings, outcomes)
    print("\n".join(f"- {name}: {value}" for name, value in machine.items()), end="\n\n")
    print(table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else FAILED


def _write(path: Path, machine: dict[str, str], settings: Settings, outcomes: Sequence[Outcome]) -> None:
    written = {"machine": machine, "settings": asdict(settings), "parts": [asdict(outcome) for outcome in outcomes]}
    write_json(path, written)


if __name__ == "__main__":
    raise SystemExit(main())
