"""The functions that read ONNX operators, by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from crossbow.onnx.network import Step
from crossbow.onnx.reading.node import Node

Read = Step | Sequence[Step]
"""What a node is read as: the step of its output, or of each of its outputs."""
AnyRead = TypeVar("AnyRead", bound=Read)


@dataclass(frozen=True)
class Translation:
    """How nodes of one ONNX operator are read."""

    read: Callable[[Node], Read]
    versions: tuple[int, ...]
    """Versions of the operator (opsets that changed it) that `read` knows."""
    attributes: frozenset[str]
    constants: tuple[int, ...]
    """Inputs that must be constants, as weights."""
    variables: tuple[int, ...]
    """Those, and inputs that become variables where they are constants."""
    is_form: bool
    """Whether Crossbow has no operator as general: it is read only where it amounts to one that it has, as a Reshape
    that keeps the examples apart."""
    several_outputs: bool
    """Whether outputs behind the first are read, too."""


TRANSLATIONS: dict[str, Translation] = {}
GROUPS: dict[str, tuple[Callable[[Sequence[Node]], Step], int]] = {}
"""By our operator's class: how the nodes that `save` wrote for one operator are read, if they are at least so many."""


def reads(
    op_type: str,
    *,
    versions: tuple[int, ...],
    attributes: str = "",
    constants: tuple[int, ...] = (),
    variables: tuple[int, ...] = (),
    is_form: bool = False,
    several_outputs: bool = False,
) -> Callable[[Callable[[Node], AnyRead]], Callable[[Node], AnyRead]]:
    """Enter a function into the table of translations."""

    def enter(function: Callable[[Node], AnyRead]) -> Callable[[Node], AnyRead]:
        known = frozenset(attributes.split())
        both = tuple({*constants, *variables})
        TRANSLATIONS[op_type] = Translation(function, versions, known, constants, both, is_form, several_outputs)
        return function

    return enter


def reads_group(
    name: str, least: int = 2
) -> Callable[[Callable[[Sequence[Node]], Step]], Callable[[Sequence[Node]], Step]]:
    """Enter a function into the table of groups."""

    def enter(function: Callable[[Sequence[Node]], Step]) -> Callable[[Sequence[Node]], Step]:
        GROUPS[name] = function, least
        return function

    return enter
