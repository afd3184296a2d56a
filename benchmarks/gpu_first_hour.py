"""The first hour on a GPU: all checks and measurements, in three calls of at most ten minutes each.

    python -m benchmarks.gpu_first_hour 1 --output results
    python -m benchmarks.gpu_first_hour 2 --output results
    python -m benchmarks.gpu_first_hour 3 --output results

The first call runs the most important steps: correctness of operators and training runs (`benchmarks.gpu_check`), and
the speed of ResNet-32 with several learners compared with PyTorch (`benchmarks.gpu_learners`). The other calls run the
rest of both benchmarks, and the tests that need a GPU.

Every step is a process with a time limit: if one fails or hangs, the others still run. Its output is printed at once,
and written to `call-N.log`; `call-N.json` has the outcome of every step, and the steps write their own files next to it
while they run. The exit status is 0 if all steps passed, 1 if not, and 2 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu_check import ENVIRONMENT, NO_GPU, PARTS
from benchmarks.learners import _number
from benchmarks.machine import describe_machine
from benchmarks.report import markdown
from crossbow.console import run_command
from crossbow.files import write_whole
from crossbow.kernels.cuda.dependent_launch import SWITCH

SECONDS = 540.0
"""Time limit of a call, less than ten minutes including its start and end."""
MARGIN = 12.0
"""Seconds between a step's given time and its time limit."""
LEAST_SECONDS = 15.0
"""Minimum remaining time in seconds to start a step."""
SECONDS_TO_END = 5.0
"""Seconds that a process has to end after SIGTERM before it is killed, and seconds that its output has to end after
that."""
TAIL = 40
"""Number of last lines of a step's output in the JSON."""

FIRST_PARTS = ("operators-float32", "weights", "graphs", "nccl", "determinism", "operators-timed")
"""Parts of `benchmarks.gpu_check` in the first call."""


@dataclass(frozen=True)
class Step:
    """A Python process. In its arguments, {output} is the directory, {device} the GPU's number, and {budget} its time
    in seconds."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    """Time limit in seconds."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables."""


def _check(name: str, parts: Sequence[str], seconds: float) -> Step:
    arguments = ("-m", "benchmarks.gpu_check", "--device", "cuda:{device}", "--budget", "{budget}", "--only", *parts)
    return Step(name, (*arguments, "--json", f"{{output}}/{name}.json"), seconds)


def _learners(name: str, seconds: float, *options: str, **environment: str) -> Step:
    arguments = ("-m", "benchmarks.gpu_learners", "--device", "{device}", "--budget", "{budget}", *options)
    return Step(name, (*arguments, "--json", f"{{output}}/{name}.json"), seconds, environment)


RESNET_32 = ("--networks", "resnet-32", "--batches", "16", "32")
TESTS = "tests"
"""Name of the step that runs pytest, whose exit statuses have other meanings."""
TESTED = ("tests/runtime/cuda/test_gpu.py", "tests/operators", "tests/synch/test_collective.py")

CALLS: Mapping[int, Sequence[Step]] = {
    1: (
        Step("info", ("-m", "crossbow", "info"), 60.0),
        _check("check-1", FIRST_PARTS, 280.0),
        _learners("learners-float32", SECONDS, *RESNET_32),
    ),
    2: (
        _check("check-2", [name for name in PARTS if name not in FIRST_PARTS], 270.0),
        _learners("learners-bfloat16", 180.0, *RESNET_32, "--precision", "bfloat16"),
        _learners("learners-tf32", SECONDS, *RESNET_32, "--precision", "tf32"),
    ),
    3: (
        Step(
            TESTS,
            ("-m", "pytest", "-m", "gpu", "--device", "cuda:{device}", "-q", "--tb=short", "--maxfail=30", *TESTED),
            240.0,
        ),
        _learners("learners-64", 110.0, "--networks", "resnet-32", "--batches", "64"),
        _learners("learners-dependent", 60.0, "--networks", "resnet-32", "--batches", "16", **{SWITCH: "1"}),
        _learners("learners-others", SECONDS, "--networks", "lenet", "resnet-50"),
    ),
}
"""Steps of every call, the most important first."""


@dataclass
class Ended:
    """Result of a step."""

    name: str
    result: str
    """"passed", or a description of the failure."""
    seconds: float = 0.0
    status: int | None = None
    """Exit status of the process, or None."""
    tail: list[str] = field(default_factory=list)
    """Last lines of the output."""

    @property
    def passed(self) -> bool:
        return self.status == 0


