"""A process joins others only if it was started as one of several."""

from __future__ import annotations

import sys

import pytest

import crossbow.cluster
from crossbow import ConfigurationError
from crossbow.cluster import process
from crossbow.cluster.process import join, leave
from tests.cluster.fake_network import FakeNetwork


def test_a_process_alone_is_rank_0_of_1() -> None:
    assert (crossbow.cluster.rank, crossbow.cluster.size) == (0, 1)
    assert crossbow.cluster.view.ranks == (join().own,)
    assert leave(0) == 0
    assert leave(2) == 2
    with pytest.raises(AttributeError, match="no attribute 'ranks_of'"):
        crossbow.cluster.ranks_of  # noqa: B018


def test_one_of_several_needs_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_joined", [])
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    expected = r"^a process that is one of 2 ranks needs the package mpi4py: pip install 'crossbow\[mpi\]'\. "
    with pytest.raises(ConfigurationError, match=expected):
        join()


def test_a_command_that_fails_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    network = FakeNetwork(2)
    monkeypatch.setattr(process, "_joined", [network.ranks()[1]])
    assert leave(0) == 0
    leave(2)
    assert network.aborted == [(1, 2)]
