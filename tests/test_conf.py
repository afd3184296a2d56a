"""Configurations: every field refuses bad values, and says its name, what is allowed, and what came."""

from __future__ import annotations

import dataclasses
import doctest
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, ConfigurationError, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow import conf as conf_module
from crossbow.conf import configuration, pair

NAN, INFINITY = float("nan"), float("inf")
NO_NUMBERS = (None, "1", True, [1], NAN, INFINITY, 1j, 10**400, Fraction(10**400))
NO_INTEGERS = (1.5, "1", True, NAN, (1,))

CYCLE: dict[str, object] = {"policy": "clr", "step_size": 3, "maximum_learning_rate": 1, "momentum": 0.9}
STEPS: dict[str, object] = {"policy": "multistep", "step_values": (3,)}
ONCE: dict[str, object] = {**CYCLE, "super_convergence": True, "annihilation_steps": 3}

# (configuration, field, what is allowed, bad values, other fields that matter)
BAD: list[tuple[type, str, str, tuple[object, ...], dict[str, object]]] = [
    (SolverConf, "learning_rate", "a finite number > 0", (0, -0.1, *NO_NUMBERS), {}),
    (
        SolverConf,
        "policy",
        "one of 'fixed', 'inv', 'step', 'multistep', 'exp', 'lsr', 'clr'",
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
            ("exp", {}),
        )
    ),
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
    (SolverConf, "final_learning_rate", "a finite number ≥ 0 or None", (-1, *NO_NUMBERS[1:]), {}),
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
    (SolverConf, "weight_decay", "a finite number ≥ 0", (-1e-4, *NO_NUMBERS), {}),
    (SolverConf, "regularisation", "one of 'l2', 'l1'", ("L2", "none", None, 2), {}),
    (SolverConf, "clip_gradient_norm", "a finite number > 0 or None", (0, -1, *NO_NUMBERS[1:]), {}),
    # What would do nothing.
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
            ("power", 2, "0.75", "policy='inv' and gamma=0", {"policy": "inv", "gamma": 0}),
            ("gamma", 0.5, "0.1", "policy='inv' and power=0", {"policy": "inv", "power": 0.0}),
            ("momentum_method", "nesterov", "'polyak'", "momentum=0", {}),
            ("regularisation", "l1", "'l2'", "weight_decay=0", {}),
        )
    ),
    (ModelConf, "batch_size", "an integer ≥ 1", (0, -1, None, *NO_INTEGERS), {}),
    (
        ModelConf,
        "rule",
        "a rule of crossbow.synch, as SMA(alpha=0.5), or None",
        ("sma", 0.5, SMA, SolverConf()),
        {},
    ),
    (ModelConf, "wpc", "an integer ≥ 1 or None", (0, -2, *NO_INTEGERS), {}),
    (ModelConf, "skip", "a finite number ≥ 0 and < 1", (-0.1, 1, "0.5", None, NAN), {}),
    (ModelConf, "restart", "True or False", (None, 1, "no"), {}),
    (ModelConf, "local_variables", "a tuple of names or patterns, as ('*norm*',)", ("bn*", (1,), ("",), None, 3), {}),
    (ModelConf, "slack", "an integer ≥ 0 or None", (-1, *NO_INTEGERS), {}),
    (ModelConf, "test_interval", "an integer ≥ 1", (0, None, *NO_INTEGERS), {}),
    (ModelConf, "test_interval_unit", "a TrainingUnit", ("epochs", None, 1), {}),
    (ModelConf, "check_batch_size", "an integer ≥ 1 or None", (0, -1, *NO_INTEGERS), {}),
    (
        SystemConf,
        "devices",
        "'cpu', 'cpu:i/n', 'cuda:i', or several separated by commas",
        ("", "cpu,", ",cpu", [], (), None, 0, ["cpu", ""], ["cpu", 1], " ", "cpu, ,cpu"),
        {},
    ),
    (SystemConf, "learners_per_device", "an integer ≥ 1 or 'auto'", (0, -1, None, "AUTO", 2.0, True, "2"), {}),
    (SystemConf, "threads_per_learner", "an integer ≥ 1 or None", (0, -1, *NO_INTEGERS), {}),
    (SystemConf, "kernels", "one of 'auto', 'reference', 'onednn'", ("oneDNN", "cuda", None, ""), {}),
    (
        SystemConf,
        "precision",
        "one of 'float32', 'tf32', 'bfloat16', 'float16', 'float64'",
        ("half", "double", 32, None, np.float32),
        {},
    ),
    (SystemConf, "seed", "an integer ≥ 0", (-1, None, *NO_INTEGERS), {}),
    (SystemConf, "graphs", "True or False", (1, None, "yes"), {}),
    (SystemConf, "winograd", "True or False", (1, None, "no"), {}),
    (SystemConf, "deterministic", "True or False", (1, None, "yes"), {}),
    (SystemConf, "check_numerics", "True or False", (1, None, "yes"), {}),
]


