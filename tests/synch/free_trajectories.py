"""Trajectories of rules without a barrier, worked by hand: the one-weight model of `tests/synch/trajectories.py`.

Learner 0's gradient is g_0(w) = w, learner 1's g_1(w) = 4 w − 4, and with γ = ¼ a plain step takes learner 0 from w to
¾ w, and learner 1 from anywhere to 1. Learner 2, where there is one, is as learner 0. Everything starts at 2. In the
working "0: …" is what happens when learner 0 finishes a task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crossbow import SolverConf
from crossbow.synch import (
    EASGD,
    SSP,
    AsynchronousSGD,
    Default,
    Gossip,
    Grouping,
    Hogwild,
    PartiallySynchronous,
    Rule,
    WeedOut,
)
from tests.synch.trajectories import RATE


@dataclass(frozen=True)
class Trajectory:
    """What becomes of the learners when they finish in this order."""

    name: str
    rule: Rule
    solver: SolverConf
    events: tuple[int, ...]
    base: tuple[float, ...]
    replicas: tuple[tuple[float, ...], ...]
    staleness: tuple[int, ...]
    dropped: tuple[int, ...]
    """The events whose contribution was left out."""

    @property
    def learners(self) -> int:
        return len(self.replicas[0])


ALL: list[Trajectory] = []


def trajectory(
    rule: Rule,
    *,
    events: tuple[int, ...],
    base: tuple[float, ...],
    replicas: tuple[tuple[float, ...], ...],
    staleness: tuple[int, ...],
    dropped: tuple[int, ...] = (),
    **values: Any,
) -> Callable[[object], None]:
    """Add a trajectory; the decorated function's docstring shows the working."""

    def add(function: object) -> None:
        solver = SolverConf(learning_rate=RATE, **values)
        name: str = function.__name__  # type: ignore[attr-defined]
        ALL.append(Trajectory(name, rule, solver, events, base, replicas, staleness, dropped))

    return add


@trajectory(
    AsynchronousSGD(),
    events=(0, 1, 0, 0, 1),
    base=(1.5, 0.5, 0.125, 0.09375, 0.59375),
    replicas=((1.5, 2), (1.5, 0.5), (0.125, 0.5), (0.09375, 0.5), (0.09375, 0.59375)),
    staleness=(1, 2, 2, 1, 3),
)
def asynchronous_deltas() -> None:
    """z ← z + Δ_i, w_i ← z.

    0: Δ = 1.5 − 2 = −.5: z = 1.5.   1: from 2, Δ = 1 − 2: z = .5.   0: from 1.5, Δ = −.375: z = .125.
    0: from .125, Δ = −.03125: z = .09375.   1: from .5, Δ = .5: z = .59375; two merges came between, so Y = 3.
    """


@trajectory(
    AsynchronousSGD(weight="1/staleness"),
    events=(0, 1, 0),
    base=(1.5, 1.0, 0.8125),
    replicas=((1.5, 2), (1.5, 1), (0.8125, 1)),
    staleness=(1, 2, 2),
)
def asynchronous_deltas_by_staleness() -> None:
    """z ← z + Δ_i / Y.

    0: z = 1.5.   1: Δ = −1, Y = 2: z = 1.   0: from 1.5, Δ = −.375, Y = 2: z = 1 − .1875 = .8125.
    """


@trajectory(
    AsynchronousSGD(tau=2),
    events=(0, 0, 1, 0, 1, 0),
    base=(1.125, 0.125, -0.3671875),
    replicas=((1.5, 2), (1.125, 2), (1.125, 1), (0.84375, 1), (0.84375, 0.125), (-0.3671875, 0.125)),
    staleness=(0, 1, 0, 0, 2, 2),
)
def asynchronous_deltas_of_two_steps() -> None:
    """τ = 2: every second event is an arrival.

    0: 1.5.   0: 1.125, Δ = −.875: z = 1.125.   1: 1.   0: from 1.125, .84375.
    1: 1, Δ = 1 − 2 = −1: z = .125.   0: .6328125, Δ = .6328125 − 1.125 = −.4921875: z = −.3671875.
    """


