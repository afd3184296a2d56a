"""The common interface: the task state, plain storage, and what a prepared kernel has unless it says otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Buffers, PlainStorage, PreparedKernel, State
from crossbow.types import Array, Shape


def test_positions_of_the_task_state_are_distinct_and_fit() -> None:
    positions = [getattr(State, name) for name in vars(State) if name.isupper() and name != "SIZE"]
    assert sorted(positions) == list(range(len(positions)))
    assert len(positions) <= State.SIZE


@pytest.mark.parametrize("shape", [(2, 3, 4), (5,), (), (0, 3)])
def test_plain_storage_is_row_major(shape: Shape) -> None:
    storage = PlainStorage(shape)
    assert (storage.elements, str(storage)) == (int(np.prod(shape)), "plain")
    values = np.arange(storage.elements, dtype=np.float32).reshape(shape[::-1]).T  # not contiguous
    flat, back = np.full(storage.elements, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    storage.pack(values, flat)
    assert flat.tolist() == [values[place] for place in np.ndindex(*shape)]
    storage.unpack(flat, back)
    np.testing.assert_array_equal(back, values)


def test_a_kernel_needs_no_memory_of_its_own_unless_it_says_so() -> None:
    kernel = PreparedKernel("name", ("input0",), ("output",), lambda buffers: ())
    assert (kernel.workspace, kernel.kept, kernel.in_place, kernel.alias, kernel.blocks) == (0, 0, None, None, None)
    assert dict(kernel.storages) == {}


def test_a_kernel_with_other_roles() -> None:
    """It receives the buffers of the new roles, and its memory, under its own names."""
    bound: list[dict[str, Array]] = []

    def bind(buffers: Buffers) -> tuple[()]:
        bound.append(dict(buffers))
        return ()

    def blocks(buffers: Buffers) -> tuple[()]:
        return bind(buffers)

    kernel = PreparedKernel(
        "name", ("input0", "weights"), ("output",), bind, workspace=8, in_place=("input0", "output"), blocks=blocks
    ).renamed({"input0": "output_gradient", "output": "input_gradient"})
    assert (kernel.reads, kernel.writes) == (("output_gradient", "weights"), ("input_gradient",))
    assert (kernel.in_place, kernel.workspace) == (("output_gradient", "input_gradient"), 8)
    arrays = {role: np.zeros(1) for role in ("input0", "output_gradient", "weights", "input_gradient", "workspace")}
    expected = {
        "input0": arrays["output_gradient"],
        "weights": arrays["weights"],
        "output": arrays["input_gradient"],
        "workspace": arrays["workspace"],
    }
    kernel.bind(arrays)
    assert kernel.blocks is not None
    kernel.blocks(arrays)
    for received in bound:
        assert received.keys() == expected.keys()
        assert all(received[role] is array for role, array in expected.items())
    assert len(bound) == 2
