"""Training on Ray, whose ranks are killed and join again at random moments: does it always continue?

    python -m benchmarks.losses --kills 50 --rule all

A cluster on this machine has a head and three nodes, each with a rank. Under each rule a job trains without end, and
repeatedly loses a rank: the rank's process is killed with signal 9, or its node is removed without warning. Ranks are
chosen at random, including rank 0. Then a new node replaces the lost one, and a rank joins on it. Every third time, the
process that joins is killed, too, while it prepares itself, and another node replaces its node. After each event the
next epoch must end within a limit. At the end, Ctrl-C ends the job with a checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from benchmarks.kills import arguments_of, network
from benchmarks.machine import describe_machine
from benchmarks.report import markdown
from crossbow import Checkpoints, ExecutionContext, SystemConf
from crossbow.cluster.ray.head import NICENESS
from crossbow.cluster.ray.health import HEALTH_CHECKS
from crossbow.console import run_command
from crossbow.files import write_whole
from crossbow.scripts.values import integer
from crossbow.synch import RULES, Grouping

NODES = 3
EPOCHS = 1_000_000
LONGEST_WAIT = 1.0
"""Maximum number of seconds from the end of an epoch to a kill."""
LONGEST_PREPARATION = 3.0
"""Maximum number of seconds from the start of a process that joins to a kill."""
LIMIT = 120.0
"""Maximum number of seconds to wait for a line of output. A longer wait counts as a hang."""
KINDS = ("process", "node", "process, and the one that joins")


class JobError(RuntimeError):
    """A job hung or ended."""


@dataclass
class Losses:
    """Results of a job under a rule."""

    rule: str
    kills: int = 0
    of_rank_0: int = 0
    of_nodes: int = 0
    while_joining: int = 0
    noticed: list[float] = field(default_factory=list)
    """For each kill of a process, the seconds until the line of output that training continues without it."""
    nodes_noticed: list[float] = field(default_factory=list)
    """The same times, for each removed node."""
    pauses: list[float] = field(default_factory=list)
    """For each join, the seconds without a tick that it caused."""
    joins: int = 0
    failure: str = ""
    """Description of the failure that ended the benchmark; empty if there was none."""


def live(rule: str, directory: Path) -> None:
    """The program of a rank."""
    import ray

    write_whole(directory / "processes" / str(os.getpid()), ray.get_runtime_context().get_node_id().encode())
    given = arguments_of(rule) | {"system": SystemConf(learners_per_device=1, threads_per_learner=1)}
    if rule == Grouping.name:
        given["model"] = replace(given["model"], rule=Grouping())
    with ExecutionContext([network(), None], checkpoints=Checkpoints(directory / "run"), **given) as context:
        context.train(EPOCHS, verbose=1)


class Job:
    """A job on a cluster. `wait` searches for lines in the launcher's output."""

    def __init__(self, address: str, rule: str, directory: Path) -> None:
        self.directory = directory
        (directory / "processes").mkdir()
        program = ["-m", "benchmarks.losses", "--live", rule, "--directory", str(directory)]
        command = [sys.executable, "-m", "crossbow", "launch", "--address", address, "--per-host", "1", *program]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._newest: list[str] = []
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        streams = (self._process.stdout, self._process.stderr)
        self._readers = [threading.Thread(target=self._read, args=(stream,), daemon=True) for stream in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.put(line)

    def wait(self, *texts: str) -> str:
        """The next line that contains one of these texts. Raises JobError after the limit, or if the job ends."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=0.1)
                self._newest = [*self._newest[-4:], line]
                if any(text in line for text in texts):
                    return line
                continue
            if self._process.poll() is not None:
                raise JobError(f"expected {texts}; the job ended with {self._process.returncode} after {self._newest}")
        raise JobError(f"expected {texts} within {LIMIT:g} s; the newest lines: {self._newest}")

    def epoch(self) -> None:
        """Wait for the end of the next epoch."""
        while not self._lines.empty():
            self._lines.get()
        self.wait("epoch ")

    def processes(self) -> dict[int, str]:
        """The running processes of ranks, including those that have not joined yet, and their nodes."""
        files = sorted((self.directory / "processes").glob("[0-9]*"))
        return {int(file.name): file.read_text() for file in files if Path(f"/proc/{file.name}").exists()}

    def interrupt(self) -> int:
        """End the job as Ctrl-C does. Returns the exit status."""
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise JobError(f"expected the job to end after Ctrl-C within {LIMIT:g} s") from None

    def close(self) -> None:
        """End all processes of the job."""
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()


class Nodes:
    """The nodes of a cluster on this machine, each with room for one rank."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        settings = {
            "num_cpus": 0,
            "include_dashboard": False,
            "_system_config": {"worker_niceness": NICENESS, **HEALTH_CHECKS},
        }
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=settings)
        self._nodes: dict[str, Any] = {}
        self.address: str = self._cluster.address

    def add(self) -> None:
        node = self._cluster.add_node(num_cpus=1)
        self._nodes[node.node_id] = node

    def remove(self, node: str) -> None:
        """Remove a node without warning."""
        self._cluster.remove_node(self._nodes.pop(node), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


def lose(job: Job, nodes: Nodes, kind: str, losses: Losses, generator: random.Random) -> None:
    """Kill a process or a node, and let a rank join again."""
    job.epoch()
    time.sleep(generator.uniform(0, LONGEST_WAIT))
    before = job.processes()
    process, began = generator.choice(list(before)), time.monotonic()
    if kind == "node":
        nodes.remove(before[process])
    else:
        os.kill(process, signal.SIGKILL)
    line = job.wait(" left: ")
    losses.kills += 1
    losses.of_rank_0 += line.startswith("rank 0 ")
    losses.of_nodes += kind == "node"
    (losses.nodes_noticed if kind == "node" else losses.noticed).append(time.monotonic() - began)
    job.epoch()
    if kind != "node":
        nodes.remove(before[process])  # its rank is gone, so the node is not used again
    nodes.add()
    if kind == KINDS[2]:
        process, node = wait_for_process(job, before)
        time.sleep(generator.uniform(0, LONGEST_PREPARATION))
        os.kill(process, signal.SIGKILL)
        losses.kills += 1
        losses.while_joining += " did not join" in job.wait(" did not join", " left: ")
        job.epoch()
        nodes.remove(node)
        nodes.add()
    losses.pauses.append(pause_of(job.wait(f"with {NODES} ranks")))
    losses.joins += 1
    job.epoch()


def pause_of(line: str) -> float:
    """The number of seconds without a tick that a line of a job states.

    >>> pause_of("rank 2 (b) joined. Training goes on after task 40, with 3 ranks and 3 learners (0.2 s)")
    0.2
    """
    found = re.search(r"\(([\d.]+) s\)", line)
    if found is None:
        raise JobError(f"expected the seconds without a tick. Received: {line}")
    return float(found[1])


def wait_for_process(job: Job, before: Mapping[int, str]) -> tuple[int, str]:
    """Wait for a process that is not in `before`. Returns its id and its node."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        for process, node in job.processes().items():
            if process not in before:
                return process, node
        time.sleep(0.01)
    raise JobError(f"expected a process that joins within {LIMIT:g} s")


def results(names: Sequence[str], kills: int, seed: int) -> Iterator[Losses]:
    """Kill ranks of a job under each rule, at least `kills` in total."""
    generator, number, nodes = random.Random(seed), 0, Nodes()
    try:
        for _ in range(NODES):
            nodes.add()
        for index, name in enumerate(names):
            losses, end = Losses(name), kills * (index + 1) // len(names)
            with tempfile.TemporaryDirectory() as directory:
                job = Job(nodes.address, name, Path(directory))
                try:
                    while number < end:
                        lose(job, nodes, KINDS[number % len(KINDS)], losses, generator)
                        number += 1
                    if (status := job.interrupt()) != 130:
                        raise JobError(f"expected exit status 130 after Ctrl-C. Received: {status}")
                    if not list(Path(directory).glob("run/checkpoints/*")):
                        raise JobError("expected a checkpoint after Ctrl-C")
                except JobError as error:
                    losses.failure = str(error)
                finally:
                    job.close()
            yield losses
            if losses.failure:
                return
    finally:
        nodes.close()


def table(found: Sequence[Losses]) -> str:
    """The results as a Markdown table."""

    def seconds(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.1f} ({max(values):.1f})" if values else "–"

    rows = [
        [
            each.rule,
            *map(str, (each.kills, each.of_rank_0, each.of_nodes, each.while_joining, each.joins)),
            seconds(each.noticed),
            seconds(each.nodes_noticed),
            seconds(each.pauses),
            "yes" if each.failure else "no",
        ]
        for each in found
    ]
    head = ["rule", "kills", "of rank 0", "of nodes", "while joining", "joins"]
    failures = [f"\n{each.rule}: {each.failure}" for each in found if each.failure]
    head += ["process noticed, s", "node noticed, s", "pause of a join, s", "failed"]
    goals = [f"\n{goal(what, limit, [s for each in found for s in values(each)])}" for what, limit, values in GOALS]
    return "\n".join([markdown(head, rows), *goals, *failures])


GOALS: tuple[tuple[str, float, Callable[[Losses], Sequence[float]]], ...] = (
    ("a process is noticed", 1.0, lambda each: each.noticed),
    ("a node is noticed", 6.0, lambda each: each.nodes_noticed),
    ("a join pauses the others", 2.0, lambda each: each.pauses),
)
"""Events, their maximum durations in seconds on an idle machine, and functions that return the measured durations."""


def goal(what: str, limit: float, seconds: Sequence[float]) -> str:
    """A sentence on the number of times that a goal was reached.

    >>> goal("a node is noticed", 6, [1.0, 7.0])
    'a node is noticed within 6 s: 1 of 2 times'
    """
    return f"{what} within {limit:g} s: {sum(each <= limit for each in seconds)} of {len(seconds)} times"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 0 if training always went on, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.losses", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=integer(1), default=50, help="kills, at least (default: %(default)s)")
    parser.add_argument("--rule", default="all", help=f"all, or names among {', '.join(RULES)} (default: %(default)s)")
    parser.add_argument("--seed", type=integer(0), default=0, help="of ranks and moments (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.add_argument("--live", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.live:
        live(options.live, options.directory)
        return 0
    names = list(RULES) if options.rule == "all" else options.rule.split(",")
    if unknown := [name for name in names if name not in RULES]:
        parser.error(f"--rule: expected all, or names among {', '.join(RULES)}. Received: {unknown[0]!r}")
    print(describe_machine(), flush=True)
    found = []
    for losses in results(names, options.kills, options.seed):
        found.append(losses)
        print(f"{losses.rule}: {losses.kills} kills, {losses.joins} joins {losses.failure}", flush=True)
    print(f"\n{table(found)}")
    if options.json is not None:
        options.json.write_text(json.dumps([vars(each) for each in found], indent=2))
    return 0 if all(not each.failure for each in found) else 1


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.losses", main))