@pytest.mark.parametrize(
    ("conf", "field", "allowed", "value", "others"),
    [(conf, field, allowed, value, others) for conf, field, allowed, values, others in BAD for value in values],
)
def test_a_bad_value_names_field_value_and_what_is_allowed(
    conf: type, field: str, allowed: str, value: object, others: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError) as error:
        conf(**{**others, field: value})
    assert str(error.value) == f"{conf.__name__}: {field} must be {allowed}. Received: {field}={value!r}"


@pytest.mark.parametrize("conf", [SolverConf, ModelConf, SystemConf])
def test_the_table_has_every_field(conf: Any) -> None:
    fields = {field.name for field in dataclasses.fields(conf)}
    assert {field for owner, field, *_ in BAD if owner is conf} == fields


@pytest.mark.parametrize(
    ("conf", "field"), [(conf, field) for conf, field in dict.fromkeys((conf, field) for conf, field, *_ in BAD)]
)
def test_an_array_is_refused_by_its_shape(conf: Any, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        conf(**{field: np.zeros((2, 3))})
    expected = rf"^{conf.__name__}: {field} must be .*\. Received: {field}=an array of shape \(2, 3\), float64$"
    assert re.match(expected, str(caught.value)), caught.value


def test_a_number_too_long_to_show() -> None:
    with pytest.raises(ConfigurationError, match="Received: learning_rate=one of type int that is too long to show"):
        SolverConf(learning_rate=10**5000)


@pytest.mark.parametrize("conf", [SolverConf, ModelConf, SystemConf])
def test_defaults_are_good(conf: Any) -> None:
    assert conf() == conf()


def test_defaults() -> None:
    """Those of the original that were broken are other ones here: its policy was INV with γ = 0."""
    assert (SolverConf().policy, SolverConf().momentum, SolverConf().weight_decay) == ("fixed", 0, 0)
    assert (ModelConf().rule, ModelConf().wpc, ModelConf().slack) == (None, None, None)
    assert (SystemConf().devices, SystemConf().learners_per_device) == (("cpu",), "auto")
    assert (SystemConf().kernels, SystemConf().precision, SystemConf().seed) == ("auto", "float32", 0)


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
        (SolverConf, {"policy": "lsr", "step_values": (1,), "warmup_steps": 5}),
        (ModelConf, {"batch_size": np.int32(7), "rule": SMA(), "wpc": 4}),
        (SystemConf, {"seed": 2**70, "threads_per_learner": 3}),
    ],
)
def test_good_values_are_taken(conf: Any, values: dict[str, Any]) -> None:
    made = conf(**values)
    for name, value in values.items():
        assert getattr(made, name) == (tuple(value) if isinstance(value, list) else value)


