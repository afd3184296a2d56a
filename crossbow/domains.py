"""Domains of the fields of configurations: integers, numbers, choices, booleans and names."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

from crossbow.conf import Domain, is_integer, is_number


@dataclass(frozen=True)
class Integer(Domain):
    """Integers ≥ a minimum and, if it is given, ≤ a maximum; optionally also None, and one word.

    >>> Integer(at_least=1, word="auto").allowed, Integer(at_least=0, optional=True).allowed
    ("an integer ≥ 1 or 'auto'", 'an integer ≥ 0 or None')
    """

    at_least: int
    optional: bool = False
    word: str | None = None
    at_most: int | None = None

    @property
    def allowed(self) -> str:
        return self.form + " or None" * self.optional

    @property
    def placeholder(self) -> str:
        return f"{{{self.word},N}}" if self.word else "N"

    @property
    def bounds(self) -> str:
        return f"≥ {self.at_least}" + ("" if self.at_most is None else f" and ≤ {self.at_most}")

    @property
    def form(self) -> str:
        return f"an integer {self.bounds}" + (f" or {self.word!r}" if self.word else "")

    def canonical(self, value: Any) -> Any:
        if value is None and self.optional:
            return None
        if isinstance(value, str) and value == self.word:
            return value
        if not is_integer(value) or value < self.at_least or (self.at_most is not None and value > self.at_most):
            raise ValueError(value)
        return value

    def read(self, text: str) -> int | str:
        if text == self.word:
            return text
        value: int = self.canonical(int(text))
        return value


@dataclass(frozen=True)
class Number(Domain):
    """Finite numbers in a range; optionally also None.

    >>> Number(above=0, at_most=1).allowed, Number(at_least=0, below=1, optional=True).allowed
    ('a finite number > 0 and ≤ 1', 'a finite number ≥ 0 and < 1 or None')
    """

    above: float = -math.inf
    at_least: float = -math.inf
    below: float = math.inf
    at_most: float = math.inf
    optional: bool = False

    @property
    def allowed(self) -> str:
        return f"a finite number {self.bounds}".rstrip() + " or None" * self.optional

    @property
    def placeholder(self) -> str:
        return "X"

    @property
    def bounds(self) -> str:
        limits = {">": self.above, "≥": self.at_least, "<": self.below, "≤": self.at_most}
        return " and ".join(f"{sign} {limit:g}" for sign, limit in limits.items() if math.isfinite(limit))

    @property
    def form(self) -> str:
        return "a number"

    def canonical(self, value: Any) -> Any:
        if value is None and self.optional:
            return None
        inside = is_number(value) and self.above < value < self.below and self.at_least <= value <= self.at_most
        if not inside:
            raise ValueError(value)
        return value

    def read(self, text: str) -> float:
        """The finite number that the text represents. The configuration checks the range, because it may depend on
        other options."""
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(text)
        return value


@dataclass(frozen=True)
class Integers(Domain):
    """Tuples of integers ≥ a minimum."""

    at_least: int

    @property
    def allowed(self) -> str:
        return f"a tuple of integers ≥ {self.at_least}"

    @property
    def placeholder(self) -> str:
        return "N,N,…"

    @property
    def form(self) -> str:
        return "integers, separated by commas"

    def canonical(self, value: Any) -> tuple[int, ...]:
        if not isinstance(value, tuple | list) or not all(is_integer(each) and each >= self.at_least for each in value):
            raise ValueError(value)
        return tuple(int(each) for each in value)

    def read(self, text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(","))

    def write(self, value: Any) -> str:
        return ",".join(map(str, value))


@dataclass(frozen=True)
class Choice(Domain):
    """One of several words."""

    choices: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return "one of " + ", ".join(map(repr, self.choices))

    @property
    def placeholder(self) -> str:
        return f"{{{','.join(self.choices)}}}"

    def canonical(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.choices:  # an array would be compared element by element
            raise ValueError(value)
        return value

    def read(self, text: str) -> str:
        return self.canonical(text)


@dataclass(frozen=True)
class EnumMember(Domain):
    """The members of an enumeration, written as their values."""

    kind: type[enum.Enum]

    @property
    def allowed(self) -> str:
        return f"a {self.kind.__name__}"

    @property
    def placeholder(self) -> str:
        return f"{{{','.join(str(member.value) for member in self.kind)}}}"

    @property
    def form(self) -> str:
        return "one of " + ", ".join(repr(member.value) for member in self.kind)

    def canonical(self, value: Any) -> enum.Enum:
        if not isinstance(value, self.kind):
            raise ValueError(value)
        return value

    def read(self, text: str) -> enum.Enum:
        return self.kind(text)

    def write(self, value: Any) -> str:
        return str(value.value)


@dataclass(frozen=True)
class Flag(Domain):
    """True and False. As an option it exists with and without the prefix `no-`."""

    @property
    def allowed(self) -> str:
        return "True or False"

    @property
    def placeholder(self) -> str:
        return ""

    def canonical(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(value)
        return value

    def read(self, text: str) -> bool:
        return {"on": True, "off": False}[text]

    def write(self, value: Any) -> str:
        return "on" if value else "off"


@dataclass(frozen=True)
class Names(Domain):
    """Tuples of names or patterns."""

    example: str

    @property
    def allowed(self) -> str:
        return f"a tuple of names or patterns, as {(self.example,)}"

    @property
    def placeholder(self) -> str:
        return "NAMES"

    def canonical(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, tuple | list) or not all(isinstance(name, str) and name for name in value):
            raise ValueError(value)
        return tuple(value)

    def read(self, text: str) -> tuple[str, ...]:
        return self.canonical(tuple(text.split(",")))

    def write(self, value: Any) -> str:
        return ",".join(value)
