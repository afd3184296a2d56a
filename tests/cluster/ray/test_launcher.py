"""Launching on Ray: a cluster on this machine, and processes that are killed."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file

from crossbow.cluster.admission import Journal
from crossbow.cluster.failure import LOST
from crossbow.cluster.host_files import Host
from crossbow.cluster.program import CANNOT_JOIN, LEFT, SIGNALLED, RankProgram
from crossbow.cluster.ranks import LOSS
from crossbow.cluster.ray import launcher
from crossbow.cluster.ray.connection import ClusterNode, Connection
from crossbow.cluster.ray.guard import VARIABLE, marked
from crossbow.cluster.ray.head import NICENESS, few_processes
from crossbow.cluster.ray.health import HEALTH_CHECKS
from crossbow.cluster.ray.lookout import Lookout
from tests.cluster.ray.test_connection import FakeRay
from tests.support import same_weights, until

ROOT = Path(__file__).parents[3]
NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'crossbow[ray]'")
SECONDS_OF_A_HANG = 400.0
"""Longer than any job here takes on a busy machine."""


class Job(subprocess.Popen[str]):
    """A launcher that is killed if its test fails. Otherwise the test would wait for its end."""

    def __exit__(self, kind: type[BaseException] | None, *more: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *more)


def begin(*options: str, fault: str = "") -> Job:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    line = [sys.executable, "-m", "crossbow", "launch", *options]
    pipe = subprocess.PIPE
    environment |= {"CROSSBOW_FAULT": fault} if fault else {}
    process = Job(line, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=ROOT)
    limit = threading.Timer(SECONDS_OF_A_HANG, process.kill)  # a job that goes on without what a test waits for
    limit.daemon = True
    limit.start()
    return process


def launch(*options: str, fault: str = "") -> tuple[int, str, str]:
    """Exit status, output and errors."""
    with begin(*options, fault=fault) as process:
        out, err = process.communicate(timeout=240)
    return process.returncode, out, err


SMALL = ("models.logistic_regression", "--kernels", "reference")
"""A model that trains in no time, on kernels that import nothing."""


def training(directory: Path, *more: str, model: Sequence[str] = SMALL, one_level: bool = True) -> list[str]:
    """A program that trains for 94 tasks. one_level: whether ranks average at every tick, not by default."""
    data = ["--dataset", "digits", "--batch-size", "16", "--epochs", "1"]
    learners = ["--learners", "1", "--threads-per-learner", "1", *(["--between", "none"] if one_level else [])]
    return ["-m", *model, *data, *learners, "--output-directory", str(directory), *more]


SLOW = """
import time
import numpy as np

class Images:
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return self.number

    def __getitem__(self, number):
        time.sleep(0.002)
        return np.full((1, 28, 28), number % 10, np.uint8), number % 10

train, check = Images(480), Images(16)
"""


def endless(directory: Path, *more: str, model: Sequence[str] = SMALL, one_level: bool = True) -> list[str]:
    """A program that trains until it is ended. Its data are slow, and leave the cores to processes that begin."""
    (directory / "dataset.py").write_text(SLOW)
    data = ["--dataset", "sequence", "--data-directory", str(directory), "--epochs", "100000"]
    return training(directory / "run", *data, *more, model=model, one_level=one_level)


@contextlib.contextmanager
def cluster_with(head_cores: int, checks: Mapping[str, int] | None = None) -> Iterator[Any]:
    """A cluster of Ray on this machine, to which nodes can be added. checks: its settings."""
    import ray
    from ray.cluster_utils import Cluster

    settings = {"num_cpus": head_cores, "_system_config": {"worker_niceness": NICENESS, **(checks or {})}}
    with few_processes(ray):
        cluster: Any = Cluster(initialize_head=True, head_node_args=settings)
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster with one node for several jobs, because it takes as long to begin as a job."""
    checks = {**HEALTH_CHECKS, "health_check_timeout_ms": 1500}  # on a busy machine, the node may answer late
    with cluster_with(head_cores=1, checks=checks) as found:
        yield found


def on(cluster: Any, ranks: int) -> tuple[str, ...]:
    """Options of a job with these ranks on the cluster's node."""
    return "--address", cluster.address, "-n", str(ranks), "--per-host", str(ranks)


def test_a_stop_at_a_tick_waits_for_rank_0() -> None:
    assert launcher.STOPPED == (LOST, 130, 143)
    assert launcher._first_line(ValueError("one\ntwo")) == "one"
    assert launcher._first_line(ValueError()) == "ValueError()"


