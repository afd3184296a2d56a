"""A PyTorch network as Crossbow's learners: LeNet, under SMA, EASGD and gossip.

`python -m examples.torch_learner` trains two learners in one process on the digits of scikit-learn, or on MNIST with
`--mnist DIR`. `mpirun -n 2 python -m examples.torch_learner --learners 1 --rule sma` trains on two ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from crossbow import SMA, Dataset, History, ModelConf, SystemConf, cluster
from crossbow.cluster.process import leave
from crossbow.console import run_command
from crossbow.data import digits, mnist
from crossbow.foreign import ForeignModels, IterationRecorder
from crossbow.synch import EASGD, Gossip, Rule

RULES: dict[str, Rule] = {"sma": SMA(), "easgd": EASGD(alpha=0.5, tau=4), "gossip": Gossip(probability=0.25)}


class Batches:
    """A learner's share of a data set, in another order for every pass."""

    def __init__(self, data: Dataset, batch_size: int, rank: int, size: int) -> None:
        self.train, self.check = (_tensors(each, rank, size) for each in (data.train, data.check))
        self.batch_size = batch_size
        self.n_batch_train = len(data.train) // size // batch_size
        self.n_batch_val = len(data.check or ()) // size // batch_size
        self.generator = torch.Generator().manual_seed(rank)
        self.start("train")
        self.start("val")

    def start(self, mode: str) -> None:
        if mode == "train":
            order = torch.randperm(len(self.train[1]), generator=self.generator)
            self._next_train = iter(order.split(self.batch_size))
        else:
            self._next_val = iter(torch.arange(len(self.check[1])).split(self.batch_size))

    def next_train(self) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = next(self._next_train)
        return self.train[0][chosen], self.train[1][chosen]

    def next_val(self) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = next(self._next_val)
        return self.check[0][chosen], self.check[1][chosen]


class LeNet:
    """LeNet with PyTorch's optimiser. It follows the contract `crossbow.foreign.ModelClass`."""

    def __init__(self, config: dict[str, Any]) -> None:
        torch.manual_seed(config["seed"])
        self.network = nn.Sequential(
            nn.Conv2d(1, 20, 5),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(800, 500),
            nn.ReLU(),
            nn.Linear(500, 10),
        )
        self.params = list(self.network.parameters())
        self.optimiser = torch.optim.SGD(self.params, lr=0.02, momentum=0.9, weight_decay=5e-4)
        self.data = Batches(config["data"], config["batch_size"], config["rank"], config["size"])
        self.epoch, self.n_epochs, self.n_subb = 0, config["epochs"], 1

    def compile_iter_fns(self) -> None:
        """Do nothing: PyTorch needs no compilation."""

    def train_iter(self, count: int, recorder: IterationRecorder) -> None:
        recorder.start()
        images, labels = self.data.next_train()
        self.optimiser.zero_grad()
        scores = self.network(images)
        cost = nn.functional.cross_entropy(scores, labels)
        cost.backward()
        self.optimiser.step()
        recorder.end("calc")
        recorder.train_error(count, cost.item(), _error(scores, labels))

    def val_iter(self, count: int, recorder: IterationRecorder) -> None:
        images, labels = self.data.next_val()
        with torch.no_grad():
            scores = self.network(images)
        recorder.val_error(count, nn.functional.cross_entropy(scores, labels).item(), _error(scores, labels))

    def reset_iter(self, mode: str) -> None:
        self.data.start(mode)

    def adjust_hyperp(self, epoch: int) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] *= 0.9

    def cleanup(self) -> None:
        """Do nothing: there are no resources to release."""


def _error(scores: torch.Tensor, labels: torch.Tensor) -> float:
    return float((scores.argmax(dim=1) != labels).float().mean())


def _tensors(examples: Any, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.from_numpy(np.ascontiguousarray(examples.images[rank::size])).float() / 255
    return images, torch.from_numpy(np.ascontiguousarray(examples.labels[rank::size])).long()


def train(rule: Rule, data: Dataset, *, learners: int = 2, epochs: int = 3, batch_size: int = 16) -> History:
    """Train LeNet with learners of this process, and return the records."""
    torch.set_num_threads(1)  # each learner has its own thread
    config = {"data": data, "seed": 1, "epochs": epochs, "batch_size": batch_size}
    model, system = ModelConf(rule=rule), SystemConf(threads_per_learner=1)
    with ForeignModels(LeNet, learners, config) as models, models.context(model, system=system) as context:
        return context.train_and_test(models.epochs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", choices=[*RULES, "all"], default="all", help="default: %(default)s, one by one")
    parser.add_argument("--learners", type=int, default=2, help="learners of this process (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--mnist", metavar="DIR", help="train on MNIST's files in this directory")
    options = parser.parse_args(arguments)

    def work() -> int:
        data = mnist(options.mnist) if options.mnist else digits()
        for name in RULES if options.rule == "all" else [options.rule]:
            if cluster.rank == 0:
                print(f"{name}:")
            train(RULES[name], data, learners=options.learners, epochs=options.epochs)
        return 0

    return leave(run_command("torch_learner", work))


if __name__ == "__main__":
    raise SystemExit(main())
