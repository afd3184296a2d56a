"""Consecutive small kernels as one kernel, because a launch costs more than such a kernel computes.

There are two kinds of series:

* Kernels of one block, or with few enough elements for one block, run one after the other in one block, with a
  barrier between them.
* Pointwise kernels on the same number of elements run one after the other in every thread, without a barrier: a thread
reads only elements that it has written itself. Its elements depend only on their number and type.

Series do not change results: every kernel does the same work in the same order as alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from crossbow.kernels.cuda.launch import BLOCK, Argument, CudaKernel, Launch, Structure, text_of
from crossbow.kernels.interface import Call
from crossbow.types import address

SMALL = 8 * BLOCK
"""Maximum number of elements for which one block suffices."""
MOST_WORK = 2**16
"""Maximum number of elements that one block reads for these elements."""
MOST_BYTES = 2048
"""Maximum number of bytes of a kernel's arguments. CUDA's limit is 4096."""
PARAMETERS = r"\s*\(([^)]*)\)\s*\{"
SIGNATURE = r"KERNEL\s+(?:__launch_bounds__\(\d+\)\s+)?"
BUILT_IN = frozenset(("int", "float", "double", "void"))


def in_series(calls: Sequence[Call]) -> list[tuple[Call, int]]:
    """The calls to make, and the number of calls that each of them replaces, at least 1."""
    found: list[tuple[Call, int]] = []
    begin = 0
    while begin < len(calls):
        first = calls[begin]
        run = [first] if isinstance(first, Launch) else []
        for joins in (_joins_block, _joins_threads):
            if len(run) == 1:
                for call in calls[begin + 1 :]:
                    if not isinstance(call, Launch) or not joins([*run, call]):
                        break
                    run.append(call)
        found.append((_merged(run), len(run)) if len(run) > 1 else (first, 1))
        begin += max(len(run), 1)
    return found


def _joins_block(run: Sequence[Launch]) -> bool:
    """Whether one block can run all of these kernels."""
    return all(each.threads == BLOCK and (each.blocks == 1 or _is_small(each)) for each in run) and _alike(run)


def _is_small(launch: Launch) -> bool:
    return launch.elements <= SMALL and 0 < launch.work * launch.elements <= MOST_WORK


def _joins_threads(run: Sequence[Launch]) -> bool:
    """Whether each thread can run all of these kernels: each element has one thread, which is the same in all of
    them."""
    if not all(each.pointwise and each.elements == run[0].elements for each in run) or not _alike(run):
        return False
    *before, last = run
    return not any(_overlap(one, other) for each in before for one in _arrays(each) for other in _arrays(last))


def _alike(run: Sequence[Launch]) -> bool:
    """Whether the kernels have the same types, and their arguments fit in one kernel's."""
    kinds = {each.kernel.dtype for each in run}
    arguments = [argument for each in run for argument in each.arguments]
    return len(kinds) == 1 and sum(_nbytes(argument) for argument in arguments) <= MOST_BYTES


def _nbytes(argument: Argument) -> int:
    return argument.values.nbytes if isinstance(argument, Structure) else 8


def _arrays(launch: Launch) -> list[tuple[int, int, int]]:
    """First byte, end, and size of an element in bytes, for every array."""
    arrays: list[Any] = [a for a in launch.arguments if not isinstance(a, Structure | np.generic) and a is not None]
    return [(address(array), address(array) + array.nbytes, array.dtype.itemsize) for array in arrays]


def _overlap(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    """Whether two arrays share memory other than element by element."""
    return one[0] < other[1] and other[0] < one[1] and (one[0], one[2]) != (other[0], other[2])


def _merged(run: Sequence[Launch]) -> Launch:
    """The launch of one kernel that replaces all of these."""
    block = _joins_block(run)
    text = series_source([each.kernel for each in run], barrier=block)
    kernel = CudaKernel("series", "series", run[0].kernel.dtype, text)
    arguments = [argument for each in run for argument in each.arguments]
    shared = max(each.shared for each in run)
    if block:
        return kernel.blocks(1, *arguments, shared=shared)
    return kernel.each(run[0].elements, *arguments, shared=shared, pointwise=True)


def series_source(kernels: Sequence[CudaKernel], *, barrier: bool) -> str:
    """The source of a kernel that runs these kernels one after the other, with all their parameters. barrier: whether
    the threads of a block wait for each other between them."""
    sources = dict.fromkeys(kernel.source for kernel in kernels)
    names = {source: f"part{number}" for number, source in enumerate(sources)}
    lines = []
    for source, name in names.items():
        lines += [f"namespace {name} {{", re.sub(SIGNATURE, "PART ", source), "}", ""]
    parameters, calls = [], []
    for number, kernel in enumerate(kernels):
        own = _parameters(kernel, names[kernel.source])
        parameters += [f"{kind}a{number}_{index}" for index, kind in enumerate(own)]
        passed = ", ".join(f"a{number}_{index}" for index in range(len(own)))
        calls.append(f"    {names[kernel.source]}::{kernel.name}({passed});")
    body = "\n    __syncthreads();\n".join(calls) if barrier else "\n".join(calls)
    return "\n".join([*lines, f"KERNEL series({', '.join(parameters)}) {{", body, "}", ""])


@functools.lru_cache(maxsize=1024)
def _parameters(kernel: CudaKernel, namespace: str) -> tuple[str, ...]:
    """The types of a kernel's parameters, as they are written outside its namespace."""
    found = re.search(SIGNATURE + kernel.name + PARAMETERS, kernel.source)
    assert found is not None, kernel
    types = []
    for parameter in found[1].split(","):
        kind = re.sub(r"\w+\s*$", "", parameter.strip(), count=1)
        (own,) = re.findall(r"\w+", kind.replace("const", ""))
        common = own in BUILT_IN or re.search(rf"\b{own}(?: \{{|;)", text_of("")) is not None
        types.append(kind if common else kind.replace(own, f"{namespace}::{own}"))
    return tuple(types)
