"""From steps with values to locations: lifetimes, values that share memory, aliases."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.compile.draft import Draft, DraftStep, Value, place, resolve
from crossbow.compile.program import ArenaPlace, NamedPlace, Place
from crossbow.kernels.interface import PreparedKernel
from crossbow.types import Tensor

LINE = Tensor((16,), np.dtype(np.float32))
"""One cache line, so that offsets are multiples of 64."""
SLOTS = NamedPlace("slots")


def step(
    reads: dict[str, Value | Place],
    writes: dict[str, Value | Place],
    in_place: tuple[str, str] | None = None,
    **more: bool,
) -> DraftStep:
    kernel = PreparedKernel("kernel", tuple(reads), tuple(writes), lambda buffers: (), in_place=in_place)
    return DraftStep("operator", kernel, {**reads, **writes}, backward=False, **more)


def draft(*steps: DraftStep, pinned: tuple[Value, ...] = (), aliases: dict[Value, Value] | None = None) -> Draft:
    values = {value for each in steps for value in each.roles.values() if not isinstance(value, Place)}
    return Draft(list(steps), dict.fromkeys(values, LINE), set(pinned), dict(aliases or {}))


def offsets(made: Draft) -> dict[Value, int]:
    places, _ = place(made)
    return {value: location.offset for value, location in places.items()}


READ_A, IN_PLACE = {"input0": "a"}, ("input0", "output")


def test_memory_is_used_again_after_the_last_use() -> None:
    chain = draft(
        step({"input0": SLOTS}, {"output": "a"}), step(READ_A, {"output": "b"}), step({"input0": "b"}, {"output": "c"})
    )
    found = offsets(chain)
    assert found["a"] == found["c"] != found["b"]
    assert place(chain)[1].arena == 128


def test_an_output_takes_the_memory_of_its_input_after_the_inputs_last_use() -> None:
    first, last = step({"input0": SLOTS}, {"output": "a"}), step(READ_A, {"output": "b"}, IN_PLACE)
    found = offsets(draft(first, last))
    assert found["a"] == found["b"]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(
            draft(
                step({"input0": SLOTS}, {"output": "a"}),
                step(READ_A, {"output": "b"}, IN_PLACE),
                step(READ_A, {"output": "c"}),
            ),
            id="read again",
        ),
        pytest.param(
            draft(step({"input0": SLOTS}, {"output": "a"}), step(READ_A, {"output": "b"}, IN_PLACE), pinned=("a",)),
            id="pinned",
        ),
        pytest.param(
            draft(
                step({"input0": SLOTS}, {"output": "a"}),
                step({"input0": "a", "input1": "a"}, {"output": "b"}, IN_PLACE),
            ),
            id="both terms",
        ),
        pytest.param(draft(step({"input0": SLOTS}, {"output": "a"}), step(READ_A, {"output": "b"})), id="not in place"),
        pytest.param(
            draft(
                step({"input0": SLOTS}, {"output": "b", "more": "a"}),
                step(READ_A, {"output": "b"}, IN_PLACE),
            ),
            id="in use before",
        ),
        pytest.param(
            draft(step({"input0": SLOTS}, {"output": "a"}), step(READ_A, {"output": "b"}, IN_PLACE, elided=True)),
            id="elided",
        ),
    ],
)
def test_otherwise_the_two_lie_apart(made: Draft) -> None:
    found = offsets(made)
    assert found["a"] != found["b"]


def test_tensors_of_different_sizes_do_not_share() -> None:
    made = draft(step({"input0": SLOTS}, {"output": "a"}), step(READ_A, {"output": "b"}, IN_PLACE))
    made.tensors["b"] = Tensor((17,), LINE.dtype)
    found = offsets(made)
    assert found["a"] != found["b"]


def test_sharing_may_go_over_several_steps() -> None:
    """The whole lifetime of the three belongs to one buffer; another value has memory of its own."""
    made = draft(
        step({"input0": SLOTS}, {"output": "a", "kept": "k"}),
        step(READ_A, {"output": "b"}, IN_PLACE),
        step({"input0": "b"}, {"output": "c"}, IN_PLACE),
        step({"input0": "c", "kept": "k"}, {"output": "d"}),
    )
    found = offsets(made)
    assert found["a"] == found["b"] == found["c"]
    assert len({found["a"], found["k"], found["d"]}) == 3


def test_pinned_values_last_to_the_end() -> None:
    steps = (
        step({"input0": SLOTS}, {"output": "a"}),
        step(READ_A, {"output": "b"}),
        step({"input0": "b"}, {"output": "c"}),
    )
    found = offsets(draft(*steps, pinned=("a",)))
    assert found["a"] != found["c"]


def test_an_alias_has_the_place_of_the_value_that_it_equals() -> None:
    """And keeps its memory in use; through a chain of aliases, too."""
    made = draft(
        step({"input0": SLOTS}, {"output": "a"}),
        step(READ_A, {"output": "b"}, ("input0", "output"), elided=True),
        step({"input0": "b"}, {"output": "c"}, ("input0", "output"), elided=True),
        step({"input0": SLOTS}, {"output": "d"}),
        step({"input0": "c"}, {"output": "e"}),
        aliases={"b": "a", "c": "b"},
    )
    made.tensors["c"] = Tensor((4, 4), LINE.dtype)
    places, _ = place(made)
    assert places["a"].offset == places["b"].offset == places["c"].offset
    assert places["c"].tensor.shape == (4, 4)
    assert places["a"].offset not in (places["d"].offset, places["e"].offset)


def test_the_root_of_a_long_chain() -> None:
    made = Draft(aliases={number: number - 1 for number in range(1, 10_000)})
    assert made.root(9999) == 0
    assert set(made.aliases.values()) == {0}  # followed only once
    assert made.root("other") == "other"


def test_locations_stay_what_they_are() -> None:
    at = ArenaPlace(64, LINE)
    assert resolve(SLOTS, {}) is SLOTS
    assert resolve("a", {"a": at}) is at
