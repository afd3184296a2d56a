"""`SolverConf`: configuration of the solver, and detection of fields that have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossbow.conf import check_number, check_unused, configuration, is_number, refuse, setting
from crossbow.domains import Choice, Flag, Integer, Integers, Number

FINAL_PART = 1e-4
"""Final learning rate of super-convergence unless set, as a fraction of the initial rate."""
METHODS = ("sgd", "adam", "adamw", "rmsprop", "adagrad")
LEARNING_RATES = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001, "rmsprop": 0.001, "adagrad": 0.01}
"""Initial learning rate of each method unless set."""
LEARNING_RATE_POLICIES = ("fixed", "inv", "step", "multistep", "exp", "lsr", "clr", "cosine", "linear")
MOMENTUM_METHODS = ("polyak", "nesterov")
STEPWISE_POLICIES = ("step", "multistep", "lsr")
"""Policies whose learning rate steps down."""
DECAYING_POLICIES = ("cosine", "linear")
"""Policies whose learning rate decays to its final value within `decay_steps`."""
REGULARISATIONS = ("l2", "l1")
USED_BY = {
    "gamma": ("inv", "step", "multistep", "exp", "lsr"),
    "power": ("inv",),
    "step_size": ("step", "clr"),
    "step_values": ("multistep", "lsr"),
    "maximum_learning_rate": ("clr",),
    "minimum_momentum": ("clr",),
    "super_convergence": ("clr",),
    "decay_steps": DECAYING_POLICIES,
}
"""Fields of SolverConf that only some policies use, with these policies."""
USED_BY_METHODS = {
    "momentum": ("sgd", "rmsprop"),
    "momentum_method": ("sgd",),
    "minimum_momentum": ("sgd", "rmsprop"),
    "regularisation": ("sgd",),
    "beta1": ("adam", "adamw"),
    "beta2": ("adam", "adamw"),
    "rho": ("rmsprop",),
    "epsilon": ("adam", "adamw", "rmsprop", "adagrad"),
}
"""Fields of SolverConf that only some methods use, with these methods."""
METHOD_FIELDS = ("learning_rate", *USED_BY_METHODS)
"""Fields whose best values depend on the method."""
SCHEDULE_FIELDS = (*USED_BY, "warmup_steps", "annihilation_steps", "final_learning_rate")
"""Fields that depend on a policy and a unit of time."""


def idle_fields(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Fields without effect in a SolverConf with these values, each with the fields that are the reason.

    >>> idle_fields({**vars(SolverConf()), "policy": "inv", "gamma": 0, "momentum": 0.9, "weight_decay": 1e-4})["power"]
    ('policy', 'gamma')
    """
    policy = values["policy"]
    idle: dict[str, tuple[str, ...]] = {name: ("policy",) for name, used in USED_BY.items() if policy not in used}
    if not values["super_convergence"]:
        idle["annihilation_steps"] = ("super_convergence",)
        if policy not in DECAYING_POLICIES:
            idle["final_learning_rate"] = ("super_convergence",) if policy == "clr" else ("policy",)
    if values["momentum"] == 0:
        idle["momentum_method"] = ("momentum",)
    if values["weight_decay"] == 0:
        idle["regularisation"] = ("weight_decay",)
    idle |= {name: ("method",) for name, used in USED_BY_METHODS.items() if values["method"] not in used}
    if policy == "inv":
        if values["gamma"] == 0:
            idle["power"] = ("policy", "gamma")
        elif values["power"] == 0:
            idle["gamma"] = ("policy", "power")
    return idle


