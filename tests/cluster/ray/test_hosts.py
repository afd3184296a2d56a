"""A cluster on the hosts of a file, started by a command that runs others on this machine."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow import ConfigurationError
from crossbow.cluster.host_files import Host
from crossbow.cluster.ray import hosts
from crossbow.cluster.ray.connection import Connection, resource_of_host
from crossbow.cluster.ray.hosts import HostAgent
from tests.cluster import namespaces
from tests.cluster.ray.test_connection import FakeRay
from tests.cluster.ray.test_launcher import NEEDS_RAY, begin, endless
from tests.support import until

REMEMBERS = "import sys; open(sys.argv[1], 'w').write(' '.join([*sys.argv[2:], sys.stdin.read()]))"
"""An agent that writes its arguments and its standard input to a file."""


def agent_of(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def cluster_of(files: Sequence[Host], present: Sequence[int]) -> Connection:
    """A cluster with the nodes of some hosts."""
    nodes = [(f"name {number}", {"CPU": 1.0, resource_of_host(number): 1.0}) for number in present]
    return Connection(FakeRay(nodes), local=False, hosts=files)


def test_an_agent_gets_host_and_command_and_the_token_as_input(tmp_path: Path) -> None:
    agent = HostAgent(Host("node1"), 0, agent_of(REMEMBERS, tmp_path / "given"), "a:1", "secret")
    agent.ask_to_end()
    agent.end(time.monotonic() + 60)
    expected = f"node1 {sys.executable} -m crossbow.cluster.ray.node a:1 crossbow-host-0 secret\n"
    assert (tmp_path / "given").read_text() == expected


def test_an_agent_that_fails_is_named_with_its_last_words() -> None:
    failing = agent_of("import sys; sys.exit('one\\nunknown host')")
    expected = "^expected a Ray node on node1. Received: exit status 1: unknown host$"
    with (
        hosts._agents([Host("node1")], failing, "a:1", "secret") as agents,
        pytest.raises(ConfigurationError, match=expected),
    ):
        hosts._await_nodes(cluster_of([Host("node1")], []), agents)
    with pytest.raises(ConfigurationError, match=r"^--agent must be a command that starts others\. Received: /none: "):
        HostAgent(Host("node1"), 0, ["/none"], "a:1", "secret")


def test_nodes_are_in_the_order_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [Host("b", 2), Host("a")]
    agents: Any = [SimpleNamespace(host=host, check=lambda: None) for host in files]
    cluster = cluster_of(files, [1, 0])
    hosts._await_nodes(cluster, agents)
    assert [(node.id, node.host, node.slots) for node in cluster.nodes({})] == [
        ("id-of-name 0", "b", 2),
        ("id-of-name 1", "a", 1),
    ]
    monkeypatch.setattr(hosts, "SECONDS_FOR_NODES", 0)
    with pytest.raises(ConfigurationError, match=r"expected a Ray node on each of 2 hosts within 0 s\. Missing: b"):
        hosts._await_nodes(cluster_of(files, [1]), agents)


def test_a_host_whose_agent_has_ended_is_dialled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "SECONDS_TO_DIAL", 0.01)
    code = "import os, sys; open(f'{sys.argv[1]}/{sys.argv[2]}.{os.getpid()}', 'w').close(); sys.stdin.read()"
    with hosts._agents([Host("a"), Host("b")], agent_of(code, tmp_path), "a:1", "secret") as agents:

        def started(host: str) -> list[int]:
            return [int(path.suffix[1:]) for path in tmp_path.glob(f"{host}.*")]

        with hosts._dialled_again(agents):
            until(lambda: started("a") and started("b"))
            os.kill(started("a")[0], signal.SIGKILL)
            until(lambda: len(started("a")) == 2)
        for each in agents:
            each.check()
        assert len(started("b")) == 1


def test_the_own_address_on_the_way_to_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(*names: str) -> str | None:
        return hosts._own_address([Host(name) for name in names])

    assert own("127.0.0.1") == own("host.invalid", "127.0.0.1") == "127.0.0.1"
    assert own("host.invalid", "a" * 70) is None
    addresses = {"this": "127.0.1.1", "node2": "10.0.0.2", "fe80::1": "10.0.0.3"}

    class FakeSocket:
        def __init__(self, *_: object) -> None:
            self._other = ""

        def connect(self, address: str) -> None:
            self._other = address

        def getsockname(self) -> tuple[str, int]:
            return (self._other.replace("10.0", "10.9"), 0)

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda *_: None  # noqa: E731

    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *_, **__: [(0, 0, 0, "", addresses[name])])
    monkeypatch.setattr(socket, "socket", FakeSocket)
    assert own("this", "node2") == "10.9.0.2"  # where the own name is one of the loopback interface
    assert own("[fe80::1]") == "10.9.0.3"
    assert own("this") == "127.0.1.1"


PRINTS = """
import os, runpy
from crossbow import cluster
print(cluster.rank, cluster.size, cluster.view.ranks[cluster.rank].host, os.environ["RAY_AUTH_MODE"], flush=True)
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""
"""A program that prints what each rank knows of the cluster, and trains."""


