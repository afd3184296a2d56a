"""Exchanges of learners without a barrier: on the threads of learners that have finished a task.

After its local steps, a learner merges its contribution into z and updates the variables of the learners that may
continue, as the rule's updates specify. The bookkeeping is the simulator's (`crossbow.synch.progress`); the kernel
library combines the vectors at a backend's `Meeting`. A lock admits one learner at a time, unless the rule works
without a lock.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from crossbow.clock import now
from crossbow.runtime.backend import Combination
from crossbow.runtime.copies import WHOLE, Copies, Copy
from crossbow.runtime.participants import Participants
from crossbow.runtime.server import Server
from crossbow.solver import Pace, Update
from crossbow.synch import FreeRule, PeerRule
from crossbow.synch.progress import Masses
from crossbow.types import Array


class Exchange(ABC):
    """Exchanges of the learners of one rank."""

    def __init__(self, participants: Participants, tau: int) -> None:
        """tau: a learner's tasks between two exchanges."""
        self._participants, self._tau = participants, tau
        self._own, self._learners = len(participants.replicas), participants.learners
        self._lock = threading.Lock()
        self._steps = [0] * self._own
        self.free: deque[int] = deque()
        """The learners that may begin a task, in the order in which they became free. Any thread takes from it."""
        self._means = participants.means()

    def finished(self, learner: int, pace: Pace) -> None:
        """Continue after a learner's task and local step: exchange, or let it begin another task. Called on the
        learner's thread."""
        self._steps[learner] += 1
        if self._steps[learner] % self._tau:
            self.free.append(learner)
        else:
            self._exchange(learner, pace)

    def _exchange(self, learner: int, pace: Pace) -> None:
        self._let_go(self._participants.meeting.exchange(learner, lambda: self._arrive(learner, pace)))

    def _let_go(self, going: Sequence[int]) -> None:
        """Let these learners, which have exchanged, continue."""
        self.free.extend(going)

    @abstractmethod
    def begin(self, tick: int) -> None:
        """Begin at this tick, with random draws that differ from those of earlier ticks."""

    def restart(self) -> None:
        """Let all learners begin, after they have copied z."""
        self._steps = [0] * self._own
        self.free.clear()
        self.free.extend(range(self._own))

    def state(self) -> dict[str, Any]:
        """The state on which the next exchanges depend, except vectors, as JSON values. No task may be running."""
        return {"steps": self._steps, "free": list(self.free)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same rule."""
        self._steps = list(state["steps"])
        self.free.clear()
        self.free.extend(state["free"])

    def settle(self) -> None:
        """Compute the parts of the base model that exchanges do not need: its statistics, which are the mean of the
        learners'. No task may be running."""
        self._participants.meeting.settle(self._settle)

    def _settle(self) -> None:
        for step in self._means:
            step.call()

    def keep_part(self) -> Copies:
        """After the loss of a rank, store this rank's copies of z in its base model, and its part of the means that
        `settle` computes. No task may be running."""
        Exchange.settle(self)
        return Copies((), 0, self._own / self._learners)

    def rest(self, learner: int) -> None:  # noqa: B027 - on one rank, a learner without a task takes the next one
        """Across ranks, let no learner wait for this one, which gets no task until others have finished theirs.
        learner: its number on this rank."""

    def begin_session(self) -> None:  # noqa: B027 - learners of one rank send no messages
        """Exchange messages with other ranks from now on, until `settle`. Called before each task."""

    def give_up(self) -> None:  # noqa: B027
        """After a failure, exchange no more messages."""

    def arrivals(self) -> tuple[int, int, int] | None:
        """Numbers of complete and of dropped contributions, and the sum of their staleness; None without a base
        model."""
        return None

    @property
    @abstractmethod
    def merges(self) -> int:
        """Number of contributions that were merged. Dropped contributions do not count. Across ranks, it is known on
        all of them when nothing is running."""

    @property
    def own_merges(self) -> int:
        """The merges that this rank counts. Their sum over the ranks is `merges`."""
        return self.merges

    @abstractmethod
    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        """Exchange after a learner's τ local steps. Returns the learners that may continue."""


class BaseExchange(Exchange):
    """Exchanges between a learner and the base model."""

    def __init__(self, participants: Participants, server: Server) -> None:
        """server: the server of z."""
        super().__init__(participants, server.rule.tau)
        self.server = server
        self.restart()

    def follow(self, rule: FreeRule, pace: Pace) -> None:
        """Continue with another rule of this class; z, its velocity and the learners stay as they are. Learners that
        waited under the old rule arrive again under the new one, which merges every complete group now. No task may be
        running."""
        for learner in self.server.follow(rule):
            self._exchange(learner, pace)

    def begin(self, tick: int) -> None:
        self.server.begin(tick)

    def restart(self) -> None:
        super().restart()
        self.server.progress.restart()

    def state(self) -> dict[str, Any]:
        return {**super().state(), **self.server.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.server.restore(state)

    @property
    def merges(self) -> int:
        return self.server.progress.merges

    def arrivals(self) -> tuple[int, int, int]:
        return self.server.arrivals()

    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        return self.server.arrive(learner, pace)


class PeerExchange(Exchange):
    """Exchanges between pairs of learners."""

    def __init__(self, participants: Participants, rule: PeerRule, *, seed: int = 0) -> None:
        super().__init__(participants, rule.tau)
        self._rule, self._seed, self._met, self._first = rule, seed, 0, participants.first
        self._draws = [0] * self._own
        """Number of each learner's next random draw in an exchange."""
        self.masses = Masses(self._learners, self._own)
        own = [replica.vectors() for replica in participants.replicas]
        self._receive = [self._mix(each) for each in own]
        self._send = {
            (sender, peer): self._mix({"weights": own[peer]["received"], "received": own[sender]["weights"]})
            for sender, peer in itertools.permutations(range(self._own), 2)
        }
        self._mean = participants.bind(
            "mean",
            lambda pace, mean: mean,
            self.masses.mean,
            {
                **participants.base.vectors(0),
                **{f"{kind}{i}": each[kind] for i, each in enumerate(own) for kind in ("weights", "received")},
            },
            skips_frozen=False,
        )
        self.restart()

    def begin(self, tick: int) -> None:
        self._draws = [tick] * self._own

    def restart(self) -> None:
        super().restart()
        self.masses = Masses(self._learners, self._own)

    def state(self) -> dict[str, Any]:
        masses = {"own": self.masses.own, "coming": self.masses.coming}
        return {**super().state(), "draws": self._draws, "met": self._met, "masses": masses}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._draws, self._met = list(state["draws"]), state["met"]
        self.masses.restore(**state["masses"])

    def _settle(self) -> None:
        self._mean.run(Pace(0.0, 0.0), self.masses.mean)
        super()._settle()

    def keep_part(self) -> Copies:
        part = Copy(0, self._participants.base.buffers[0].size, self.masses.total, 0, WHOLE)
        return super().keep_part()._replace(copies=(part,))

    @property
    def merges(self) -> int:
        return self._met  # without a z, exchanges are counted

    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        peer = self._rule.peer(self._first + learner, self._learners, self._draws[learner], self._seed)
        self._draws[learner] += 1
        with self._lock:
            begin = now()
            self._met += 1
            if self.masses.coming[learner]:
                self._receive[learner].run(pace, self.masses.receive(learner))
            if peer is not None:
                self._give(learner, peer - self._first, pace)
            self._participants.record(learner, begin, [learner])
        return [learner]

    def _give(self, learner: int, peer: int, pace: Pace) -> None:
        """Send a learner's weights to a peer. Both are numbered from this rank's first learner."""
        self._send[learner, peer].run(pace, self.masses.send(learner, peer, self._rule.part_sent()))

    def _mix(self, vectors: Mapping[str, Array]) -> Combination[tuple[float, float]]:
        """An update of vectors whose coefficients depend on the two masses. It mixes frozen variables, too."""

        def mix(pace: Pace, masses: tuple[float, float]) -> Update:
            return self._rule.mix(*masses)

        return self._participants.bind("mix", mix, (0.5, 0.5), vectors, skips_frozen=False)
