"""Draft of a program: steps with values instead of locations, and the placement of values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from crossbow.compile.memory import Lifetime, MemoryPlan, plan_memory
from crossbow.compile.program import ArenaPlace, Place
from crossbow.kernels.interface import PreparedKernel
from crossbow.types import Tensor

Value = Hashable
"""A buffer that is not placed yet: ("output", order), ("kept", order), ("workspace", step), "labels", …"""


@dataclass
class DraftStep:
    """A prepared kernel, and the value or location of each of its roles."""

    operator: str
    kernel: PreparedKernel
    roles: dict[str, Value | Place]
    backward: bool
    elided: bool = False


@dataclass
class Draft:
    """Steps with values instead of locations, and the tensor of every value."""

    steps: list[DraftStep] = field(default_factory=list)
    tensors: dict[Value, Tensor] = field(default_factory=dict)
    pinned: set[Value] = field(default_factory=set)
    aliases: dict[Value, Value] = field(default_factory=dict)
    """Values that equal an earlier one, byte by byte, and share its memory."""

    def root(self, value: Value) -> Value:
        """The value whose memory the given value uses."""
        root = value
        while root in self.aliases:
            root = self.aliases[root]
        while value != root:  # path compression, so that long chains of aliases are followed only once
            self.aliases[value], value = root, self.aliases[value]
        return root


def resolve(value: Value | Place, places: Mapping[Value, ArenaPlace]) -> Place:
    return value if isinstance(value, Place) else places[value]


def place(draft: Draft) -> tuple[dict[Value, ArenaPlace], MemoryPlan]:
    """Determine lifetimes, merge values that may share memory, and plan the memory."""
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    used: dict[Value, Value] = {}
    for number, step in enumerate(draft.steps):
        for value in step.roles.values():
            if not isinstance(value, Place):
                used[value] = root = draft.root(value)
                first.setdefault(root, number)
                last[root] = number
    for value in draft.pinned:
        last[draft.root(value)] = len(draft.steps)
    owner = _share_in_place(draft, first, last)
    groups: dict[Value, list[Value]] = defaultdict(list)
    for value in first:
        groups[owner[value]].append(value)
    plan = plan_memory(
        [
            Lifetime(
                group,
                max(draft.tensors[value].nbytes for value in values),
                min(first[value] for value in values),
                max(last[value] for value in values),
            )
            for group, values in groups.items()
        ]
    )
    return {value: ArenaPlace(plan.offsets[owner[root]], draft.tensors[value]) for value, root in used.items()}, plan


def _share_in_place(draft: Draft, first: Mapping[Value, int], last: Mapping[Value, int]) -> dict[Value, Value]:
    """For every value, the value whose memory it uses. An output written in place uses its input's memory if this step
    is the last use of the input, its only use in the step, and the first use of the output. (Aliases are resolved.)"""
    owner: dict[Value, Value] = {value: value for value in first}
    pinned = {draft.root(value) for value in draft.pinned}
    for number, step in enumerate(draft.steps):
        if step.kernel.in_place is None or step.elided:
            continue
        roots = {role: draft.root(value) for role, value in step.roles.items()}
        source, target = (roots.get(role) for role in step.kernel.in_place)
        if source not in owner or target not in owner or source in pinned:
            continue
        same_size = draft.tensors[source].nbytes == draft.tensors[target].nbytes
        read_once = list(roots.values()).count(source) == 1  # unlike both terms of x + x, for example
        if last[source] == number and first[target] == number and same_size and read_once:
            owner[target] = owner[source]
    return owner
