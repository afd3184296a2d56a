"""PyTorch's trajectory: 50 steps of LeNet, without dropout, by plain SGD with momentum and weight decay.

`python -m tests.record_trajectory` writes tests/trajectory.json, with which `test_trajectory.py` compares where PyTorch
is not installed: for each step the loss and, of every variable after it, the sum and the Euclidean norm, in float64.

Images, labels and initial weights are made of random words, whose bits NumPy promises for good.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.data.order import TrainingOrder

Array = NDArray[Any]
PATH = Path(__file__).with_name("trajectory.json")

STEPS, EXAMPLES, BATCH_SIZE, SEED = 50, 60, 4, 3
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 5e-4

SHAPES = {
    "conv1.weights": (32, 1, 5, 5),
    "conv1.bias": (32,),
    "conv2.weights": (64, 32, 5, 5),
    "conv2.bias": (64,),
    "ip1.weights": (1024, 1024),
    "ip1.bias": (1024,),
    "ip2.weights": (10, 1024),
    "ip2.bias": (10,),
}
"""The variables of `models.lenet`, its original variant."""


def words(count: int, stream: int) -> NDArray[np.uint64]:
    """Random 64-bit words, the same with every version of NumPy."""
    return np.random.Philox(key=np.array([SEED, stream], np.uint64)).random_raw(count)


def uniform(shape: tuple[int, ...], bound: float, stream: int) -> Array:
    """Numbers in [−bound, bound)."""
    fractions = (words(int(np.prod(shape)), stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return ((2 * fractions - 1) * bound).reshape(shape)


def images_and_labels() -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Pictures that can be told apart: noise, and a bright square whose place is the label."""
    images = (words(EXAMPLES * 28 * 28, 100) >> np.uint64(58)).astype(np.uint8).reshape(EXAMPLES, 1, 28, 28)
    labels = (np.arange(EXAMPLES) % 10).astype(np.int32)
    for image, label in zip(images, labels, strict=True):
        row, column = 4 + 12 * (label // 5), 2 + 5 * (label % 5)
        image[0, row : row + 6, column : column + 4] += 180
    return images, labels


def initial_weights() -> dict[str, Array]:
    """He's variance, and small biases, as float64."""
    weights = {}
    for stream, (name, shape) in enumerate(SHAPES.items()):
        bound = 0.1 if len(shape) == 1 else float(np.sqrt(6 / np.prod(shape[1:])))
        weights[name] = uniform(shape, bound, stream)
    return weights


def batches() -> Iterator[tuple[Array, Array]]:
    """Those of Crossbow's training order, pixels in [0, 1]."""
    images, labels = images_and_labels()
    order, indices = TrainingOrder(EXAMPLES, BATCH_SIZE, SEED), np.empty(BATCH_SIZE, np.intp)
    for step in range(STEPS):
        order.indices(step, indices)
        yield images[indices], labels[indices]


def pytorch(precision: str) -> Iterator[tuple[float, dict[str, Array]]]:
    """PyTorch's loss of each step, and the variables after it."""
    import torch
    from torch import nn

    torch.set_num_threads(1)  # its idle threads would spin on the cores that Crossbow's learner needs
    dtype = getattr(torch, precision)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10),
    ).to(dtype)  # fmt: skip
    parameters = dict(zip(SHAPES, model.parameters(), strict=True))
    with torch.no_grad():
        for name, value in initial_weights().items():
            parameters[name].copy_(torch.from_numpy(value))
    optimiser = torch.optim.SGD(
        model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, foreach=False
    )
    for x, y in batches():
        optimiser.zero_grad()
        scaled = torch.from_numpy(x).to(dtype) * torch.tensor(1 / 255, dtype=dtype)
        loss = nn.functional.cross_entropy(model(scaled), torch.from_numpy(y).long())
        loss.backward()
        optimiser.step()
        yield loss.item(), {name: value.detach().numpy().copy() for name, value in parameters.items()}


def checksums(weights: Mapping[str, Array]) -> list[float]:
    """Sum and Euclidean norm of every variable, in the order of SHAPES."""
    numbers = []
    for name in SHAPES:
        value = weights[name].astype(np.float64).ravel()
        numbers += [float(value.sum()), float(np.sqrt(np.square(value).sum()))]
    return numbers


def record() -> str:
    """The file's text: one line a step."""
    lines = [json.dumps({"loss": loss, "checksums": checksums(weights)}) for loss, weights in pytorch("float64")]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    PATH.write_text(record())
