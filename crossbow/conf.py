"""Configurations: frozen dataclasses whose errors state the field, the received value and the allowed values.

A field that is declared with `setting` declares its allowed values once. The constructor checks them, and scripts
derive an option from the field. The help of the option is the first paragraph of the field's docstring.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import numbers
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from crossbow.types import ConfigurationError

T = TypeVar("T")


class Domain(ABC):
    """The set of allowed values of a field, and their representation as text."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """Completes "must be …" in errors for invalid values."""

    @property
    @abstractmethod
    def placeholder(self) -> str:
        """Placeholder for a value in the help of an option."""

    @property
    def bounds(self) -> str:
        """Range of numbers, in the help of an option."""
        return ""

    @property
    def form(self) -> str:
        """Completes "expected …" in errors for text that `read` rejects."""
        return self.allowed

    @abstractmethod
    def canonical(self, value: Any) -> Any:
        """The value in canonical form. Raises ValueError for an invalid value."""

    @abstractmethod
    def read(self, text: str) -> Any:
        """The value that a text represents. Raises ValueError for invalid text."""

    def write(self, value: Any) -> str:
        """The text that represents a value."""
        return str(value).removesuffix(".0")


def setting(domain: Domain, *, default: T, option: str | None = None, meaning: str | None = None) -> T:
    """A field of a configuration, with its domain.

    option   name on the command line, if it differs from the name of the field.
    meaning  the default in words, for the help of the option. By default it is the value. It is empty if the default
             has no meaning by itself, such as the length of steps of a policy without steps.
    """
    return dataclasses.field(default=default, metadata={"domain": domain, "option": option, "meaning": meaning})


@dataclasses.dataclass(frozen=True)
class FieldSetting:
    """A field that was declared with `setting`."""

    name: str
    domain: Domain
    default: Any
    option: str
    """Name on the command line, without dashes."""
    meaning: str
    """The default in words."""
    text: str
    """First paragraph of the field's docstring, on one line; empty if there is none."""

    def typed(self, value: Any) -> str:
        """The option with this value, as typed on the command line."""
        if isinstance(value, bool):
            return f"--{'' if value else 'no-'}{self.option}"
        return f"--{self.option} {self.domain.write(value)}"


def settings(conf: type) -> dict[str, FieldSetting]:
    """Fields of a configuration that were declared with `setting`, by name."""
    texts = field_docstrings(conf)
    found = {}
    for field in dataclasses.fields(conf):
        if (domain := field.metadata.get("domain")) is not None:
            meaning = field.metadata["meaning"]
            found[field.name] = FieldSetting(
                name=field.name,
                domain=domain,
                default=field.default,
                option=field.metadata["option"] or field.name.replace("_", "-"),
                meaning=domain.write(field.default) if meaning is None else meaning,
                text=" ".join(texts.get(field.name, "").split("\n\n")[0].split()),
            )
    return found


@functools.cache  # reading a source file takes milliseconds
def field_docstrings(cls: type) -> Mapping[str, str]:
    """The docstrings below the fields of a class and its bases, by field; none if the source is not available."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # the class was typed into an interpreter, or is built in
            continue
        definition = ast.parse(textwrap.dedent(source)).body[0]
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for statement, following in itertools.pairwise(body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                found[statement.target.id] = inspect.cleandoc(following.value.value)
    return found


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field, setting))
def configuration(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass, whose errors for unknown names list the known ones.

    A field declared with `field(kw_only=False)` may also be given by position, as in `Constant(1.0)`. NumPy's numbers
    and booleans, alone or in tuples and lists, become Python's. A field declared with `setting` rejects values outside
    its domain.
    """
    return _answering(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, setting))
def parameters(cls: type[T]) -> type[T]:
    """Like `configuration`, but all fields may be given by position, for example for synchronisation rules."""
    return _answering(dataclasses.dataclass(frozen=True)(cls))


