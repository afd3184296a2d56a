"""Checks that everything works on a GPU. The result is a table for docs/hardware.md, and JSON.

    python -m benchmarks.gpu_check --mnist DIR --cifar10 DIR --json FILE

Every part is a process, so that if one fails, hangs or loses the GPU, the others still run. With --json, every row of a
part is also written at once, as a line of `.rows.jsonl` next to FILE: rows of a part that ends abnormally are kept, and
count. The exit status is 0 if all parts passed, 1 if not, and 2 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import gpu_parts
from benchmarks.gpu_convolutions import convolutions
from benchmarks.gpu_machine import describe_gpu
from benchmarks.gpu_parts import SHOWN, Settings
from benchmarks.gpu_rows import Clock, Journal, Keep, Rows
from benchmarks.machine import describe_machine
from benchmarks.output import write_json
from benchmarks.report import markdown
from crossbow.scripts.values import expanded_path, file_to_write
from crossbow.testing.arguments import gpu_number, is_gpu
from crossbow.types import ConfigurationError

FAILED, NO_GPU = 1, 2
QUICK = Settings(every=10, tasks=16, leak_tasks=400, examples=512, lenet_epochs=2, resnet_epochs=1, depth=20)
STARTING = 30.0
"""Seconds that a part's process may take in addition to the part itself."""
LEAST_SECONDS = 5.0
"""Minimum remaining time of --budget, in seconds, to start a part."""
LOOK_SECONDS = 2.0
"""Interval in seconds at which a part's process is observed and the JSON is updated."""
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
"""Defaults of environment variables for parts' processes. With one thread per core in each of several learners, NumPy's
products on the CPU, with which weights are compared, take ten times as long."""


@dataclass(frozen=True)
class Part:
    """A check with its own time limit."""

    run: Callable[[Settings, Clock, Rows], None]
    seconds: float
    """Time limit."""


PARTS = {
    "operators-float32": Part(functools.partial(gpu_parts.operators, precision="float32"), 60.0),
    "weights": Part(gpu_parts.weights, 50.0),
    "operators-timed": Part(gpu_parts.timed_operators, 40.0),
    "graphs": Part(gpu_parts.graphs, 45.0),
    "determinism": Part(gpu_parts.determinism, 40.0),
    "nccl": Part(gpu_parts.nccl, 10.0),
    "operators-tf32": Part(functools.partial(gpu_parts.operators, precision="tf32"), 20.0),
    **{
        f"operators-{precision}": Part(functools.partial(gpu_parts.narrow_operators, precision=precision), 15.0)
        for precision in ("bfloat16", "float16")
    },
    "operators-float64": Part(functools.partial(gpu_parts.operators, precision="float64"), 50.0),
    "gradients": Part(gpu_parts.gradients, 40.0),
    "leak": Part(gpu_parts.leak, 15.0),
    "lenet": Part(gpu_parts.learn_lenet, 35.0),
    "resnet": Part(gpu_parts.learn_resnet, 40.0),
}
"""Parts by name, the most important first. Their total time is less than eight minutes."""


@dataclass(frozen=True)
class Outcome:
    """Result of a part."""

    name: str
    passed: bool
    number: str
    seconds: float
    faults: list[str] = field(default_factory=list)
    error: str | None = None
    """The traceback, or how the process ended, if the part was not completed."""
    details: dict[str, Any] = field(default_factory=dict)


def run_part(name: str, settings: Settings, seconds: float | None = None, keep: Keep = lambda entry: None) -> Outcome:
    """Run a part in this process. Its exception is recorded, as are all rows before it; `keep` receives them at
    once."""
    part, began = PARTS[name], time.perf_counter()
    rows, error, faults = Rows(_with_convolutions(keep)), None, list[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            part.run(settings, Clock(part.seconds if seconds is None else seconds), rows)
        except Exception as failure:
            error, faults = traceback.format_exc(), [f"{type(failure).__name__}: {failure}"]
    took = time.perf_counter() - began
    warned = list(dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in caught))
    # Results would also be correct without a graph, but this check is for graphs.
    faults = [*rows.faults, *faults, *(text for text in warned if "CUDA graph" in text)]
    details = {**rows.details, "convolutions": convolutions(), "warnings": warned}
    return Outcome(name, not faults, rows.number, took, faults, error, details)


def _with_convolutions(keep: Keep) -> Keep:
    """Also record the algorithms that were selected since the last entry."""
    known = len(convolutions())

    def kept(entry: Mapping[str, Any]) -> None:
        nonlocal known
        keep(entry)
        if chosen := convolutions(known):
            keep({"convolutions": chosen})
            known += len(chosen)

    return kept


