"""The time after which the head of a cluster notices that a machine has stopped, or that its link is cut."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}
"""Settings with which the head notices a loss in about 3 s."""
DEFAULTS = {
    "health_check_period_ms": 3000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 5,
}
"""Ray's default settings."""
SECONDS_TO_NOTICE = 6.0
"""Maximum time after which the head should notice a loss."""
HEAD = "node:__internal_head__"
"""A resource that only the head has."""


class HeadProcess(NamedTuple):
    """A process on the head's machine that may be the head's."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    """Its variables for health checks."""


def ask_for_processes(ray: Any) -> tuple[str, Any] | None:
    """The id of the head's node, and a remote call on its machine, which returns the fields of each `HeadProcess` as a
    tuple. None if the head has no node."""
    head = next((node["NodeID"] for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"]), None)
    if head is None:
        return None
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(head, soft=False)
    return head, ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(_reader()).remote()


def _reader() -> Callable[[], list[tuple[list[str], dict[str, str]]]]:
    """The function that runs on the head's machine. Ray sends its code, because Crossbow may be missing there."""

    def read() -> list[tuple[list[str], dict[str, str]]]:
        import contextlib
        import pathlib

        found = []
        for directory in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                arguments = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if arguments[0].endswith("gcs_server"):
                    lines = (directory / "environ").read_bytes().decode(errors="replace").split("\0")
                    given = (line.partition("=") for line in lines if line.startswith("RAY_health_check_"))
                    found.append((arguments, {name: value for name, _, value in given}))
        return found

    return read


def settings_of(processes: Sequence[HeadProcess], node: str) -> dict[str, float] | None:
    """The head's settings for health checks. node: the id of its node. None if the head's process cannot be identified.

    >>> settings_of([HeadProcess(["gcs_server"], {"RAY_health_check_period_ms": "500"})], "id")
    {'health_check_period_ms': 500.0, 'health_check_timeout_ms': 10000.0, 'health_check_failure_threshold': 5.0}
    """
    own = [each for each in processes if f"--node-id={node}" in each.arguments] or processes
    if len(own) != 1:
        return None
    ((arguments, environment),) = own
    given = {name: environment[f"RAY_{name}"] for name in DEFAULTS if f"RAY_{name}" in environment}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "--config_list" and value:
            given |= json.loads(base64.b64decode(value))
    return {name: float(given.get(name, default)) for name, default in DEFAULTS.items()}


def warning_of(settings: Mapping[str, float]) -> str:
    """A warning if the head with these settings notices a loss too late; otherwise empty."""
    seconds = _seconds_to_notice(settings)
    if seconds <= SECONDS_TO_NOTICE:
        return ""
    better = " ".join(f"RAY_{name}={value}" for name, value in HEALTH_CHECKS.items())
    return (
        f"warning: this cluster notices a machine that stops, or whose link is cut, after about {seconds:.0f} s. "
        f"Its head would notice it after {_seconds_to_notice(HEALTH_CHECKS):.0f} s if it were started with {better}"
    )


def _seconds_to_notice(settings: Mapping[str, float]) -> float:
    """Time until the number of failed checks reaches the threshold."""
    period, timeout, threshold = (settings[name] for name in DEFAULTS)
    return threshold * (period + timeout) / 1000