def constant_rate(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that make the learning rate constant in a SolverConf with these values; empty if it is not constant.

    >>> constant_rate(vars(SolverConf())), constant_rate(vars(SolverConf(warmup_steps=2)))
    (('policy', 'warmup_steps'), ())
    >>> constant_rate({**vars(SolverConf()), "policy": "inv", "gamma": 0, "power": 0})
    ('policy', 'gamma', 'warmup_steps')
    """
    one = {"inv": [name for name in ("gamma", "power") if values[name] == 0], "exp": ["gamma"] * (values["gamma"] == 1)}
    reasons = one.get(values["policy"], [])[:1]
    if values["warmup_steps"] or not (reasons or values["policy"] == "fixed"):
        return ()
    return ("policy", *reasons, "warmup_steps")


@configuration
class SolverConf:
    """Configuration of the solver, which updates weights w with velocity v along the gradient g of all variables::

        g ← g · min(1, clip_gradient_norm / ‖g‖)
        d = g + weight_decay · w  (l2)   or   g + weight_decay · sign(w)  (l1)
        v ← momentum · v − γ d
        w ← w + v  (polyak)   or   w + momentum · v − γ d  (nesterov)

    The other methods divide the step of each weight by the root of the second moment s of its gradient::

        adam      v ← beta1 · v + (1 − beta1) d,   s ← beta2 · s + (1 − beta2) d²
                  w ← w − γ v / (1 − beta1^n) / (√(s / (1 − beta2^n)) + epsilon)
        adamw     as adam, with d = g and w ← (1 − γ · weight_decay) w before the step
        rmsprop   s ← rho · s + (1 − rho) d²,   v ← momentum · v + d / (√s + epsilon),   w ← w − γ v
        adagrad   s ← s + d²,   w ← w − γ d / (√s + epsilon)

    n is the number of steps since v and s were 0: at the beginning, and after a restart. adam and adamw are those of
    Kingma and Ba (2015) and of Loshchilov and Hutter (2019), and all methods step as `torch.optim` does.

    A variable's γ is the learning rate times its operator's multiplier. γ(t) is the learning rate of the round whose
    first task is number t (from 0, counting the tasks of all learners):

    ========== =======================================================================================
    fixed      γ = learning_rate
    inv        γ = learning_rate · (1 + gamma · t)^(−power)
    step       γ = learning_rate · gamma^⌊t / step_size⌋
    multistep  γ = learning_rate · gamma^#{s in step_values: t ≥ s}
    exp        γ = learning_rate · gamma^t
    lsr        γ = learning_rate · (t + 1) / warmup_steps for t < warmup_steps, then as multistep
    clr        γ cycles from learning_rate to maximum_learning_rate and back, each in step_size
    cosine     γ = final + (learning_rate − final) · (1 + cos(π · min(1, t / decay_steps))) / 2
    linear     γ = final + (learning_rate − final) · (1 − min(1, t / decay_steps))
    ========== =======================================================================================

    With `warmup_steps` > 0, the rate of any policy except clr increases linearly during the first `warmup_steps`, as
    γ(t) · (t + 1) / warmup_steps. So lsr (for large batches: Goyal et al., 2017) is multistep with a required warm-up,
    during which there are no steps down.

    clr is the triangular cycle of Smith (2017): with a height h that rises from 0 to 1 in `step_size` and falls in
    another, γ = learning_rate + h · (maximum_learning_rate − learning_rate). If `minimum_momentum` is given, the
    momentum moves in the opposite direction, momentum − h · (momentum − minimum_momentum). With `super_convergence`
    (Smith and Topin, 2018), there is only one cycle; then γ falls linearly to `final_learning_rate` in
    `annihilation_steps`, and stays there.

    cosine is half a period of the cosine, as in the first cycle of Loshchilov and Hutter (2017). After `decay_steps`,
    cosine and linear stay at `final_learning_rate`, which is 0 unless set. To decay during the whole training, set
    `decay_steps` to its length; the scripts do so by default.

    `step_size`, `step_values`, `warmup_steps`, `annihilation_steps`, `decay_steps` and the t of the policies without
    steps are counted in `learning_rate_step_unit`: tasks, epochs (also fractions, in such a t), or merges.

    A field that has no effect in combination with the others must keep its default: for example `gamma` with the policy
    fixed, `power` of inv with gamma = 0, `momentum_method` without momentum, or `momentum` with adam. A step with
    gamma = 1 has an effect: at every step of step, multistep and lsr, the learners restart from the base model with
    zero velocity and second moment.

    Fixed from the original: the default policy is "fixed" (it was INV with γ = 0), t starts at 0 (it was t + 1 of a
    1-based number), the policies are pure functions of t (MULTISTEP moved at most one step per call); clr, Nesterov's
    momentum, L1, clipping on every device, and the multipliers work. The original's min-learning-rate and max-momentum
    are learning_rate and momentum, where a cycle begins; its learning-rate-increment and momentum-increment follow from
    the ends and step_size; its clip-gradient-threshold −1 is None.
    """

    method: str = setting(Choice(METHODS), default="sgd")
    """How gradients become steps: sgd, with or without momentum, or a method that adapts the step of each weight."""
    learning_rate: float = setting(  # type: ignore[assignment]  # a number from construction on
        Number(above=0, optional=True), default=None, meaning="0.01, or 0.001 with adam, adamw and rmsprop"
    )
    """Initial learning rate γ.

    The defaults are PyTorch's, except that of rmsprop, which is Keras': the first steps of RMSprop are ten times as
    long as the rate."""
    policy: str = setting(Choice(LEARNING_RATE_POLICIES), default="fixed", option="learning-rate-policy")
    """γ at time t: fixed: γ; inv: γ (1 + gamma t)^−power; step: γ gamma^⌊t / step size⌋; multistep: γ gamma^(step
    values ≤ t); exp: γ gamma^t; lsr: γ (t + 1) / warm-up, then multistep; clr: cycles from γ to a maximum and back;
    cosine, linear: decays from γ to a final rate along half a cosine, or a line."""
    gamma: float = setting(Number(at_least=0), default=0.1)
    """Factor or slope of the policy.

    A factor with step, multistep and lsr, in (0, 1], and with exp, where the rate increases if it is more than 1; the
    slope of inv."""
    power: float = setting(Number(at_least=0), default=0.75)
    """Exponent of the policy inv."""
    step_size: int = setting(Integer(at_least=0), default=0, meaning="")
    """Length of a step of the policy step, or of half a cycle of clr.

    ≥ 1 with these policies."""
    step_values: tuple[int, ...] = setting(Integers(at_least=1), default=(), meaning="")
    """Times at which the policies multistep and lsr step, increasing.

    At least one with these policies."""
    warmup_steps: int = setting(Integer(at_least=0), default=0, meaning="0, none")
    """Length of the linear warm-up.

    ≥ 1 with the policy lsr."""
    learning_rate_step_unit: str = setting(Choice(("tasks", "epochs", "merges")), default="tasks")
    """Unit of t, `step_size`, `step_values`, `warmup_steps`, `annihilation_steps`, `decay_steps` and a rule's
    `alpha_steps`.

    Merges depend on the rule: ticks, under a rule with a barrier."""
    maximum_learning_rate: float | None = setting(Number(above=0, optional=True), default=None, meaning="")
    """clr: highest γ, in the middle of a cycle.

    > `learning_rate` with this policy."""
    minimum_momentum: float | None = setting(
        Number(at_least=0, below=1, optional=True), default=None, meaning="constant momentum"
    )
    """clr: lowest momentum, in the middle of a cycle.

    < `momentum`."""
    super_convergence: bool = setting(Flag(), default=False, meaning="cycles without end")
    """clr: train for one cycle, then anneal γ far below `learning_rate`."""
    annihilation_steps: int = setting(Integer(at_least=0), default=0, meaning="")
    """Super-convergence: length of the annihilation, in which γ falls below `learning_rate`.

    ≥ 1 with super-convergence."""
    decay_steps: int = setting(Integer(at_least=0), default=0, meaning="")
    """Length of the decay of the policies cosine and linear.

    ≥ 1 with these policies."""
    final_learning_rate: float | None = setting(
        Number(at_least=0, optional=True),
        default=None,
        meaning=f"0, or learning rate / {1 / FINAL_PART:,.0f} with super-convergence",
    )
    """cosine, linear, super-convergence: γ at the end.

    < `learning_rate`."""
    momentum: float = setting(Number(at_least=0, below=1), default=0.0)
    """sgd, rmsprop: fraction of the last step that is kept."""
    momentum_method: str = setting(Choice(MOMENTUM_METHODS), default="polyak")
    """Kind of momentum; nesterov: the step looks ahead along the velocity."""
    beta1: float = setting(Number(at_least=0, below=1), default=0.9)
    """adam, adamw: fraction of the mean of past gradients that is kept."""
    beta2: float = setting(Number(at_least=0, below=1), default=0.999)
    """adam, adamw: fraction of the mean of past squared gradients that is kept."""
    rho: float = setting(Number(at_least=0, below=1), default=0.99)
    """rmsprop: fraction of the mean of past squared gradients that is kept.

    PyTorch calls it alpha."""
    epsilon: float = setting(Number(above=0), default=1e-8)
    """adam, adamw, rmsprop, adagrad: added to the root that a step is divided by.

    PyTorch's default for Adagrad is 1e-10, and Keras' default for all methods is 1e-7."""
    weight_decay: float = setting(Number(at_least=0), default=0.0)
    """λ of the penalty ½ λ |w|² (l2) or λ Σ |w_i| (l1); with adamw, of the decay w ← (1 − γ λ) w."""
    regularisation: str = setting(Choice(REGULARISATIONS), default="l2")
    """Penalty of `weight_decay`."""
    clip_gradient_norm: float | None = setting(Number(above=0, optional=True), default=None, meaning="none")
    """Largest L2 norm of the gradient; a longer gradient is scaled down to it.

    It is the learner's own gradient under a rule that sends weights, and the learners' mean under one that sends
    gradients."""

    def __post_init__(self) -> None:
        if self.learning_rate is None:
            object.__setattr__(self, "learning_rate", LEARNING_RATES[self.method])
        if self.policy in ("step", "multistep", "lsr"):
            check_number(self, "gamma", minimum=0, maximum=1, above=True)
        if self.policy == "exp":
            check_number(self, "gamma", minimum=0, above=True)
        self._check_steps()
        self._check_cycle()
        self._check_use()

    @property
    def last_learning_rate(self) -> float:
        """Learning rate at the end of cosine, linear and super-convergence."""
        if self.final_learning_rate is not None:
            return self.final_learning_rate
        return FINAL_PART * self.learning_rate if self.super_convergence else 0.0

    @property
    def is_adaptive(self) -> bool:
        """Whether the method divides the step of each weight by the root of its second moment."""
        return self.method != "sgd"

    def _check_steps(self) -> None:
        """Check the lengths that the policy requires."""
        policy, values = self.policy, self.step_values
        if policy in ("step", "clr") and self.step_size == 0:
            raise refuse(self, "step_size", self.step_size, f"an integer ≥ 1 with policy={policy!r}")
        if policy in ("multistep", "lsr") and not values:
            raise refuse(self, "step_values", values, f"a tuple of integers ≥ 1, not empty, with policy={policy!r}")
        if policy in DECAYING_POLICIES and self.decay_steps == 0:
            raise refuse(self, "decay_steps", 0, f"an integer ≥ 1 with policy={policy!r}")
        if list(values) != sorted(set(values)):
            raise refuse(self, "step_values", values, "strictly increasing")
        if policy == "lsr" and self.warmup_steps == 0:
            raise refuse(self, "warmup_steps", self.warmup_steps, "an integer ≥ 1 with policy='lsr'")
        if policy == "clr" and self.warmup_steps:
            raise refuse(self, "warmup_steps", self.warmup_steps, "0 with policy='clr', whose cycles begin low")

    def _check_cycle(self) -> None:
        """Check the bounds between which learning rate and momentum move."""
        highest, lowest, last = self.maximum_learning_rate, self.minimum_momentum, self.final_learning_rate
        if last is not None and last >= self.learning_rate and (self.super_convergence or self.policy != "clr"):
            reason = "super_convergence=True" if self.policy == "clr" else f"policy={self.policy!r}"
            allowed = f"< learning_rate={self.learning_rate:g} or None with {reason}"
            raise refuse(self, "final_learning_rate", last, allowed)
        if self.policy != "clr":
            return
        if highest is None or highest <= self.learning_rate:
            allowed = f"> learning_rate={self.learning_rate:g} with policy='clr'"
            raise refuse(self, "maximum_learning_rate", highest, allowed)
        if lowest is not None and lowest >= self.momentum:
            allowed = f"< momentum={self.momentum:g} or None with policy='clr'"
            raise refuse(self, "minimum_momentum", lowest, allowed)
        if self.super_convergence and self.annihilation_steps == 0:
            raise refuse(self, "annihilation_steps", 0, "an integer ≥ 1 with super_convergence=True")

    def _check_use(self) -> None:
        """Refuse a field that has no effect in combination with the others, because a user who sets it expects one."""
        values = vars(self)
        texts = {name: f"{float(value):g}" if is_number(value) else repr(value) for name, value in values.items()}
        for name, reasons in idle_fields(values).items():
            check_unused(self, " and ".join(f"{reason}={texts[reason]}" for reason in reasons), name)
