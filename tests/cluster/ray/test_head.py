"""The head of a cluster of one's own, which is started again. Classes stand for Ray and its node."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow.cluster.ray import head
from crossbow.cluster.ray.head import own_head
from crossbow.types import ConfigurationError
from tests.support import until


class Node:
    """The head's node, whose server can end."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.starts = 1
        self.error: Exception | None = None

    def _is_rocksdb_gcs(self) -> bool:
        return True

    @property
    def all_processes(self) -> dict[str, list[Any]]:
        server = SimpleNamespace(process=SimpleNamespace(poll=lambda: self.status))
        return {"gcs_server": [server]} if self.starts else {}

    def kill_gcs_server(self, *, check_alive: bool) -> None:
        assert not check_alive
        self.starts = -self.starts

    def start_gcs_server(self) -> None:
        assert self.starts < 0, "it was not killed"
        if self.error is not None:
            raise self.error
        self.starts, self.status = 1 - self.starts, None


def ray_parameters(num_cpus: int, no_monitor: bool = False, include_log_monitor: bool = True) -> tuple[int, bool, bool]:
    return num_cpus, no_monitor, include_log_monitor


class Ray:
    """What `own_head` calls."""

    def __init__(self, node: Node, kind: type = Node) -> None:
        self.settings: dict[str, Any] = {}
        self.events: list[str] = []
        worker = SimpleNamespace(_global_node=node)
        self.utils = SimpleNamespace(set_sigterm_handler=lambda handler: signal.signal(signal.SIGTERM, handler))
        self.parameter = SimpleNamespace(RayParams=ray_parameters)
        self.services = SimpleNamespace(start_api_server=self.start_api_server, get_node=self.get_node)
        self._private = SimpleNamespace(
            node=SimpleNamespace(Node=kind),
            worker=worker,
            utils=self.utils,
            parameter=self.parameter,
            services=self.services,
        )
        self.while_it_starts: Any = lambda: None
        self.busy = 0
        """Number of times that there is no node yet."""

    def init(self, address: str, **settings: Any) -> None:
        self.settings = settings
        self.events.append(address)
        self.utils.set_sigterm_handler(lambda number, frame: self.events.append("ended by Ray"))
        self.parameters: Any = self.parameter.RayParams(num_cpus=settings["num_cpus"])
        self.services.start_api_server(False, port=1)
        self.while_it_starts()
        assert self.services.get_node("address", "node") == ("address", "node")

    def get_node(self, *arguments: str) -> tuple[str, ...]:
        self.busy -= 1
        if self.busy >= 0:
            raise RuntimeError("no node\nyet")
        return arguments

    def start_api_server(self, *_: Any, **__: Any) -> None:
        self.events.append("server of the dashboard")

    def shutdown(self) -> None:
        path = self.settings["_system_config"].get("gcs_storage_path")
        assert path is None or Path(path).is_dir(), "the head still writes"
        self.events.append("shutdown")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    monkeypatch.setattr(head, "LOOK", 0.001)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Node()


def test_the_state_is_on_the_disk_while_the_head_lives(node: Node, tmp_path: Path) -> None:
    ray = Ray(node)
    with own_head(ray, cores=3, address="192.0.2.1", checks={"period": 5}):
        settings = ray.settings["_system_config"]
        (directory,) = tmp_path.iterdir()
        assert settings == {
            "worker_niceness": 0,
            "period": 5,
            "gcs_storage": "rocksdb",
            "gcs_storage_path": str(directory / "state"),
        }
        assert (directory / "state").is_dir()
        assert (ray.settings["num_cpus"], ray.settings["_node_ip_address"]) == (3, "192.0.2.1")
    assert ray.events == ["local", "shutdown"]
    assert not list(tmp_path.iterdir())


def test_processes_that_nothing_uses_are_not_started(node: Node) -> None:
    ray = Ray(node)
    with own_head(ray, cores=1):
        assert ray.parameters == (1, True, False)
    assert ray.events == ["local", "shutdown"]
    assert (ray.parameter.RayParams, ray.services.start_api_server) == (ray_parameters, ray.start_api_server)


def test_other_versions_of_ray_start_them(node: Node) -> None:
    ray = Ray(node)
    ray.parameter.RayParams = lambda num_cpus: num_cpus
    with own_head(ray, cores=1):
        assert ray.parameters == 1
    assert ray.events == ["local", "server of the dashboard", "shutdown"]


def test_a_server_that_ends_is_started_again(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    with own_head(Ray(node), cores=1):
        for starts in (2, 3):
            node.status = -9
            until(lambda starts=starts: node.starts == starts)
    assert (
        capsys.readouterr().err == 2 * "the head of the Ray cluster had ended. It goes on with its state on the disk\n"
    )


def test_a_server_that_does_not_start_is_left_alone(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.error = OSError("the port is taken")
    with own_head(Ray(node), cores=1):
        node.status = 1
        until(lambda: node.starts < 0)
    assert capsys.readouterr().err == (
        "the head of the Ray cluster has ended, and could not be started again: the port is taken\n"
    )
    assert node.starts == -1


def test_older_versions_of_ray_keep_it_in_memory(node: Node, tmp_path: Path) -> None:
    ray = Ray(node, object)
    with own_head(ray, cores=1):
        node.status = -9
        assert ray.settings["_system_config"] == {"worker_niceness": 0}
        (directory,) = tmp_path.iterdir()
        assert not list(directory.iterdir())
    assert node.starts == 1


@pytest.mark.parametrize("why_not", ["", "too long", "chosen", "other machines"])
def test_sockets_and_logs_are_in_the_same_directory(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why_not: str
) -> None:
    """Other machines may use the same path, where nothing would remove it."""
    length = len(str(tmp_path / "crossbow-ray-head-12345678"))
    monkeypatch.setattr(head, "MOST_BYTES", length - (why_not == "too long"))
    monkeypatch.setenv("RAY_TMPDIR", "/chosen" if why_not == "chosen" else "")
    ray = Ray(node)
    with own_head(ray, cores=1, address="192.0.2.1" if why_not == "other machines" else None):
        (directory,) = tmp_path.iterdir()
        assert ray.settings["_temp_dir"] == (None if why_not else str(directory))


def test_a_head_that_starts_slowly_is_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "PAUSE", 0.001)
    ray = Ray(node)
    ray.busy = 3
    with own_head(ray, cores=1):
        assert ray.busy == -1
    assert ray.services.get_node == ray.get_node
    ray.busy = 10**9
    monkeypatch.setattr(head, "SECONDS_TO_START", 0.05)
    said = re.escape("expected Ray to start on this machine. Received: no node. With RAY_TMPDIR=DIR")
    with pytest.raises(ConfigurationError, match=f"^{said} [^\n]*$"), own_head(ray, cores=1):
        ray.events.append("not reached")
    assert ray.events == ["local", "shutdown"] * 2
    assert ray.services.get_node == ray.get_node


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_waits_until_ray_has_started(node: Node, number: int, error: type[BaseException]) -> None:
    ray, before = Ray(node), signal.getsignal(number)
    events = ray.events

    def interrupted() -> None:
        os.kill(os.getpid(), number)
        time.sleep(0.01)  # for the handler
        events.append("started")

    ray.while_it_starts = interrupted
    with pytest.raises(error), own_head(ray, cores=1):
        events.append("not reached")
    assert events == ["local", "started", "shutdown"]
    assert signal.getsignal(number) is before
