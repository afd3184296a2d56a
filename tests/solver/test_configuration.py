"""`SolverConf`: every field refuses bad values, and values without effect."""

from __future__ import annotations

import doctest
import importlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from crossbow import ConfigurationError, SolverConf, TrainingUnit
from crossbow.solver.configuration import constant_rate
from tests.configurations import (
    NO_INTEGERS,
    NO_NUMBERS,
    BadValues,
    check_array,
    check_bad_value,
    check_complete,
    check_good,
    declared,
    each_field,
    each_value,
)

CYCLE: dict[str, object] = {"policy": "clr", "step_size": 3, "maximum_learning_rate": 1, "momentum": 0.9}
STEPS: dict[str, object] = {"policy": "multistep", "step_values": (3,)}
COSINE: dict[str, object] = {"policy": "cosine", "decay_steps": 3}
ONCE: dict[str, object] = {**CYCLE, "super_convergence": True, "annihilation_steps": 3}

BAD: list[BadValues] = [
    (
        SolverConf,
        "method",
        "one of 'sgd', 'adam', 'adamw', 'rmsprop', 'adagrad'",
        ("Adam", "momentum", "", None, 0),
        {},
    ),
    (SolverConf, "learning_rate", "a finite number > 0 or None", (0, -0.1, *NO_NUMBERS[1:]), {}),
    (
        SolverConf,
        "policy",
        "one of 'fixed', 'inv', 'step', 'multistep', 'exp', 'lsr', 'clr', 'cosine', 'linear'",
        ("FIXED", "poly", "", None, 0, ["fixed"]),
        {},
    ),
    (SolverConf, "gamma", "a finite number ≥ 0", (-0.1, *NO_NUMBERS), {"policy": "inv"}),
    (SolverConf, "gamma", "a finite number ≥ 0", (-1,), {}),
    *(
        (SolverConf, "gamma", "a finite number > 0 and ≤ 1", (0, 1.1), {"policy": policy, **more})
        for policy, more in (
            ("step", {"step_size": 3}),
            ("multistep", {"step_values": (3,)}),
            ("lsr", {"step_values": (3,), "warmup_steps": 2}),
        )
    ),
    (SolverConf, "gamma", "a finite number > 0", (0,), {"policy": "exp"}),
    (SolverConf, "power", "a finite number ≥ 0", (-1, *NO_NUMBERS), {}),
    (SolverConf, "step_size", "an integer ≥ 0", (-1, None, *NO_INTEGERS), {}),
    (SolverConf, "step_size", "an integer ≥ 1 with policy='step'", (0,), {"policy": "step"}),
    (
        SolverConf,
        "step_values",
        "a tuple of integers ≥ 1",
        (None, 5, "5", (0,), (-1, 2), (1.5,), ("3",), (True,)),
        {},
    ),
    (SolverConf, "step_values", "strictly increasing", ((3, 2), (2, 2), (1, 5, 4)), {}),
    (
        SolverConf,
        "step_values",
        "a tuple of integers ≥ 1, not empty, with policy='multistep'",
        ((),),
        {"policy": "multistep"},
    ),
    (SolverConf, "step_size", "an integer ≥ 1 with policy='clr'", (0,), CYCLE),
    (
        SolverConf,
        "step_values",
        "a tuple of integers ≥ 1, not empty, with policy='lsr'",
        ((),),
        {"policy": "lsr", "warmup_steps": 2},
    ),
    (SolverConf, "warmup_steps", "an integer ≥ 0", (-1, None, *NO_INTEGERS), {}),
    (SolverConf, "warmup_steps", "an integer ≥ 1 with policy='lsr'", (0,), {"policy": "lsr", "step_values": (3,)}),
    (SolverConf, "warmup_steps", "0 with policy='clr', whose cycles begin low", (1,), CYCLE),
    (SolverConf, "maximum_learning_rate", "a finite number > 0 or None", (0, -1, *NO_NUMBERS[1:]), {}),
    (SolverConf, "maximum_learning_rate", "> learning_rate=0.01 with policy='clr'", (None, 0.001, 0.01), CYCLE),
    (SolverConf, "minimum_momentum", "a finite number ≥ 0 and < 1 or None", (-0.1, 1, *NO_NUMBERS[1:]), {}),
    (SolverConf, "minimum_momentum", "< momentum=0.9 or None with policy='clr'", (0.9, 0.95), CYCLE),
    (SolverConf, "super_convergence", "True or False", (1, None, "yes"), CYCLE),
    (SolverConf, "annihilation_steps", "an integer ≥ 0", (-1, None, *NO_INTEGERS), {}),
    (SolverConf, "annihilation_steps", "an integer ≥ 1 with super_convergence=True", (0,), ONCE),
    (SolverConf, "decay_steps", "an integer ≥ 0", (-1, None, *NO_INTEGERS), {}),
    (SolverConf, "decay_steps", "an integer ≥ 1 with policy='cosine'", (0,), COSINE),
    (SolverConf, "decay_steps", "an integer ≥ 1 with policy='linear'", (0,), {"policy": "linear"}),
    (SolverConf, "final_learning_rate", "a finite number ≥ 0 or None", (-1, *NO_NUMBERS[1:]), {}),
    (SolverConf, "final_learning_rate", "< learning_rate=0.01 or None with policy='cosine'", (0.01, 1), COSINE),
    (SolverConf, "final_learning_rate", "< learning_rate=0.01 or None with super_convergence=True", (0.01, 1), ONCE),
    (
        SolverConf,
        "learning_rate_step_unit",
        "one of 'tasks', 'epochs', 'merges'",
        ("batches", "Tasks", None, TrainingUnit.TASKS),
        {},
    ),
    (SolverConf, "momentum", "a finite number ≥ 0 and < 1", (-0.1, 1, 1.5, *NO_NUMBERS), {}),
    (SolverConf, "momentum_method", "one of 'polyak', 'nesterov'", ("Nesterov", "adam", "", None), {}),
    (SolverConf, "beta1", "a finite number ≥ 0 and < 1", (-0.1, 1, *NO_NUMBERS), {"method": "adam"}),
    (SolverConf, "beta2", "a finite number ≥ 0 and < 1", (-0.1, 1, *NO_NUMBERS), {"method": "adamw"}),
    (SolverConf, "rho", "a finite number ≥ 0 and < 1", (-0.1, 1, *NO_NUMBERS), {"method": "rmsprop"}),
    (SolverConf, "epsilon", "a finite number > 0", (0, -1e-8, *NO_NUMBERS), {"method": "adagrad"}),
    (SolverConf, "weight_decay", "a finite number ≥ 0", (-1e-4, *NO_NUMBERS), {}),
    (SolverConf, "regularisation", "one of 'l2', 'l1'", ("L2", "none", None, 2), {}),
    (SolverConf, "clip_gradient_norm", "a finite number > 0 or None", (0, -1, *NO_NUMBERS[1:]), {}),
    *(
        (SolverConf, field, f"left at {default} with {where}, where it does nothing", (value,), others)
        for field, value, default, where, others in (
            ("gamma", 0.5, "0.1", "policy='fixed'", {}),
            ("gamma", 0.5, "0.1", "policy='clr'", CYCLE),
            ("power", 2, "0.75", "policy='fixed'", {}),
            ("power", 2, "0.75", "policy='exp'", {"policy": "exp"}),
            ("step_size", 3, "0", "policy='fixed'", {}),
            ("step_size", 3, "0", "policy='multistep'", STEPS),
            ("step_values", (3, 4), "()", "policy='fixed'", {}),
            ("step_values", (3, 4), "()", "policy='step'", {"policy": "step", "step_size": 3}),
            ("maximum_learning_rate", 1, "None", "policy='fixed'", {}),
            ("maximum_learning_rate", 1, "None", "policy='lsr'", {**STEPS, "policy": "lsr", "warmup_steps": 1}),
            ("minimum_momentum", 0.5, "None", "policy='fixed'", {"momentum": 0.9}),
            ("minimum_momentum", 0.5, "None", "policy='inv'", {"policy": "inv", "momentum": 0.9}),
            ("super_convergence", True, "False", "policy='fixed'", {}),
            ("super_convergence", True, "False", "policy='multistep'", STEPS),
            ("annihilation_steps", 3, "0", "super_convergence=False", {}),
            ("annihilation_steps", 3, "0", "super_convergence=False", CYCLE),
            ("final_learning_rate", 0.001, "None", "super_convergence=False", CYCLE),
            ("final_learning_rate", 0.001, "None", "policy='fixed'", {}),
            ("decay_steps", 3, "0", "policy='fixed'", {}),
            ("decay_steps", 3, "0", "policy='clr'", CYCLE),
            ("power", 2, "0.75", "policy='inv' and gamma=0", {"policy": "inv", "gamma": 0}),
            ("gamma", 0.5, "0.1", "policy='inv' and power=0", {"policy": "inv", "power": 0.0}),
            ("momentum_method", "nesterov", "'polyak'", "momentum=0", {}),
            ("regularisation", "l1", "'l2'", "weight_decay=0", {}),
            ("regularisation", "l1", "'l2'", "method='adamw'", {"method": "adamw", "weight_decay": 0.1}),
            ("momentum", 0.9, "0.0", "method='adam'", {"method": "adam"}),
            ("momentum", 0.9, "0.0", "method='adagrad'", {"method": "adagrad"}),
            ("momentum_method", "nesterov", "'polyak'", "method='rmsprop'", {"method": "rmsprop", "momentum": 0.9}),
            ("minimum_momentum", 0.5, "None", "policy='fixed'", {"method": "rmsprop", "momentum": 0.9}),
            ("beta1", 0.5, "0.9", "method='rmsprop'", {"method": "rmsprop"}),
            ("beta2", 0.5, "0.999", "method='sgd'", {}),
            ("rho", 0.5, "0.99", "method='adam'", {"method": "adam"}),
            ("epsilon", 0.5, "1e-08", "method='sgd'", {"momentum": 0.9}),
        )
    ),
]


