"""Trajectories of a model with one weight, worked by hand.

Learner 0 always sees the example x = 1 with target 0, learner 1 the example x = 2 with target 2. With the loss
½ (w x − target)² their gradients are::

    g_0(w) = 1 · (w − 0)      = w
    g_1(w) = 2 · (2 w − 2)    = 4 w − 4

Everything starts at w_0 = w_1 = z = 2, the learning rate is γ = ¼, and all numbers are exact in binary, in float32 too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crossbow import SMA, SSGD, SolverConf
from crossbow.synch import BarrierRule, DiLoCo, ModelAveraging, PolyakRuppert, SynchronousEASGD

START = 2.0
RATE = 0.25
EXAMPLES = ((1.0, 0.0), (2.0, 2.0))
"""Of learner 0 and of learner 1: x and target."""

State = tuple[tuple[float, ...], float]
"""The replicas' weights and z."""


@dataclass(frozen=True)
class Trajectory:
    """What a rule does with the two learners."""

    name: str
    rule: BarrierRule
    solver: SolverConf
    states: tuple[State, ...]
    """After each tick."""


ALL: list[Trajectory] = []


def gradient(learner: int, weight: float) -> float:
    """That of the learner's example."""
    x, target = EXAMPLES[learner]
    return x * (weight * x - target)


def trajectory(rule: BarrierRule, *states: State, **values: Any) -> Callable[[object], None]:
    """Add a trajectory; the decorated function's docstring shows the working."""

    def add(function: object) -> None:
        solver = SolverConf(learning_rate=RATE, **values)
        ALL.append(Trajectory(function.__name__, rule, solver, states))  # type: ignore[attr-defined]

    return add


@trajectory(SMA(alpha=0.5), ((1.5, 1.0), 2.0), ((1.375, 1.5), 1.25), ((0.96875, 0.875), 1.4375))
def sma() -> None:
    """α = ½ = 1/k: c_i = ½ (w_i − z); w_i ← w_i − ¼ g_i − c_i; z ← z + c_0 + c_1.

    ==== ================ =========== ================================ ================================ ================
    tick c_0, c_1         g_0, g_1    w_0                              w_1                              z
    ==== ================ =========== ================================ ================================ ================
    0    0, 0             2, 4        2 − .5 − 0 = 1.5                 2 − 1 − 0 = 1                    2
    1    −.25, −.5        1.5, 0      1.5 − .375 + .25 = 1.375         1 − 0 + .5 = 1.5                 2 − .75 = 1.25
    2    .0625, .125      1.375, 2    1.375 − .34375 − .0625 = .96875  1.5 − .5 − .125 = .875           1.25 + .1875
    ==== ================ =========== ================================ ================================ ================
    """


@trajectory(SMA(), ((1.5, 1.0), 2.0), ((1.375, 1.5), 1.25), ((0.96875, 0.875), 1.4375))
def sma_by_default() -> None:
    """α = 1/k: the same."""


@trajectory(SMA(alpha=0.25), ((1.5, 1.0), 2.0), ((1.25, 1.25), 1.625), ((1.03125, 1.09375), 1.4375))
def sma_with_a_weaker_correction() -> None:
    """α = ¼.

    0. c = 0, 0; g = 2, 4: w = 1.5, 1; z = 2.
    1. c = −.125, −.25; g = 1.5, 0: w_0 = 1.5 − .375 + .125 = 1.25, w_1 = 1 + .25 = 1.25; z = 2 − .375 = 1.625.
    2. c = −.09375 twice; g = 1.25, 1: w_0 = 1.25 − .3125 + .09375 = 1.03125, w_1 = 1.25 − .25 + .09375 = 1.09375;
       z = 1.625 − .1875 = 1.4375.
    """


@trajectory(
    SMA(alpha=0.5, alpha_steps=((4, 0.25), (100, 0.125))),
    ((1.5, 1.0), 2.0),
    ((1.375, 1.5), 1.25),
    ((1.0, 0.9375), 1.34375),
)
def sma_with_a_step_of_alpha() -> None:
    """α = ½, and ¼ from task 4, which is tick 2, on: until then as `sma`.

    2. c = .03125, .0625; g = 1.375, 2: w_0 = 1.375 − .34375 − .03125 = 1, w_1 = 1.5 − .5 − .0625 = .9375;
       z = 1.25 + .09375 = 1.34375.
    """


