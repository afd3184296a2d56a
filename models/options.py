"""The command line that all model scripts share: what can be said, checked, as Crossbow's configurations."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossbow import SMA, SSGD, ModelConf, SolverConf, SystemConf
from crossbow.conf import LEARNING_RATE_POLICIES
from crossbow.synch import RULES, Rule
from crossbow.types import ConfigurationError

DATASETS = ("digits", "mnist")


@dataclass(frozen=True)
class Defaults:
    """What a model script does where nothing is said."""

    epochs: Mapping[str, int]
    """By data set."""
    batch_size: int
    learning_rate: float
    policy: str = "fixed"
    gamma: float = SolverConf().gamma
    """Of that policy, with t in tasks."""
    momentum: float = 0.0
    weight_decay: float = 0.0


def new_parser(name: str, title: str, defaults: Defaults) -> tuple[argparse.ArgumentParser, argparse._ArgumentGroup]:
    """The parser, and its group for a model's own options."""
    parser = argparse.ArgumentParser(
        prog=f"python -m models.{name}",
        usage="%(prog)s [options]",
        description=f"{title} Without options: the digits bundled with scikit-learn, SMA, one learner per core.",
        epilog="Exit status: 0; 1 if training fails; 2 if an option, a file or the graph is wrong; 130 after Ctrl-C.",
        allow_abbrev=False,
    )
    _add_data(parser.add_argument_group("data and output"), name)
    model = parser.add_argument_group("model")
    _add_length(parser.add_argument_group("length of training (whichever comes first)"), defaults)
    _add_learners(parser.add_argument_group("learners"), defaults)
    _add_solver(parser.add_argument_group("solver"), defaults)
    _add_system(parser.add_argument_group("system"))
    return parser, model


def _add_data(group: argparse._ArgumentGroup, name: str) -> None:
    group.add_argument(
        "--dataset",
        choices=DATASETS,
        default=DATASETS[0],
        help="digits: 1,797 images bundled with scikit-learn; mnist: 70,000, downloaded once (default: %(default)s)",
    )
    group.add_argument(
        "--data-directory",
        type=Path,
        metavar="DIR",
        help="where MNIST's four IDX files lie, gzipped or not (default: they are downloaded)",
    )
    group.add_argument(
        "--output-directory",
        type=Path,
        metavar="DIR",
        default=Path("output") / name,
        help="where log.jsonl and learning_curves.png are written; older ones are replaced (default: %(default)s)",
    )


def _add_length(group: argparse._ArgumentGroup, defaults: Defaults) -> None:
    by_dataset = ", ".join(f"{count} with {dataset}" for dataset, count in defaults.epochs.items())
    group.add_argument(
        "--epochs", type=_integer(1), metavar="N", help=f"passes over the training set (default: {by_dataset})"
    )
    group.add_argument(
        "--target-accuracy",
        type=_number(0, 1),
        metavar="A",
        help="end when the test accuracy, a fraction in [0, 1], is at least A (default: none)",
    )
    group.add_argument(
        "--time-limit",
        type=_number(0, math.inf, above=True),
        metavar="SECONDS",
        help="end after so many seconds of training, tests not included (default: none)",
    )


def _add_learners(group: argparse._ArgumentGroup, defaults: Defaults) -> None:
    group.add_argument(
        "--batch-size",
        type=_integer(1),
        metavar="N",
        default=defaults.batch_size,
        help="examples in the batch of one learner (default: %(default)s)",
    )
    group.add_argument(
        "--devices",
        metavar="LIST",
        default="cpu",
        help="cpu (all cores), or slices of the cores as cpu:0/2,cpu:1/2 (default: %(default)s)",
    )
    group.add_argument(
        "--learners",
        type=_learners,
        metavar="{auto,N}",
        default="auto",
        help="learners on each device; auto is one per core (default: %(default)s)",
    )
    group.add_argument(
        "--threads-per-learner",
        type=_integer(1),
        metavar="N",
        help="threads of a learner (default: the device's cores, shared among its learners)",
    )
    group.add_argument(
        "--rule",
        choices=tuple(RULES),
        default=SMA.name,
        help="how learners are combined: synchronous model averaging or synchronous SGD (default: %(default)s)",
    )
    group.add_argument(
        "--alpha",
        type=_number(),
        metavar="A",
        help="sma: strength of the correction, in (0, 1] (default: 1/k with k learners, 1/2 with one)",
    )
    group.add_argument(
        "--tau", type=_integer(1), metavar="N", help="sma: tasks of a learner between two averages (default: 1)"
    )
    group.add_argument(
        "--base-momentum",
        type=_number(),
        metavar="M",
        help="sma: momentum of the average model, in [0, 1) (default: 0)",
    )