class Looks(Lookout):
    """Looks when it is asked to."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(lambda: connection.nodes({}))

    def nodes(self, seconds: float) -> Sequence[ClusterNode]:
        return self._look()


def test_new_nodes_get_ranks_up_to_a_number() -> None:
    nodes = [(host, {"CPU": 1.0}) for host in "ab"]
    connection = Connection(FakeRay(nodes), local=False)

    def hosts(most: int | None, per_host: int = 1) -> str:
        nodes[2:] = []
        begun = [node for node in connection.nodes({}) for _ in range(per_host)][:most]
        found = launcher.Launcher(connection, RankProgram("m", ()), begun, most=most, per_host=per_host)
        found._lookout = Looks(connection)
        assert found.nodes_to_join() == []
        nodes.append(("c", {"CPU": 1.0}))
        joining = []
        while (new := found.nodes_to_join()) and len(joining) < 5:
            joining.append(new[0].host)
            process = found._roster.add(new[0].host)
            found._nodes.append(new[0])
            found._roster.join(process)
        return "".join(joining)

    assert (hosts(None), hosts(None, 2), hosts(2), hosts(5, 2)) == ("c", "cc", "", "c")


def test_after_a_loss_a_node_without_a_rank_gets_one() -> None:
    nodes = [(host, {"CPU": 1.0}) for host in "abc"]
    connection = Connection(FakeRay(nodes), local=False)
    found = launcher.Launcher(connection, RankProgram("m", ()), connection.nodes({})[:2], most=2)
    found._lookout = Looks(connection)
    assert found.nodes_to_join() == []
    found._roster.lose(1, "killed")
    assert [node.host for node in found.nodes_to_join()] == ["c"]


def test_a_host_that_is_back_gets_as_many_ranks_as_it_has_slots() -> None:
    ray = FakeRay([("one", {"CPU": 1.0, "crossbow-host-0": 1.0}), ("two", {"CPU": 1.0, "crossbow-host-1": 1.0})])
    connection = Connection(ray, local=False, hosts=[Host("a"), Host("b", 2)])
    a, b = connection.nodes({})
    found = launcher.Launcher(connection, RankProgram("m", ()), [a, b, b])
    found._lookout = Looks(connection)
    assert found.nodes_to_join() == []
    for process in (1, 2):
        found._roster.lose(process, "killed")
    assert found.nodes_to_join() == []
    ray._nodes[1:] = [("two again", ray._nodes[1][1])]
    for _ in range(2):
        (node,) = found.nodes_to_join()
        assert (node.id, node.host, node.slots) == ("id-of-two again", "b", 2)
        found._roster.add(node.host)
        found._nodes.append(node)
    assert found.nodes_to_join() == []


def test_only_the_head_knows_that_a_node_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [(host, {"CPU": 1.0}) for host in "ab"]
    connection = Connection(FakeRay(nodes), local=False)
    found = launcher.Launcher(connection, RankProgram("m", ()), connection.nodes({}))
    found._lookout = Looks(connection)
    nodes[:] = [(found.nodes[1].host, {"CPU": 1.0})]
    assert [found._node_has_left(process) for process in (0, 1)] == [True, False]
    monkeypatch.setattr(found._lookout, "nodes", lambda seconds: None)
    assert not found._node_has_left(0)
    assert found.nodes_to_join() == []


class FakeActors:
    """Actors that only note what they are asked. They stand for Ray, too."""

    def __init__(self, hosts: str) -> None:
        self.asked: list[tuple[int, str, Any]] = []
        self.journal: Journal | None = Journal((), ())
        self.silent = False
        """Whether no call returns."""
        self.exceptions = SimpleNamespace(RayError=OSError, RayActorError=ConnectionError)
        self._ray = FakeRay([(host, {"CPU": 1.0}) for host in hosts])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def actor(self, process: int) -> Any:
        def method(name: str) -> Any:
            def remote(*given: Any, **_: Any) -> int:
                self.asked.append((process, name, *given[:1]))
                return process

            call = SimpleNamespace(remote=remote)
            return SimpleNamespace(options=lambda **_: call, remote=call.remote)

        names = ("change_view", "request_stop", "journal", "join", "request_pause")
        return SimpleNamespace(**{name: method(name) for name in names})

    def get(self, process: int, timeout: float | None = None) -> Journal | None:
        if timeout == launcher.SECONDS_TO_START or self.silent:
            assert timeout is not None
            raise TimeoutError
        if self.journal is None and process == 0:
            raise ConnectionError
        return self.journal

    def stops(self) -> list[tuple[int, str, Any]]:
        return [each for each in self.asked if each[1] == "request_stop"]


def launched(hosts: str, *, local: bool = False, **options: Any) -> tuple[launcher.Launcher, FakeActors]:
    """A launcher of a rank on each host."""
    actors = FakeActors(hosts)
    connection = Connection(actors, local=local)
    nodes = [ClusterNode(f"id-of-{host}", host, {}) for host in hosts]
    found = launcher.Launcher(connection, RankProgram("m", ()), nodes, **options)
    found._actors = [actors.actor(process) for process in range(len(hosts) + 1)]
    return found, actors


def test_with_too_few_ranks_and_no_others_training_ends(capsys: pytest.CaptureFixture[str]) -> None:
    found, actors = launched("ab", local=True, least=2)
    found._lose(1, "killed")
    expected = "rank 1 (b) was lost: killed. Training ends: expected at least 2 ranks, and no others can join\n"
    assert capsys.readouterr().err == expected
    assert [each[:2] for each in actors.asked] == [(0, "change_view"), (0, "request_stop")]
    assert actors.stops() == [(0, "request_stop", LOSS)]
    assert found._deadline is not None
    assert found._status() == LOST  # if rank 0 does not end
    found._statuses[0] = 1
    assert found._status() == LOST
    found._statuses[0] = 0  # it had ended
    assert found._status() == 0


@pytest.mark.parametrize(
    ("status", "said"), [(0, "rank 1 (b) was lost: killed. Other ranks have ended\n"), (1, ""), (130, "")]
)
def test_a_rank_that_is_lost_when_others_have_ended(status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no consequence only if these have ended well."""
    found, actors = launched("ab")
    found._statuses[0] = status
    found._end_within(60)
    found._lose(1, "killed")
    assert capsys.readouterr().err == said
    assert (found._status(), actors.asked) == (status, [])