def test_the_examples() -> None:
    assert doctest.testmod(conf_module).failed == 0


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("cpu", ("cpu",)),
        ("cpu:0/2,cpu:1/2", ("cpu:0/2", "cpu:1/2")),
        (" cpu:0/2 , cpu:1/2 ", ("cpu:0/2", "cpu:1/2")),
        (["cpu:0/2", "cpu:1/2"], ("cpu:0/2", "cpu:1/2")),
        (("cpu",), ("cpu",)),
    ],
)
def test_devices_are_a_list_or_separated_by_commas(devices: Any, expected: tuple[str, ...]) -> None:
    assert SystemConf(devices=devices).devices == expected


# Names.


@pytest.mark.parametrize(
    ("conf", "name", "suggestion"),
    [
        (SolverConf, "learning_rat", "learning_rate"),
        (SolverConf, "lerning_rate", "learning_rate"),
        (SolverConf, "weightdecay", "weight_decay"),
        (ModelConf, "batchsize", "batch_size"),
        (ModelConf, "rules", "rule"),
        (SystemConf, "learners_per_devices", "learners_per_device"),
        (SystemConf, "sed", "seed"),
        (SystemConf, "zzz", None),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(conf: Any, name: str, suggestion: str | None) -> None:
    hint = f" Did you mean {suggestion!r}?" if suggestion else ""
    known = ", ".join(field.name for field in dataclasses.fields(conf))
    expected = f"{conf.__name__} has no {name!r}.{hint} Known names: {known}. Received: {name}=3"
    with pytest.raises(ConfigurationError, match=f"^{re.escape(expected)}$"):
        conf(**{name: 3})


def test_values_are_given_by_name() -> None:
    with pytest.raises(
        ConfigurationError, match=r"SolverConf takes keywords only: learning_rate, .*\. Received: \(0\.1,\)"
    ):
        SolverConf(0.1)  # type: ignore[misc]


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SolverConf().momentum = 0.5  # type: ignore[misc]
    assert dataclasses.replace(SolverConf(momentum=0.5), learning_rate=1).momentum == 0.5
    with pytest.raises(ConfigurationError, match="learning_rate must be"):
        dataclasses.replace(SolverConf(), learning_rate=0)


# The decorator, as whoever writes an operator uses it.


@configuration
class Window:
    """A configuration with a required field, one by position, and a pair."""

    width: int
    name: str = dataclasses.field(default="hann", kw_only=False)
    size: int | tuple[int, int] = 3


@configuration
class Empty:
    """A configuration without fields."""


def test_a_field_may_be_given_by_position_where_declared_so() -> None:
    assert Window("flat", width=3) == Window(name="flat", width=3)
    with pytest.raises(ConfigurationError, match=r"Window takes at most name by position\. Received: \('flat', 3\)"):
        Window("flat", 3)  # type: ignore[call-arg, misc]
    with pytest.raises(ConfigurationError, match="Window received name twice, by position and by name"):
        Window("flat", name="hann", width=3)  # type: ignore[misc]


def test_a_missing_value_is_named() -> None:
    with pytest.raises(ConfigurationError, match="Window needs width"):
        Window()  # type: ignore[call-arg]


def test_a_configuration_without_fields_knows_no_names() -> None:
    assert Empty() == Empty()
    with pytest.raises(ConfigurationError, match=r"Empty has no 'x'\. Known names: none\. Received: x=1"):
        Empty(x=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("size", "expected"), [(3, (3, 3)), ((2, 5), (2, 5)), ([4, 1], (4, 1)), (np.int64(2), (2, 2))])
def test_a_size_is_one_number_or_two(size: Any, expected: tuple[int, int]) -> None:
    assert pair(Window(width=1, size=size), "size", 1) == expected


@pytest.mark.parametrize("size", [0, (0, 1), (1,), (1, 2, 3), 1.5, "3", None, True, (1, True), -2])
def test_a_bad_size_is_refused(size: Any) -> None:
    expected = f"Window: size must be an integer ≥ 1 or a pair (height, width) of such. Received: size={size!r}"
    with pytest.raises(ConfigurationError, match=f"^{re.escape(expected)}$"):
        pair(Window(width=1, size=size), "size", 1)
