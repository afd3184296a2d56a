"""Configurations: every field refuses bad values, and says its name, what is allowed, and what came."""

from __future__ import annotations

import dataclasses
import doctest
import re
from typing import Any

import numpy as np
import pytest

from crossbow import ConfigurationError, ModelConf, SolverConf, SystemConf
from crossbow import conf as conf_module
from crossbow.conf import configuration, pair


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
