"""Configurations: every field refuses bad values, and says its name, what is allowed, and what came."""

from __future__ import annotations

import dataclasses
import doctest
import re
from typing import Any

import pytest

from crossbow import ConfigurationError, ModelConf, SolverConf, SystemConf
from crossbow import conf as conf_module
from crossbow.conf import configuration


def test_the_examples() -> None:
    assert doctest.testmod(conf_module).failed == 0


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
        ConfigurationError, match=r"SolverConf takes keywords only: method, learning_rate, .*\. Received: \(0\.1,\)"
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
    """A configuration with a required field, and one by position."""

    width: int
    name: str = dataclasses.field(default="hann", kw_only=False)


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
