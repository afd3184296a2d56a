"""The options of the solver, the configuration that they define, and its description."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from crossbow.conf import FieldSetting, settings
from crossbow.scripts.setting_options import add_settings, refuse_idle, those_given
from crossbow.solver import SolverConf
from crossbow.solver.configuration import (
    DECAYING_POLICIES,
    LEARNING_RATES,
    METHOD_FIELDS,
    SCHEDULE_FIELDS,
    constant_rate,
    idle_fields,
)


def add_solver(group: argparse._ArgumentGroup, default: SolverConf) -> None:
    """Add an option for every setting of the solver. The defaults of `default` apply to options of the schedule only
    with its policy and, except for the unit itself, with its unit; and to options of a method only with its method."""
    known, texts = settings(type(default)), {}
    for name, setting in known.items():
        value = getattr(default, name)
        if value == (LEARNING_RATES[default.method] if name == "learning_rate" else setting.default):
            continue
        texts[name] = setting.domain.write(value)
        if name in SCHEDULE_FIELDS and setting.meaning:
            texts[name] += f" with {default.policy} in {default.learning_rate_step_unit}, else {setting.meaning}"
        elif name in METHOD_FIELDS:
            texts[name] += f" with {default.method}, else {setting.meaning}"
    unit, others = default.learning_rate_step_unit, "epochs with cosine and linear, else tasks"
    texts["learning_rate_step_unit"] = others if unit == "tasks" else f"{unit} with {default.policy}, {others}"
    texts["decay_steps"] = "the number of epochs"
    add_settings(group, known, texts)


def solver_conf(options: argparse.Namespace, default: SolverConf, epochs: int) -> SolverConf:
    """The options as a configuration, of the type of `default`. Raises ConfigurationError if the options are invalid,
    or if a given option has no effect, regardless of its value.

    epochs  number of epochs of training, over which cosine and linear decay unless an option sets another length.
    """
    known = settings(type(default))
    given = those_given(options, known)
    own = {name: getattr(default, name) for name in known if name not in SCHEDULE_FIELDS}
    if given.get("method", default.method) != default.method:
        own = {name: value for name, value in own.items() if name not in METHOD_FIELDS}
    if given.get("policy", default.policy) != default.policy:
        del own["learning_rate_step_unit"]
        if given["policy"] in DECAYING_POLICIES:
            own["learning_rate_step_unit"] = "epochs"
            if given.get("learning_rate_step_unit", "epochs") == "epochs":
                own["decay_steps"] = epochs
    elif given.get("learning_rate_step_unit", default.learning_rate_step_unit) == default.learning_rate_step_unit:
        own |= {name: getattr(default, name) for name in SCHEDULE_FIELDS}
    values = {**{name: setting.default for name, setting in known.items()}, **own, **given}
    idle = idle_fields(values)
    for name, value in given.items():
        if name in idle:
            raise refuse_idle(known[name].typed(value), _where(known, {why: values[why] for why in idle[name]}))
    unit = given.get("learning_rate_step_unit")
    if unit is not None and not options.alpha_steps and (reasons := constant_rate(values)):
        typed = known["learning_rate_step_unit"].typed(unit)
        raise refuse_idle(typed, _where(known, {why: values[why] for why in reasons}))
    return dataclasses.replace(
        default, **{name: known[name].default if name in idle else value for name, value in values.items()}
    )


def _where(known: Mapping[str, FieldSetting], values: Mapping[str, Any]) -> str:
    """Fields of a configuration as options, as typed on the command line."""
    (name, value), *others = values.items()
    if value is False and not others:
        return f"without --{known[name].option}"
    return "with " + " and ".join(known[name].typed(value) for name, value in values.items())


def solver_text(solver: SolverConf) -> str:
    """Description of the configuration in one line."""
    steps = f"at {', '.join(map(str, solver.step_values))}"
    words: dict[str, Callable[[], list[str]]] = {
        "inv": lambda: [f"gamma {solver.gamma:g}", f"power {solver.power:g}"],
        "step": lambda: [f"gamma {solver.gamma:g}", f"every {solver.step_size}"],
        "multistep": lambda: [f"gamma {solver.gamma:g}", steps],
        "exp": lambda: [f"gamma {solver.gamma:g}"],
        "lsr": lambda: [f"gamma {solver.gamma:g}", steps],
        "clr": lambda: _cycle_words(solver),
        **dict.fromkeys(
            DECAYING_POLICIES, lambda: [f"to {solver.last_learning_rate:g}", f"within {solver.decay_steps}"]
        ),
    }
    policy = [solver.policy, *words.get(solver.policy, list)()]
    if solver.warmup_steps:
        policy.append(f"warm-up {solver.warmup_steps}")
    if len(policy) > 1:
        policy.append(f"in {solver.learning_rate_step_unit}")
    decay = f"weight decay {solver.weight_decay:g}"
    if solver.regularisation != "l2":
        decay += f" ({solver.regularisation})"
    method = [solver.method] if solver.is_adaptive else []
    rate = f"learning rate {solver.learning_rate:g} ({' '.join(policy)})"
    parts = [*method, rate, *_method_words(solver), decay]
    if solver.clip_gradient_norm is not None:
        parts.append(f"gradient norm at most {solver.clip_gradient_norm:g}")
    return ", ".join(parts)


def _method_words(solver: SolverConf) -> list[str]:
    """The constants of the method, as words."""
    idle = idle_fields(vars(solver))
    names = ("beta1", "beta2", "rho", "epsilon")
    words = [f"{name} {getattr(solver, name):g}" for name in names if name not in idle]
    if "momentum" in idle:
        return words
    momentum = f"momentum {solver.momentum:g}"
    if solver.minimum_momentum is not None:
        momentum += f" to {solver.minimum_momentum:g}"
    if solver.momentum_method != "polyak":
        momentum += f" ({solver.momentum_method})"
    return [momentum, *words]


def _cycle_words(solver: SolverConf) -> list[str]:
    assert solver.maximum_learning_rate is not None
    words = [f"to {solver.maximum_learning_rate:g} and back,", f"{solver.step_size} each"]
    if not solver.super_convergence:
        return words
    last = f"then to {solver.last_learning_rate:g}"
    return [*words[:-1], f"{words[-1]},", last, f"in {solver.annihilation_steps},"]
