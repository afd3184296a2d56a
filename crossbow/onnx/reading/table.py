"""Registry of the functions that read ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.node import Node

Read = NetworkStep | Sequence[NetworkStep]
"""Result of reading a node: the step of its output, or of each of its outputs."""
AnyRead = TypeVar("AnyRead", bound=Read)


@dataclass(frozen=True)
class Translation:
    """The function that reads the nodes of an ONNX operator, and the nodes that it supports."""

    read: Callable[[Node], Read]
    versions: tuple[int, ...]
    """Versions of the operator (opsets that changed it) that `read` supports."""
    attributes: frozenset[str]
    constants: tuple[int, ...]
    """Inputs that must be constants, such as weights."""
    variables: tuple[int, ...]
    """The inputs in `constants`, and inputs that become variables if they are constants."""
    is_form: bool
    """Whether Crossbow has no operator of the same generality. A node is then read only in the special case that equals
    an operator of Crossbow, for example a Reshape that keeps the examples separate."""
    several_outputs: bool
    """Whether outputs after the first are read, too."""


TRANSLATIONS: dict[str, Translation] = {}
GROUPS: dict[str, tuple[Callable[[Sequence[Node]], NetworkStep], int]] = {}
"""By the class of Crossbow's operator, the function that reads the nodes that `save` wrote for it, and their minimum
number."""


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
    """Register a function that reads an operator."""

    def enter(function: Callable[[Node], AnyRead]) -> Callable[[Node], AnyRead]:
        known = frozenset(attributes.split())
        both = tuple({*constants, *variables})
        TRANSLATIONS[op_type] = Translation(function, versions, known, constants, both, is_form, several_outputs)
        return function

    return enter


def reads_group(
    name: str, least: int = 2
) -> Callable[[Callable[[Sequence[Node]], NetworkStep]], Callable[[Sequence[Node]], NetworkStep]]:
    """Register a function that reads the nodes of a group."""

    def enter(function: Callable[[Sequence[Node]], NetworkStep]) -> Callable[[Sequence[Node]], NetworkStep]:
        GROUPS[name] = function, least
        return function

    return enter
