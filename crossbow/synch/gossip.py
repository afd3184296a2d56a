"""Gossip: learners that send each other their weights, without a base model."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np

from crossbow.conf import parameters, setting
from crossbow.domains import Integer, Number
from crossbow.solver import Update
from crossbow.solver.update import CONSTANT
from crossbow.synch.rule import PeerRule

BLOCK = 32
"""Number of clocks whose numbers are drawn together, because a new generator takes most of the time."""


@parameters
class Gossip(PeerRule):
    """Gossip SGD (Blot, Picard, Cord, Thome, 2016; Theano-MPI's GOSGD)::

        initially a_i = 1/k;   after τ local steps a learner
        mixes in received messages:     w_r ← (a_r w_r + a_s w_s) / (a_r + a_s),   a_r ← a_r + a_s
        with probability p sends:       a_s ← a_s / 2;   (w_s, a_s) to another learner, chosen uniformly

    The sum of all a, including messages on their way, stays 1, and an exchange does not change the mean of all weights
    by a: this mean is tested and saved as z. The receiver is a function of the seed, the sender, and the number of its
    previous exchanges. With one learner it is plain SGD.

    Use it if no base model should be shared. Learners exchange rarely, so lower the learning rate towards the end.
    """

    name: ClassVar[str] = "gossip"

    probability: float = setting(Number(at_least=0, at_most=1), default=0.01)
    """Probability of sending to another learner."""
    tau: int = setting(Integer(at_least=1), default=1)

    def peer(self, learner: int, learners: int, clock: int, seed: int) -> int | None:
        if learners == 1:
            return None
        draw, choice = _draws(seed % 2**64, learner).at(clock)
        if draw >= int(self.probability * 2**64):
            return None
        return (learner + 1 + choice % (learners - 1)) % learners

    def mix(self, mass: float, received: float) -> Update:
        part = received / (mass + received)
        return Update((("weights", {"weights": 1 - part, "received": part}),), depends_on=CONSTANT)


class _Draws:
    """The random numbers of a learner: two below 2⁶⁴ for each clock. It keeps those of one block of clocks."""

    def __init__(self, seed: int, learner: int) -> None:
        self._key = np.array([seed, learner], np.uint64)
        self._block: tuple[int, list[list[int]]] = (-1, [])

    def at(self, clock: int) -> list[int]:
        number, draws = self._block
        if number != clock // BLOCK:
            number = clock // BLOCK
            # The generator has four numbers for each value of its counter.
            raw = np.random.Philox(key=self._key, counter=number * BLOCK).random_raw(4 * BLOCK)
            draws = raw.reshape(BLOCK, 4)[:, :2].tolist()
            self._block = number, draws
        return draws[clock % BLOCK]


_draws = lru_cache(maxsize=4096)(_Draws)