@trajectory(
    SMA(alpha=0.5, alpha_steps=((2, 0.25),)),
    ((1.5, 1.0), 2.0),
    ((1.375, 1.5), 1.25),
    ((1.0, 0.9375), 1.34375),
    learning_rate_step_unit="merges",
)
def sma_with_a_step_of_alpha_by_merges() -> None:
    """α = ¼ from tick 2 on: the same."""


@trajectory(SMA(alpha=0.5), ((1.5, 1.0), 2.0), ((1.125, 1.0), 1.25), ((0.59375, 0.875), 1.0625), momentum=0.5)
def sma_with_momentum() -> None:
    """α = ½, m = ½: v_i ← ½ v_i − ¼ g_i; the correction does not enter the velocity.

    0. g = 2, 4: v = −.5, −1: w = 1.5, 1; z = 2.
    1. c = −.25, −.5; g = 1.5, 0: v_0 = −.25 − .375 = −.625, v_1 = −.5;
       w_0 = 1.5 − .625 + .25 = 1.125, w_1 = 1 − .5 + .5 = 1; z = 1.25.
    2. c = −.0625, −.125; g = 1.125, 0: v_0 = −.3125 − .28125 = −.59375, v_1 = −.25;
       w_0 = 1.125 − .59375 + .0625 = .59375, w_1 = 1 − .25 + .125 = .875; z = 1.25 − .1875 = 1.0625.
    """


@trajectory(
    SMA(alpha=0.5),
    ((1.25, 0.75), 2.0),
    ((1.15625, 1.53125), 1.0),
    ((0.64453125, 0.54296875), 1.34375),
    weight_decay=0.5,
)
def sma_with_weight_decay() -> None:
    """α = ½, λ = ½: d_i = g_i + ½ w_i takes the place of g_i.

    0. d = 3, 5: w = 2 − .75, 2 − 1.25; z = 2.
    1. c = −.375, −.625; d_0 = 1.25 + .625 = 1.875, d_1 = −1 + .375 = −.625;
       w_0 = 1.25 − .46875 + .375 = 1.15625, w_1 = .75 + .15625 + .625 = 1.53125; z = 2 − 1 = 1.
    2. c = .078125, .265625; d_0 = 1.15625 + .578125 = 1.734375, d_1 = 2.125 + .765625 = 2.890625;
       w_0 = 1.15625 − .43359375 − .078125 = .64453125, w_1 = 1.53125 − .72265625 − .265625 = .54296875;
       z = 1 + .34375 = 1.34375.
    """


@trajectory(
    SMA(alpha=0.5),
    ((1.25, 0.5), 2.0),
    ((1.03125, 1.75), 0.875),
    ((0.42578125, 0.1875), 1.390625),
    momentum=0.5,
    momentum_method="nesterov",
)
def sma_with_nesterov() -> None:
    """α = ½, m = ½: v_i ← ½ v_i − ¼ g_i; w_i ← w_i + ½ v_i − ¼ g_i − c_i.

    0. g = 2, 4: v = −.5, −1: w = 2 − .25 − .5 = 1.25, 2 − .5 − 1 = .5; z = 2.
    1. c = −.375, −.75; g = 1.25, −2: v_0 = −.25 − .3125 = −.5625, v_1 = −.5 + .5 = 0;
       w_0 = 1.25 − .28125 − .3125 + .375 = 1.03125, w_1 = .5 + .5 + .75 = 1.75; z = 2 − 1.125 = .875.
    2. c = .078125, .4375; g = 1.03125, 3: v_0 = −.28125 − .2578125 = −.5390625, v_1 = −.75;
       w_0 = 1.03125 − .26953125 − .2578125 − .078125 = .42578125, w_1 = 1.75 − .375 − .75 − .4375 = .1875;
       z = .875 + .515625 = 1.390625.
    """


@trajectory(
    SMA(alpha=0.5),
    ((1.375, 0.875), 2.0),
    ((1.21875, 1.4375), 1.125),
    ((0.7421875, 0.71875), 1.328125),
    weight_decay=0.5,
    regularisation="l1",
)
def sma_with_l1() -> None:
    """α = ½, λ = ½: d_i = g_i + ½ sign(w_i) takes the place of g_i.

    0. d = 2.5, 4.5: w = 2 − .625, 2 − 1.125; z = 2.
    1. c = −.3125, −.5625; d = 1.375 + .5, −.5 + .5: w_0 = 1.375 − .46875 + .3125 = 1.21875,
       w_1 = .875 − 0 + .5625 = 1.4375; z = 2 − .875 = 1.125.
    2. c = .046875, .15625; d = 1.71875, 2.25: w_0 = 1.21875 − .4296875 − .046875 = .7421875,
       w_1 = 1.4375 − .5625 − .15625 = .71875; z = 1.125 + .203125 = 1.328125.
    """


