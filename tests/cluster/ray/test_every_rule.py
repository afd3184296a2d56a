"""Every rule on a Ray cluster of several nodes, in one job each: its ranks are killed and join while it trains."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.kills import EXAMPLES, OPTIONS
from benchmarks.losses import Nodes
from crossbow.synch import RULES
from tests.cluster.ray.test_launcher import NEEDS_RAY, begin

pytestmark = [NEEDS_RAY, pytest.mark.slow]

RANKS, BATCH = 3, 50
PROGRAM = f"""
import os, pathlib, sys, time
from dataclasses import replace
import ray
from benchmarks.kills import arguments_of, network
from crossbow import ExecutionContext, JsonLinesMonitor, Monitor, SystemConf
from crossbow.synch import Grouping

directory, rule = pathlib.Path(sys.argv[1]), sys.argv[2]
given = arguments_of(rule)
given["system"] = SystemConf(learners_per_device=1, threads_per_learner=1)
given["model"] = replace(given["model"], batch_size={BATCH})
if rule == Grouping.name:
    given["model"] = replace(given["model"], rule=Grouping())

class Paces(Monitor):
    interval = 0.0

    def progress(self, progress):
        time.sleep(0.05)  # leaves the cores to processes that begin

    def record(self, record):
        if (directory / "enough").exists():
            self.end_training("the test has seen enough")

(directory / f"process-{{os.getpid()}}").write_text(ray.get_runtime_context().get_node_id())
monitors = [JsonLinesMonitor(directory / "log.jsonl"), Paces()]
with ExecutionContext([network(), None], monitors=monitors, **given) as context:
    before = context.test()
    history = context.train_and_test(10**6, verbose=1)
    assert history.stopped == "monitor"
    assert history.records[-1].test.loss < before.loss, (history.records[-1].test, before)
    context.save(directory / f"model-{{os.getpid()}}.safetensors")
"""
"""Trains until a file says that the test has seen enough, and then to the end of the epoch. Every rank writes its node
and its model."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A cluster with a node for each rank. Every job removes one, and adds one."""
    found = Nodes()
    try:
        for _ in range(RANKS):
            found.add()
        yield found
    finally:
        found.close()


class Job:
    """A job whose ranks train under a rule."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process, self._directory = process, directory

    def wait(self, text: str) -> None:
        """Wait for a line with this text."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if not any(text in line for line in self._process.stdout):
            pytest.fail(f"expected a line with {text!r}. Received: the end of the job, {self._process.stderr.read()}")

    def ranks(self) -> dict[int, str]:
        """The processes that have begun, and their nodes."""
        files = self._directory.glob("process-*")
        return {int(file.name.partition("-")[2]): file.read_text() for file in files}

    def kill(self, process: int) -> None:
        """Kill a rank in the middle of an epoch. Training goes on without it."""
        time.sleep(random.uniform(0.05, 0.25))
        os.kill(process, signal.SIGKILL)
        self.wait(" left: ")

    def end(self) -> tuple[int, str]:
        """Let training end with the next epoch. Returns the exit status, and the errors."""
        (self._directory / "enough").touch()
        _, errors = self._process.communicate()
        return self._process.returncode, errors


@pytest.mark.parametrize("rule", RULES)
def test_training_survives_under_every_rule(nodes: Nodes, rule: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    options = ("--address", nodes.address, "-n", str(RANKS), "--per-host", "1", str(script), str(tmp_path), rule)
    with begin(*options) as process, contextlib.ExitStack() as cleanup:
        cleanup.callback(process.kill)
        nodes.add()  # meanwhile: it gets a rank when another node has left
        job = Job(process, tmp_path)
        job.wait("epoch ")
        ranks = job.ranks()
        first, second, _ = sorted(ranks, key=ranks.__getitem__)  # as the launcher orders the nodes of one host
        nodes.remove(ranks[second])
        job.wait(" left: ")
        job.wait(" joined. ")
        job.wait("epoch ")
        job.kill(first)
        job.wait("is now rank 0")
        job.wait("epoch ")
        (new,) = set(job.ranks()) - set(ranks)
        job.kill(new)
        job.wait("epoch ")
        assert job.end() == (0, "")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [event for line in lines if (event := event_of(line))] == ["left", "joined", "left", "coordinator", "left"]
    check_examples(lines, RANKS * OPTIONS.get(rule, {}).get("tau", 1))
    (model,) = (load_file(path) for path in tmp_path.glob("model-*"))
    assert all(np.isfinite(value).all() for value in model.values())


def event_of(line: Mapping[str, Any]) -> str:
    return next((name for name in ("left", "joined", "coordinator") if name in line), "")


def check_examples(lines: Sequence[Mapping[str, Any]], longest_tick: int) -> None:
    """Every example of an epoch must count once. Where ranks have left, their last results may be missing.
    longest_tick: number of tasks in a tick of all ranks."""
    epochs, tasks, seconds, lost = 0, 0, 0.0, False
    for line in lines:
        lost = lost or event_of(line) == "left"
        if "epoch" in line:
            epochs += 1
            examples = round(line["images_per_second"] * (line["time"] - seconds))
            expected = BATCH * (line["tasks"] - tasks)
            assert examples <= expected if lost else examples == expected
            assert 0 <= line["tasks"] - epochs * EXAMPLES // BATCH < longest_tick
            tasks, seconds, lost = line["tasks"], line["time"], False
    assert epochs > 5
