"""Parameters of other frameworks as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import DataError
from crossbow.foreign.parameters import host_array, host_arrays


class Exported:
    """A tensor of another framework. One that records its gradient exports only a detached tensor."""

    def __init__(self, values: Any, *, records: bool = False) -> None:
        self.values, self.records = values, records

    def detach(self) -> Exported:
        return Exported(self.values)

    def __dlpack__(self, **more: Any) -> Any:
        if self.records:
            raise BufferError("records its gradient")
        return self.values.__dlpack__(**more)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


def test_arrays_of_numpy_are_used_as_they_are() -> None:
    values = np.zeros(3)
    assert host_array(values) is values


@pytest.mark.parametrize("records", [False, True])
def test_tensors_share_their_memory(records: bool) -> None:
    values = np.arange(6.0).reshape(2, 3)
    (found,) = host_arrays([Exported(values, records=records)])
    found[1, 2] = 7
    assert values[1, 2] == 7


class OnGpu:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **more: Any) -> Any:
        raise BufferError("it is on a GPU")


@pytest.mark.parametrize("value", ["text", None, [1.0], OnGpu()])
def test_other_objects_are_refused(value: Any) -> None:
    with pytest.raises(DataError, match=f"^{type(value).__name__}, which cannot be shared with NumPy"):
        host_array(value)