@trajectory(
    SMA(alpha=0.5, base_momentum=0.5),
    ((1.5, 1.0), 2.0),
    ((1.375, 1.5), 1.25),
    ((0.96875, 0.875), 1.0625),
    ((0.7734375, 1.09375), 0.828125),
)
def sma_with_base_momentum() -> None:
    """α = ½, μ = ½: z ← z + c_0 + c_1 + ½ (z − z before).

    0., 1. as without: z has not moved before, so 2, then 2 − .75 + ½ (2 − 2) = 1.25.
    2. z = 1.25 + .1875 + ½ (1.25 − 2) = 1.0625; the replicas are corrected towards the old z: .96875, .875.
    3. c = ½ (.96875 − 1.0625) = −.046875, ½ (.875 − 1.0625) = −.09375; g = .96875, −.5;
       w_0 = .96875 − .2421875 + .046875 = .7734375, w_1 = .875 + .125 + .09375 = 1.09375;
       z = 1.0625 − .140625 + ½ (1.0625 − 1.25) = .921875 − .09375 = .828125.
    """


@trajectory(
    SMA(alpha=0.25, base_momentum=0.5),
    ((1.25, 0.75), 2.0),
    ((0.59375, 0.59375), 1.5),
    ((0.17578125, 0.91796875), 0.796875),
    momentum=0.5,
    weight_decay=0.5,
)
def sma_with_everything() -> None:
    """α = ¼, μ = ½, m = ½, λ = ½, d_i = g_i + ½ w_i.

    0. d = 3, 5: v = −.75, −1.25: w = 1.25, .75; z = 2.
    1. c = −.1875, −.3125; d = 1.25 + .625 = 1.875 and −1 + .375 = −.625; v_0 = −.375 − .46875 = −.84375,
       v_1 = −.625 + .15625 = −.46875; w_0 = 1.25 − .84375 + .1875 = .59375, w_1 = .75 − .46875 + .3125 = .59375;
       z = 2 − .5 + 0 = 1.5.
    2. c = ¼ (.59375 − 1.5) = −.2265625 twice; d_0 = .59375 + .296875 = .890625, d_1 = −1.625 + .296875 = −1.328125;
       v_0 = −.421875 − .22265625 = −.64453125, v_1 = −.234375 + .33203125 = .09765625;
       w_0 = .59375 − .64453125 + .2265625 = .17578125, w_1 = .59375 + .09765625 + .2265625 = .91796875;
       z = 1.5 − .453125 + ½ (1.5 − 2) = .796875.
    """


@trajectory(
    SMA(alpha=0.5, tau=2),
    ((1.375, 1.5), 1.25),
    ((0.8828125, 1.125), 1.015625),
    ((0.67333984375, 1.0078125), 0.8310546875),
)
def sma_every_second_step() -> None:
    """α = ½, τ = 2: a step alone, then one with the correction, whose c_i is of the weights between the two.

    0. alone: g = 2, 4: w = 1.5, 1. Together: c = −.25, −.5; g = 1.5, 0: w_0 = 1.5 − .375 + .25 = 1.375, w_1 = 1.5;
       z = 2 − .75 = 1.25.
    1. alone: g = 1.375, 2: w = 1.03125, 1. Together: c = −.109375, −.125; g = 1.03125, 0:
       w_0 = 1.03125 − .2578125 + .109375 = .8828125, w_1 = 1.125; z = 1.25 − .234375 = 1.015625.
    2. alone: g = .8828125, .5: w = .662109375, 1. Together: c = −.1767578125, −.0078125; g = .662109375, 0:
       w_0 = .662109375 − .16552734375 + .1767578125 = .67333984375, w_1 = 1.0078125;
       z = 1.015625 − .1845703125 = .8310546875.
    """


@trajectory(SSGD(), ((1.25, 1.25), 1.25), ((0.96875, 0.96875), 0.96875), ((0.86328125, 0.86328125), 0.86328125))
def ssgd() -> None:
    """The mean gradient at z is ½ (z + 4 z − 4) = 2.5 z − 2; w_i = z.

    0. 3: z = 2 − .75 = 1.25.   1. 1.125: z = 1.25 − .28125 = .96875.   2. .421875: z = .96875 − .10546875 = .86328125.
    """


