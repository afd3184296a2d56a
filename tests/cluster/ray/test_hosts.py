"""A cluster on the hosts of a file, started by a command that runs others on this machine."""

from __future__ import annotations

import os
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
from crossbow.cluster.ray.hosts import HostAgent
from tests.cluster.ray.test_launcher import NEEDS_RAY, launch

REMEMBERS = "import sys; open(sys.argv[1], 'w').write(' '.join([*sys.argv[2:], sys.stdin.read()]))"
"""An agent that writes its arguments and its standard input to a file."""


def agent_of(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


class FakeRay:
    """A cluster with some hosts' nodes."""

    def __init__(self, resources: Sequence[str]) -> None:
        self._resources = resources

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": f"id-{each}", "Alive": True, "Resources": {each: 1.0}} for each in self._resources]


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
        hosts._await_nodes(FakeRay([]), agents)
    with pytest.raises(ConfigurationError, match=r"^--agent must be a command that starts others\. Received: /none: "):
        HostAgent(Host("node1"), 0, ["/none"], "a:1", "secret")


def test_nodes_are_in_the_order_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    agents: Any = [
        SimpleNamespace(host=Host(name, slots), resource=f"crossbow-host-{number}", check=lambda: None)
        for number, (name, slots) in enumerate([("b", 2), ("a", 1)])
    ]
    found = hosts._await_nodes(FakeRay(["crossbow-host-1", "crossbow-host-0"]), agents)
    assert [(node.id, node.host, node.slots) for node in found] == [
        ("id-crossbow-host-0", "b", 2),
        ("id-crossbow-host-1", "a", 1),
    ]
    monkeypatch.setattr(hosts, "SECONDS_FOR_NODES", 0)
    with pytest.raises(ConfigurationError, match=r"expected a Ray node on each of 2 hosts within 0 s\. Missing: b"):
        hosts._await_nodes(FakeRay(["crossbow-host-1"]), agents)


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSBOW_A", "1")
    monkeypatch.delenv("CROSSBOW_B", raising=False)
    with hosts._environment({"CROSSBOW_A": "2", "CROSSBOW_B": "3"}):
        assert (os.environ["CROSSBOW_A"], os.environ["CROSSBOW_B"]) == ("2", "3")
    assert os.environ["CROSSBOW_A"] == "1"
    assert "CROSSBOW_B" not in os.environ


def test_the_own_address_on_the_way_to_a_host() -> None:
    assert hosts._own_address("127.0.0.1") == "127.0.0.1"
    assert hosts._own_address("host.invalid") is None


@NEEDS_RAY
@pytest.mark.slow
def test_a_cluster_begins_and_ends_with_the_launcher(tmp_path: Path) -> None:
    agent, file, script = tmp_path / "agent", tmp_path / "hosts", tmp_path / "script.py"
    agent.write_text('#!/bin/sh\necho "$$" >> "$0.pids"\nshift\nexec sh -c "exec $*"\n')
    agent.chmod(0o755)
    file.write_text("one slots=2\ntwo\n")
    script.write_text(
        "import os\nfrom crossbow import cluster\n"
        "print(cluster.rank, cluster.size, cluster.view.ranks[cluster.rank].host, os.environ['RAY_AUTH_MODE'])\n"
    )
    status, out, err = launch("--hosts", str(file), "--agent", str(agent), str(script))
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == ["0 3 one token", "1 3 one token", "2 3 two token"]
    started = [int(line) for line in Path(f"{agent}.pids").read_text().split()]
    assert len(started) == 2
    assert not [number for number in started if Path(f"/proc/{number}").exists()]
