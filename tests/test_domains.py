"""Domains: what a field takes, in which form it is kept, and how its values are written as text."""

from __future__ import annotations

import doctest
from fractions import Fraction

import numpy as np
import pytest

from crossbow import TrainingUnit, domains
from crossbow.conf import Domain
from crossbow.domains import Choice, EnumMember, Flag, Integer, Integers, Names, Number
from crossbow.runtime.configuration import Devices
from crossbow.synch.asynchronous import Weight
from crossbow.synch.elastic import TimedAlphas
from crossbow.synch.grouping import Partition

EXAMPLES: list[tuple[Domain, object, str]] = [
    (Integer(at_least=1), 7, "7"),
    (Integer(at_least=1, word="auto"), "auto", "auto"),
    (Integer(at_least=1, word="auto"), 3, "3"),
    (Number(above=0, at_most=1), 0.25, "0.25"),
    (Number(at_least=0), 1234567.0, "1234567"),
    (Integers(at_least=1), (3, 5), "3,5"),
    (Choice(("l2", "l1")), "l1", "l1"),
    (EnumMember(TrainingUnit), TrainingUnit.TASKS, "tasks"),
    (Flag(), True, "on"),
    (Flag(), False, "off"),
    (Names("*norm*"), ("*norm*", "bias"), "*norm*,bias"),
    (TimedAlphas(), ((30.0, 0.1), (60.5, 0.05)), "30:0.1,60.5:0.05"),
    (Partition(), ((0, 2), (1,)), "0,2/1"),
    (Partition(), 2, "2"),
]


@pytest.mark.parametrize(("domain", "value", "text"), EXAMPLES)
def test_a_value_is_written_and_read(domain: Domain, value: object, text: str) -> None:
    assert domain.canonical(value) == value
    assert domain.write(value) == text
    assert domain.canonical(domain.read(text)) == value


@pytest.mark.parametrize("domain", dict.fromkeys([*(domain for domain, *_ in EXAMPLES), Devices(), Weight()]))
@pytest.mark.parametrize("value", [float("nan"), -1, object(), np.zeros((2, 3)), [None], 1j])
def test_what_no_field_takes(domain: Domain, value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the field's to make
        domain.canonical(value)


@pytest.mark.parametrize(
    ("domain", "text"),
    [
        (Integer(at_least=1), "0"),
        (Integer(at_least=1), "1.5"),
        (Integer(at_least=1, word="auto"), "AUTO"),
        (Number(), "nan"),
        (Number(), "one"),
        (Integers(at_least=1), "1,x"),
        (Choice(("l2", "l1")), "L2"),
        (EnumMember(TrainingUnit), "Epochs"),
        (Names("*norm*"), "bias,"),
        (TimedAlphas(), "30"),
        (TimedAlphas(), "30:x"),
        (Partition(), "0,1/x"),
    ],
)
def test_a_text_without_a_meaning(domain: Domain, text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the option's to make
        domain.read(text)


@pytest.mark.parametrize(
    ("domain", "bounds", "good", "bad"),
    [
        (Number(above=0), "> 0", (1e-300, 1, Fraction(1, 3)), (0, -1)),
        (Number(at_least=0, below=1), "≥ 0 and < 1", (0, 0.999), (1, -1e-9)),
        (Number(above=0, at_most=1), "> 0 and ≤ 1", (1, 0.5), (0, 1.001)),
        (Integer(at_least=0), "≥ 0", (0, 10**30), (-1, 1.0, True)),
        (Integer(at_least=1, at_most=9), "≥ 1 and ≤ 9", (1, 9), (0, 10)),
    ],
)
def test_bounds(domain: Domain, bounds: str, good: tuple[object, ...], bad: tuple[object, ...]) -> None:
    assert domain.bounds == bounds
    assert bounds in domain.allowed
    assert [domain.canonical(value) for value in good] == list(good)
    for value in bad:
        with pytest.raises(ValueError):  # noqa: PT011 - the message is the field's to make
            domain.canonical(value)


def test_none_is_taken_where_it_is_optional() -> None:
    for optional in (Integer(at_least=1, optional=True), Number(above=0, optional=True)):
        assert optional.canonical(None) is None
        assert optional.allowed.endswith(" or None")
    for needed in (Integer(at_least=1), Number(above=0)):
        with pytest.raises(ValueError):  # noqa: PT011 - the message is the field's to make
            needed.canonical(None)


def test_other_forms_become_the_one_that_is_kept() -> None:
    assert Devices().canonical(" cpu:0/2 , cpu:1/2 ") == ("cpu:0/2", "cpu:1/2")
    assert Weight().canonical("1/4") == 0.25
    assert Weight().canonical("staleness") == "1/staleness"
    assert Integers(at_least=1).canonical([1, 2]) == (1, 2)
    assert Partition().canonical([[0, 2], [1]]) == ((0, 2), (1,))


def test_the_examples() -> None:
    assert doctest.testmod(domains).failed == 0
