"""Both kinds of engines have the interface that contexts and training runs use."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from crossbow.runtime.changing_engine import ChangingEngine
from crossbow.runtime.engine import Engine
from crossbow.runtime.training_engine import TrainingEngine

MEMBERS = {name: member for name, member in vars(TrainingEngine).items() if not name.startswith("_")}


def test_the_interface_is_not_empty() -> None:
    assert {"run", "test", "predict", "close", "weights", "summary"} <= MEMBERS.keys()


@pytest.mark.parametrize("kind", [Engine, ChangingEngine])
@pytest.mark.parametrize("name", MEMBERS)
def test_an_engine_has_the_whole_interface(name: str, kind: type) -> None:
    """Methods with the same parameters and defaults; attributes as properties, or set by the constructor."""
    member, found = MEMBERS[name], inspect.getattr_static(kind, name, None)
    if isinstance(member, property):
        assert isinstance(found, property) or f"self.{name}" in inspect.getsource(kind)
        return
    wanted, received = inspect.signature(member), inspect.signature(found)  # type: ignore[arg-type]
    assert _parameters(received) == _parameters(wanted)


def _parameters(signature: inspect.Signature) -> list[tuple[str, Any]]:
    return [(parameter.name, parameter.default) for parameter in signature.parameters.values()]
