"""Parts of a step compared with the implementations that they replaced, on one thread.

    OMP_NUM_THREADS=1 python -m benchmarks.pieces

Crossbow's own convolutions (`kernels/cpu/simd/winograd.py`, `narrow.py`, `pointwise.py`) are compared with oneDNN's, in
all three directions; the solver's step over vectors in large memory pages is compared with that in small pages. Both
sides alternate; times are the minima, and ratios the medians, over the rounds.
"""

from __future__ import annotations

import argparse
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine
from benchmarks.report import markdown, paired, spread
from crossbow import SolverConf
from crossbow.console import run_command
from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cpu.library import FLOAT32, Cpu
from crossbow.kernels.cpu.onednn import shared_library
from crossbow.kernels.cpu.rooms import ONEDNN, PASSES
from crossbow.kernels.interface import Buffers, PreparedKernel, Variable
from crossbow.kernels.registry import Rooms
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
    LinearCombination,
)
from crossbow.kernels.task_list import TaskList
from crossbow.solver.schedule import Pace
from crossbow.solver.step import solver_step
from crossbow.solver.update import Assignment
from crossbow.types import Tensor

Vector = NDArray[np.float32]
Run = Callable[[], None]


@dataclass(frozen=True)
class Convolution:
    """A convolution of square images with square kernels and the same padding on all sides."""

    images: int
    channels: int
    size: int
    outputs: int
    kernel: int
    padding: int

    def __str__(self) -> str:
        sizes = f"{self.channels} → {self.outputs}, {self.kernel}×{self.kernel} on {self.size}×{self.size}"
        return f"{sizes}, batch {self.images}"


CONVOLUTIONS = (
    Convolution(32, 16, 32, 16, 3, 1),
    Convolution(32, 32, 16, 32, 3, 1),
    Convolution(32, 64, 8, 64, 3, 1),
    Convolution(8, 128, 16, 128, 3, 1),
    Convolution(8, 64, 7, 64, 3, 1),
    Convolution(32, 512, 4, 512, 3, 1),
    Convolution(37, 512, 8, 512, 3, 1),
    Convolution(8, 256, 14, 256, 3, 1),
    Convolution(8, 512, 7, 512, 3, 1),
    Convolution(8, 32, 12, 64, 5, 0),
    Convolution(32, 1, 28, 20, 5, 0),
    Convolution(32, 20, 12, 50, 5, 0),
    Convolution(16, 64, 56, 64, 1, 0),
    Convolution(16, 512, 28, 128, 1, 0),
    Convolution(16, 256, 14, 1024, 1, 0),
    Convolution(16, 2048, 7, 512, 1, 0),
)
VECTORS = {"step over 1.11 M weights": 1_111_000, "step over 0.43 M weights": 431_000}
"""Vectors with as many elements as the two LeNets have weights."""


@dataclass(frozen=True)
class Piece:
    """The seconds of one part of a step in every round, for both implementations."""

    name: str
    part: str
    ours: Sequence[float]
    other: Sequence[float]

    @property
    def row(self) -> tuple[str, ...]:
        microseconds = (f"{1e6 * min(times):,.0f}" for times in (self.ours, self.other))
        return (self.name, self.part, *microseconds, spread(paired(self.other, self.ours)).text(".2f"))


def vector(elements: int) -> Vector:
    """Random numbers, in large pages from 2 MB on."""
    made: Vector = aligned_zeros(4 * elements).view(np.float32)
    made[:] = np.random.default_rng(elements).standard_normal(elements)
    return made


def small_pages(elements: int) -> Vector:
    """Random numbers in pages of 4 KiB."""
    room = mmap.mmap(-1, 4 * elements)
    room.madvise(mmap.MADV_NOHUGEPAGE)
    made: Vector = np.frombuffer(room, np.float32)
    made[:] = vector(elements)
    return made


def task(kernel: PreparedKernel, buffers: Buffers) -> Run:
    """A kernel's calls, as in a task list."""
    bound = kernel.bind({**buffers, "workspace": aligned_zeros(max(64, kernel.workspace))})
    return TaskList(list(bound), [kernel.name] * len(bound)).run


