"""Checks of configurations, field by field."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from crossbow import ConfigurationError
from crossbow.conf import settings

NAN, INFINITY = float("nan"), float("inf")
NO_NUMBERS = (None, "1", True, [1], NAN, INFINITY, 1j, 10**400, Fraction(10**400))
NO_INTEGERS = (1.5, "1", True, NAN, (1,))

BadValues = tuple[type, str, str, tuple[object, ...], dict[str, object]]
"""A configuration, a field, what is allowed, bad values, other fields that matter."""


def each_value(table: list[BadValues]) -> pytest.MarkDecorator:
    """A test for each bad value."""
    rows = [(conf, field, allowed, value, others) for conf, field, allowed, values, others in table for value in values]
    return pytest.mark.parametrize(("conf", "field", "allowed", "value", "others"), rows)


def each_field(table: list[BadValues]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("conf", "field"), list(dict.fromkeys((conf, field) for conf, field, *_ in table)))


def check_bad_value(conf: type, field: str, allowed: str, value: object, others: dict[str, object]) -> None:
    """It is refused with field, value, and what is allowed."""
    with pytest.raises(ConfigurationError) as error:
        conf(**{**others, field: value})
    assert str(error.value) == f"{conf.__name__}: {field} must be {allowed}. Received: {field}={value!r}"


def check_array(conf: type, field: str) -> None:
    """An array is refused, and shown by its shape."""
    with pytest.raises(ConfigurationError) as caught:
        conf(**{field: np.zeros((2, 3))})
    expected = rf"^{conf.__name__}: {field} must be .*\. Received: {field}=an array of shape \(2, 3\), float64$"
    assert re.match(expected, str(caught.value)), caught.value


def check_complete(conf: Any, table: list[BadValues]) -> None:
    """The table has every field, and the defaults are good."""
    fields = {field.name for field in dataclasses.fields(conf)}
    assert {field for owner, field, *_ in table if owner is conf} == fields
    assert conf() == conf()


def check_good(conf: Any, values: dict[str, Any]) -> None:
    made = conf(**values)
    for name, value in values.items():
        assert getattr(made, name) == (tuple(value) if isinstance(value, list) else value)


def declared(*confs: type) -> str:
    """The fields of configurations that have an option: name, default, option, default in words; below, the domain."""
    return "".join(
        f"{conf.__name__}.{each.name}={each.default!r} --{each.option} ({each.meaning})\n    {each.domain.allowed}\n"
        for conf in confs
        for each in settings(conf).values()
    )
