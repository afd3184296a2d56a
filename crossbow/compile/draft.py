"""A program in the making: steps with values instead of places, and where each value goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from crossbow.compile.memory import Lifetime, MemoryPlan, plan_memory
from crossbow.compile.program import ArenaPlace, Place
from crossbow.kernels.interface import PreparedKernel
from crossbow.types import Tensor

Value = Hashable
"""A buffer in the making: ("output", order), ("kept", order), ("workspace", step), "labels", …"""


@dataclass
class DraftStep:
    """A prepared kernel, and the value or place of each of its roles."""

    operator: str
    kernel: PreparedKernel
    roles: dict[str, Value | Place]
    backward: bool
    elided: bool = False


@dataclass
class Draft:
    """Steps with values instead of places, and the tensor of every value."""

    steps: list[DraftStep] = field(default_factory=list)
    tensors: dict[Value, Tensor] = field(default_factory=dict)
    pinned: set[Value] = field(default_factory=set)
    aliases: dict[Value, Value] = field(default_factory=dict)
    """Values that hold the bytes of an earlier one, in its memory."""

    def root(self, value: Value) -> Value:
        """The value whose memory this one is."""
        root = value
        while root in self.aliases:
            root = self.aliases[root]
        while value != root:  # the next to ask comes there at once, however long the chain of aliases is
            self.aliases[value], value = root, self.aliases[value]
        return root


def resolve(value: Value | Place, places: Mapping[Value, ArenaPlace]) -> Place:
    return value if isinstance(value, Place) else places[value]


def place(draft: Draft) -> tuple[dict[Value, ArenaPlace], MemoryPlan]:
    """Lifetimes of all values, values that may share memory merged, and the memory plan."""
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
    """For every value the value whose memory it takes: an output written in place takes its input's, if this step is
    the input's last use, its only one here, and the output's first. (Values in the memory of an earlier one are it.)"""
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
        read_once = list(roots.values()).count(source) == 1  # not, for example, both terms of x + x
        if last[source] == number and first[target] == number and same_size and read_once:
            owner[target] = owner[source]
    return owner