@each_value(BAD)
def test_a_bad_value_names_field_value_and_what_is_allowed(
    conf: type, field: str, allowed: str, value: object, others: dict[str, object]
) -> None:
    check_bad_value(conf, field, allowed, value, others)


@each_field(BAD)
def test_an_array_is_refused_by_its_shape(conf: type, field: str) -> None:
    check_array(conf, field)


def test_the_table_is_complete() -> None:
    check_complete(SolverConf, BAD)


def test_a_number_too_long_to_show() -> None:
    with pytest.raises(ConfigurationError, match="Received: learning_rate=one of type int that is too long to show"):
        SolverConf(learning_rate=10**5000)


def test_defaults() -> None:
    """Those of the original that were broken are other ones here: its policy was INV with γ = 0."""
    assert (SolverConf().policy, SolverConf().momentum, SolverConf().weight_decay) == ("fixed", 0, 0)


@pytest.mark.parametrize(
    ("conf", "values"),
    [
        (SolverConf, {"learning_rate": 1}),
        (SolverConf, {"learning_rate": Fraction(1, 3)}),
        (SolverConf, {"learning_rate": np.float32(0.1), "policy": "step", "step_size": np.int64(3)}),
        (SolverConf, {"policy": "multistep", "step_values": [1, 2, 30]}),
        (SolverConf, {"policy": "exp", "gamma": 1}),
        (SolverConf, {"learning_rate_step_unit": "epochs"}),  # also that of a rule's alpha_steps
        (SolverConf, {"policy": "exp", "gamma": 1, "warmup_steps": 2, "learning_rate_step_unit": "epochs"}),
        (SolverConf, {"policy": "multistep", "gamma": 1, "step_values": (3,)}),  # where learners start again
        (SolverConf, {"policy": "inv", "gamma": 0}),
        (SolverConf, {"momentum": 0.999, "weight_decay": 10}),
        (SolverConf, {"momentum": 0.5, "momentum_method": "nesterov"}),
        (SolverConf, {"weight_decay": 0.5, "regularisation": "l1", "clip_gradient_norm": 3}),
        (SolverConf, {"warmup_steps": 2, "learning_rate_step_unit": "epochs"}),
        (SolverConf, {"gamma": 0.1, "power": 0.75, "momentum_method": "polyak"}),  # what they are without a word
        (SolverConf, {**CYCLE, "minimum_momentum": 0}),
        (SolverConf, {**ONCE, "final_learning_rate": 0}),
        (SolverConf, {**COSINE, "final_learning_rate": 0, "warmup_steps": 2}),
        (SolverConf, {"policy": "linear", "decay_steps": np.int64(4), "final_learning_rate": 0.001}),
        (SolverConf, {"policy": "lsr", "step_values": (1,), "warmup_steps": 5}),
        (SolverConf, {"method": "adam", "beta1": 0, "beta2": 0.5, "epsilon": 1e-3, "weight_decay": 0.1}),
        (SolverConf, {"method": "rmsprop", "rho": 0.5, **CYCLE, "minimum_momentum": 0}),
        (SolverConf, {"method": "adagrad", "learning_rate": 0.5, "clip_gradient_norm": 1}),
    ],
)
def test_good_values_are_taken(conf: Any, values: dict[str, Any]) -> None:
    check_good(conf, values)


