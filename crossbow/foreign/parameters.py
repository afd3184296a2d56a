"""Parameters of foreign models as NumPy arrays, without importing their framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.types import DataError


def host_array(tensor: Any) -> NDArray[Any]:
    """A NumPy array that shares the memory of an array or tensor.

    tensor: a NumPy array, or an object in the host's memory that exports DLPack (`__dlpack__`), such as a tensor of
    PyTorch. Raises DataError for any other object.
    """
    if isinstance(tensor, np.ndarray):
        return tensor
    detach = getattr(tensor, "detach", None)  # a tensor that records its gradient cannot be exported
    try:
        return np.from_dlpack(detach() if callable(detach) else tensor)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{type(tensor).__name__}, which cannot be shared with NumPy ({error})") from error


def host_arrays(tensors: Sequence[Any]) -> list[NDArray[Any]]:
    """A NumPy array for each tensor; see `host_array`."""
    return [host_array(tensor) for tensor in tensors]
