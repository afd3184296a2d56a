"""The command line's part on the solver: its options, the configuration they say, and that in words."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from crossbow import SolverConf
from crossbow.conf import LEARNING_RATE_POLICIES, MOMENTUM_METHODS, REGULARISATIONS, constant_rate, idle_fields
from crossbow.scripts.values import integer, integers, number, option_text, refuse_others, those_given
from crossbow.solver.schedule import FINAL_PART

if TYPE_CHECKING:
    from crossbow.scripts.parser import Defaults


def add_solver(group: argparse._ArgumentGroup, defaults: Defaults) -> None:
    conf = SolverConf()
    group.add_argument(
        "--learning-rate",
        type=number(),
        metavar="R",
        default=defaults.learning_rate,
        help="γ at the start, > 0 (default: %(default)s)",
    )
    _add_policy(group, defaults)
    _add_cycle(group)
    group.add_argument(
        "--momentum",
        type=number(),
        metavar="M",
        default=defaults.momentum,
        help="fraction of the last step that is kept, in [0, 1) (default: %(default)s)",
    )
    group.add_argument(
        "--momentum-method",
        choices=MOMENTUM_METHODS,
        help=f"nesterov: the step looks ahead along the velocity (default: {conf.momentum_method})",
    )
    group.add_argument(
        "--weight-decay",
        type=number(),
        metavar="L",
        default=defaults.weight_decay,
        help="λ of the penalty ½ λ |w|² (l2) or λ Σ |w_i| (l1), ≥ 0 (default: %(default)s)",
    )
    group.add_argument(
        "--regularisation",
        choices=REGULARISATIONS,
        help=f"the penalty of --weight-decay (default: {conf.regularisation})",
    )
    group.add_argument(
        "--clip-gradient-norm",
        type=number(),
        metavar="C",
        help="the gradient is made shorter where its L2 norm is larger than C (default: none)",
    )


def _add_policy(group: argparse._ArgumentGroup, defaults: Defaults) -> None:
    conf = SolverConf()
    gamma, unit = f"{conf.gamma:g}", conf.learning_rate_step_unit
    if defaults.learning_rate_step_unit != unit:
        unit = f"{defaults.learning_rate_step_unit} with {defaults.policy}, else {unit}"
    if defaults.gamma != conf.gamma:
        gamma = f"{defaults.gamma:g} with {defaults.policy} in {defaults.learning_rate_step_unit}, else {gamma}"
    group.add_argument(
        "--learning-rate-policy",
        choices=LEARNING_RATE_POLICIES,
        default=defaults.policy,
        help="γ at time t: fixed γ; inv γ (1 + gamma t)^−power; step γ gamma^⌊t / step-size⌋; multistep γ gamma^(step "
        "values ≤ t); exp γ gamma^t; lsr γ (t + 1) / warm-up, then multistep; clr cycles from γ to its maximum and "
        "back (default: %(default)s)",
    )
    group.add_argument("--gamma", type=number(), metavar="G", help=f"factor or slope of the policy (default: {gamma})")
    group.add_argument("--power", type=number(), metavar="P", help=f"exponent of inv (default: {conf.power})")
    group.add_argument(
        "--step-size", type=integer(1), metavar="N", help="length of a step of the policy step, of half a cycle of clr"
    )
    step_values = ",".join(map(str, defaults.step_values))
    group.add_argument(
        "--step-values",
        type=integers,
        metavar="N,N,…",
        help="where the policies multistep and lsr step, increasing" + f" (default: {step_values})" * bool(step_values),
    )
    group.add_argument(
        "--warmup-steps",
        type=integer(0),
        metavar="N",
        default=0,
        help="length of the linear warm-up (default: 0, none)",
    )
    group.add_argument(
        "--learning-rate-step-unit",
        choices=("tasks", "epochs", "merges"),
        help=f"unit of t, step size, step values, warm-up, annihilation and alpha steps (default: {unit})",
    )


def _add_cycle(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--maximum-learning-rate", type=number(), metavar="R", help="clr: γ in the middle of a cycle, > --learning-rate"
    )
    group.add_argument(
        "--minimum-momentum",
        type=number(),
        metavar="M",
        help="clr: the momentum in the middle of a cycle (default: it does not change)",
    )
    group.add_argument(
        "--super-convergence",
        action="store_true",
        default=None,
        help="clr: one cycle, then annihilation: γ falls far below --learning-rate (default: cycles without end)",
    )
    group.add_argument(
        "--annihilation-steps", type=integer(1), metavar="N", help="super-convergence: length of the annihilation"
    )
    group.add_argument(
        "--final-learning-rate",
        type=number(),
        metavar="R",
        help=f"super-convergence: γ at the end (default: learning rate / {1 / FINAL_PART:,.0f})",
    )


def solver_conf(options: argparse.Namespace, defaults: Defaults) -> SolverConf:
    """The options as a configuration. Raises ConfigurationError, also for an option that was given and does nothing,
    whatever its value."""
    policy = options.learning_rate_policy
    fields = [field.name for field in dataclasses.fields(SolverConf) if field.name != "policy"]
    given = those_given(options, *fields)
    own: dict[str, Any] = {}
    if policy == defaults.policy:
        own["learning_rate_step_unit"] = defaults.learning_rate_step_unit
        if given.get("learning_rate_step_unit", defaults.learning_rate_step_unit) == defaults.learning_rate_step_unit:
            own |= {"gamma": defaults.gamma, "step_values": defaults.step_values}
    values = {**vars(SolverConf()), **own, **given, "policy": policy}
    idle = idle_fields(values)
    for name in given:
        if name in idle:
            refuse_others({name: given[name]}, _where({reason: values[reason] for reason in idle[name]}))
    if "learning_rate_step_unit" in given and not options.alpha_steps and (reasons := constant_rate(values)):
        refuse_others(
            {"learning_rate_step_unit": given["learning_rate_step_unit"]},
            _where({name: values[name] for name in reasons}),
        )
    return SolverConf(policy=policy, **{name: value for name, value in {**own, **given}.items() if name not in idle})


def _where(fields: Mapping[str, Any]) -> str:
    """Fields of a configuration as the options that say them."""
    if fields == {"super_convergence": False}:
        return "without --super-convergence"
    options = {"learning_rate_policy" if name == "policy" else name: value for name, value in fields.items()}
    return "with " + " and ".join(option_text(name, value) for name, value in options.items())


def solver_text(solver: SolverConf) -> str:
    """The configuration in a line."""
    steps = f"at {', '.join(map(str, solver.step_values))}"
    words: dict[str, Callable[[], list[str]]] = {
        "inv": lambda: [f"gamma {solver.gamma:g}", f"power {solver.power:g}"],
        "step": lambda: [f"gamma {solver.gamma:g}", f"every {solver.step_size}"],
        "multistep": lambda: [f"gamma {solver.gamma:g}", steps],
        "exp": lambda: [f"gamma {solver.gamma:g}"],
        "lsr": lambda: [f"gamma {solver.gamma:g}", steps],
        "clr": lambda: _cycle_words(solver),
    }
    policy = [solver.policy, *words.get(solver.policy, list)()]
    if solver.warmup_steps:
        policy.append(f"warm-up {solver.warmup_steps}")
    if len(policy) > 1:
        policy.append(f"in {solver.learning_rate_step_unit}")
    momentum = f"momentum {solver.momentum:g}"
    if solver.minimum_momentum is not None:
        momentum += f" to {solver.minimum_momentum:g}"
    if solver.momentum_method != "polyak":
        momentum += f" ({solver.momentum_method})"
    decay = f"weight decay {solver.weight_decay:g}"
    if solver.regularisation != "l2":
        decay += f" ({solver.regularisation})"
    parts = [f"learning rate {solver.learning_rate:g} ({' '.join(policy)})", momentum, decay]
    if solver.clip_gradient_norm is not None:
        parts.append(f"gradient norm at most {solver.clip_gradient_norm:g}")
    return ", ".join(parts)


def _cycle_words(solver: SolverConf) -> list[str]:
    assert solver.maximum_learning_rate is not None
    words = [f"to {solver.maximum_learning_rate:g} and back,", f"{solver.step_size} each"]
    if not solver.super_convergence:
        return words
    last = solver.final_learning_rate
    last = FINAL_PART * solver.learning_rate if last is None else last
    return [*words[:-1], f"{words[-1]},", f"then to {last:g}", f"in {solver.annihilation_steps},"]