def test_with_too_few_ranks_training_waits_for_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, actors = launched("abc", least=3)
    found._lose(1, "killed")
    assert capsys.readouterr().err == (
        "rank 1 (b) was lost: killed. Training waits up to 60 s for nodes that join: expected at least 3 ranks\n"
    )
    found._check_wait()
    monkeypatch.setattr(launcher, "SECONDS_TO_JOIN", 0.0)
    found._lose(0, "killed")
    process = found._roster.add("d")
    found._joining[process] = ""
    found._check_wait()  # it waits for a rank that prepares itself
    assert (actors.stops(), found._deadline) == ([], None)
    capsys.readouterr()
    found._joining[process] = "failed"
    found._check_wait()
    assert capsys.readouterr().err == "expected at least 3 ranks within 0 s. Training ends\n"
    assert actors.stops() == [(2, "request_stop", LOSS)]


@pytest.mark.parametrize("least", [2, 3])
def test_a_program_that_begins_with_too_few_ranks_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(launcher, "SECONDS_TO_JOIN", 0.0)
    found, actors = launched("ab", least=least)
    found._limit_pause()
    found._check_wait()
    assert actors.stops() == ([(0, "request_stop", LOSS)] if least == 3 else [])


def test_when_enough_ranks_have_joined_training_waits_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "SECONDS_TO_JOIN", 0.0)
    found, actors = launched("ab", least=2)
    found._lose(0, "killed")
    process = found._roster.add("c")
    found._joining[process] = ""
    found.admit(process)
    found._check_wait()
    assert (actors.stops(), found._deadline) == ([], None)
    assert [each[:2] for each in actors.asked[-2:]] == [(1, "change_view"), (2, "change_view")]
    assert actors.asked[-1][2].view.enough


def test_only_rank_0_knows_whether_ranks_can_join() -> None:
    assert not launched("ab", local=True)[0]._can_grow()
    found, actors = launched("ab")
    assert found._can_grow()
    actors.journal = None
    assert found._can_grow()  # it may have been lost, too
    found._lose(0, "killed")
    assert not found._can_grow()


def test_the_launcher_does_not_wait_for_a_rank_0_that_does_not_answer() -> None:
    found, actors = launched("ab")
    assert found.ask_for_journal() is not None
    actors.silent = True
    assert found.ask_for_journal() is None
    assert found._can_grow()


