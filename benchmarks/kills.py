"""Runs that are killed at random moments and resumed: do they end with the weights of the unbroken run?

    python -m benchmarks.kills --kills 100 --rule all

Each *life* of a run is a process that trains until it is killed with signal 9. Every other kill comes while a
checkpoint is being written, which the benchmark slows down: the bytes are in a temporary file, but the file does not
have its name yet. The next process resumes from the newest checkpoint. A kill may lose at most the tasks of one
interval. At the end, the SHA-256 of the weights is compared with that of a run that was not killed and wrote no
checkpoints. Rules with a barrier have two learners, the others one, because with several learners their results depend
on timing.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.report import markdown
from crossbow import (
    Checkpoints,
    Dataflow,
    DataflowNode,
    Dataset,
    ExecutionContext,
    ModelConf,
    Monitor,
    Operator,
    SolverConf,
    SubGraph,
    SystemConf,
)
from crossbow.console import run_command
from crossbow.ops import BatchNorm, Dropout, InnerProduct, ReLU, SoftMax, SoftMaxLoss
from crossbow.runtime import checkpointing
from crossbow.runtime.checkpoint import checkpoint_files
from crossbow.runtime.monitor import Progress
from crossbow.scripts.values import integer
from crossbow.synch import RULES, SMA, SSGD, BarrierRule, Grouping, Rule, RuleSequence

EXAMPLES, BATCH, EPOCHS, INTERVAL = 1000, 5, 4, 40
"""Sizes of a run: 800 tasks, of which a kill may lose 40."""
SECONDS_PER_TICK = 0.002
"""Seconds that a life waits at every tick, so that it lasts long enough to be killed."""
SLOW_WRITE = 0.03
"""Minimum time in seconds to flush a checkpoint to the disk."""
SECONDS_OF_A_LIFE = 0.4
"""Maximum time in seconds from the first tick to a kill that does not wait for a checkpoint."""
SECONDS_TO_START = 120.0
OPTIONS: dict[str, dict[str, Any]] = {
    "sma": {"base_momentum": 0.4},
    "model-averaging": {"tau": 2},
    "diloco": {"tau": 2},
}
SEQUENCE = "sequence"
TASKS, WRITING, DONE = range(3)
"""Indices of the numbers in the file that a life shares with this process."""


@dataclass
class Killed:
    """Results of the runs under a rule."""

    rule: str
    kills: int = 0
    inside: int = 0
    """Kills while a checkpoint was being written."""
    lost: list[int] = field(default_factory=list)
    """Number of tasks between the newest checkpoint and the kill, for each kill."""
    runs: int = 0
    equal: int = 0
    """Runs that ended with the weights of the unbroken one."""


def rule_of(name: str) -> Rule | RuleSequence:
    """The rule with this name, or a sequence of rules."""
    if name == SEQUENCE:
        return RuleSequence(((SMA(base_momentum=0.4), 60), (SSGD(), 40)))
    if name == "grouping":
        return Grouping(groups=((0,),))
    return RULES[name](**OPTIONS.get(name, {}))


def learners_of(rule: Rule | RuleSequence) -> int:
    return 2 if isinstance(rule, BarrierRule | RuleSequence) else 1


def network() -> Dataflow:
    """Inner products with batch normalisation and dropout, so that a run has running statistics and random numbers."""
    kernels = [
        InnerProduct(number_of_outputs=32),
        BatchNorm(),
        ReLU(),
        Dropout(),
        InnerProduct(number_of_outputs=5),
        SoftMax(),
        SoftMaxLoss(),
    ]
    nodes = [DataflowNode(Operator(f"{type(kernel).__name__}{n}", kernel)) for n, kernel in enumerate(kernels)]
    for node, following in itertools.pairwise(nodes):
        node.connect_to(following)
    return Dataflow(SubGraph(nodes[0]))


def examples() -> Dataset:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, EXAMPLES + 100)
    images = generator.normal(size=(5, 16))[labels] + generator.normal(size=(len(labels), 16))
    return Dataset((images[:EXAMPLES], labels[:EXAMPLES]), (images[EXAMPLES:], labels[EXAMPLES:]))


def arguments_of(name: str) -> dict[str, Any]:
    """The arguments of a context under a rule."""
    rule = rule_of(name)
    return {
        "data": examples(),
        "model": ModelConf(batch_size=BATCH, rule=rule),
        "solver": SolverConf(learning_rate=0.05, momentum=0.9, policy="step", gamma=0.5, step_size=300),
        "system": SystemConf(learners_per_device=learners_of(rule), threads_per_learner=1),
    }


def digest(context: ExecutionContext) -> str:
    """SHA-256 of a model's variables."""
    found = hashlib.sha256()
    for name, value in sorted(context.variables.items()):
        found.update(name.encode())
        found.update(value.tobytes())
    return found.hexdigest()


def unbroken(name: str) -> str:
    """The digest of a run that is not killed and writes no checkpoints."""
    with ExecutionContext([network(), None], monitors=(), **arguments_of(name)) as context:
        context.train_and_test(EPOCHS)
        return digest(context)


class _Reporting(Monitor):
    """Reports the progress of training to the other process, and gives it time to kill this one."""

    interval = 0.0

    def __init__(self, shared: np.ndarray) -> None:
        self.shared = shared

    def progress(self, progress: Progress) -> None:
        self.shared[TASKS] = progress.tasks
        time.sleep(SECONDS_PER_TICK)


