"""Deliberate and repeatable changes of the view, for tests: CROSSBOW_FAULT=kill:RANK@TICK, leave:RANK@TICK or
join@TICK."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from crossbow.types import ConfigurationError

VARIABLE = "CROSSBOW_FAULT"


@dataclass(frozen=True)
class Fault:
    """A change of the view as soon as all ranks have reached a tick; with two levels, after the next exchange."""

    rank: int
    """-1 for a rank that joins."""
    tick: int
    kind: str = "kill"
    """ "kill": its process ends without warning; "leave": it is asked to leave; "join": it joins."""

    def strike(self) -> None:
        """Kill this process."""
        os.kill(os.getpid(), signal.SIGKILL)


def faults_of(environment: Mapping[str, str]) -> tuple[Fault, ...]:
    """The faults that an environment requests. The first one happens in the first view, the next one in the resulting
    view. Raises ConfigurationError for an invalid value.

    >>> faults_of({"CROSSBOW_FAULT": "kill:1@20,kill:0@30"})
    (Fault(rank=1, tick=20, kind='kill'), Fault(rank=0, tick=30, kind='kill'))
    """
    faults = []
    for text in filter(None, environment.get(VARIABLE, "").split(",")):
        found = re.fullmatch(r"(?:(kill|leave):(\d+)|join)@(\d+)", text)
        if found is None:
            raise ConfigurationError(
                f"{VARIABLE} must be kill:RANK@TICK, leave:RANK@TICK or join@TICK. Received: {text!r}"
            )
        faults.append(Fault(int(found[2] or -1), int(found[3]), found[1] or "join"))
    return tuple(faults)


def check_fixed(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError for faults that are impossible with MPI, where the number of ranks is fixed."""
    for fault in faults_of(environment):
        if fault.kind == "join":
            raise ConfigurationError(
                f"{VARIABLE} must be kill:RANK@TICK or leave:RANK@TICK with MPI, where no rank can join. Received: "
                f"join@{fault.tick}"
            )
