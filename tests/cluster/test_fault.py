"""Faults on purpose."""

from __future__ import annotations

import multiprocessing
import signal

import pytest

from crossbow import ConfigurationError
from crossbow.cluster.fault import Fault, check_fixed, faults_of


def test_faults_are_read_from_the_environment() -> None:
    assert faults_of({}) == ()
    assert faults_of({"CROSSBOW_FAULT": "kill:1@20,kill:0@30"}) == (Fault(1, 20), Fault(0, 30))
    assert faults_of({"CROSSBOW_FAULT": "leave:0@7,join@8"}) == (Fault(0, 7, "leave"), Fault(-1, 8, "join"))
    with pytest.raises(ConfigurationError, match=r"^CROSSBOW_FAULT must be kill:RANK@TICK, .* Received: 'stop:1@2'$"):
        faults_of({"CROSSBOW_FAULT": "stop:1@2"})


def test_no_rank_can_join_with_mpi() -> None:
    check_fixed({"CROSSBOW_FAULT": "kill:1@5,leave:0@9"})
    with pytest.raises(
        ConfigurationError, match=r"must be kill:.* with MPI, where no rank can join\. Received: join@20$"
    ):
        check_fixed({"CROSSBOW_FAULT": "kill:1@5,join@20"})


@pytest.mark.slow
def test_a_fault_kills_its_process() -> None:
    process = multiprocessing.get_context("spawn").Process(target=Fault(0, 0).strike)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
