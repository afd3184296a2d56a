"""The devices' kernel libraries, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.reference.library import Reference
from crossbow.types import ConfigurationError

FLOAT32: np.dtype[np.generic] = np.dtype(np.float32)


def why_not_onednn() -> str | None:
    """One sentence with the reason why oneDNN is not usable here, or None if it is usable."""
    from crossbow.kernels.cpu.onednn.shared_library import why_unusable

    return why_unusable()


def why_not_compiled() -> str | None:
    """One sentence with the reason why compiled CPU kernels, with or without oneDNN, are not usable here, or None if
    they are."""
    from crossbow.kernels.cpu.onednn.shared_library import numba_is_installed

    return None if numba_is_installed() else "the package numba, which compiles kernels, is not installed"


def select_library(
    kernels: str, dtype: np.dtype[np.generic] = FLOAT32, *, winograd: bool = True
) -> tuple[KernelLibrary, Callable[[int], None]]:
    """The kernel library for a configuration ("auto", "reference", "compiled", "onednn"; whether it may convolve by
    Winograd's filtering), and the function that sets its number of threads for the calling thread.

    Raises ConfigurationError if "compiled" or "onednn" is requested, but not usable.
    """
    problem = "the reference kernels were asked for" if kernels == "reference" else why_not_compiled()
    if problem is None and dtype != np.float32:
        problem = f"the compiled kernels compute in float32, and precision is {dtype}"
    if problem is None and kernels == "onednn":
        problem = why_not_onednn()
    if problem is not None:
        if kernels in ("compiled", "onednn"):
            raise ConfigurationError(
                f"SystemConf: kernels={kernels!r} is not possible here: {problem}. Use kernels='auto'"
            )
        return Reference(dtype), lambda threads: None
    from crossbow.kernels.cpu.library import Cpu
    from crossbow.kernels.cpu.onednn.shared_library import omp_set_num_threads

    present = why_not_onednn() is None
    if kernels != "compiled" and present:
        return Cpu(winograd=winograd), omp_set_num_threads
    return Cpu(winograd=winograd, onednn=False), lambda threads: omp_set_num_threads(1) if present else None
