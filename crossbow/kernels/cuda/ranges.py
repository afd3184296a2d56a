"""Named ranges of the host's work, for NVIDIA's profilers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from crossbow.kernels.cuda.api import api

Ranges = Callable[[str], AbstractContextManager[None]]
"""Function that returns a context, which is shown as a range with this name."""


@contextlib.contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A range of NVTX, NVIDIA's tools extension."""
    nvtx = api().nvtx
    nvtx.RangePush(name)
    try:
        yield
    finally:
        nvtx.RangePop()


def no_range(name: str) -> AbstractContextManager[None]:
    """A context without a range."""
    return _NOTHING


_NOTHING = contextlib.nullcontext()
