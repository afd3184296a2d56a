"""Files of hosts, groups and data sharding: what they mean, and how faults are named."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crossbow import ConfigurationError, DataError
from crossbow.cluster import host_files
from crossbow.cluster.host_files import (
    Host,
    learners_of_groups,
    name_of_rank,
    read_data_sharding,
    read_groups,
    read_hosts,
    sharding_of,
    sharding_text,
)


def written(directory: Path, text: str) -> Path:
    path = directory / "file"
    path.write_text(text, encoding="utf-8")
    return path


def test_hosts(tmp_path: Path) -> None:
    text = "# the rack\nnode1\n10.0.0.2 slots=3  # fast\n\nnode1 slots=2\n[fe80::1]\n"
    assert read_hosts(written(tmp_path, text)) == [Host("node1", 3), Host("10.0.0.2", 3), Host("[fe80::1]", 1)]


def test_groups(tmp_path: Path) -> None:
    text = "10.0.0.1 10.0.0.1 10.0.0.2\nnode3\n"
    assert read_groups(written(tmp_path, text)) == [("10.0.0.1", "10.0.0.1", "10.0.0.2"), ("node3",)]


def test_fractions(tmp_path: Path) -> None:
    text = "0.5 1\n0 0.25\n0.25 0.5\n"
    assert read_data_sharding(written(tmp_path, text)) == [(0.5, 1.0), (0.0, 0.25), (0.25, 0.5)]


@pytest.mark.parametrize("parts", [[(0.0, 1.0)], [(0.0, 1 / 3), (1 / 3, 1.0)], [(0.5, 1.0), (0.0, 1e-9), (1e-9, 0.5)]])
def test_fractions_as_text(parts: list[tuple[float, float]]) -> None:
    assert sharding_of(sharding_text(parts)) == parts


def test_the_value_of_an_option(tmp_path: Path) -> None:
    assert sharding_of("stride") == "stride"
    assert sharding_of(str(written(tmp_path, "0 1"))) == [(0.0, 1.0)]
    with pytest.raises(
        DataError, match=r"^data sharding, part 2: expected parts that adjoin, from 0 to 1\. Rec.* at 0.6$"
    ):
        sharding_of("0:0.5,0.6:1")
    with pytest.raises(DataError, match=r"^data sharding, part 1: expected begin and end of a part.* '1 0'$"):
        sharding_of("1:0")
    with pytest.raises(DataError, match=r"nowhere: expected a text file with fractions"):
        sharding_of(str(tmp_path / "nowhere"))


HOST = "expected a host, as node1 or node1 slots=2. Received: "
PART = "expected begin and end of a part, with 0 ≤ begin < end ≤ 1. Received: "
ADJOIN = "expected parts that adjoin, from 0 to 1. Received: "
FAULTS: list[tuple[Callable[[Path], Any], str, str]] = [
    (read_hosts, "node1\nnode2 slots=0\n", f", line 2: {HOST}'node2 slots=0'"),
    (read_hosts, "node1 4", f", line 1: {HOST}'node1 4'"),
    (read_hosts, "node1 slots=2 more", f", line 1: {HOST}'node1 slots=2 more'"),
    (read_hosts, "\nnode/1", f", line 2: {HOST}'node/1'"),
    (read_hosts, "-oProxyCommand=x", f", line 1: {HOST}'-oProxyCommand=x'"),
    (read_hosts, "[]", f", line 1: {HOST}'[]'"),
    (read_hosts, "a slots=1234567", f", line 1: {HOST}'a slots=1234567'"),
    (read_hosts, "# none\n", ": expected hosts. Received: none"),
    (read_groups, "a b\nc a\n", ", line 2: expected each host in one group. Received: a in two"),
    (read_groups, "a,b\n", ", line 1: expected the hosts of a group. Received: 'a,b'"),
    (read_data_sharding, "0 0.5\n0.5 1 1", f", line 2: {PART}'0.5 1 1'"),
    (read_data_sharding, "0 half", f", line 1: {PART}'0 half'"),
    (read_data_sharding, "0.5 0.5", f", line 1: {PART}'0.5 0.5'"),
    (read_data_sharding, "0 1.5", f", line 1: {PART}'0 1.5'"),
    (read_data_sharding, "0 nan", f", line 1: {PART}'0 nan'"),
    (read_data_sharding, "0 0.4\n0.5 1", f", line 2: {ADJOIN}a gap at 0.5"),
    (read_data_sharding, "0.5 1\n0 0.6", f", line 1: {ADJOIN}an overlap at 0.5"),
    (read_data_sharding, "0 0.5", f", line 1: {ADJOIN}a gap at 0.5"),
]


@pytest.mark.parametrize(("read", "text", "message"), FAULTS)
def test_faults_are_named_by_file_and_line(
    read: Callable[[Path], Any], text: str, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError) as raised:
        read(path)
    assert str(raised.value) == f"{path}{message}"


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: expected a text file with hosts"):
        read_hosts(tmp_path / "nowhere")


def test_groups_need_every_rank_and_every_group_a_rank() -> None:
    groups = [("a", "b"), ("c",)]
    assert learners_of_groups(groups, ["a", "c", "a"], 1, "groups") == ((0, 2), (1,))
    with pytest.raises(ConfigurationError, match=r"groups: expected a group with the host of rank 1, d\."):
        learners_of_groups(groups, ["a", "d"], 1, "groups")
    with pytest.raises(ConfigurationError, match=r"groups: expected a rank in each group\. Received: none on c"):
        learners_of_groups(groups, ["a", "b"], 1, "groups")


@pytest.mark.parametrize(
    ("names", "local_rank", "expected"),
    [
        ("other,node1,node1", 0, "node1"),
        ("other,alias,alias", 1, "alias"),  # an address of this machine
        ("localhost,node1", 0, "node1"),  # the other machine is the one that the file calls localhost
        ("localhost,other", 0, "localhost"),
        ("node1,alias", 0, "node1"),
        ("node1,alias", 1, "alias"),
        ("node1", 3, "node1"),  # more ranks than slots
        ("other", 0, "node1.cluster"),
        ("[fe80::1]", 0, "node1.cluster"),
    ],
)
def test_the_name_of_a_host_is_that_of_the_file(
    names: str, local_rank: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"alias": False, "localhost": True}
    monkeypatch.setattr(host_files, "_is_here", lambda name, *, loopback: found.get(name) == loopback)
    assert name_of_rank(names.split(","), local_rank, "node1.cluster") == expected


def test_addresses_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {
        "loopback": ["127.0.0.1"],
        "elsewhere": ["192.0.2.1"],
        "several": ["192.0.2.1", "127.0.0.1"],
    }  # RFC 5737

    def look_up(name: str, port: None, type: int) -> list[tuple[Any, ...]]:
        if name == "bad":
            raise UnicodeError("label empty or too long")
        if name not in addresses:
            raise socket.gaierror
        return [(socket.AF_INET, type, 0, "", (address, 0)) for address in addresses[name]]

    bound: list[Any] = []

    class FakeSocket(socket.socket):
        def bind(self, address: Any) -> None:
            bound.append(address)
            if address[0] != "10.1.1.1":
                super().bind(address)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert [host_files._is_here(name, loopback=True) for name in addresses] == [True, False, True]
    for name in (*addresses, "nowhere", "bad"):
        assert not host_files._is_here(name, loopback=False)
    addresses["own"] = ["10.1.1.1"]
    monkeypatch.setattr(socket, "socket", FakeSocket)
    assert host_files._is_here("own", loopback=False)
    assert not host_files._is_here("own", loopback=True)
    assert bound == [("10.1.1.1", 0)]
