"""Configurations: frozen dataclasses whose errors name the field, what was received and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import numpy as np

from crossbow.types import ConfigurationError, TrainingUnit

if TYPE_CHECKING:
    from crossbow.synch import Rule, RuleSequence

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def configuration(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only dataclass that answers an unknown name with the names it knows.

    A field declared with `field(kw_only=False)` may be given by position too, as in `Constant(1.0)`. Numbers and
    booleans of NumPy, alone or in tuples and lists, become Python's.
    """
    return _answering(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def parameters(cls: type[T]) -> type[T]:
    """The same where all fields may be given by position: of a synchronisation rule."""
    return _answering(dataclasses.dataclass(frozen=True)(cls))


def _answering(made: type[T]) -> type[T]:
    fields = [f for f in dataclasses.fields(made) if f.init]  # type: ignore[arg-type]
    names = [f.name for f in fields]
    positional = [f.name for f in fields if not f.kw_only]
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    initialise: Callable[..., None] = made.__init__

    @functools.wraps(initialise)
    def checked(self: Any, *args: Any, **values: Any) -> None:
        if len(args) > len(positional):
            by_name = f"keywords only: {', '.join(names)}" if names else "nothing"
            takes = f"at most {', '.join(positional)} by position" if positional else by_name
            raise ConfigurationError(f"{made.__name__} takes {takes}. Received: {args!r}")
        given = dict(zip(positional, args, strict=False))
        twice = ", ".join(given.keys() & values.keys())
        if twice:
            raise ConfigurationError(f"{made.__name__} received {twice} twice, by position and by name")
        values = {**given, **values}
        for name in values:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                known = ", ".join(names) or "none"
                raise ConfigurationError(
                    f"{made.__name__} has no {name!r}.{hint} Known names: {known}. Received: {name}={values[name]!r}"
                )
        missing = [name for name in required if name not in values]
        if missing:
            raise ConfigurationError(f"{made.__name__} needs {', '.join(missing)}")
        initialise(self, **{name: plain(value) for name, value in values.items()})

    made.__init__ = checked  # type: ignore[method-assign]
    return made


def refuse(owner: object, name: str, value: object, allowed: str) -> ConfigurationError:
    """The error for a bad value of a field of `owner`."""
    return ConfigurationError(f"{type(owner).__name__}: {name} must be {allowed}. Received: {name}={shown(value)}")


def shown(value: object) -> str:
    """A value as an error shows it: of an array its shape and type, else its repr.

    >>> print(shown((np.zeros((3, 2)), "cpu")))
    (an array of shape (3, 2), float64, 'cpu')
    """
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, {value.dtype}"
    if isinstance(value, tuple | list) and any(isinstance(each, np.ndarray) for each in value):
        left, right = "()" if isinstance(value, tuple) else "[]"
        return left + ", ".join(map(shown, value)) + right
    try:
        return repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"one of type {type(value).__name__} that is too long to show"


def plain(value: Any) -> Any:
    """NumPy's integers, floats and booleans, also those in tuples and lists, as Python's; anything else as it is.

    >>> plain(np.int64(8)), plain((np.float64(0.5), [np.True_])), plain("auto")
    (8, (0.5, [True]), 'auto')
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return float(value) if value.dtype.kind == "f" else value.item()  # a long double's item is a long double
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named one
        return value._make(map(plain, value))
    return type(value)(map(plain, value)) if type(value) in (tuple, list) else value


def is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a finite number that a float can hold."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an integer or a fraction
        return False


def check_integer(owner: object, name: str, minimum: int, *, optional: bool = False) -> None:
    """The field is an integer ≥ minimum (or None, where optional)."""
    value = getattr(owner, name)
    if optional and value is None:
        return
    if not is_integer(value) or value < minimum:
        raise refuse(owner, name, value, f"an integer ≥ {minimum}" + (" or None" if optional else ""))


def check_number(
    owner: object,
    name: str,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: bool = False,
    below: bool = False,
    optional: bool = False,
) -> None:
    """The field is a finite number in the range; `above` and `below` leave out the ends."""
    value = getattr(owner, name)
    if optional and value is None:
        return
    good = (
        is_number(value)
        and (value > minimum if above else value >= minimum)
        and (value < maximum if below else value <= maximum)
    )
    if not good:
        parts = []
        if minimum > -math.inf:
            parts.append(f"{'>' if above else '≥'} {minimum:g}")
        if maximum < math.inf:
            parts.append(f"{'<' if below else '≤'} {maximum:g}")
        allowed = "a finite number" + (" " + " and ".join(parts) if parts else "")
        raise refuse(owner, name, value, allowed + (" or None" if optional else ""))


def check_choice(owner: object, name: str, choices: Sequence[str]) -> None:
    value = getattr(owner, name)
    if not isinstance(value, str) or value not in choices:  # an array would be compared element by element
        raise refuse(owner, name, value, "one of " + ", ".join(repr(choice) for choice in choices))


def check_unused(owner: object, why: str, *names: str) -> None:
    """These fields, which do nothing beside the others, are at their defaults: whoever sets one expects something."""
    for field in dataclasses.fields(owner):  # type: ignore[arg-type]
        value = getattr(owner, field.name)
        if field.name in names and value != field.default:
            raise refuse(owner, field.name, value, f"left at {field.default!r} with {why}, where it does nothing")


def check_learning_rate_multipliers(owner: object) -> None:
    """Every field of an operator by which it multiplies the learning rate of a variable is a number ≥ 0."""
    for field in dataclasses.fields(owner):  # type: ignore[arg-type]
        if field.name.endswith("_learning_rate_multiplier"):
            check_number(owner, field.name, minimum=0)


def check_boolean(owner: object, name: str) -> None:
    value = getattr(owner, name)
    if not isinstance(value, bool):
        raise refuse(owner, name, value, "True or False")


def pair(owner: object, name: str, minimum: int) -> tuple[int, int]:
    """The field as (height, width): an integer means both."""
    value = getattr(owner, name)
    sizes = (value, value) if is_integer(value) else value
    if (
        not isinstance(sizes, tuple | list)
        or len(sizes) != 2
        or not all(is_integer(size) and size >= minimum for size in sizes)
    ):
        raise refuse(owner, name, value, f"an integer ≥ {minimum} or a pair (height, width) of such")
    return int(sizes[0]), int(sizes[1])


LEARNING_RATE_POLICIES = ("fixed", "inv", "step", "multistep", "exp", "lsr", "clr")
MOMENTUM_METHODS = ("polyak", "nesterov")
STEPWISE_POLICIES = ("step", "multistep", "lsr")
"""Those whose rate steps down."""
REGULARISATIONS = ("l2", "l1")
USED_BY = {
    "gamma": ("inv", "step", "multistep", "exp", "lsr"),
    "power": ("inv",),
    "step_size": ("step", "clr"),
    "step_values": ("multistep", "lsr"),
    "maximum_learning_rate": ("clr",),
    "minimum_momentum": ("clr",),
    "super_convergence": ("clr",),
}
"""Fields of SolverConf that only some policies use."""


def idle_fields(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The fields of a SolverConf with these values that do nothing: by name, the fields that are the reason.

    >>> idle_fields({**vars(SolverConf()), "policy": "inv", "gamma": 0, "momentum": 0.9, "weight_decay": 1e-4})["power"]
    ('policy', 'gamma')
    """
    policy = values["policy"]
    idle: dict[str, tuple[str, ...]] = {name: ("policy",) for name, used in USED_BY.items() if policy not in used}
    if not values["super_convergence"]:
        idle |= dict.fromkeys(("annihilation_steps", "final_learning_rate"), ("super_convergence",))
    if values["momentum"] == 0:
        idle["momentum_method"] = ("momentum",)
    if values["weight_decay"] == 0:
        idle["regularisation"] = ("weight_decay",)
    if policy == "inv" and values["gamma"] == 0:
        idle["power"] = ("policy", "gamma")
    elif policy == "inv" and values["power"] == 0:
        idle["gamma"] = ("policy", "power")
    return idle


def constant_rate(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that are the reason why a SolverConf with these values has the same learning rate all the time; none
    where it has not.

    >>> constant_rate(vars(SolverConf())), constant_rate(vars(SolverConf(warmup_steps=2)))
    (('policy', 'warmup_steps'), ())
    """
    one = {"inv": [name for name in ("gamma", "power") if values[name] == 0], "exp": ["gamma"] * (values["gamma"] == 1)}
    reasons = one.get(values["policy"], [])[:1]
    if values["warmup_steps"] or not (reasons or values["policy"] == "fixed"):
        return ()
    return ("policy", *reasons, "warmup_steps")


@configuration
class SolverConf:
    """How a learner steps along its gradient g, of all variables together, from weights w, with a velocity v::

        g ← g · min(1, clip_gradient_norm / ‖g‖)
        d = g + weight_decay · w  (l2)   or   g + weight_decay · sign(w)  (l1)
        v ← momentum · v − γ d
        w ← w + v  (polyak)   or   w + momentum · v − γ d  (nesterov)

    A variable's γ is the learning rate times the multiplier that its operator gives it. γ(t) is the learning rate of
    the round whose first task is number t (from 0, counting the tasks of all learners):

    ========== =======================================================================================
    fixed      γ = learning_rate
    inv        γ = learning_rate · (1 + gamma · t)^(−power)
    step       γ = learning_rate · gamma^⌊t / step_size⌋
    multistep  γ = learning_rate · gamma^#{s in step_values: t ≥ s}
    exp        γ = learning_rate · gamma^t
    lsr        γ = learning_rate · (t + 1) / warmup_steps for t < warmup_steps, then as multistep
    clr        γ swings from learning_rate to maximum_learning_rate and back, each in step_size
    ========== =======================================================================================

    With `warmup_steps` > 0 the rate of any other policy but clr rises linearly during the first `warmup_steps`, as
    γ(t) · (t + 1) / warmup_steps. So lsr (large batches: Goyal et al., 2017) is multistep with a warm-up, which it
    demands, and during which nothing is stepped down.

    clr is the triangular cycle of Smith (2017): with a height h that rises from 0 to 1 in `step_size` and falls in
    another, γ = learning_rate + h · (maximum_learning_rate − learning_rate), and, where `minimum_momentum` is given,
    the momentum goes the other way, momentum − h · (momentum − minimum_momentum). With `super_convergence` (Smith and
    Topin, 2018) there is one cycle only; then γ falls linearly to `final_learning_rate` in `annihilation_steps`, and
    stays there.

    `step_size`, `step_values`, `warmup_steps`, `annihilation_steps` and the t of inv, exp and clr are counted in
    `learning_rate_step_unit`: tasks, epochs (a fraction of one, for inv, exp and clr), or merges.

    A field that would do nothing beside the others (`gamma` with the policy fixed, `power` of inv with gamma = 0,
    `momentum_method` without momentum) must be left at its default. A step with gamma = 1 is not nothing: at every step
    of step, multistep and lsr the learners start again from the base model, without velocity.

    Fixed from the original: the default policy is "fixed" (it was INV with γ = 0), t starts at 0 (it was t + 1 of a
    1-based number), the policies are pure functions of t (MULTISTEP moved one step a call at the most); clr, Nesterov's
    momentum, L1, clipping on every device, and the multipliers work. The original's min-learning-rate and max-momentum
    are learning_rate and momentum, where a cycle begins; its learning-rate-increment and momentum-increment follow from
    the ends and step_size; its clip-gradient-threshold −1 is None.
    """

    learning_rate: float = 0.01
    """γ at the start, > 0."""
    policy: str = "fixed"
    """One of fixed, inv, step, multistep, exp, lsr, clr."""
    gamma: float = 0.1
    """The policy's factor (step, multistep, lsr, exp: in (0, 1]) or slope (inv: ≥ 0)."""
    power: float = 0.75
    """The exponent of inv, ≥ 0."""
    step_size: int = 0
    """Length of a step of the policy "step", or of half a cycle of "clr"; > 0 there."""
    step_values: tuple[int, ...] = ()
    """Where the policies "multistep" and "lsr" step: increasing, not empty there."""
    warmup_steps: int = 0
    """Length of the linear warm-up; 0 is none. > 0 with the policy "lsr"."""
    learning_rate_step_unit: str = "tasks"
    """The unit of step_size, step_values, warmup_steps, annihilation_steps and of t, and of a rule's alpha_steps:
    "tasks", "epochs", or "merges": of what learners send, by the rule (ticks, under a rule with a barrier)."""
    maximum_learning_rate: float | None = None
    """The policy "clr": γ in the middle of a cycle, > learning_rate."""
    minimum_momentum: float | None = None
    """The policy "clr": the momentum in the middle of a cycle, in [0, momentum); None keeps it as it is."""
    super_convergence: bool = False
    """The policy "clr": whether there is one cycle only, and a slow end."""
    annihilation_steps: int = 0
    """Super-convergence: length of the end, in which γ falls below learning_rate; ≥ 1 there."""
    final_learning_rate: float | None = None
    """Super-convergence: γ at the end, in [0, learning_rate); None is learning_rate / 10,000."""
    momentum: float = 0.0
    """Fraction of the last step that is kept, in [0, 1)."""
    momentum_method: str = "polyak"
    """"polyak", or "nesterov": the step looks ahead along the velocity."""
    weight_decay: float = 0.0
    """λ of the penalty ½ λ |w|² (l2) or λ Σ |w_i| (l1), ≥ 0."""
    regularisation: str = "l2"
    """"l2" or "l1"."""
    clip_gradient_norm: float | None = None
    """The gradient is made shorter where its L2 norm is larger, > 0; None leaves it. It is the learner's own gradient
    under a rule that sends weights, and the learners' mean under one that sends gradients."""

    def __post_init__(self) -> None:
        check_number(self, "learning_rate", minimum=0, above=True)
        check_choice(self, "policy", LEARNING_RATE_POLICIES)
        check_number(self, "power", minimum=0)
        check_integer(self, "step_size", 0)
        check_integer(self, "warmup_steps", 0)
        check_choice(self, "learning_rate_step_unit", ("tasks", "epochs", "merges"))
        check_number(self, "momentum", minimum=0, maximum=1, below=True)
        check_choice(self, "momentum_method", MOMENTUM_METHODS)
        check_number(self, "weight_decay", minimum=0)
        check_choice(self, "regularisation", REGULARISATIONS)
        check_number(self, "clip_gradient_norm", minimum=0, above=True, optional=True)
        if self.policy in ("step", "multistep", "lsr", "exp"):
            check_number(self, "gamma", minimum=0, maximum=1, above=True)
        else:
            check_number(self, "gamma", minimum=0)
        self._check_steps()
        self._check_cycle()
        self._check_use()

    def _check_steps(self) -> None:
        """The fields of the policies that step down."""
        policy, values = self.policy, self.step_values
        if policy in ("step", "clr") and self.step_size == 0:
            raise refuse(self, "step_size", self.step_size, f"an integer ≥ 1 with policy={policy!r}")
        if not isinstance(values, tuple | list) or not all(is_integer(value) and value >= 1 for value in values):
            raise refuse(self, "step_values", values, "a tuple of integers ≥ 1")
        object.__setattr__(self, "step_values", tuple(int(value) for value in values))
        if policy in ("multistep", "lsr") and not values:
            raise refuse(self, "step_values", values, f"a tuple of integers ≥ 1, not empty, with policy={policy!r}")
        if list(values) != sorted(set(values)):
            raise refuse(self, "step_values", values, "strictly increasing")
        if policy == "lsr" and self.warmup_steps == 0:
            raise refuse(self, "warmup_steps", self.warmup_steps, "an integer ≥ 1 with policy='lsr'")
        if policy == "clr" and self.warmup_steps:
            raise refuse(self, "warmup_steps", self.warmup_steps, "0 with policy='clr', whose cycles begin low")

    def _check_cycle(self) -> None:
        """The fields of the policy clr."""
        check_number(self, "maximum_learning_rate", minimum=0, above=True, optional=True)
        check_number(self, "minimum_momentum", minimum=0, maximum=1, below=True, optional=True)
        check_boolean(self, "super_convergence")
        check_integer(self, "annihilation_steps", 0)
        check_number(self, "final_learning_rate", minimum=0, optional=True)
        highest, lowest, last = self.maximum_learning_rate, self.minimum_momentum, self.final_learning_rate
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
        if self.super_convergence and last is not None and last >= self.learning_rate:
            allowed = f"< learning_rate={self.learning_rate:g} or None with super_convergence=True"
            raise refuse(self, "final_learning_rate", last, allowed)

    def _check_use(self) -> None:
        """No field is set that does nothing beside the others: whoever sets it expects something of it."""
        values = vars(self)
        texts = {name: f"{float(value):g}" if is_number(value) else repr(value) for name, value in values.items()}
        for name, reasons in idle_fields(values).items():
            check_unused(self, " and ".join(f"{reason}={texts[reason]}" for reason in reasons), name)


@configuration
class ModelConf:
    """The batch, the rule that combines the learners, and how often to test.

    Fixed from the original: the rule works with any number of learners and devices (SMA and S-SGD needed two GPUs).
    """

    batch_size: int = 32
    """Examples in a learner's batch, ≥ 1."""
    rule: Rule | RuleSequence | None = None
    """How replicas and base model are combined, or several ways in turn; None is SMA(alpha=1/k) with k learners."""
    wpc: int | None = None
    """Tasks in a clock tick: None is k · τ with k learners and the rule's τ. Under a rule with a barrier a multiple of
    k."""
    slack: int | None = None
    """Under a rule without a barrier: how many ticks ahead of the oldest task that is not done one may begin, a tick
    being wpc tasks; None is as many as the rule lets it. None or 0 under a rule with a barrier."""
    local_variables: tuple[str, ...] = ()
    """Names, or patterns as "*norm*", of variables that every learner keeps to itself, under a rule by which learners
    step themselves: nothing is exchanged of them, and z has the learners' mean."""
    skip: float = 0.0
    """Under a rule by which learners add to z one by one, and go on with it: the probability, in [0, 1), with which
    each variable is left out of a merge."""
    restart: bool = True
    """Whether all learners start again from z, without velocities, where the learning rate steps down (policies "step",
    "multistep" and "lsr")."""
    test_interval: int = 1
    """`train_and_test` tests after every so many `test_interval_unit`, ≥ 1."""
    test_interval_unit: TrainingUnit = TrainingUnit.EPOCHS
    """EPOCHS or TASKS (rounded up to whole ticks)."""
    check_batch_size: int | None = None
    """Examples in a test batch; None is the larger of batch_size and 64. It changes speed, not results."""

    def __post_init__(self) -> None:
        check_integer(self, "batch_size", 1)
        check_integer(self, "wpc", 1, optional=True)
        check_integer(self, "slack", 0, optional=True)
        check_number(self, "skip", minimum=0, maximum=1, below=True)
        names = self.local_variables
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name for name in names):
            raise refuse(self, "local_variables", names, "a tuple of names or patterns, as ('*norm*',)")
        object.__setattr__(self, "local_variables", tuple(names))
        check_boolean(self, "restart")
        check_integer(self, "test_interval", 1)
        check_integer(self, "check_batch_size", 1, optional=True)
        if not isinstance(self.test_interval_unit, TrainingUnit):
            raise refuse(self, "test_interval_unit", self.test_interval_unit, "a TrainingUnit")
        if isinstance(self.rule, type) or (self.rule is not None and not hasattr(self.rule, "tau")):
            raise refuse(self, "rule", self.rule, "a rule of crossbow.synch, as SMA(alpha=0.5), or None")


@configuration
class SystemConf:
    """Where and how to run.

    Fixed from the original: the seed is used, every option that is accepted does something.
    """

    devices: str | Sequence[str] = "cpu"
    """"cpu" (all cores), "cpu:i/n" (slice i of n of the cores), "cuda:i" (an NVIDIA GPU); several of one kind separated
    by commas or in a list."""
    learners_per_device: int | str = "auto"
    """Learners on each device, or "auto": one per core, four per GPU to begin with, and then as many as training is
    fastest with, which is found out while it goes on (under a single rule, on devices with equally many cores, and not
    with `deterministic`). What comes of that depends on timing; `History.decisions` has the numbers, with which a run
    is repeated."""
    threads_per_learner: int | None = None
    """Threads of a learner; None shares the device's cores among its learners (at least one each). Sums of several
    threads are others than those of one, and with one thread more convolutions are Winograd's: give it where runs on
    machines with other numbers of cores are to have the same bits. None on GPUs."""
    kernels: str = "auto"
    """"auto": the fastest that work here; "reference": NumPy kernels; "onednn": the fast CPU kernels or an error."""
    precision: str = "float32"
    """"float32", or "float64" (on the CPU: reference kernels). On GPUs also these, for their tensor cores:

    * "tf32": float32, but factors of convolutions and matrix products may be rounded to 10 bits behind the point.
    * "bfloat16" and "float16": tensors between convolutions, matrix products, batch norms, ReLUs, poolings and the like
      are of 16 bits, with 7 or 10 bits behind the point; so are the gradients of these operators' variables. What an
      operator adds up inside, losses, operators of your own, what the solver and the rule compute, weights and running
      statistics are float32's. float16's gradients are scaled against underflow, by a scale that each learner adapts
      from its first task on; a task whose gradient overflows nevertheless counts as one with a gradient of zero (its
      momentum and weight decay still act), and averages as ever."""
    winograd: bool = True
    """Whether the fast CPU kernels may compute convolutions of 3×3 and 5×5 by Winograd's filtering, which learners with
    one thread do where it is faster. Its rounding errors are five to ten times those of a sum of products, and depend
    on whole tiles of the input instead of a window (docs/numerics.md). Other kernels, and GPUs, are not affected."""
    deterministic: bool = False
    """Whether a GPU computes the same bits in every run with the same seed, under a rule with a barrier: convolution
    algorithms are then taken in a fixed order of preference instead of by timing. On the CPU this is always so, under
    such a rule and with a number of learners; "auto" then stays with the number that it begins with."""
    seed: int = 0
    """Start of every random number: initial weights, order of the examples, dropout. Under a rule with a barrier the
    same seed, learners on each device and threads of a learner give the same bits; under one without, weights depend on
    timing, too."""
    graphs: bool = True
    """Whether a GPU's work is captured and launched as CUDA graphs; else call by call, with the same results."""
    check_numerics: bool = False
    """Whether everything that an operator computes, in training, testing and prediction, every variable that the solver
    or the rule writes, what devices add up for it, and the learners' mean of running statistics is looked through for
    NaN and infinity, which end the run with the names of operator or variable, and task. For finding where numbers go
    wrong: it is slow. With "float16", which expects gradients that overflow, these are looked at as a whole, when a
    task ends."""

    def __post_init__(self) -> None:
        devices = self.devices
        names = devices.split(",") if isinstance(devices, str) else devices
        if (
            not isinstance(names, list | tuple)
            or not names
            or not all(isinstance(name, str) and name.strip() for name in names)
        ):
            raise refuse(self, "devices", devices, "'cpu', 'cpu:i/n', 'cuda:i', or several separated by commas")
        object.__setattr__(self, "devices", tuple(name.strip() for name in names))
        value = self.learners_per_device
        if not (value == "auto" if isinstance(value, str) else is_integer(value) and value >= 1):
            raise refuse(self, "learners_per_device", value, "an integer ≥ 1 or 'auto'")
        check_integer(self, "threads_per_learner", 1, optional=True)
        check_choice(self, "kernels", ("auto", "reference", "onednn"))
        check_choice(self, "precision", ("float32", "tf32", "bfloat16", "float16", "float64"))
        check_integer(self, "seed", 0)
        check_boolean(self, "graphs")
        check_boolean(self, "winograd")
        check_boolean(self, "deterministic")
        check_boolean(self, "check_numerics")

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of weights and of what is computed, unless that is `narrow`."""
        return np.dtype("float64" if self.precision == "float64" else "float32")

    @property
    def narrow(self) -> str | None:
        """The type of 16 bits of which tensors may consist, by name."""
        return self.precision if self.precision in ("bfloat16", "float16") else None