@trajectory(SSGD(), ((1.0, 1.0), 1.0), ((0.25, 0.25), 0.25), ((0.1875, 0.1875), 0.1875), momentum=0.5, weight_decay=0.5)
def ssgd_with_momentum_and_weight_decay() -> None:
    """m = ½, λ = ½: v ← ½ v − ¼ (2.5 z − 2 + ½ z) = ½ v − ¼ (3 z − 2). The decay is not halved with the gradients.

    0. v = −¼ · 4 = −1: z = 1.   1. v = −.5 − .25 = −.75: z = .25.   2. v = −.375 + .3125 = −.0625: z = .1875.
    """


@trajectory(
    SSGD(),
    ((0.6875, 0.6875), 0.6875),
    ((0.38671875, 0.38671875), 0.38671875),
    ((0.463623046875, 0.463623046875), 0.463623046875),
    momentum=0.5,
    momentum_method="nesterov",
    weight_decay=0.5,
    regularisation="l1",
)
def ssgd_with_nesterov_and_l1() -> None:
    """m = ½, λ = ½: d = 2.5 z − 2 + ½ sign(z); v ← ½ v − ¼ d; z ← z + ½ v − ¼ d.

    0. d = 3.5: v = −.875: z = 2 − .4375 − .875 = .6875.
    1. d = .21875: v = −.4375 − .0546875 = −.4921875: z = .6875 − .24609375 − .0546875 = .38671875.
    2. d = −.533203125: v = −.24609375 + .13330078125 = −.11279296875:
       z = .38671875 − .056396484375 + .13330078125 = .463623046875.
    """


@trajectory(SynchronousEASGD(alpha=0.25), ((1.5, 1.0), 2.0), ((1.25, 1.25), 1.625), ((1.03125, 1.09375), 1.4375))
def synchronous_easgd() -> None:
    """α = ¼: as SMA with it, without momentum of z."""


@trajectory(SynchronousEASGD(alpha=0.25, tau=2), ((1.25, 1.25), 1.625), ((0.875, 1.15625), 1.296875))
def synchronous_easgd_every_second_step() -> None:
    """α = ¼, τ = 2.

    0. alone: g = 2, 4: w = 1.5, 1. Together: c = −.125, −.25; g = 1.5, 0: w_0 = 1.5 − .375 + .125 = 1.25,
       w_1 = 1 + .25 = 1.25; z = 2 − .375 = 1.625.
    1. alone: g = 1.25, 1: w = .9375, 1. Together: c = ¼ (.9375 − 1.625) = −.171875, −.15625; g = .9375, 0:
       w_0 = .9375 − .234375 + .171875 = .875, w_1 = 1.15625; z = 1.625 − .328125 = 1.296875.
    """


@trajectory(
    ModelAveraging(), ((1.25, 1.25), 1.25), ((0.96875, 0.96875), 0.96875), ((0.86328125, 0.86328125), 0.86328125)
)
def model_averaging() -> None:
    """Every step from z: the mean of the steps is the step along the mean gradient, as S-SGD.

    0. w = 2 − .5, 2 − 1: z = 1.25.   1. w = 1.25 − .3125, 1.25 − .25: z = .96875.
    2. w = .96875 − .2421875, .96875 + .03125: z = .86328125.
    """


@trajectory(ModelAveraging(tau=2), ((1.0625, 1.0625), 1.0625), ((0.798828125, 0.798828125), 0.798828125))
def model_averaging_every_second_step() -> None:
    """τ = 2: learner 1 is at its minimum, 1, after any step from anywhere: w − ¼ (4 w − 4) = 1.

    0. w_0 = 1.5, 1.125; w_1 = 1, 1: z = 1.0625.   1. w_0 = .796875, .59765625; w_1 = 1, 1: z = .798828125.
    """


@trajectory(
    ModelAveraging(), ((1.25, 1.25), 1.25), ((0.59375, 0.59375), 0.59375), ((0.39453125,) * 2, 0.39453125), momentum=0.5
)
def model_averaging_with_momentum() -> None:
    """m = ½: the velocities stay the learners' own.

    0. v = −.5, −1: w = 1.5, 1: z = 1.25.
    1. v = −.25 − .3125, −.5 − .25 = −.5625, −.75: w = .6875, .5: z = .59375.
    2. v = −.28125 − .1484375, −.375 + .40625 = −.4296875, .03125: w = .1640625, .625: z = .39453125.
    """


@trajectory(PolyakRuppert(), ((1.5, 1.0), 1.25), ((1.125, 1.0), 1.15625))
def polyak_ruppert() -> None:
    """z is the mean of the means so far; the learners train on alone.

    0. w = 1.5, 1: m = 1.25 = z.   1. w = 1.125, 1: m = 1.0625: z = 1.25 + ½ (1.0625 − 1.25) = 1.15625.
    """