def run_apart(
    name: str,
    arguments: Sequence[str],
    journal: Path,
    seconds: float,
    limit: float,
    watch: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:
    """Run a part in a separate process, which receives the same arguments and `seconds`, and is ended after `limit`
    seconds. `journal`: the file to which it writes its rows; `watch` receives them from time to time."""
    began, start = time.monotonic(), journal.stat().st_size if journal.is_file() else 0

    def so_far(end: str) -> Outcome:
        rows = Journal.read(journal, name, start)
        text = f"the process {end}, after {len(rows.rows)} rows"
        return Outcome(name, False, rows.number, time.monotonic() - began, [*rows.faults, text], text, rows.details)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.json"
        command = [sys.executable, "-m", "benchmarks.gpu_check", *arguments, "--only", name, "--in-process"]
        command += ["--json", str(path), "--rows", str(journal), "--seconds", f"{seconds:g}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**ENVIRONMENT, **os.environ})
        end = ""
        while not end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                end = f"ended with status {process.wait(LOOK_SECONDS)}"
            if not end and time.monotonic() - began >= limit:
                process.kill()
                end = f"was ended after {limit:.0f} s"
                with contextlib.suppress(subprocess.TimeoutExpired):  # a process that waits for a GPU may not respond
                    process.wait(LOOK_SECONDS)
            if not end:
                watch(so_far("is still running"))
        if path.is_file() and (parts := json.loads(path.read_text())["parts"]):
            outcome = Outcome(**parts[0])
            if process.returncode in (0, FAILED):
                return outcome
            return replace(outcome, passed=False, faults=[*outcome.faults, f"the process {end}, after its result"])
    return so_far(end)


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
        "--seconds", type=float, help="that a part may take (default: each its own, 7.9 minutes in all)"
    )
    parser.add_argument("--budget", type=float, help="seconds for all; parts for which none is left are left out")
    parser.add_argument(
        "--mnist", type=expanded_path, metavar="DIR", help="where MNIST lies (default: digits, a lower bar)"
    )
    parser.add_argument(
        "--cifar10", type=expanded_path, metavar="DIR", help="where CIFAR-10 lies (default: made-up images)"
    )
    parser.add_argument("--learners", type=int, help=f"on the GPU (default: {Settings.learners})")
    parser.add_argument("--resnet-epochs", type=int, help=f"(default: {Settings.resnet_epochs})")
    parser.add_argument(
        "--precision", choices=("float32", "tf32", "bfloat16", "float16"), help="of lenet and resnet (default: float32)"
    )
    parser.add_argument("--skip", nargs="+", choices=PARTS, default=[], metavar="NAME", help="all but these")
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write everything there too")
    parser.add_argument(
        "--rows", type=file_to_write, metavar="FILE", help="where rows are written at once (default: beside --json)"
    )
    parser.add_argument("--in-process", action="store_true", help="run the parts in this process, for debugging")
    return parser


def settings_of(options: argparse.Namespace) -> Settings:
    names = ("device", "mnist", "cifar10", "learners", "resnet_epochs", "precision")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return replace(QUICK if options.quick else Settings(), **given)


def main(arguments: Sequence[str] | None = None, settings: Settings | None = None) -> int:
    """Run the checks that the command line selects. `settings`, if given, replace those of the command line."""
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
    outcomes: list[Outcome] = []
    journal = options.rows or _new_journal(options.json)

    def write(known: Sequence[Outcome]) -> None:
        if options.json is not None:  # saves the results so far, in case the next part ends this process
            _write(options.json, machine, settings, known)

    end = time.monotonic() + (options.budget if options.budget is not None else float("inf"))
    for name in [name for name in options.only or PARTS if name not in options.skip]:
        seconds = min(PARTS[name].seconds if options.seconds is None else options.seconds, end - time.monotonic())
        if seconds < min(LEAST_SECONDS, options.seconds or LEAST_SECONDS):
            print(f"{name}: left out for want of time", file=sys.stderr, flush=True)
            outcomes.append(Outcome(name, False, "–", 0.0, ["left out for want of time (--budget)"]))
            write(outcomes)
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        if options.in_process:
            outcome = run_part(name, settings, seconds, Journal(journal, name))
        else:
            limit = min(STARTING + 1.5 * seconds, end - time.monotonic())
            outcome = run_apart(name, arguments, journal, seconds, limit, lambda part: write([*outcomes, part]))
        outcomes.append(outcome)
        _show(outcome)
        write(outcomes)
    print("\n".join(f"- {name}: {value}" for name, value in machine.items()), end="\n\n")
    print(table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else FAILED


def _new_journal(beside: Path | None) -> Path:
    path = (Path(tempfile.mkdtemp()) / "check" if beside is None else beside).with_suffix(".rows.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def _show(outcome: Outcome) -> None:
    """Print a part's result, and its first faults."""
    word = "passed" if outcome.passed else "FAILED"
    print(f"{outcome.name}: {word}: {outcome.number} ({outcome.seconds:.1f} s)", file=sys.stderr, flush=True)
    for fault in outcome.faults[:SHOWN]:
        print(f"{outcome.name}: {fault}", file=sys.stderr, flush=True)
    if len(outcome.faults) > SHOWN:
        print(f"{outcome.name}: and {len(outcome.faults) - SHOWN} more", file=sys.stderr, flush=True)


def _write(path: Path, machine: dict[str, str], settings: Settings, outcomes: Sequence[Outcome]) -> None:
    written = {"machine": machine, "settings": asdict(settings), "parts": [asdict(outcome) for outcome in outcomes]}
    write_json(path, written)


if __name__ == "__main__":
    from benchmarks import gpu_check  # the same module that others import, not a second copy

    raise SystemExit(gpu_check.main())