def live(name: str, directory: Path) -> None:
    """Begin or resume a run, and train to its end."""
    shared = np.memmap(directory / "shared", np.int64, "r+", shape=(3,))
    flush: Callable[[int], None] = os.fsync

    def slow(descriptor: int) -> None:
        shared[WRITING] = 1
        time.sleep(SLOW_WRITE)
        flush(descriptor)
        shared[WRITING] = 0

    write = checkpointing.write_checkpoint

    def slow_write(*arguments: Any) -> None:
        os.fsync = slow
        try:
            write(*arguments)
        finally:
            os.fsync = flush

    checkpointing.write_checkpoint = slow_write
    settings = Checkpoints(directory / "run", interval=f"{INTERVAL}tasks")
    given = {**arguments_of(name), "monitors": [_Reporting(shared)]}
    if checkpoint_files(settings.checkpoint_directory):
        with ExecutionContext.resume(settings, [network(), None], **given) as context:
            context.continue_training()
            result = digest(context)
    else:
        with ExecutionContext([network(), None], checkpoints=settings, **given) as context:
            context.train_and_test(EPOCHS)
            result = digest(context)
    (directory / "digest").write_text(result)
    shared[DONE] = 1


def kill_run(name: str, directory: Path, killed: Killed, kills: int, generator: random.Random) -> str:
    """Kill a run up to `kills` times, and let it end. Returns its digest."""
    shared = np.memmap(directory / "shared", np.int64, "w+", shape=(3,))
    while True:
        shared[TASKS], shared[WRITING] = -1, 0
        # In a new process group, so that Ctrl-C ends this process first.
        command = [sys.executable, "-m", "benchmarks.kills", "--live", name, "--directory", str(directory)]
        with subprocess.Popen(command, start_new_session=True) as process:
            try:
                if killed.kills < kills and _wait(process, shared, inside=killed.kills % 2 == 1, generator=generator):
                    process.kill()
                elif process.wait() != 0:
                    raise RuntimeError(f"{name}: a life ended with status {process.returncode}")
            finally:
                process.kill()
        if shared[DONE]:
            return (directory / "digest").read_text()
        killed.kills += 1
        killed.inside += bool(shared[WRITING])
        newest = checkpoint_files(directory / "run" / "checkpoints")
        killed.lost.append(int(shared[TASKS]) - (int(newest[0].stem) if newest else 0))


def _wait(process: subprocess.Popen[bytes], shared: np.ndarray, *, inside: bool, generator: random.Random) -> bool:
    """Wait until a random moment of training. Returns False if the process ends before it."""
    deadline = time.monotonic() + SECONDS_TO_START
    while not (shared[TASKS] >= 0 and (shared[WRITING] or not inside)):
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            raise RuntimeError(f"a life has not begun to train within {SECONDS_TO_START:g} s")
        time.sleep(0.001)
    time.sleep(generator.uniform(0, SLOW_WRITE / 2 if inside else SECONDS_OF_A_LIFE))
    return process.poll() is None


def results(names: Sequence[str], kills: int, seed: int) -> Iterator[Killed]:
    """Kill runs under each rule, this many times altogether."""
    generator = random.Random(seed)
    for number, name in enumerate(names):
        share = kills * (number + 1) // len(names) - kills * number // len(names)
        killed, expected = Killed(name), unbroken(name)
        while killed.kills < share or not killed.runs:
            with tempfile.TemporaryDirectory() as directory:
                killed.equal += kill_run(name, Path(directory), killed, share, generator) == expected
            killed.runs += 1
        yield killed


def table(found: Sequence[Killed]) -> str:
    """The results as a Markdown table."""
    rows = [
        [
            each.rule,
            str(each.kills),
            str(each.inside),
            str(max(each.lost, default=0)),
            f"{each.equal} of {each.runs}",
        ]
        for each in found
    ]
    total = [
        "all",
        str(sum(each.kills for each in found)),
        str(sum(each.inside for each in found)),
        str(max((lost for each in found for lost in each.lost), default=0)),
        f"{sum(each.equal for each in found)} of {sum(each.runs for each in found)}",
    ]
    head = ["rule", "kills", "inside a write", "most tasks lost", "runs with equal weights"]
    return markdown(head, [*rows, total])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 0 if all runs end with the weights of the unbroken ones, and no kill loses more than
    an interval, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=(__doc__ or "").splitlines()[0])
    known = [*RULES, SEQUENCE]
    parser.add_argument("--kills", type=integer(1), default=100, help="number of kills (default: %(default)s)")
    parser.add_argument("--rule", default="all", help=f"all, or names among {', '.join(known)} (default: %(default)s)")
    parser.add_argument("--seed", type=integer(0), default=0, help="of the moments (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.add_argument("--live", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.live:
        live(options.live, options.directory)
        return 0
    names = known if options.rule == "all" else options.rule.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--rule: expected all, or names among {', '.join(known)}. Received: {unknown[0]!r}")
    print(describe_machine(), flush=True)
    found = []
    for killed in results(names, options.kills, options.seed):
        found.append(killed)
        print(f"{killed.rule}: {killed.kills} kills, {killed.equal} of {killed.runs} runs equal", flush=True)
    print(f"\nInterval: {INTERVAL} tasks.\n\n{table(found)}")
    if options.json is not None:
        options.json.write_text(json.dumps([vars(each) for each in found], indent=2))
    return 0 if all(each.equal == each.runs and max(each.lost, default=0) <= INTERVAL for each in found) else 1


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.kills", main))