@trajectory(PolyakRuppert(alpha=0.5), ((1.75, 1.5), 1.25), ((1.28125, 1.125), 1.203125))
def polyak_ruppert_with_correction() -> None:
    """α = ½: m is of the weights behind the step; then they are drawn to the old z.

    0. w = 1.5, 1: m = 1.25; w = 1.5 − ½ (1.5 − 2) = 1.75, 1 − ½ (1 − 2) = 1.5; z = m.
    1. g = 1.75, 2: w = 1.3125, 1: m = 1.15625; w = 1.3125 − ½ (1.3125 − 1.25) = 1.28125, 1 − ½ (1 − 1.25) = 1.125;
       z = 1.25 + ½ (1.15625 − 1.25) = 1.203125.
    """


@trajectory(PolyakRuppert(alpha_steps=((2, 0.5),)), ((1.5, 1.0), 1.25), ((1.1875, 1.125), 1.15625))
def polyak_ruppert_with_a_step_of_alpha() -> None:
    """α = 0, and ½ from task 2, which is tick 1, on.

    0. w = 1.5, 1: z = m = 1.25.
    1. g = 1.5, 0: w = 1.125, 1: m = 1.0625; w_0 = 1.125 − ½ (1.125 − 1.25) = 1.1875, w_1 = 1 + .125 = 1.125;
       z = 1.25 + ½ (1.0625 − 1.25) = 1.15625.
    """


@trajectory(PolyakRuppert(tau=2), ((1.125, 1.0), 1.0625), ((0.6328125, 1.0), 0.939453125))
def polyak_ruppert_every_second_step() -> None:
    """τ = 2.

    0. w_0 = 1.5, 1.125; w_1 = 1, 1: z = 1.0625.
    1. w_0 = .84375, .6328125; w_1 = 1, 1: m = .81640625: z = 1.0625 + ½ (.81640625 − 1.0625) = .939453125.
    """


@trajectory(
    DiLoCo(tau=1, outer_learning_rate=0.5, outer_momentum=0.5),
    ((1.4375,) * 2, 1.4375),
    ((1.044921875,) * 2, 1.044921875),
    ((0.83343505859375,) * 2, 0.83343505859375),
)
def diloco() -> None:
    """η = μ = ½: Δ = z − m, u ← ½ u + Δ, z ← z − ½ (Δ + ½ u); the learners take z.

    0. w = 1.5, 1: m = 1.25, Δ = .75 = u: z = 2 − ½ (.75 + .375) = 1.4375.
    1. w = 1.078125, 1: m = 1.0390625, Δ = .3984375, u = .375 + .3984375 = .7734375:
       z = 1.4375 − ½ (.3984375 + .38671875) = 1.044921875.
    2. w = .78369140625, 1: m = .891845703125, Δ = .153076171875, u = .38671875 + .153076171875 = .539794921875:
       z = 1.044921875 − ½ (.153076171875 + .2698974609375) = .83343505859375.
    """


@trajectory(
    DiLoCo(tau=2, outer_learning_rate=0.5, outer_momentum=0.5),
    ((1.296875,) * 2, 1.296875),
    ((0.8555908203125,) * 2, 0.8555908203125),
)
def diloco_every_second_step() -> None:
    """η = μ = ½, τ = 2.

    0. w_0 = 1.5, 1.125; w_1 = 1, 1: m = 1.0625, Δ = .9375 = u: z = 2 − ½ (.9375 + .46875) = 1.296875.
    1. w_0 = .97265625, .7294921875; w_1 = 1, 1: m = .86474609375, Δ = .43212890625, u = .46875 + Δ = .90087890625:
       z = 1.296875 − ½ (.43212890625 + .450439453125) = .8555908203125.
    """


@trajectory(
    DiLoCo(tau=1, outer_learning_rate=0.5, outer_momentum=0.5),
    ((1.4375,) * 2, 1.4375),
    ((0.763671875,) * 2, 0.763671875),
    momentum=0.5,
)
def diloco_with_momentum() -> None:
    """η = μ = ½, m = ½: the learners' velocities are their own, and stay when they take z.

    0. v = −.5, −1: w = 1.5, 1: z = 1.4375, u = .75.
    1. v_0 = −.25 − .359375 = −.609375, v_1 = −.5 − .4375 = −.9375: w = .828125, .5: mean .6640625, Δ = .7734375,
       u = .375 + Δ = 1.1484375: z = 1.4375 − ½ (.7734375 + .57421875) = .763671875.
    """
