"""The devices' kernel libraries, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.reference.library import Reference
from crossbow.types import ConfigurationError

FLOAT32: np.dtype[np.generic] = np.dtype(np.float32)


def why_not_onednn() -> str | None:
    """One sentence that says why the fast CPU kernels are not usable here, or None if they are."""
    from crossbow.kernels.onednn.binding import why_unusable

    return why_unusable()


def select_library(
    kernels: str, dtype: np.dtype[np.generic] = FLOAT32, *, winograd: bool = True
) -> tuple[KernelLibrary, Callable[[int], None]]:
    """The kernel library for a configuration ("auto", "reference", "onednn"; whether it may convolve by Winograd's
    filtering), and the function that tells it, on each thread, how many threads it has there.

    Raises ConfigurationError where "onednn" is asked for and cannot be had.
    """
    problem = why_not_onednn() if kernels in ("auto", "onednn") else "the reference kernels were asked for"
    if problem is None and dtype != np.float32:
        problem = f"oneDNN computes in float32, and precision is {dtype}"
    if problem is None:
        from crossbow.kernels.onednn.binding import omp_set_num_threads
        from crossbow.kernels.onednn.library import OneDNN

        return OneDNN(winograd=winograd), omp_set_num_threads
    if kernels == "onednn":
        raise ConfigurationError(f"SystemConf: kernels='onednn' is not possible here: {problem}. Use kernels='auto'")
    return Reference(dtype), lambda threads: None
