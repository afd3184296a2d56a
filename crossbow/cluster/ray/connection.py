"""The connection of a launcher to Ray: to a running cluster, or to one that it starts on this machine."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from crossbow.cluster.host_files import Host
from crossbow.cluster.ray.environment import added_variables, environment_with
from crossbow.cluster.ray.head import own_head
from crossbow.console import say
from crossbow.extras import optional_module
from crossbow.types import ConfigurationError

SECONDS_TO_CONNECT = 30.0
"""Maximum wait for a cluster's address."""
SECONDS_FOR_NODES = 120.0
"""Maximum wait for nodes."""
QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_DEDUP_LOGS": "0",
}
"""Environment variables that turn off Ray's announcements."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""The environment variable with which Ray, on any system, uses the loopback interface for a cluster of one machine. By
default it listens on all interfaces on Linux."""


@dataclass(frozen=True)
class ClusterNode:
    """A machine of a cluster."""

    id: str
    host: str
    resources: Mapping[str, float]
    slots: int = 1
    """Number of ranks on it, from a file of hosts."""


def resource_of_host(number: int) -> str:
    """The resource that only the node on this host of a file has."""
    return f"crossbow-host-{number}"


class Connection:
    """A connection to Ray."""

    def __init__(self, ray: Any, *, local: bool, hosts: Sequence[Host] = ()) -> None:
        """local: whether the cluster was started for this connection, on this machine only. hosts: the hosts of a file,
        if the cluster was started on these."""
        self.ray, self.local, self.hosts = ray, local, tuple(hosts)

    def nodes(self, resources: Mapping[str, float]) -> list[ClusterNode]:
        """The live nodes that have a core and these resources, in the order of the hosts if there are any. Otherwise
        this machine is the first if it is one of them."""
        own = self.ray.get_runtime_context().get_node_id()
        wanted = {"CPU": 1.0, **resources}
        found = [
            self._node(each)
            for each in self.ray.nodes()
            if each["Alive"] and all(each["Resources"].get(name, 0) >= least for name, least in wanted.items())
        ]
        hosts = [host.name for host in self.hosts]
        return sorted(found, key=lambda node: (hosts.index(node.host) if hosts else node.id != own, node.host, node.id))

    def _node(self, node: Mapping[str, Any]) -> ClusterNode:
        found = ClusterNode(node["NodeID"], node["NodeManagerHostname"], node["Resources"])
        for number, host in enumerate(self.hosts):
            if resource_of_host(number) in found.resources:
                return replace(found, host=host.name, slots=host.slots)
        return found

    def await_nodes(self, count: int, resources: Mapping[str, float]) -> list[ClusterNode]:
        """The requested number of nodes with these resources. Raises ConfigurationError after `SECONDS_FOR_NODES`."""
        deadline = time.monotonic() + SECONDS_FOR_NODES
        while len(found := self.nodes(resources)) < count:
            if time.monotonic() >= deadline:
                hosts = ", ".join(node.host for node in found) or "none"
                needs = "".join(f", {name} {least:g}" for name, least in resources.items())
                raise ConfigurationError(
                    f"expected {count} nodes (each with a core{needs}) within {SECONDS_FOR_NODES:g} s. "
                    f"Received: {len(found)} ({hosts})"
                )
            time.sleep(0.5)
        return found[:count]


def quiet_ray() -> Any:
    """The package ray, without its announcements. Raises ConfigurationError if it is not installed."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    ray = optional_module("ray", "training on Ray", "ray")
    # Without `log_to_driver`, too, Ray prints a report of each process or node that has died.
    worker: Any = sys.modules.get("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = _pass_on
    return ray


def _pass_on(report: Mapping[str, Any], **_: object) -> None:
    """Print the first line of Ray's report if it is about a lack of memory. The launcher itself reports the ranks that
    have left."""
    for text in report["lines"]:
        if "low on memory" in text:
            say(f"Ray: {text.splitlines()[0]}")


@contextmanager
def connect(address: str | None, cores: int) -> Iterator[Connection]:
    """Connect to the cluster at this address, or start one on this machine, which ends with the connection. The latter
    can be reached from this machine only, and with a token, unless this process has imported Ray before.

    address: HOST:PORT, "auto" or None. cores: number of cores that a cluster on this machine announces. Raises
    ConfigurationError if Ray is not installed, the cluster cannot be reached, or one on this machine does not start.
    """
    source = "--address" if address else "RAY_ADDRESS"
    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        # Ray reads these variables when it is imported.
        with added_variables(LOOPBACK | environment_with(secrets.token_hex(32))):
            ray = quiet_ray()
            with own_head(ray, cores=cores):
                yield Connection(ray, local=True)
        return
    ray = quiet_ray()
    _check_address(address, source)
    _init_within_limit(ray, address)
    try:
        yield Connection(ray, local=False)
    finally:
        ray.shutdown()


def _check_address(address: str, source: str) -> None:
    """Raise ConfigurationError if nothing listens at HOST:PORT."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "://" in address:
        kinds = {"http": ", the address of a dashboard", "ray": ", the address of a Ray Client server"}
        kind = kinds.get(address.partition("://")[0], "")
        raise ConfigurationError(f"{source} must be auto or HOST:PORT of the head. Received: {address}{kind}")
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS_TO_CONNECT).close()
    except OSError as error:
        raise _unreachable(address, str(error.strerror or error)) from error


def _init_within_limit(ray: Any, address: str) -> None:
    """Connect with a time limit; without one, it may take minutes."""
    errors: list[BaseException] = []

    def init() -> None:
        try:
            ray.init(address, log_to_driver=False, logging_level="CRITICAL")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=init, daemon=True)
    thread.start()
    thread.join(SECONDS_TO_CONNECT)
    if thread.is_alive():
        raise _unreachable(address, f"no answer within {SECONDS_TO_CONNECT:g} s")
    if errors:
        raise _unreachable(address, (str(errors[0]).splitlines() or [repr(errors[0])])[0]) from errors[0]


def _unreachable(address: str, received: str) -> ConfigurationError:
    return ConfigurationError(f"expected a Ray cluster at {address}. Received: {received}")


@contextmanager
def own_streams() -> Iterator[None]:
    """Reserve the standard streams for this process's Python code. Output of Ray's libraries and processes, which write
    to the descriptors 1 and 2, is discarded."""
    before, kept = (sys.stdout, sys.stderr), [os.dup(1), os.dup(2)]
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    sys.stdout, sys.stderr = (
        open(descriptor, "w", encoding=stream.encoding, errors=stream.errors, closefd=False)  # noqa: SIM115
        for descriptor, stream in zip(kept, before, strict=True)
    )
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