@trajectory(
    AsynchronousSGD(weight=0.25, sends="gradient"),
    events=(0, 1, 0),
    base=(1.875, 1.5625, 1.2890625),
    replicas=((1.875, 2), (1.875, 1.5625), (1.2890625, 1.5625)),
    staleness=(1, 2, 2),
    momentum=0.5,
)
def asynchronous_gradients_with_momentum() -> None:
    """ω = ¼, m = ½: v ← ½ v − ¼ · ¼ g_i, z ← z + v; the velocity is z's.

    0: g = 2: v = −.125: z = 1.875.   1: g = 4: v = −.0625 − .25 = −.3125: z = 1.5625.
    0: from 1.875: v = −.15625 − .1171875 = −.2734375: z = 1.2890625.
    """


@trajectory(
    AsynchronousSGD(weight="1/2", sends="gradient"),
    events=(0, 1),
    base=(1.5, 0.8125),
    replicas=((1.5, 2), (1.5, 0.8125)),
    staleness=(1, 2),
    weight_decay=0.5,
)
def asynchronous_gradients_with_weight_decay() -> None:
    """ω = ½, λ = ½: z ← z − ¼ (½ g_i + ½ z). The decay is z's, and not weighed.

    0: d = 1 + 1: z = 1.5.   1: d = 2 + .75: z = 1.5 − .6875 = .8125.
    """


@trajectory(
    Hogwild(),
    events=(0, 1, 0),
    base=(1.5, 0.5, -0.125),
    replicas=((1.5, 1.5), (0.5, 0.5), (-0.125, -0.125)),
    staleness=(1, 2, 2),
    momentum=0.5,
)
def hogwild() -> None:
    """m = ½: v_i ← ½ v_i − ¼ g_i, z ← z + v_i. The gradient is at the z that the learner found when it began.

    0: v_0 = −.5: z = 1.5.   1: at 2: v_1 = −1: z = .5.   0: at 1.5: v_0 = −.25 − .375 = −.625: z = −.125.
    """


@trajectory(
    SSP(bound=1),
    events=(0, 0, 0, 1),
    base=(1.5, 1.125, 0.125, 0.09375),
    replicas=((1.5, 2), (1.5, 2), (0.125, 0.125), (0.125, 0.125)),
    staleness=(1, 1, 3, 1),
)
def ssp() -> None:
    """s = 1: learner 0 may begin its second task, but not its third before learner 1 has ended its first.

    0: z = 1.5; clocks 1, 0: it goes on from 1.5.   0: g = 1.5: z = 1.125; clocks 2, 0: it waits.   (0 is put off.)
    1: at 2, g = 4: z = .125; clocks 2, 1: both go on from .125.   0: z = .125 − .03125; clocks 3, 1: it waits.
    """


@trajectory(
    PartiallySynchronous(max_advance=2),
    events=(0, 0, 1, 0, 0, 1),
    base=(1.5, 1.125, 0.125, 0.09375, 0.0703125, 0.9453125),
    replicas=((1.5, 2), (1.125, 2), (0.125, 0.125), (0.09375, 0.125), (0.0703125, 0.125), (0.9453125, 0.9453125)),
    staleness=(1, 1, 3, 1, 1, 3),
)
def partially_synchronous() -> None:
    """m = 2.

    0: z = 1.5.   0: z = 1.125; two ahead: it waits.   1: Δ = −1: z = .125; all wait: they take it, and count from 0.
    0: z = .09375.   0: z = .0703125, and waits.   1: from .125, Δ = .875: z = .9453125, which both take.
    """


@trajectory(
    WeedOut(window=2),
    events=(0, 0, 0, 1, 1),
    base=(1.5, 1.125, 0.84375, 1.0),
    replicas=((1.5, 2), (1.125, 2), (0.84375, 2), (0.84375, 0.84375), (0.84375, 1)),
    staleness=(1, 1, 1, 4, 1),
    dropped=(3,),
)
def weed_out() -> None:
    """N = 2.

    0, 0: the first two are merged: z = 1.5, 1.125.   0: among the last two, 0 and 0: z = .84375.
    1: not among 0, 0: left out; it goes on from .84375.   1: among 0, 1: Δ = 1 − .84375: z = 1.
    """