@pytest.mark.parametrize(("status", "reason"), [(LEFT, "it was asked to leave"), (CANNOT_JOIN, "it could not join")])
def test_a_rank_leaves_without_being_lost(status: int, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, actors = launched("abc")
    monkeypatch.setattr(actors, "get", lambda call: status)
    found._on_end(2)(None)
    assert (found._statuses, found._deadline) == ({}, None)
    (_, _, change), _ = actors.asked
    assert [lost.reason for lost in change.lost] == [reason]


@pytest.mark.parametrize(
    ("signals", "ended", "status", "said"),
    [([], SIGNALLED, LOST, True), ([signal.SIGTERM], SIGNALLED, 143, False), ([], 143, 143, False)],
)
def test_without_a_signal_to_the_launcher_ranks_were_asked_to_leave(
    signals: list[int],
    ended: int,
    status: int,
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A program may also have this exit status of its own."""
    found, actors = launched("ab")
    found._signals += signals
    monkeypatch.setattr(actors, "get", lambda call: ended)
    for process in range(2):
        found._on_end(process)(None)
    assert found._status() == status
    assert capsys.readouterr().err.count("Training has ended with a checkpoint\n") == said


def test_a_rank_that_does_not_end_after_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = launched("abc")
    found._statuses |= {0: 0, 2: 0}
    assert found._status() == 1
    expected = "expected all ranks to end within 60 s after rank 0. They were killed: rank 1 (b)\n"
    assert capsys.readouterr().err == expected
    found._statuses[1] = 0
    assert found._status() == 0


def test_a_rank_that_does_not_begin_does_not_join(capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = launched("ab")
    process = found._roster.add("c")
    found._joining[process] = ""
    assert not found.prepare(process, Journal((), ()))
    found._growth.look(begins=False)
    assert capsys.readouterr().err == "a rank on c did not join: it has not begun within 120 s\n"
    assert not found._prepares()


@pytest.mark.parametrize("others", [True, False])
def test_if_rank_0_is_lost_the_next_one_lets_a_rank_join(monkeypatch: pytest.MonkeyPatch, others: bool) -> None:
    found, actors = launched("ab")

    def get(process: int, timeout: float | None = None) -> None:
        if process == 0 or not others:
            raise ConnectionError

    def sleep(seconds: float) -> None:  # meanwhile, the launcher's thread notices it
        for process in (0,) if others else found._roster.alive:
            found._roster.lose(process, "killed")

    monkeypatch.setattr(actors, "get", get)
    monkeypatch.setattr("time.sleep", sleep)
    with contextlib.nullcontext() if others else pytest.raises(ConnectionError):
        assert found._ask_for_pause(2, True) is None
    assert [(process, *given) for process, name, *given in actors.asked] == [(0, 2), (1, 2)][: 1 + others]


def test_another_rank_0_is_asked_to_stop_once_more() -> None:
    found, actors = launched("abc", least=3)
    found._signals.append(signal.SIGINT)
    found._pass_signals_on()
    found._lose(0, "killed")
    assert actors.stops() == [(0, "request_stop", signal.SIGINT), (1, "request_stop", signal.SIGINT)]


def test_when_training_ends_a_rank_that_cannot_join_any_more_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, actors = launched("ab")
    found._joining[found._roster.add("c")] = ""
    texts = {0: "interrupted\n", 2: "error: none can join\n"}
    monkeypatch.setattr(actors, "get", lambda process: ([(True, texts[process])], False))
    found._print(2, 2)
    found._signals.append(signal.SIGINT)
    found._pass_signals_on()
    for process in texts:
        found._print(process, process)
    assert capsys.readouterr().err == texts[2] + texts[0]


def test_without_a_head_training_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found, actors = launched("ab")
    found._check_head()
    assert not found.head_lost
    monkeypatch.setattr(launcher, "SECONDS_FOR_HEAD", 0.0)
    found._lookout._unanswered = time.monotonic()
    for _ in range(2):
        found._check_head()
    expected = "the head of the Ray cluster has not answered for 0 s. Training ends\n"
    assert (found.head_lost, capsys.readouterr().err) == (True, expected)
    assert actors.stops() == [(0, "request_stop", LOSS)]
    assert found._deadline is not None
    assert found._deadline <= time.monotonic() + launcher.SECONDS_WITHOUT_HEAD
    assert found._status() == LOST


@NEEDS_RAY
@pytest.mark.slow
def test_a_script_prints_on_every_rank(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom crossbow import cluster\nprint(f'rank {cluster.rank} of {cluster.size}', os.nice(0))"
    )
    status, out, err = launch("-n", "2", str(script))
    assert (status, err) == (0, "")
    # Ray's workers have niceness 15 by default.
    assert sorted(out.splitlines()) == [f"rank {rank} of 2 {os.nice(0)}" for rank in (0, 1)]


@NEEDS_RAY
@pytest.mark.slow
def test_by_default_ranks_average_as_rarely_as_measured(cluster: Any, tmp_path: Path) -> None:
    options = training(tmp_path / "run", "--epochs", "2", model=("models.lenet",), one_level=False)
    status, out, err = launch(*on(cluster, 3), *options, fault="kill:1@20")
    assert (status, err) == (0, "")
    (measured,) = re.findall(r"^between  an exchange of .* the ranks average once in (\d+) ticks", out, re.MULTILINE)
    assert f"between ranks model-averaging, tau {measured}," in out
    assert "left: its process has ended. Training goes on after task 96, with 2 ranks and 2 learners" in out
    assert out.count("epoch 2/2") == 1


@NEEDS_RAY
@pytest.mark.slow
@pytest.mark.parametrize("rule", ["sma", "easgd", "gossip"])
def test_training_goes_on_without_ranks(cluster: Any, tmp_path: Path, rule: str) -> None:
    """A rank is killed, another one is asked to leave, and then a third one takes the place of rank 0."""
    directory = tmp_path / "run"
    options = training(directory, "--rule", rule, "--log", "csv", "--epochs", "3")
    status, out, err = launch(*on(cluster, 4), *options, fault="kill:1@20,leave:1@30,kill:0@40")
    assert (status, err) == (0, "")
    assert "raylet" not in out
    assert [out.count(f"epoch {number}/3") for number in (1, 2, 3)] == [1, 1, 1]
    assert out.count("trained 3 epochs") == 1
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    assert "run" in lines[0]
    assert [line["epoch"] for line in lines if "epoch" in line] == [1, 2, 3]
    left = [line for line in lines if "left" in line]
    assert [(line["tick"], line["ranks"]) for line in left] == [(20, 3), (30, 2), (40, 1)]
    tasks, least = [line["tasks"] for line in left], [80, 110, 130]
    assert tasks == least or rule != "sma"  # without a barrier, learners may be ahead of each other
    assert all(number >= other for number, other in zip(tasks, least, strict=True))
    ended, asked = "its process has ended", "it was asked to leave"
    assert f"left: {ended}. Training goes on after task {tasks[0]}, with 3 ranks and 3 learners" in out
    assert f"left: {asked}. Training goes on after task {tasks[1]}, with 2 ranks and 2 learners" in out
    assert f"left: {ended}. Training goes on after task {tasks[2]}, with 1 rank and 1 learner" in out
    assert lines[-1]["tasks"] == 282
    (coordinator,) = [line for line in lines if "coordinator" in line]
    assert (coordinator["rank"]["number"], coordinator["tick"]) == (1, 40)
    assert len((directory / "log.csv").read_text().splitlines()) == 4
    assert json.loads((directory / "run.json").read_text())["state"] == "finished"
    assert (directory / "model.safetensors").exists()
    assert list((directory / "checkpoints").iterdir())


@NEEDS_RAY
@pytest.mark.slow
def test_a_check_tries_the_network_between_ranks(cluster: Any) -> None:
    status, out, err = launch(*on(cluster, 2), "--check")
    assert (status, err) == (0, "")
    assert re.search(r"^rank 0 .* and rank 1 .*: latency [\d,]+ µs, bandwidth [\d,]+ MB/s$", out, re.MULTILINE)


@NEEDS_RAY
@pytest.mark.slow
def test_with_too_few_ranks_training_ends_with_a_checkpoint_and_begins_again_from_it(tmp_path: Path) -> None:
    options = ("-n", "2", "--min-ranks", "2", "--restarts", "1", *with_numbers(tmp_path))
    with begin(*options) as process:
        assert process.stdout is not None
        assert any(line.startswith("epoch ") for line in process.stdout)
        os.kill(int((tmp_path / "0").read_text()), signal.SIGKILL)
        assert any("resumed from" in line for line in process.stdout)
        assert any(line.startswith("epoch ") for line in process.stdout)
        os.kill(int((tmp_path / "1").read_text()), signal.SIGKILL)
        assert any(
            " left: its process has ended. Training pauses after task " in line and "with 1 rank and " in line
            for line in process.stdout
        )
        _, err = process.communicate(timeout=120)
    assert process.returncode == LOST
    ends = "was lost: its process has ended. Training ends: expected at least 2 ranks, and no others can join\n"
    assert err.count(ends) == 2
    assert err.count("the program begins again, from its newest checkpoint if there is one\n") == 1
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@NEEDS_RAY
@pytest.mark.slow
def test_with_too_few_ranks_training_waits_until_another_joins(cluster: Any, tmp_path: Path) -> None:
    options = (*on(cluster, 2), "--min-ranks", "2", *training(tmp_path / "run"))
    status, out, err = launch(*options, fault="kill:1@20,join@30")
    assert status == 0
    assert "Training waits up to 60 s for nodes that join: expected at least 2 ranks" in err
    assert "left: its process has ended. Training pauses after task 40, with 1 rank and 1 learner" in out
    assert "joined. Training goes on after task 40, with 2 ranks and 2 learners" in out
    assert out.count("epoch 1/1") == 1


@NEEDS_RAY
@pytest.mark.slow
def test_an_exception_ends_all_and_is_printed_once(cluster: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import time\nfrom crossbow import cluster\n"
        "if cluster.rank == 1: raise ValueError('on purpose')\ntime.sleep(600)\n"
    )
    status, out, err = launch(*on(cluster, 2), str(script))
    assert (status, out) == (1, "")
    assert err.count("ValueError: on purpose") == 1
    assert all(line.startswith("[rank 1 ") for line in err.splitlines())


WITH_NUMBERS = """
import os, pathlib, runpy, sys
from crossbow import cluster
pathlib.Path({directory!r}, str(cluster.rank)).write_text(str(os.getpid()))
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""
"""A program that writes the number of each rank's process to a file."""


def with_numbers(directory: Path) -> tuple[str, ...]:
    """A training that is endless."""
    _, module, *arguments = endless(directory)
    script = directory / "script.py"
    script.write_text(WITH_NUMBERS.format(directory=str(directory), module=module))
    return str(script), *arguments


@NEEDS_RAY
@pytest.mark.slow
def test_sigterm_to_a_rank_lets_it_leave_and_to_the_last_one_ends_training(cluster: Any, tmp_path: Path) -> None:
    with begin(*on(cluster, 3), *with_numbers(tmp_path)) as process:
        assert process.stdout is not None
        assert any(line.startswith("epoch ") for line in process.stdout)
        os.kill(int((tmp_path / "1").read_text()), signal.SIGTERM)
        left = next(line for line in process.stdout if " left: " in line)
        assert any(line.startswith("epoch ") for line in process.stdout)
        os.kill(int((tmp_path / "0").read_text()), signal.SIGTERM)
        assert any(line.startswith("rank 0 ") and "left: it was asked" in line for line in process.stdout)
        assert any(line.startswith("epoch ") for line in process.stdout)
        os.kill(int((tmp_path / "2").read_text()), signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert left.startswith("rank 1 ")
    assert "left: it was asked to leave. Training goes on after task" in left
    assert "with 2 ranks and 2 learners" in left
    assert process.returncode == LOST
    assert err == (
        "a rank was asked to leave without which the others cannot go on. Training has ended with a checkpoint\n"
    )
    assert list((tmp_path / "run" / "checkpoints").iterdir())


MISTAKEN = """
import sys
from crossbow.cluster.program import RankProgram
from crossbow.cluster.ray import launching
class Mistaken(launching.Launcher):
    def _print(self, process, call):
        super()._print(process, call)
        if any("epoch " in text for _, text in self._ray.get(call)[0]):
            self._lose(1, "on purpose")
launching.Launcher = Mistaken
program, launch = RankProgram(sys.argv[1], tuple(sys.argv[2:]), False), launching.RayLaunch(ranks=2, per_host=2)
sys.exit(launching.launch_on_ray(program, launch))
"""
"""A launcher that gives up a rank which lives."""


@NEEDS_RAY
@pytest.mark.slow
def test_a_rank_that_the_others_have_given_up_ends_itself(cluster: Any, tmp_path: Path) -> None:
    launcher_script = tmp_path / "launcher.py"
    launcher_script.write_text(MISTAKEN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment["RAY_ADDRESS"] = cluster.address
    line = [sys.executable, str(launcher_script), *with_numbers(tmp_path)]
    pipe = subprocess.PIPE
    with Job(line, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=ROOT) as process:
        assert process.stdout is not None
        assert any(" left: on purpose. Training goes on" in line for line in process.stdout)
        given_up = Path("/proc", (tmp_path / "1").read_text())
        until(lambda: not given_up.exists(), seconds=60)
        assert any(line.startswith("epoch ") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.count("the other ranks go on without this one, because they could not reach it") == 1


def listening(processes: Collection[int]) -> set[Any]:
    """The addresses at which processes listen."""
    sockets = set()
    for process in processes:
        with contextlib.suppress(OSError):  # the process has just ended
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):  # it has just been closed
                    sockets.add(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:  # it listens
                words = re.findall(".{8}", local.partition(":")[0])
                address = ipaddress.ip_address(b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words))
                found.add(getattr(address, "ipv4_mapped", None) or address)
    return found


@NEEDS_RAY
@pytest.mark.slow
def test_processes_of_a_launcher_cannot_be_reached_from_elsewhere_and_end_with_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import os, time\nprint(os.getpid(), os.environ[{VARIABLE!r}], flush=True)\ntime.sleep(600)\n")
    with begin("-n", "2", str(script)) as process:
        assert process.stdout is not None
        (first, mark), (second, same) = (process.stdout.readline().split() for _ in range(2))
        assert mark == same
        found = marked(mark)
        assert {int(first), int(second)} < set(found)
        names = {Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")[0].rpartition(b"/")[2] for each in found}
        assert names >= {b"gcs_server", b"raylet", b"ray::DashboardAgent", b"ray::RuntimeEnvAgent"}
        addresses = listening({process.pid, *found})
        assert addresses
        assert all(address.is_loopback for address in addresses), addresses
        process.kill()
        until(lambda: not marked(mark))
        process.communicate(timeout=60)


@NEEDS_RAY
@pytest.mark.slow
def test_a_rank_joins_at_a_tick_on_purpose(cluster: Any, tmp_path: Path) -> None:
    weights = []
    for number in range(2):
        directory = tmp_path / str(number)
        status, out, err = launch(*on(cluster, 2), *training(directory), fault="join@20,kill:1@30")
        assert (status, err) == (0, "")
        assert "joined. Training goes on after task 40, with 3 ranks and 3 learners" in out
        assert "left: its process has ended. Training goes on after task 70, with 2 ranks and 2 learners" in out
        assert out.count("epoch 1/1") == 1
        lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
        (joined,) = [line for line in lines if "joined" in line]
        assert (joined["tick"], joined["tasks"], joined["ranks"], joined["new"][0]["number"]) == (20, 40, 3, 2)
        assert joined["seconds"] < 60
        assert lines[-1]["tasks"] >= 94
        weights.append(load_file(directory / "model.safetensors"))
    assert same_weights(*weights)


TRAINS_TWICE = """
import sys
from crossbow import ExecutionContext, ModelConf, Sequential, SystemConf, cluster
from crossbow.data import digits
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss

network = Sequential(InnerProduct(10), SoftMax(), SoftMaxLoss())
model, system = ModelConf(batch_size=16), SystemConf(learners_per_device=1)
with ExecutionContext(network, data=digits(), model=model, system=system) as context:
    before = context.test()
    history = context.train_and_test(1)
    between = context.test()
    assert history.records[-1].test == between != before
    context.save(sys.argv[1])
    context.train(2)
    print(f"\\nrank {cluster.rank} of {cluster.size}, epoch {context.history.records[-1].epoch:.0f}")
"""


@NEEDS_RAY
@pytest.mark.slow
def test_ranks_join_a_later_training_call_and_let_others_join(cluster: Any, tmp_path: Path) -> None:
    script, saved = tmp_path / "script.py", tmp_path / "model.safetensors"
    script.write_text(TRAINS_TWICE)
    # The first call ends after tick 47. From tick 80, only the rank that has joined is left.
    faults = "join@60,kill:0@70,kill:0@80,join@90"
    status, out, err = launch(*on(cluster, 2), str(script), str(saved), fault=faults)
    assert (status, err) == (0, "")
    assert "rank 2 (" in out
    assert out.count(" left: its process has ended") == 2
    assert "with 3 ranks and 3 learners" in out
    assert out.count(" joined. Training goes on after task") == 2
    ended = [line for line in out.splitlines() if line.startswith("rank ") and " of 2, " in line]
    assert len(ended) == 2
    assert all(line.endswith(", epoch 3") for line in ended)
    assert saved.exists()


JOINS_DIFFERENTLY = """
import os, runpy, sys
if os.environ["CROSSBOW_RANK"] == "2":
    sys.argv += sys.argv.pop(1).split()
else:
    sys.argv.pop(1)
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""
"""A program to which the rank that joins adds its first argument."""


@NEEDS_RAY
@pytest.mark.slow
def test_a_rank_that_differs_does_not_join(cluster: Any, tmp_path: Path) -> None:
    """Then SIGTERM ends training with a checkpoint."""
    script = tmp_path / "script.py"
    _, module, *options = endless(tmp_path)
    script.write_text(JOINS_DIFFERENTLY.format(module=module))
    line = (*on(cluster, 2), str(script), "--batch-size 4", *options)
    with begin(*line, fault="join@1000000") as process:
        assert process.stderr is not None
        assert process.stdout is not None
        text = "".join(
            itertools.islice(process.stderr, 2)
        )  # of two processes, in either order, or one inside the other
        assert "batch_size must be the same on all ranks: expected 16, as on rank 0 (" in text
        assert "Received: 4 on rank 2 (" in text
        assert "did not join: its program has ended, with exit status 2" in text
        assert any(line.startswith("epoch ") for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 143
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@NEEDS_RAY
@pytest.mark.slow
def test_with_a_rank_that_joins_a_tick_may_be_longer_than_the_training(cluster: Any, tmp_path: Path) -> None:
    options = training(tmp_path / "run", "--between", "model-averaging:tau=50", one_level=False)
    status, out, err = launch(*on(cluster, 1), *options, fault="join@20")
    assert (status, err) == (0, "")
    assert "joined. Training goes on after task 50, with 2 ranks and 2 learners" in out
    assert "trained 1 epoch (150 tasks)" in out


@NEEDS_RAY
@pytest.mark.slow
def test_a_rank_that_begins_alone_measures_when_another_joins(cluster: Any, tmp_path: Path) -> None:
    options = training(tmp_path / "run", "--epochs", "3", model=("models.lenet",), one_level=False)
    status, out, err = launch(*on(cluster, 1), *options, fault="join@20,kill:0@40")
    assert (status, err) == (0, "")
    (measured,) = re.findall(r"^between  an exchange of .*: the ranks average .*$", out, re.MULTILINE)
    joined = out.index("joined. Training goes on after task 20, with 2 ranks and 2 learners")
    assert out.index(", an average every 1 task\n") < out.index(measured) < joined
    assert {"exchange": measured} in map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    assert out.count(" left: its process has ended. ") == out.count("epoch 3/3") == 1


@NEEDS_RAY
@pytest.mark.slow
def test_nodes_leave_and_join_a_cluster_and_then_it_loses_its_head(tmp_path: Path) -> None:
    options = endless(tmp_path, one_level=False)
    with cluster_with(head_cores=0) as cluster:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        line = ("--address", cluster.address, "--per-host", "1", "--restarts", "1", *options)
        with begin(*line) as process:
            assert process.stdout is not None
            assert any(line.startswith("epoch ") for line in process.stdout)
            began = time.monotonic()
            cluster.remove_node(max(nodes, key=lambda node: node.node_id), allow_graceful=False)
            left = next(line for line in process.stdout if " left: " in line)
            assert time.monotonic() - began < 60
            assert any(line.startswith("epoch ") for line in process.stdout)
            cluster.add_node(num_cpus=1)
            joined = next(line for line in process.stdout if " joined. " in line)
            assert any(line.startswith("epoch ") for line in process.stdout)
            (head,) = cluster.head_node.all_processes["gcs_server"]
            head.process.kill()
            _, err = process.communicate(timeout=120)
        assert process.returncode == LOST
        warning, lost = err.splitlines()
        assert warning.startswith(
            "warning: this cluster notices a machine that stops, or whose link is cut, after about 65 s."
        )
        assert lost == "the head of the Ray cluster has not answered for 20 s. Training ends"
        assert left.startswith("rank 1 (")
        assert "Training goes on after task" in left
        assert "with 1 rank and " in left
        assert joined.startswith("rank 1 (")
        assert "with 2 ranks and " in joined
        assert list((tmp_path / "run" / "checkpoints").iterdir())


@NEEDS_RAY
@pytest.mark.slow
def test_a_script_starts_ranks_on_the_cluster_of_its_job(cluster: Any, tmp_path: Path) -> None:
    """As `ray job submit -- python -m models.lenet --cluster ray`, whose jobs have RAY_ADDRESS."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": cluster.address}
    line = [sys.executable, *training(tmp_path / "run"), "--cluster", "ray"]
    node = cluster.add_node(num_cpus=1)
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=240, env=environment, cwd=ROOT, check=False)
    finally:
        cluster.remove_node(node)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nranks    2 on " in done.stdout
    assert done.stdout.count("epoch 1/1") == 1


def processes_of(name: str, ancestor: int) -> list[int]:
    """The processes that this process has started, also by others, and that run this program. Ray adds the method that
    an actor executes to the actor's name."""
    parents, found = dict[int, int](), list[int]()
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            program = (directory / "cmdline").read_bytes().split(b"\0")[0].decode()
            if program.rpartition("/")[2].partition(".")[0] == name:
                found.append(int(directory.name))

    def descends(process: int) -> bool:
        return process == ancestor or (process in parents and descends(parents[process]))

    return [process for process in found if descends(process)]


@NEEDS_RAY
@pytest.mark.slow
def test_with_a_head_of_its_own_that_is_killed_training_goes_on(tmp_path: Path) -> None:
    """Then Ctrl-C ends training with a checkpoint."""
    options, others = endless(tmp_path, one_level=False), processes_of("gcs_server", os.getpid())
    goes_on = "the head of the Ray cluster had ended. It goes on with its state on the disk\n"
    with begin("-n", "3", *options) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any(line.startswith("epoch ") for line in process.stdout)
        for _ in range(2):
            (head,) = processes_of("gcs_server", process.pid)
            os.kill(head, signal.SIGKILL)
            assert next(iter(process.stderr)) == goes_on
        # The launcher, which asks the head about the node, still notices a loss.
        ranks = processes_of("ray::RankProcess", process.pid)
        assert len(ranks) == 3
        os.kill(ranks[-1], signal.SIGKILL)
        assert any(" left: its process has ended. " in line for line in process.stdout)
        assert any(line.startswith("epoch ") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    module = options[1]
    assert {line.rpartition("] ")[2] for line in err.splitlines()} == {f"python -m {module}: interrupted"}
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    assert processes_of("gcs_server", os.getpid()) == others