@NEEDS_RAY
@pytest.mark.slow
def test_a_host_that_is_back_gets_its_rank_and_a_cluster_ends_with_the_launcher(tmp_path: Path) -> None:
    agent, file, script = tmp_path / "agent", tmp_path / "hosts", tmp_path / "script.py"
    agent.write_text('#!/bin/sh\necho "$$ $1" >> "$0.pids"\nshift\nexec sh -c "exec $*"\n')
    agent.chmod(0o755)
    file.write_text("one slots=2\ntwo\n")
    _, module, *options = endless(tmp_path)
    script.write_text(PRINTS.format(module=module))

    def started() -> list[tuple[int, str]]:
        lines = Path(f"{agent}.pids").read_text().splitlines()
        return [(int(number), host) for number, host in map(str.split, lines)]

    launched = ("--hosts", str(file), "--agent", str(agent), "--min-ranks", "3", str(script), *options)
    with begin(*launched) as process:
        assert process.stdout is not None
        lines = list(itertools.takewhile(lambda line: not line.startswith("epoch "), process.stdout))
        assert sorted(line for line in lines if line.endswith(" token\n")) == [
            "0 3 one token\n",
            "1 3 one token\n",
            "2 3 two token\n",
        ]
        (number,) = (number for number, host in started() if host == "two")
        os.kill(number, signal.SIGTERM)
        left = next(line for line in process.stdout if " left: " in line)
        joined = next(line for line in process.stdout if " joined. " in line)
        assert any(line.startswith("epoch ") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert left.startswith("rank 2 (two) left: ")
    assert "Training pauses after task" in left
    assert joined.startswith("rank 2 (two) joined. Training goes on after task")
    assert "rank 2 (two) was lost: " in err
    assert "Training waits up to 60 s for nodes that join: expected at least 3 ranks" in err
    assert sorted(host for _, host in started()) == ["one", "two", "two"]
    assert not [number for number, _ in started() if Path(f"/proc/{number}").exists()]


@NEEDS_RAY
@pytest.mark.slow
def test_a_link_between_hosts_is_cut(tmp_path: Path) -> None:
    """Two hosts with networks of their own, where ranks have two levels by default."""
    with namespaces.hosts(2) as found:
        file = tmp_path / "hosts"
        file.write_text("".join(f"{host.address}\n" for host in found))
        options = endless(tmp_path, model=("models.lenet",), one_level=False)
        with begin("--hosts", str(file), "--agent", namespaces.agent_for(found, tmp_path), *options) as process:
            assert process.stdout is not None
            lines = list(itertools.takewhile(lambda line: not line.startswith("epoch "), process.stdout))
            assert any(re.match(r"between +an exchange of 4.\d+ MB takes ", line) for line in lines), lines
            found[1].cut()
            cut = time.monotonic()
            left = next(line for line in process.stdout if " left: " in line)
            seconds = time.monotonic() - cut
            assert left.startswith(f"rank 1 ({found[1].address}) left: its node has left the cluster. Training goes on")
            assert next(line for line in process.stdout if line.startswith("epoch "))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        assert process.returncode == 130, (out, err)
        assert seconds < 30  # 3.6 s on an idle machine; with Ray's own settings, more than 60 s