@pytest.mark.parametrize(
    ("method", "rate"), [("sgd", 0.01), ("adam", 0.001), ("adamw", 0.001), ("rmsprop", 0.001), ("adagrad", 0.01)]
)
def test_every_method_has_its_learning_rate(method: str, rate: float) -> None:
    assert SolverConf(method=method).learning_rate == rate
    assert SolverConf(method=method, learning_rate=None) == SolverConf(method=method)  # type: ignore[arg-type]
    assert SolverConf(method=method).is_adaptive == (method != "sgd")


@pytest.mark.parametrize(
    ("values", "reasons"),
    [
        ({"policy": "exp", "gamma": 1}, ("policy", "gamma", "warmup_steps")),
        ({"policy": "exp"}, ()),
        ({"policy": "inv", "power": 0}, ("policy", "power", "warmup_steps")),
        ({"policy": "inv"}, ()),
        ({"policy": "linear", "decay_steps": 2}, ()),
    ],
)
def test_what_makes_the_learning_rate_constant(values: dict[str, Any], reasons: tuple[str, ...]) -> None:
    assert constant_rate(vars(SolverConf(**values))) == reasons


def test_the_examples() -> None:
    assert doctest.testmod(importlib.import_module("crossbow.solver.configuration")).failed == 0


DECLARED = """\
SolverConf.method='sgd' --method (sgd)
    one of 'sgd', 'adam', 'adamw', 'rmsprop', 'adagrad'
SolverConf.learning_rate=None --learning-rate (0.01, or 0.001 with adam, adamw and rmsprop)
    a finite number > 0 or None
SolverConf.policy='fixed' --learning-rate-policy (fixed)
    one of 'fixed', 'inv', 'step', 'multistep', 'exp', 'lsr', 'clr', 'cosine', 'linear'
SolverConf.gamma=0.1 --gamma (0.1)
    a finite number ≥ 0
SolverConf.power=0.75 --power (0.75)
    a finite number ≥ 0
SolverConf.step_size=0 --step-size ()
    an integer ≥ 0
SolverConf.step_values=() --step-values ()
    a tuple of integers ≥ 1
SolverConf.warmup_steps=0 --warmup-steps (0, none)
    an integer ≥ 0
SolverConf.learning_rate_step_unit='tasks' --learning-rate-step-unit (tasks)
    one of 'tasks', 'epochs', 'merges'
SolverConf.maximum_learning_rate=None --maximum-learning-rate ()
    a finite number > 0 or None
SolverConf.minimum_momentum=None --minimum-momentum (constant momentum)
    a finite number ≥ 0 and < 1 or None
SolverConf.super_convergence=False --super-convergence (cycles without end)
    True or False
SolverConf.annihilation_steps=0 --annihilation-steps ()
    an integer ≥ 0
SolverConf.decay_steps=0 --decay-steps ()
    an integer ≥ 0
SolverConf.final_learning_rate=None --final-learning-rate (0, or learning rate / 10,000 with super-convergence)
    a finite number ≥ 0 or None
SolverConf.momentum=0.0 --momentum (0)
    a finite number ≥ 0 and < 1
SolverConf.momentum_method='polyak' --momentum-method (polyak)
    one of 'polyak', 'nesterov'
SolverConf.beta1=0.9 --beta1 (0.9)
    a finite number ≥ 0 and < 1
SolverConf.beta2=0.999 --beta2 (0.999)
    a finite number ≥ 0 and < 1
SolverConf.rho=0.99 --rho (0.99)
    a finite number ≥ 0 and < 1
SolverConf.epsilon=1e-08 --epsilon (1e-08)
    a finite number > 0
SolverConf.weight_decay=0.0 --weight-decay (0)
    a finite number ≥ 0
SolverConf.regularisation='l2' --regularisation (l2)
    one of 'l2', 'l1'
SolverConf.clip_gradient_norm=None --clip-gradient-norm (none)
    a finite number > 0 or None
"""


def test_names_and_defaults_of_options() -> None:
    """Commands that users have written rely on them."""
    assert declared(SolverConf) == DECLARED