def _answering(made: type[T]) -> type[T]:
    fields = [f for f in dataclasses.fields(made) if f.init]  # type: ignore[arg-type]
    names = [f.name for f in fields]
    positional = [f.name for f in fields if not f.kw_only]
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    declared = {f.name: (f.metadata["domain"], f.default) for f in fields if "domain" in f.metadata}
    initialise: Callable[..., None] = made.__init__

    @functools.wraps(initialise)
    def checked(self: Any, *args: Any, **values: Any) -> None:
        if len(args) > len(positional):
            by_name = f"keywords only: {', '.join(names)}" if names else "nothing"
            takes = f"at most {', '.join(positional)} by position" if positional else by_name
            raise ConfigurationError(f"{made.__name__} takes {takes}. Received: {args!r}")
        given = dict(zip(positional, args, strict=False))
        twice = ", ".join(given.keys() & values.keys())
        if twice:
            raise ConfigurationError(f"{made.__name__} received {twice} twice, by position and by name")
        values = {**given, **values}
        for name in values:
            if name not in names:
                close = difflib.get_close_matches(name, names)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                known = ", ".join(names) or "none"
                raise ConfigurationError(
                    f"{made.__name__} has no {name!r}.{hint} Known names: {known}. Received: {name}={values[name]!r}"
                )
        missing = [name for name in required if name not in values]
        if missing:
            raise ConfigurationError(f"{made.__name__} needs {', '.join(missing)}")
        values = {name: plain(value) for name, value in values.items()}
        for name, (domain, default) in declared.items():
            values[name] = _canonical(self, name, values.get(name, default), domain)
        initialise(self, **values)

    made.__init__ = checked  # type: ignore[method-assign]
    return made


def _canonical(owner: object, name: str, value: object, domain: Domain) -> object:
    try:
        return domain.canonical(value)
    except ValueError:
        raise refuse(owner, name, value, domain.allowed) from None


def refuse(owner: object, name: str, value: object, allowed: str) -> ConfigurationError:
    """The error for an invalid field `name` of `owner`, or for an invalid argument of the function named `owner`."""
    where = owner if isinstance(owner, str) else type(owner).__name__
    return ConfigurationError(f"{where}: {name} must be {allowed}. Received: {name}={shown(value)}")


def shown(value: object) -> str:
    """A value as text for errors: shape and type of an array, otherwise its repr.

    >>> print(shown((np.zeros((3, 2)), "cpu")))
    (an array of shape (3, 2), float64, 'cpu')
    """
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, {value.dtype}"
    if isinstance(value, tuple | list) and any(isinstance(each, np.ndarray) for each in value):
        left, right = "()" if isinstance(value, tuple) else "[]"
        return left + ", ".join(map(shown, value)) + right
    try:
        return repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"one of type {type(value).__name__} that is too long to show"


def plain(value: Any) -> Any:
    """The value with NumPy's integers, floats and booleans, also in tuples and lists, converted to Python's.

    >>> plain(np.int64(8)), plain((np.float64(0.5), [np.True_])), plain("auto")
    (8, (0.5, [True]), 'auto')
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return float(value) if value.dtype.kind == "f" else value.item()  # item() of a long double is not a float
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple
        return value._make(map(plain, value))
    return type(value)(map(plain, value)) if type(value) in (tuple, list) else value


def is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether the value is a finite number that a float can represent."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an integer or a fraction
        return False


def check_integer(owner: object, name: str, minimum: int, *, optional: bool = False) -> None:
    """Raise ConfigurationError unless the field is an integer ≥ minimum (or None, if optional)."""
    value = getattr(owner, name)
    if optional and value is None:
        return
    if not is_integer(value) or value < minimum:
        raise refuse(owner, name, value, f"an integer ≥ {minimum}" + (" or None" if optional else ""))


def check_number(
    owner: object,
    name: str,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: bool = False,
    below: bool = False,
    optional: bool = False,
) -> None:
    """Raise ConfigurationError unless the field is a finite number in the range. above, below: exclude the ends."""
    value = getattr(owner, name)
    if optional and value is None:
        return
    good = (
        is_number(value)
        and (value > minimum if above else value >= minimum)
        and (value < maximum if below else value <= maximum)
    )
    if not good:
        parts = []
        if minimum > -math.inf:
            parts.append(f"{'>' if above else '≥'} {minimum:g}")
        if maximum < math.inf:
            parts.append(f"{'<' if below else '≤'} {maximum:g}")
        allowed = "a finite number" + (" " + " and ".join(parts) if parts else "")
        raise refuse(owner, name, value, allowed + (" or None" if optional else ""))


def check_choice(owner: object, name: str, choices: Sequence[str]) -> None:
    value = getattr(owner, name)
    if not isinstance(value, str) or value not in choices:  # an array would be compared element by element
        raise refuse(owner, name, value, "one of " + ", ".join(repr(choice) for choice in choices))


def check_unused(owner: object, why: str, *names: str) -> None:
    """Raise ConfigurationError unless the fields, which have no effect in combination with the others, have their
    defaults."""
    for field in dataclasses.fields(owner):  # type: ignore[arg-type]
        value = getattr(owner, field.name)
        if field.name in names and value != field.default:
            raise refuse(owner, field.name, value, f"left at {field.default!r} with {why}, where it does nothing")


def check_boolean(owner: object, name: str) -> None:
    value = getattr(owner, name)
    if not isinstance(value, bool):
        raise refuse(owner, name, value, "True or False")
