"""The nodes of ranks, and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from crossbow import ConfigurationError
from crossbow.cluster.host_files import Host
from crossbow.cluster.program import RankProgram
from crossbow.cluster.ray import connection as ray_connection
from crossbow.cluster.ray import launching
from crossbow.cluster.ray.connection import Connection
from crossbow.cluster.ray.launching import RayLaunch, launch_on_ray, nodes_of_ranks
from tests.cluster.ray.test_connection import FakeRay

NODES = [("a", {"CPU": 4.0}), ("b", {"CPU": 4.0}), ("c", {"CPU": 4.0})]


@pytest.mark.parametrize(
    ("launch", "hosts"),
    [
        (RayLaunch(), "bac"),
        (RayLaunch(ranks=2), "ba"),
        (RayLaunch(per_host=2), "bbaacc"),
        (RayLaunch(ranks=3, per_host=2), "bba"),
    ],
)
def test_the_nodes_of_ranks(launch: RayLaunch, hosts: str) -> None:
    nodes = nodes_of_ranks(Connection(FakeRay(NODES), local=False), launch)
    assert "".join(node.host for node in nodes) == hosts


def test_after_a_loss_fewer_nodes_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connection, "SECONDS_FOR_NODES", 0.0)
    connection = Connection(FakeRay(NODES), local=False)
    with pytest.raises(ConfigurationError, match=r"expected 4 nodes .* Received: 3 \(b, a, c\)"):
        nodes_of_ranks(connection, RayLaunch(ranks=4))
    assert len(nodes_of_ranks(connection, RayLaunch(ranks=4), again=True)) == 3
    assert len(nodes_of_ranks(connection, RayLaunch(ranks=2), again=True)) == 2
    with pytest.raises(ConfigurationError, match=r"expected 4 nodes .* Received: 3 \(b, a, c\)"):
        nodes_of_ranks(connection, RayLaunch(least=4), again=True)
    with pytest.raises(ConfigurationError, match=r"expected 5 nodes .* Received: 3 \(b, a, c\)"):
        nodes_of_ranks(connection, RayLaunch(ranks=5, least=4), again=True)


def test_a_cluster_on_this_machine_has_all_ranks() -> None:
    local = Connection(FakeRay(NODES[1:2]), local=True)
    assert [node.host for node in nodes_of_ranks(local, RayLaunch(ranks=3))] == ["b"] * 3
    assert [node.host for node in nodes_of_ranks(local, RayLaunch())] == ["b"]


@pytest.mark.parametrize(
    ("launch", "hosts"), [(RayLaunch(), "cca"), (RayLaunch(ranks=1), "c"), (RayLaunch(per_host=1), "ca")]
)
def test_ranks_are_on_the_hosts_of_a_file(launch: RayLaunch, hosts: str) -> None:
    nodes = [("one", {"CPU": 4.0, "crossbow-host-1": 1.0}), ("two", {"CPU": 4.0, "crossbow-host-0": 1.0})]
    files = [Host("c", 2), Host("a"), Host("dead")]
    found = nodes_of_ranks(Connection(FakeRay([*nodes, ("head", {})]), local=False, hosts=files), launch)
    assert "".join(node.host for node in found) == hosts


def test_no_host_of_a_file_is_left() -> None:
    connection = Connection(FakeRay([]), local=False, hosts=[Host("dead")])
    for launch in (RayLaunch(), RayLaunch(ranks=1)):
        with pytest.raises(ConfigurationError, match=r"^expected slots for a rank on hosts\. Received: 0$"):
            nodes_of_ranks(connection, launch)


def test_the_hosts_of_a_file_are_too_few() -> None:
    nodes = [("one", {"CPU": 4.0, "crossbow-host-0": 1.0})]
    connection = Connection(FakeRay(nodes), local=False, hosts=[Host("c", 2)])
    with pytest.raises(ConfigurationError, match=r"^expected slots for 3 ranks on hosts\. Received: 2$"):
        nodes_of_ranks(connection, RayLaunch(ranks=3))


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (RayLaunch(ranks=3, resources={"CPU": 2.0}), "expected CPU 6 on a, for 3 ranks. Received: 4"),
        (RayLaunch(resources={"GPU": 1.0}), "expected GPU 1 on a, for a rank. Received: 0"),
    ],
)
def test_ranks_that_claim_more_than_a_node_has(launch: RayLaunch, message: str) -> None:
    """They would never begin: no other node comes to the cluster on this machine."""
    with pytest.raises(ConfigurationError, match=rf"^--resources: {message}$"):
        nodes_of_ranks(Connection(FakeRay(NODES[:1]), local=True), launch)


def test_resources_are_counted_as_precisely_as_by_ray() -> None:
    launch = RayLaunch(ranks=3, resources={"fast": 0.1})  # 3 · 0.1 > 0.3 in floating point
    nodes = nodes_of_ranks(Connection(FakeRay([("a", {"CPU": 4.0, "fast": 0.3})]), local=True), launch)
    assert len(nodes) == 3


def test_hosts_of_a_file_without_a_resource() -> None:
    """None is lost, so all ranks are needed."""
    found = [("a", {"CPU": 4.0, "GPU": 1.0, "crossbow-host-0": 1.0}), ("b", {"CPU": 4.0, "crossbow-host-1": 1.0})]
    connection = Connection(FakeRay(found), local=False, hosts=[Host("a"), Host("b")])
    message = r"^expected slots for 2 ranks on hosts with GPU 1 and CPU 2\. Received: 1$"
    with pytest.raises(ConfigurationError, match=message):
        nodes_of_ranks(connection, RayLaunch(ranks=2, resources={"GPU": 1.0, "CPU": 2.0}))


@pytest.mark.parametrize(
    ("statuses", "ends", "status", "runs"),
    [
        ([0], "", 0, 1),
        ([2], "", 2, 1),
        ([3, 0], "", 0, 2),
        ([3, 3, 3], "", 3, 3),
        ([3, 0], "head_lost", 3, 1),
        ([3, 0], "signalled", 3, 1),
    ],
)
def test_after_a_loss_it_begins_again(
    monkeypatch: pytest.MonkeyPatch, statuses: list[int], ends: str, status: int, runs: int
) -> None:
    programs: list[RankProgram] = []

    class FakeLaunch:
        def __init__(
            self, connection: Any, program: RankProgram, nodes: Any, resources: Any, least: Any, *joins: Any
        ) -> None:
            assert joins == (None, None)  # nodes that come may have ranks
            programs.append(program)
            self.head_lost, self.signalled = (ends == each for each in ("head_lost", "signalled"))

        def run(self) -> int:
            return statuses[len(programs) - 1]

    @contextmanager
    def connected(address: str | None, cores: int) -> Iterator[Connection]:
        yield Connection(FakeRay(NODES), local=False)

    monkeypatch.setattr(launching, "Launcher", FakeLaunch)
    monkeypatch.setattr(launching, "connect", connected)
    assert launch_on_ray(RankProgram("m", ()), RayLaunch(restarts=2)) == status
    assert [program.arguments for program in programs] == [(), *[("--resume",)] * (runs - 1)]


def test_more_ranks_are_needed_than_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connected(address: str | None, cores: int) -> Iterator[Connection]:
        yield Connection(FakeRay(NODES), local=True)

    monkeypatch.setattr(launching, "connect", connected)
    message = r"^--min-ranks must be at most the number of ranks at the start, 2\. Received: 3$"
    with pytest.raises(ConfigurationError, match=message):
        launch_on_ray(RankProgram("m", ()), RayLaunch(ranks=2, least=3))
