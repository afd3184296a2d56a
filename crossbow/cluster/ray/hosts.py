"""A Ray cluster on the machines of a file, which begins and ends with the launcher.

The launcher's machine is the head, and runs no rank. On each host of the file, a command such as ssh starts
`crossbow.cluster.ray.node`. If that program ends before the cluster, for example because its host restarts, it is
started again. All processes of the cluster share a token.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from crossbow.cluster.host_files import Host
from crossbow.cluster.ray.connection import SECONDS_FOR_NODES, Connection, quiet_ray, resource_of_host
from crossbow.cluster.ray.environment import added_variables, environment_with
from crossbow.cluster.ray.head import own_head
from crossbow.cluster.ray.health import HEALTH_CHECKS
from crossbow.types import ConfigurationError

AGENT = (
    "ssh",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=2"),  # it ends with the connection
    *("-o", "ServerAliveCountMax=3"),
)
"""The default command that starts a command on another machine."""
SECONDS_TO_END = 20.0
"""Maximum wait for the hosts' nodes to end."""
LOOK = 0.3
"""Seconds between two checks for nodes."""
SECONDS_TO_DIAL = 10.0
"""Time between two checks for agents that have ended, which are then restarted."""


@contextmanager
def cluster_on(hosts: Sequence[Host], agent: Sequence[str]) -> Iterator[Connection]:
    """Start a cluster with a node on each host, and end it with the context. Its connection lists the nodes in the
    order of the hosts. If a host's agent ends, it is restarted.

    agent: the command that starts a command on a host, called with the host's name and the command. Raises
    ConfigurationError if a node does not start.
    """
    token = secrets.token_hex(32)
    with ExitStack() as stack:
        stack.enter_context(added_variables(environment_with(token)))  # before Ray is imported, which reads it once
        ray = quiet_ray()
        stack.enter_context(own_head(ray, cores=0, address=_own_address(hosts), checks=HEALTH_CHECKS))
        address = ray.get_runtime_context().gcs_address
        agents = stack.enter_context(_agents(hosts, agent, address, token))
        connection = Connection(ray, local=False, hosts=hosts)
        _await_nodes(connection, agents)
        stack.enter_context(_dialled_again(agents))
        yield connection


class HostAgent:
    """A process that keeps the node of a host."""

    def __init__(self, host: Host, number: int, agent: Sequence[str], address: str, token: str) -> None:
        words = [sys.executable, "-m", "crossbow.cluster.ray.node", address, resource_of_host(number)]
        self.host, self._agent, self._token = host, agent, token
        self._command = [*agent, host.name, *map(shlex.quote, words)]
        self._start()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (`end` closes it)
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,  # only the launcher handles Ctrl-C
            )
        except OSError as error:
            self._errors.close()
            raise ConfigurationError(
                f"--agent must be a command that starts others. Received: {shlex.join(self._agent)}: {error.strerror}"
            ) from error
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `check` reports why it has ended
            self._process.stdin.write(f"{self._token}\n".encode())
            self._process.stdin.flush()

    def dial_again(self) -> None:
        """Start the process again if it has ended."""
        if self._process.poll() is not None:
            self.ask_to_end()
            self._errors.close()
            with contextlib.suppress(ConfigurationError):  # the next call tries again
                self._start()

    def check(self) -> None:
        """Raise ConfigurationError if the process has ended."""
        if (status := self._process.poll()) is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
            raise ConfigurationError(f"expected a Ray node on {self.host.name}. Received: exit status {status}: {last}")

    def ask_to_end(self) -> None:
        """End the node's standard input."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self, deadline: float) -> None:
        """Wait for the end until a deadline of the monotonic clock; then kill the process."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


@contextmanager
def _agents(hosts: Sequence[Host], agent: Sequence[str], address: str, token: str) -> Iterator[list[HostAgent]]:
    agents: list[HostAgent] = []
    try:
        for number, host in enumerate(hosts):
            agents.append(HostAgent(host, number, agent, address, token))
        yield agents
    finally:
        for each in agents:
            each.ask_to_end()
        deadline = time.monotonic() + SECONDS_TO_END
        for each in agents:
            each.end(deadline)


@contextmanager
def _dialled_again(agents: Sequence[HostAgent]) -> Iterator[None]:
    """Restart agents that end within the context."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(SECONDS_TO_DIAL):
            for each in agents:
                each.dial_again()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _await_nodes(connection: Connection, agents: Sequence[HostAgent]) -> None:
    """Wait for the nodes of all hosts."""
    deadline = time.monotonic() + SECONDS_FOR_NODES
    while True:
        found = {node.host for node in connection.nodes({})}
        missing = [each for each in agents if each.host.name not in found]
        if not missing:
            return
        for each in missing:
            each.check()
        if time.monotonic() >= deadline:
            names = ", ".join(each.host.name for each in missing)
            raise ConfigurationError(
                f"expected a Ray node on each of {len(agents)} hosts within {SECONDS_FOR_NODES:g} s. Missing: {names}"
            )
        time.sleep(LOOK)


def _own_address(hosts: Sequence[Host]) -> str | None:
    """This machine's address on the route to the first host that is another machine. If there is none, its address on
    the route to itself; None if no host's name can be resolved here."""
    found = []
    for host in hosts:
        with contextlib.suppress(OSError, UnicodeError):
            family, kind, _, _, address = socket.getaddrinfo(host.name.strip("[]"), 22, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                found.append(str(probe.getsockname()[0]))
    others = (address for address in found if not ipaddress.ip_address(address.partition("%")[0]).is_loopback)
    return next(others, found[0] if found else None)
