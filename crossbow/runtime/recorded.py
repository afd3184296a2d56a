"""Configurations as JSON values, so that a resumed run has the configurations with which it began."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from crossbow.synch import RULES, Rule, RulePhase, RuleSequence, TwoLevel
from crossbow.types import ConfigurationError, DataError

T = TypeVar("T")


def recorded(conf: Any) -> dict[str, Any]:
    """The fields of a configuration, as JSON values."""
    return {field.name: _value(getattr(conf, field.name)) for field in dataclasses.fields(conf) if field.init}


def rebuilt(kind: Callable[..., T], record: Mapping[str, Any]) -> T:
    """The configuration of this class from its record. Raises DataError if this version does not accept it, or if it
    has a rule that is not Crossbow's."""
    values, name = {}, getattr(kind, "__name__", "configuration")
    described: Any = kind
    defaults = {field.name: field.default for field in dataclasses.fields(described)}
    for field, default in defaults.items():
        if field in record:
            values[field] = _rebuilt_value(record[field], default)
    try:
        return kind(**values)
    except (ConfigurationError, TypeError) as error:
        raise DataError(f"expected the record of a {name} of this version. Received: {error}") from error


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The fields that differ in two records, each as "learning_rate: 0.1 → 0.01"."""
    for name in [*before, *(name for name in now if name not in before)]:
        old, new = before.get(name), now.get(name)
        if old != new:
            yield f"{name}: {_text(old)} → {_text(new)}"


def _value(value: Any) -> Any:
    if isinstance(value, RuleSequence):
        return {"phases": [[_value(phase.rule), phase.merges] for phase in value.phases]}
    if isinstance(value, TwoLevel):
        return {"within": _value(value.within), "between": _value(value.between)}
    if isinstance(value, Rule):
        return {"rule": value.name, **(recorded(value) if dataclasses.is_dataclass(value) else {})}
    if isinstance(value, enum.Enum):
        return value.name
    return [_value(each) for each in value] if isinstance(value, tuple | list) else value


def _rebuilt_value(value: Any, default: Any) -> Any:
    if isinstance(value, Mapping):
        return _any_rule(value)
    if isinstance(default, enum.Enum):
        return type(default)[value]
    return tuples(value)


def _any_rule(record: Mapping[str, Any]) -> Rule | RuleSequence | TwoLevel:
    if "phases" in record:
        return RuleSequence(tuple(RulePhase(_phase_rule(rule), merges) for rule, merges in record["phases"]))
    return _phase_rule(record)


def _phase_rule(record: Mapping[str, Any]) -> Rule | TwoLevel:
    if "within" in record:
        levels: dict[str, Any] = {level: _rule(record[level]) for level in ("within", "between")}
        return TwoLevel(**levels)
    return _rule(record)


def _rule(record: Mapping[str, Any]) -> Rule:
    name = record.get("rule")
    if name not in RULES:
        expected = f"expected one of the rules {', '.join(RULES)}"
        raise DataError(f"{expected}. Received: {name}; give the model's configuration")
    return rebuilt(RULES[name], record)


def tuples(value: Any) -> Any:
    """The value, with tuples instead of lists."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def _text(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    if "phases" in value:
        return ", ".join(f"{_text(rule)} for {merges}" for rule, merges in value["phases"])
    if "within" in value:
        return f"{_text(value['within'])} within ranks, {_text(value['between'])} between them"
    fields = ", ".join(f"{name}={each}" for name, each in value.items() if name != "rule")
    return f"{value['rule']}({fields})"
