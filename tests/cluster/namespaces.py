"""Network namespaces as hosts: each has an address, a link and a loopback of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Host:
    """A namespace that a bridge connects with the others, and with this machine."""

    address: str
    namespace: str
    link: str

    def cut(self) -> None:
        """Cut its link."""
        _ip("link", "set", self.link, "down")


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Make `count` hosts. Skips the test where this process may not make any."""
    number = os.getpid()
    name, network = f"cb{number}", f"10.77.{number % 256}"
    with ExitStack() as stack:
        try:
            _ip("link", "add", name, "type", "bridge")
            stack.callback(_ip, "link", "delete", name)
            _ip("address", "add", f"{network}.1/24", "dev", name)
            _ip("link", "set", name, "up")
            found = [Host(f"{network}.{2 + index}", f"{name}n{index}", f"{name}v{index}") for index in range(count)]
            for host in found:
                _ip("netns", "add", host.namespace)
                stack.callback(_ip, "netns", "delete", host.namespace)
                _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
                stack.callback(_ip, "link", "delete", host.link)  # sockets may keep the namespace for minutes
                _ip("link", "set", host.link, "master", name, "up")
                _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    _ip("-n", host.namespace, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"needs network namespaces: {error}")
        yield found


def agent_for(found: list[Host], directory: Path) -> str:
    """A command, called as COMMAND ADDRESS WORD…, that starts a command on a host. Its host's name is its own, too."""
    agent = directory / "agent"
    cases = "".join(f"{host.address}) namespace={host.namespace};;\n" for host in found)
    started = 'exec ip netns exec $namespace unshare --uts sh -c "hostname $namespace; $*"'
    agent.write_text(f"#!/bin/sh\ncase $1 in\n{cases}esac\nshift\n{started}\n")
    agent.chmod(0o755)
    return str(agent)


def _ip(*words: str) -> None:
    subprocess.run([shutil.which("ip") or "/usr/sbin/ip", *words], check=True, capture_output=True)
