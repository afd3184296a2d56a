"""Launches a program on Ray and, on request, restarts it from its checkpoint after a loss."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from crossbow.cluster.failure import LOST
from crossbow.cluster.host_files import read_hosts
from crossbow.cluster.program import RankProgram, begun_again
from crossbow.cluster.ray.connection import ClusterNode, Connection, connect, own_streams
from crossbow.cluster.ray.hosts import AGENT, cluster_on
from crossbow.cluster.ray.launcher import Launcher
from crossbow.cluster.signals import terminable
from crossbow.types import ConfigurationError


@dataclass(frozen=True)
class RayLaunch:
    """The nodes and the number of ranks of a program."""

    address: str | None = None
    """HOST:PORT or "auto"; None: the address in RAY_ADDRESS, or a cluster that is started on this machine."""
    ranks: int | None = None
    """Number of ranks; None: one for each node, times `per_host`."""
    per_host: int | None = None
    """Ranks per node; None: one, or the number of the host's slots. In a cluster that is started here, all ranks are on
    its only node."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Resources that each rank requests."""
    least: int = 1
    """Minimum number of ranks. With fewer, training pauses, and ends if others do not join."""
    restarts: int = 0
    """Maximum number of restarts of the program after a loss of ranks that ends training, each from the newest
    checkpoint if there is one."""
    hosts: Path | None = None
    """File with one host per line, as "node1 slots=2", on which a cluster is started."""
    agent: tuple[str, ...] = AGENT
    """The command that starts a command on a host."""


def launch_on_ray(program: RankProgram, launch: RayLaunch) -> int:
    """Run a program on Ray, and return its exit status. Raises ConfigurationError if Ray is not installed, and if the
    cluster cannot be reached or has too few nodes."""
    with own_streams(), terminable(), _connected(launch) as connection:
        for restarts_left in range(launch.restarts, -1, -1):
            again = restarts_left < launch.restarts
            nodes = nodes_of_ranks(connection, launch, again=again)
            if not again and len(nodes) < launch.least:
                expected = f"at most the number of ranks at the start, {len(nodes)}"
                raise ConfigurationError(f"--min-ranks must be {expected}. Received: {launch.least}")
            joins = launch.ranks, launch.per_host
            launcher = Launcher(connection, program, nodes, launch.resources, launch.least, *joins)
            status = launcher.run()
            if status != LOST or launcher.head_lost or launcher.signalled or not restarts_left:
                return status
            program = begun_again(program)
    raise AssertionError


def _connected(launch: RayLaunch) -> AbstractContextManager[Connection]:
    if launch.hosts is None:
        return connect(launch.address, os.cpu_count() or 1)
    return cluster_on(read_hosts(launch.hosts), launch.agent)


def nodes_of_ranks(connection: Connection, launch: RayLaunch, *, again: bool = False) -> list[ClusterNode]:
    """The node of each rank. Raises ConfigurationError if there are too few nodes, or ranks request more resources than
    nodes have.

    again: whether the program is restarted. Then `launch.least` ranks suffice if the nodes of the others do not join in
    time.
    """
    nodes = _of_hosts(connection, launch) if connection.hosts else _of_cluster(connection, launch, again)
    _check_resources(nodes, launch.resources)
    return nodes


def _of_cluster(connection: Connection, launch: RayLaunch, again: bool) -> list[ClusterNode]:
    per_host = launch.per_host or 1
    if connection.local:  # no node with more resources will join
        return connection.await_nodes(1, {}) * (launch.ranks or per_host)
    if launch.ranks is None:
        connection.await_nodes(math.ceil((launch.least if again else 1) / per_host), launch.resources)
        nodes = connection.nodes(launch.resources)
    else:
        nodes = _of_ranks(connection, launch, launch.ranks, launch.least if again else launch.ranks)
    return [node for node in nodes for _ in range(per_host)][: launch.ranks]


def _of_ranks(connection: Connection, launch: RayLaunch, ranks: int, least: int) -> list[ClusterNode]:
    """Nodes for `ranks` ranks, or for at least `least` ranks if further nodes do not join in time."""
    per_host = launch.per_host or 1
    try:
        return connection.await_nodes(math.ceil(ranks / per_host), launch.resources)
    except ConfigurationError:
        nodes = connection.nodes(launch.resources)
        if len(nodes) < math.ceil(least / per_host):
            raise
        return nodes


def _of_hosts(connection: Connection, launch: RayLaunch) -> list[ClusterNode]:
    """The node of each rank, in the order of the hosts' file. When a program is restarted, a lost host has no ranks."""
    nodes = connection.nodes(launch.resources)
    found = [node for node in nodes for _ in range(launch.per_host or node.slots)]
    complete = {node.host for node in connection.nodes({})} == {host.name for host in connection.hosts}
    least = (launch.ranks or 1) if complete else 1
    if len(found) < least:
        having = " and ".join(f"{name} {amount:g}" for name, amount in launch.resources.items())
        raise ConfigurationError(
            f"expected slots for {_ranks(launch.ranks or 1)} on hosts{having and f' with {having}'}. "
            f"Received: {len(found)}"
        )
    return found[: launch.ranks]


def _check_resources(nodes: Sequence[ClusterNode], resources: Mapping[str, float]) -> None:
    """Raise ConfigurationError if the ranks of a node request more resources than it has: they would never start."""
    counts = Counter(node.id for node in nodes)
    for node in nodes:
        for name, amount in resources.items():
            needed, has = counts[node.id] * amount, node.resources.get(name, 0)
            if round(needed, 4) > round(has, 4):  # as precisely as Ray counts
                raise ConfigurationError(
                    f"--resources: expected {name} {needed:g} on {node.host}, for {_ranks(counts[node.id])}. "
                    f"Received: {has:g}"
                )


def _ranks(count: int) -> str:
    return "a rank" if count == 1 else f"{count} ranks"
