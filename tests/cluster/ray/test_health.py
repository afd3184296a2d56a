"""Which settings of a cluster's head are too slow, and where they are found."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crossbow.cluster.ray import health
from crossbow.cluster.ray.health import (
    DEFAULTS,
    HEAD,
    HEALTH_CHECKS,
    HeadProcess,
    ask_for_processes,
    settings_of,
    warning_of,
)
from tests.cluster.ray.test_connection import FakeRay
from tests.support import until


def head(settings: dict[str, Any], *more: str, **environment: str) -> HeadProcess:
    encoded = base64.b64encode(json.dumps(settings).encode()).decode()
    return HeadProcess(["/ray/gcs_server", f"--config_list={encoded}", *more], environment)


def test_settings_come_from_the_arguments_and_the_environment() -> None:
    found = settings_of([head({"health_check_period_ms": 500, "other": True}, RAY_health_check_timeout_ms="700")], "id")
    assert found == {**DEFAULTS, "health_check_period_ms": 500, "health_check_timeout_ms": 700}
    assert settings_of([HeadProcess(["gcs_server", "--config_list="], {})], "id") == DEFAULTS


def test_the_head_is_known_by_its_node() -> None:
    others = [head({}, "--node-id=other"), head({}, "--node-id=more")]
    assert settings_of(others, "id") is None
    assert settings_of([], "id") is None
    found = settings_of([*others, head({"health_check_failure_threshold": 2}, "--node-id=id")], "id")
    assert found == {**DEFAULTS, "health_check_failure_threshold": 2}


def test_slow_settings_are_warned_of() -> None:
    assert warning_of(HEALTH_CHECKS) == ""
    assert warning_of({**HEALTH_CHECKS, "health_check_failure_threshold": 6}) == ""
    assert "after about 7 s" in warning_of({**HEALTH_CHECKS, "health_check_failure_threshold": 7})
    text = warning_of(DEFAULTS)
    assert text.startswith(
        "warning: this cluster notices a machine that stops, or whose link is cut, after about 65 s."
    )
    assert "after 3 s if it were started with RAY_health_check_initial_delay_ms=1000 RAY_health_check_" in text


def test_a_head_without_a_node_is_not_asked() -> None:
    assert ask_for_processes(FakeRay([("a", {"CPU": 1.0}), ("dead", {HEAD: 1.0})])) is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_processes_of_heads_are_found(tmp_path: Path) -> None:
    program = tmp_path / "gcs_server"
    program.symlink_to("/bin/sleep")
    environment = {**os.environ, "RAY_health_check_period_ms": "1", "RAY_AUTH_TOKEN": "secret"}
    with subprocess.Popen([program, "600"], env=environment) as process:
        try:
            expected = [str(program), "600", ""], {"RAY_health_check_period_ms": "1"}
            until(lambda: expected in health._reader()())  # a process that begins has no arguments for a moment
        finally:
            process.kill()