@trajectory(
    Default(),
    events=(0, 1, 1, 0),
    base=(1.5, 0.5, 1.0, 0.875),
    replicas=((1.5, 2), (0.5, 0.5), (0.5, 1), (0.875, 0.875)),
    staleness=(1, 2, 1, 2),
)
def default() -> None:
    """z ← z + v_i, and w_i ← z when both have done so.

    0: v = −.5: w_0 = z = 1.5.   1: v = −1: z = .5; both take it.   1: v = .5: w_1 = z = 1.
    0: from .5, v = −.125: z = .875; both take it.
    """


@trajectory(
    EASGD(alpha=0.25),
    events=(0, 1, 0),
    base=(1.875, 1.65625, 1.546875),
    replicas=((1.625, 2), (1.625, 1.21875), (1.328125, 1.21875)),
    staleness=(1, 2, 2),
)
def easgd() -> None:
    """α = ¼: the step, then d = ¼ (w_i − z), w_i ← w_i − d, z ← z + d.

    0: w = 1.5: d = −.125: w = 1.625, z = 1.875.   1: w = 1: d = −.21875: w = 1.21875, z = 1.65625.
    0: w = 1.21875: d = −.109375: w = 1.328125, z = 1.546875.
    """


@trajectory(
    EASGD(alpha=0.25, alpha_steps=((2, 0.5),)),
    events=(0, 1, 0),
    base=(1.875, 1.65625, 1.4375),
    replicas=((1.625, 2), (1.625, 1.21875), (1.4375, 1.21875)),
    staleness=(1, 2, 2),
)
def easgd_with_a_step_of_alpha() -> None:
    """α = ¼, and ½ for task 2 and those behind it: until then as `easgd`.

    0: w = 1.21875: d = ½ (1.21875 − 1.65625) = −.21875: w = 1.4375, z = 1.4375.
    """


@trajectory(
    EASGD(tau=2),
    events=(0, 0, 1, 1),
    base=(1.5625, 1.28125),
    replicas=((1.5, 2), (1.5625, 2), (1.5625, 1), (1.5625, 1.28125)),
    staleness=(0, 1, 0, 2),
)
def easgd_every_second_step() -> None:
    """α = ½, τ = 2: the two meet in the middle.

    0: 1.5.   0: 1.125; the middle to 2: 1.5625.   1: 1.   1: 1; the middle to 1.5625: 1.28125.
    """


@trajectory(
    Grouping(((0, 1), (2,))),
    events=(0, 2, 1, 2, 0, 1),
    base=(1.5, 1.125, 0.9375, 0.8359375),
    replicas=((2, 2, 2), (2, 2, 1.5), (1.125, 1.125, 1.5), *[(1.125, 1.125, 0.9375)] * 2, (0.8359375,) * 2 + (0.9375,)),
    staleness=(2, 1, 2, 2, 2, 2),
)
def grouping() -> None:
    """z ← z − ¼ ω Σ g_i with ω = 1 / (n Y).

    0: waits for 1.   2: alone, g = 2, Y = 1, ω = 1: z = 1.5.
    1: with 0: 2 + 4 = 6; 2 has merged since, Y = 2, ω = ¼: z = 1.5 − .375 = 1.125.
    2: from 1.5, Y = 2, ω = ½: z = 1.125 − .1875 = .9375.   0: waits.
    1: with 0: 1.125 + .5 = 1.625, ω = ¼: z = .9375 − .1015625 = .8359375.
    """


@trajectory(
    Gossip(probability=1),
    events=(0, 1, 0),
    base=(1.75, 1.25, 1.15625),
    replicas=((1.5, 2), (1.5, 7 / 6), (1.15, 7 / 6)),
    staleness=(1, 1, 1),
)
def gossip() -> None:
    """p = 1, so everybody always sends to the other. a = ½, ½. z is the mean of all weights by a.

    0: w = 1.5; a_0 = ¼, and (1.5, ¼) is on its way to 1: z = ¼ · 1.5 + ½ · 2 + ¼ · 1.5 = 1.75.
    1: w = 1; takes that: (½ · 1 + ¼ · 1.5) / ¾ = 7/6, a_1 = ¾, of which ⅜ goes: z = ¼ · 1.5 + ¾ · 7/6 = 1.25.
    0: w = 1.125; (¼ · 1.125 + ⅜ · 7/6) / ⅝ = 1.15, a_0 = ⅝: z = ⅝ · 1.15 + ⅜ · 7/6 = 1.15625.
    """