def _add_solver(group: argparse._ArgumentGroup, defaults: Defaults) -> None:
    conf = SolverConf()
    gamma = f"{conf.gamma:g}"
    if defaults.gamma != conf.gamma:
        gamma = f"{defaults.gamma:g} with {defaults.policy} in tasks, else {gamma}"
    group.add_argument(
        "--learning-rate",
        type=_number(),
        metavar="R",
        default=defaults.learning_rate,
        help="γ at the start, > 0 (default: %(default)s)",
    )
    group.add_argument(
        "--learning-rate-policy",
        choices=LEARNING_RATE_POLICIES,
        default=defaults.policy,
        help="γ at time t: fixed γ; inv γ (1 + gamma t)^−power; step γ gamma^⌊t / step-size⌋; multistep γ gamma^(step "
        "values ≤ t); exp γ gamma^t (default: %(default)s)",
    )
    group.add_argument("--gamma", type=_number(), metavar="G", help=f"factor or slope of the policy (default: {gamma})")
    group.add_argument("--power", type=_number(), metavar="P", help=f"exponent of inv (default: {conf.power})")
    group.add_argument("--step-size", type=_integer(1), metavar="N", help="length of a step of the policy step")
    group.add_argument(
        "--step-values", type=_integers, metavar="N,N,…", help="where the policy multistep steps, increasing"
    )
    group.add_argument(
        "--warmup-steps",
        type=_integer(0),
        metavar="N",
        default=0,
        help="length of the linear warm-up (default: 0, none)",
    )
    group.add_argument(
        "--learning-rate-step-unit",
        choices=("tasks", "epochs"),
        help=f"unit of t, step size, step values and warm-up (default: {conf.learning_rate_step_unit})",
    )
    group.add_argument(
        "--momentum",
        type=_number(),
        metavar="M",
        default=defaults.momentum,
        help="fraction of the last step that is kept, in [0, 1) (default: %(default)s)",
    )
    group.add_argument(
        "--weight-decay",
        type=_number(),
        metavar="L",
        default=defaults.weight_decay,
        help="λ of the penalty ½ λ |w|², ≥ 0 (default: %(default)s)",
    )


def _add_system(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--kernels",
        choices=("auto", "reference", "onednn"),
        default="auto",
        help="auto: the fastest that work here; reference: NumPy; onednn: fast, on the CPU (default: %(default)s)",
    )
    group.add_argument(
        "--precision",
        choices=("float32", "float64"),
        default="float32",
        help="of weights and arithmetic; float64 needs the reference kernels (default: %(default)s)",
    )
    group.add_argument(
        "--seed",
        type=_integer(0),
        metavar="N",
        default=0,
        help="start of every random number; the same seed and number of learners give the same weights "
        "(default: %(default)s)",
    )


# Values


def _integer(minimum: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"expected an integer ≥ {minimum}. Received: {text!r}")
        return value

    return convert


def _number(minimum: float = -math.inf, maximum: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """A finite number in the range; the configurations check what belongs to them."""
    bounds = [] if minimum == -math.inf else [f"{'>' if above else '≥'} {minimum:g}"]
    bounds += [] if maximum == math.inf else [f"≤ {maximum:g}"]
    expected = " ".join(["a number", " and ".join(bounds)]).strip()

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        good = math.isfinite(value) and (value > minimum if above else value >= minimum) and value <= maximum
        if not good:
            raise argparse.ArgumentTypeError(f"expected {expected}. Received: {text!r}")
        return value

    return convert


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected integers, separated by commas. Received: {text!r}") from None


def _learners(text: str) -> int | str:
    try:
        return text if text == "auto" else _integer(1)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected auto or an integer ≥ 1. Received: {text!r}") from None


# Configurations


@dataclass(frozen=True)
class Configurations:
    """What an `ExecutionContext` wants to know."""

    model: ModelConf
    solver: SolverConf
    system: SystemConf


def configurations(options: argparse.Namespace, defaults: Defaults) -> Configurations:
    """The options as configurations. Raises ConfigurationError, also for an option that would do nothing."""
    if options.data_directory is not None and options.dataset == "digits":
        raise ConfigurationError("--data-directory belongs to --dataset mnist; the digits come with scikit-learn")
    return Configurations(
        model=ModelConf(batch_size=options.batch_size, rule=_rule(options)),
        solver=_solver(options, defaults),
        system=SystemConf(
            devices=options.devices,
            learners_per_device=options.learners,
            threads_per_learner=options.threads_per_learner,
            kernels=options.kernels,
            precision=options.precision,
            seed=options.seed,
        ),
    )


def _given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Those of the options that were given: the others keep the configuration's default."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _rule(options: argparse.Namespace) -> Rule:
    given = _given(options, "alpha", "tau", "base_momentum")
    if options.rule == SMA.name:
        return SMA(**given)
    _refuse_others(given, (), f"--rule {options.rule}")
    return SSGD()


def _solver(options: argparse.Namespace, defaults: Defaults) -> SolverConf:
    policy = options.learning_rate_policy
    used = {
        "inv": ("gamma", "power"),
        "step": ("gamma", "step_size"),
        "multistep": ("gamma", "step_values"),
        "exp": ("gamma",),
    }.get(policy, ())
    given = _given(options, "gamma", "power", "step_size", "step_values")
    _refuse_others(given, used, f"--learning-rate-policy {policy}")
    unit = _given(options, "learning_rate_step_unit")
    if policy == "fixed" and not options.warmup_steps:
        _refuse_others(unit, (), "--learning-rate-policy fixed without --warmup-steps")
    if policy == defaults.policy and "gamma" in used and options.learning_rate_step_unit != "epochs":
        given.setdefault("gamma", defaults.gamma)
    return SolverConf(
        learning_rate=options.learning_rate,
        policy=policy,
        warmup_steps=options.warmup_steps,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        **given,
        **unit,
    )


def _refuse_others(given: Mapping[str, Any], used: Sequence[str], where: str) -> None:
    for name, value in given.items():
        if name not in used:
            option = name.replace("_", "-")
            raise ConfigurationError(f"--{option} does nothing with {where}. Received: --{option} {value}")