def run(step: Step, seconds: float, places: Mapping[str, str], show: Callable[[str], None]) -> Ended:
    """Run a step, and end it after the time limit. Every line of its output is shown at once."""
    budget = {"budget": f"{max(seconds - MARGIN, 1.0):.0f}"}
    command = [sys.executable, *(argument.format_map({**places, **budget}) for argument in step.arguments)]
    began, tail = time.monotonic(), deque[str](maxlen=TAIL)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**ENVIRONMENT, **os.environ, **step.environment},
        process_group=0,  # so that its child processes end with it
    )

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                tail.append(line.rstrip("\n"))
                show(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        status: int | None = process.wait(seconds)
        result = "passed" if status == 0 else f"ended with status {status}"
    except subprocess.TimeoutExpired:
        status, result = None, f"was ended after {seconds:.0f} s"
    finally:
        _end(process)
    reader.join(SECONDS_TO_END)
    return Ended(step.name, result, time.monotonic() - began, status, list(tail))


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and its child processes. A process that waits for a GPU may not respond, and is abandoned."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END if number == signal.SIGTERM else 1.0)


def call(
    steps: Sequence[Step],
    seconds: float,
    places: Mapping[str, str],
    save: Callable[[Sequence[Ended]], None],
    log: TextIO,
) -> list[Ended]:
    """Run the steps in order, within the time limit. `save` is called at every beginning and end."""
    end, done = time.monotonic() + seconds, list[Ended]()

    def show(text: str) -> None:
        for file in (sys.stdout, log):
            file.write(text)
            file.flush()

    for step in steps:
        left = min(step.seconds, end - time.monotonic())
        if left < min(LEAST_SECONDS, seconds / 2):
            done.append(Ended(step.name, "left out for want of time"))
            show(f"== {step.name}: left out for want of time\n")
            continue
        show(f"== {step.name}: at most {left:.0f} s\n")
        save([*done, Ended(step.name, "is running")])
        try:
            ended = run(step, left, places, show)
        except Exception as error:  # for example if a process cannot be started; the next one may work
            ended = Ended(step.name, f"could not be run: {type(error).__name__}: {error}")
        done.append(ended)
        show(f"== {step.name}: {ended.result} ({ended.seconds:.0f} s)\n\n")
        save(done)
    save(done)
    show(f"{table(done)}\n")
    return done


def table(done: Sequence[Ended]) -> str:
    rows = [[ended.name, ended.result, f"{ended.seconds:.0f} s"] for ended in done]
    return markdown(["step", "result", "time"], rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_first_hour",
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("call", type=int, choices=CALLS, help="which of the three calls")
    add("--output", type=Path, default=Path("output/gpu"), metavar="DIR", help="where the results go")
    add("--seconds", type=partial(_number, float, 1.0), default=SECONDS, metavar="S", help="that the call may take")
    add("--device", type=partial(_number, int, 0), default=0, metavar="N", help="the GPU, as CUDA counts them")
    add("--mnist", metavar="DIR", help="where MNIST lies, to train on (default: the digits of scikit-learn)")
    add("--cifar10", metavar="DIR", help="where CIFAR-10 lies, to train on (default: made-up images)")
    return parser


def with_data(step: Step, options: argparse.Namespace) -> Step:
    """The step, with the paths of the data sets if it is a check."""
    if "benchmarks.gpu_check" not in step.arguments:
        return step
    given = {"--mnist": options.mnist, "--cifar10": options.cifar10}
    folders = {name: folder.replace("{", "{{").replace("}", "}}") for name, folder in given.items() if folder}
    more = [text for option in folders.items() for text in option]
    return replace(step, arguments=(*step.arguments, *more))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    path, machine = options.output / f"call-{options.call}.json", describe_machine()
    places = {"output": str(options.output), "device": str(options.device)}

    def save(done: Sequence[Ended]) -> None:
        written: dict[str, Any] = {"call": options.call, "machine": machine, "steps": [asdict(one) for one in done]}
        write_whole(path, (json.dumps(written, indent=1, ensure_ascii=False) + "\n").encode())

    steps = [with_data(step, options) for step in CALLS[options.call]]
    with path.with_suffix(".log").open("w", encoding="utf-8") as log:
        done = call(steps, options.seconds, places, save, log)
    checked = [ended for ended in done if ended.name != TESTS]
    if any(ended.status == NO_GPU for ended in checked):
        return NO_GPU
    return 0 if all(ended.passed for ended in done) else 1


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.gpu_first_hour", main))
