"""PyTorch with a parameter server on Ray: one actor stores the weights, and two others compute gradients.

In every step, each worker receives the weights and computes a gradient, and the server applies the mean of the
gradients. Each actor has one thread.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.torch_runner import TorchRunner
from crossbow.cluster.ray.connection import quiet_ray

WORKERS = 2


def parameter_server_rate(network: str, batch: int, warming: float, seconds: float) -> float:
    """Images/s of both workers together. warming, seconds: durations of the warm-up and of the measurement."""
    ray = quiet_ray()
    ray.init("local", num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False, logging_level="CRITICAL")
    try:
        server = ray.remote(num_cpus=1)(_Server).remote(network, batch)
        workers = [ray.remote(num_cpus=1)(_Worker).remote(network, batch) for _ in range(WORKERS)]
        weights = server.weights.remote()
        measured = 0.0
        for duration in (warming, seconds):
            steps, began = 0, time.monotonic()
            while time.monotonic() < began + duration:
                weights = server.step.remote(*[each.gradients.remote(weights, steps) for each in workers])
                ray.wait([weights])
                steps += 1
            measured = steps * WORKERS * batch / (time.monotonic() - began)
        return measured
    finally:
        ray.shutdown()


class _Server:
    """The actor that stores the weights."""

    def __init__(self, network: str, batch: int) -> None:
        (self._training,) = TorchRunner(network, batch, 1, 1).trainings

    def weights(self) -> list[Any]:
        return [each.detach().numpy() for each in self._training.model.parameters()]

    def step(self, *gradients: list[Any]) -> list[Any]:
        """Apply the mean of gradients. Returns the new weights."""
        import torch

        for parameter, *parts in zip(self._training.model.parameters(), *gradients, strict=True):
            parameter.grad = torch.from_numpy(sum(parts) / len(parts))
        self._training.optimiser.step()
        return self.weights()


class _Worker:
    """An actor that computes gradients."""

    def __init__(self, network: str, batch: int) -> None:
        (self._training,) = TorchRunner(network, batch, 1, 1).trainings

    def gradients(self, weights: list[Any], number: int) -> list[Any]:
        """The gradients of a batch, at these weights. number: number of the batch."""
        import torch

        with torch.no_grad():
            for parameter, given in zip(self._training.model.parameters(), weights, strict=True):
                parameter.copy_(torch.from_numpy(given))
        self._training.backward(number)
        return [each.grad.numpy() for each in self._training.model.parameters()]