def directions(case: Convolution, own: bool) -> dict[str, Run]:
    """Forward and both gradients, with Crossbow's own kernels or oneDNN's."""
    library = Cpu()
    if not own:
        library.rooms = Rooms("oneDNN alone", ONEDNN, PASSES)
    g = ConvolutionGeometry((case.kernel,) * 2, padding=((case.padding,) * 2,) * 2)
    rest = case.size + 2 * case.padding - case.kernel + 1
    x_shape, y_shape = (case.images, case.channels, case.size, case.size), (case.images, case.outputs, rest, rest)
    x, y = (Tensor(shape, FLOAT32, library.layout(shape)) for shape in (x_shape, y_shape))
    weights = Variable((case.outputs, case.channels, case.kernel, case.kernel), FLOAT32)
    forward = library.prepare(ConvolutionForward(x, weights, None, y, g))
    weights = Variable(weights.shape, FLOAT32, forward.storages["weights"])
    kernels = {
        "forward": forward,
        "data": library.prepare(ConvolutionBackwardData(y, weights, x, g)),
        "weights": library.prepare(ConvolutionBackwardWeights(x, y, weights, None, g)),
    }
    assert weights.storage is not None
    arrays = {name: x.view(vector(x.elements).view(np.uint8)) for name in ("input0", "input_gradient")}
    arrays |= {name: y.view(vector(y.elements).view(np.uint8)) for name in ("output", "output_gradient")}
    arrays |= {name: vector(weights.storage.elements) for name in ("weights", "weights_gradient")}
    return {part: task(kernel, arrays) for part, kernel in kernels.items()}


def step(elements: int, new: Callable[[int], Vector]) -> Run:
    """A step of SGD with momentum and weight decay, pulled towards z as in SMA."""
    solver = SolverConf(learning_rate=0.01, momentum=0.9, weight_decay=1e-4)
    update = solver_step(solver, Pace(0.01, 0.9), pull=0.1)
    names = dict.fromkeys(name for target, terms in update.steps for name in (target, *terms))
    numbers = np.array([number for _, terms in update.steps for number in terms.values()])
    assignments = [Assignment(target, tuple(terms)) for target, terms in update.steps]
    kernel = Cpu().prepare(LinearCombination(assignments, FLOAT32))
    return task(kernel, {**{name: new(elements) for name in names}, "coefficients": numbers})


def seconds(run: Run, least: float) -> float:
    """Seconds of a call, averaged over enough calls to take at least the given time."""
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < least or count == 0:
        run()
        count += 1
    return passed / count


def measure(name: str, ours: Mapping[str, Run], other: Mapping[str, Run], rounds: int, least: float) -> list[Piece]:
    pieces = []
    for part, run in ours.items():
        times: list[list[float]] = [[], []]
        run()
        other[part]()
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                times[which].append(seconds((run, other[part])[which], least))
        pieces.append(Piece(name, part, *times))
    return pieces


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pieces", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="turns of both (default: 15)")
    parser.add_argument("--seconds", type=float, default=0.02, help="of a turn (default: 0.02)")
    options = parser.parse_args(arguments)
    if shared_library.omp_get_max_threads() != 1:
        parser.error("these are measured on one thread: set OMP_NUM_THREADS=1")
    for name, value in describe_machine().items():
        print(f"- {name}: {value}")
    head = ("convolution", "direction", "ours, µs", "oneDNN, µs", "oneDNN ÷ ours")
    rows = []
    for case in CONVOLUTIONS:
        ours, other = (directions(case, own) for own in (True, False))
        rows += measure(str(case), ours, other, options.rounds, options.seconds)
    print("\n" + markdown(head, [piece.row for piece in rows]))
    steps = []
    for name, elements in VECTORS.items():
        large, small = ({"": step(elements, new)} for new in (vector, small_pages))
        steps += measure(name, large, small, options.rounds, options.seconds)
    print(
        "\n" + markdown(("pass", "", "large pages, µs", "small, µs", "small ÷ large"), [piece.row for piece in steps])
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.pieces", main))
