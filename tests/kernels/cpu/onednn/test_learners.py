"""Primitives are made once and shared: learners that run them at the same time must not disturb each other."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cpu.onednn.shared_library import omp_get_max_threads, omp_set_num_threads
from crossbow.kernels.cpu.simd import processor
from crossbow.kernels.interface import Call, PreparedKernel, Variable
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
)
from crossbow.kernels.task_list import TaskList
from crossbow.types import Shape
from tests.kernels.cpu.running import FLOAT32, ONEDNN, Numbers, draw, memory, tensor, with_storage

X, Y = (6, 16, 12, 12), (6, 40, 8, 8)
G = ConvolutionGeometry((5, 5))


def layers() -> list[PreparedKernel]:
    """A convolution. Which of its kernels need workspaces, as for reorders, depends on the processor."""
    x, y = tensor(X), tensor(Y)
    weights, bias = Variable((40, 16, 5, 5), FLOAT32), Variable((40,), FLOAT32)
    forward = ONEDNN.prepare(ConvolutionForward(x, weights, bias, y, G))
    weights = with_storage(weights, forward)
    kernels = [
        forward,
        ONEDNN.prepare(ConvolutionBackwardData(y, weights, x, G)),
        ONEDNN.prepare(ConvolutionBackwardWeights(x, y, weights, bias, G)),
    ]
    needed = [kernel.workspace > 0 for kernel in kernels]
    assert all(needed) if processor.measured() else any(needed)
    return kernels


class Learner:
    def __init__(self, kernels: Sequence[PreparedKernel], seed: int) -> None:
        elements = kernels[0].storages["weights"].elements
        self.results: dict[str, Numbers] = {
            "output": memory(tensor(Y)),
            "input_gradient": memory(tensor(X)),
            "weights_gradient": np.zeros(elements, np.float32),
            "bias_gradient": np.zeros(40, np.float32),
        }
        buffers = {"input0": memory(tensor(X), self.draw(X, seed)), "weights": self.draw((elements,), seed)}
        buffers |= {"bias": self.draw((40,), seed), "output_gradient": memory(tensor(Y), self.draw(Y, seed))}
        calls: list[Call] = []
        for kernel in kernels:
            workspace = {"workspace": aligned_zeros(kernel.workspace)}
            calls += kernel.bind({**buffers, **self.results, **workspace})
        self.tasks = TaskList(calls, ["layer"] * len(calls))

    @staticmethod
    def draw(shape: Shape, seed: int) -> Numbers:
        return draw(shape, seed)

    def take(self) -> dict[str, Numbers]:
        taken = {role: value.copy() for role, value in self.results.items()}
        for value in self.results.values():
            value[...] = np.nan
        return taken


def test_concurrent_learners_get_the_results_of_one_after_the_other() -> None:
    threads_before = omp_get_max_threads()
    omp_set_num_threads(1)
    kernels = layers()
    learners = [Learner(kernels, seed) for seed in range(2)]
    alone = []
    for learner in learners:
        learner.tasks.run()
        alone.append(learner.take())
    failures: list[str] = []

    def run(number: int) -> None:
        omp_set_num_threads(1)
        for _ in range(100):
            learners[number].tasks.run()
            for role, value in learners[number].take().items():
                if not np.array_equal(value, alone[number][role]):
                    failures.append(f"learner {number}: {role}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    omp_set_num_threads(threads_before)
    assert not failures
