"""Connecting to Ray: what is wrong is one sentence. A class stands for the package."""

from __future__ import annotations

import os
import socket
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from crossbow import ConfigurationError
from crossbow.cluster.ray import connection
from crossbow.cluster.ray.connection import ClusterNode, Connection, connect


class FakeRay:
    """The functions of Ray that a connection calls."""

    def __init__(self, nodes: list[tuple[str, dict[str, float]]] | None = None) -> None:
        self.given: list[Any] = []
        self.ended = False
        self.answer: Any = lambda: None
        self._nodes = nodes or []
        self._private = SimpleNamespace(
            node=SimpleNamespace(Node=object),
            utils=SimpleNamespace(set_sigterm_handler=None),
            parameter=SimpleNamespace(RayParams=object),
            services=SimpleNamespace(),
        )

    def init(self, address: str, **settings: Any) -> None:
        self.given.append(address)
        self.answer()

    def shutdown(self) -> None:
        self.ended = True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "id-of-b")

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": f"id-of-{host}", "NodeManagerHostname": host, "Alive": host != "dead", "Resources": resources}
            for host, resources in self._nodes
        ]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    found = FakeRay()
    monkeypatch.setattr(connection, "optional_module", lambda *_: found)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in connection.QUIET:
        monkeypatch.setenv(name, "1")
    return found


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in connection.QUIET:
        monkeypatch.setenv(name, "1")
    expected = r"^training on Ray needs the package ray: pip install 'crossbow\[ray\]'\. "
    with pytest.raises(ConfigurationError, match=expected), connect(None, 1):
        pass


SAFE = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
"""Variables that Ray reads when it is imported."""


@pytest.fixture
def when_imported(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> list[list[str | None]]:
    """The values of these variables whenever Ray is imported."""
    found = []

    def load(*_: str) -> FakeRay:
        found.append(list(map(os.environ.get, SAFE)))
        return ray

    for name in SAFE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(connection, "optional_module", load)
    return found


def test_without_an_address_a_cluster_begins_and_ends(ray: FakeRay, when_imported: list[list[str | None]]) -> None:
    for _ in range(2):
        with connect(None, 2) as found:
            assert found.local
            assert not ray.ended
        assert (ray.given, ray.ended) == (["local"], True)
        ray.given, ray.ended = [], False
    (first, *modes), (second, *_) = ((token, *rest) for *rest, token in when_imported)
    assert modes == ["0", "token"]
    assert len({first, second} - {None}) == 2  # a new token for each cluster
    assert not set(SAFE) & os.environ.keys()


def test_the_address_may_come_from_the_environment(
    ray: FakeRay, when_imported: list[list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with connect(None, 2) as found:
        assert not found.local
    assert (ray.given, when_imported) == (["auto"], [[None] * 3])


@pytest.mark.parametrize("address", ["node", "node:", ":80", "node:x", "http://node:8265", "ray://node:1", "http://a"])
def test_an_address_has_host_and_port(ray: FakeRay, address: str) -> None:
    with pytest.raises(ConfigurationError, match="--address must be auto or HOST:PORT"), connect(address, 1):
        pass


def test_the_source_and_the_kind_of_an_address_are_named(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://node:10001")
    expected = "^RAY_ADDRESS must be .* Received: ray://node:10001, the address of a Ray Client server$"
    with pytest.raises(ConfigurationError, match=expected), connect(None, 1):
        pass


def test_nothing_listens(ray: FakeRay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    expected = f"^expected a Ray cluster at {address}. Received: "
    with pytest.raises(ConfigurationError, match=expected), connect(address, 1):
        pass
    assert ray.given == []


def test_a_cluster_that_refuses_or_does_not_answer(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConnectionError("wrong token\nmore")

    ray.answer = refuse
    with pytest.raises(ConfigurationError, match="Received: wrong token"), connect("auto", 1):
        pass
    end = threading.Event()
    ray.answer = lambda: end.wait(60)
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 0.05)
    with pytest.raises(ConfigurationError, match="no answer within 0"), connect("auto", 1):
        pass
    end.set()


def test_nodes_have_the_resources_and_the_own_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [("a", {"CPU": 4.0, "fast": 1.0}), ("b", {"CPU": 4.0}), ("head", {}), ("dead", {"CPU": 4.0})]
    found = Connection(FakeRay(nodes), local=False)
    assert [node.host for node in found.nodes({})] == ["b", "a"]
    assert found.await_nodes(1, {"fast": 1}) == [ClusterNode("id-of-a", "a", nodes[0][1])]
    monkeypatch.setattr(connection, "SECONDS_FOR_NODES", 0)
    expected = r"expected 3 nodes \(each with a core, CPU 2\) within 0 s. Received: 2 \(b, a\)"
    with pytest.raises(ConfigurationError, match=expected):
        found.await_nodes(3, {"CPU": 2})


def test_the_descriptors_of_libraries_lead_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    import os

    with connection.own_streams():
        print("ours")
        print("error", file=sys.stderr)
        os.write(1, b"chatter\n")
        os.write(2, b"chatter\n")
    os.write(1, b"after\n")
    assert capfd.readouterr() == ("ours\nafter\n", "error\n")


def test_of_rays_reports_those_of_memory_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker: Any = ModuleType("ray._private.worker")
    worker.print_to_stdstream = print
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    connection.quiet_ray()
    killed, memory = (
        "A worker died.\nSee its logs.",
        "1 worker(s) were killed due to the node running low on memory. 1\n2",
    )
    worker.print_to_stdstream({"lines": [killed], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    worker.print_to_stdstream({"lines": [killed, memory], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    expected = "Ray: 1 worker(s) were killed due to the node running low on memory. 1\n"
    assert capsys.readouterr() == ("", expected)
