"""The solver's methods on a network with a convolution, step by step beside PyTorch's optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow import SSGD, ExecutionContext, SolverConf, TrainingUnit
from crossbow.data.order import TrainingOrder
from crossbow.ops import Conv, InnerProduct, Pool, ReLU
from tests.combinations import in_turn
from tests.support import FAST, context, pictures, training

torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")

Array = NDArray[Any]

STEPS, BATCH, SEED = 25, 4, 5
DATA = pictures(48, 4)
NAMES = ("Conv0.weights", "Conv0.bias", "InnerProduct3.weights", "InnerProduct3.bias")

CASES: dict[str, dict[str, Any]] = {
    "nesterov": {"momentum": 0.9, "momentum_method": "nesterov", "weight_decay": 0.01},
    "l1": {"momentum": 0.9, "weight_decay": 0.01, "regularisation": "l1"},
    "clipped": {"momentum": 0.9, "weight_decay": 0.01, "clip_gradient_norm": 0.8},
    "together": {
        "momentum": 0.9,
        "momentum_method": "nesterov",
        "weight_decay": 0.01,
        "regularisation": "l1",
        "clip_gradient_norm": 0.8,
    },
    "adam": {"method": "adam", "learning_rate": 0.01, "weight_decay": 0.01, "epsilon": 1e-4},
    "adamw, clipped": {
        "method": "adamw",
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "epsilon": 1e-4,
        "clip_gradient_norm": 0.8,
    },
    "rmsprop": {"method": "rmsprop", "learning_rate": 0.001, "momentum": 0.9, "epsilon": 1e-3},
    "adagrad": {"method": "adagrad", "learning_rate": 0.01, "weight_decay": 0.01, "epsilon": 1e-3},
}
MULTIPLIERS = {"all alike": (1.0, 1.0, 1.0, 1.0), "one for each": (0.5, 2.0, 1.0, 0.0)}


def running(solver: SolverConf, multipliers: tuple[float, ...], learners: int, kernels: str, precision: str) -> Any:
    conv, inner = (
        {"weight_learning_rate_multiplier": weight, "bias_learning_rate_multiplier": bias}
        for weight, bias in (multipliers[:2], multipliers[2:])
    )
    network = training(
        Conv(number_of_outputs=5, kernel_size=3, **conv),
        ReLU(),
        Pool(kernel_size=2, stride=2),
        InnerProduct(number_of_outputs=3, **inner),
    )
    return context(
        network,
        data=DATA,
        solver=solver,
        rule=SSGD(),
        learners=learners,
        batch_size=BATCH // learners,
        seed=SEED,
        kernels=kernels,
        precision=precision,
    )


def crossbow(engine: ExecutionContext, learners: int) -> Iterator[dict[str, Array]]:
    """The variables after each step."""
    for _ in range(STEPS):
        engine.train(learners, TrainingUnit.TASKS)
        yield engine.variables


def pytorch(
    start: dict[str, Array], solver: SolverConf, multipliers: tuple[float, ...]
) -> Iterator[tuple[dict[str, Array], float]]:
    """The same, and the norm of each gradient."""
    torch.set_num_threads(1)
    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(45, 3)).double()
    parameters = dict(zip(NAMES, model.parameters(), strict=True))
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(start[name].astype(np.float64)))
    groups = [
        {"params": [parameter], "lr": solver.learning_rate * multiplier}
        for parameter, multiplier in zip(parameters.values(), multipliers, strict=True)
    ]
    optimiser = optimiser_of(solver, groups)
    order, indices = TrainingOrder(len(DATA.train), BATCH, SEED), np.empty(BATCH, np.intp)
    for step in range(STEPS):
        order.indices(step, indices)
        x = torch.from_numpy(DATA.train.images[indices]).double() / 255
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), torch.from_numpy(DATA.train.labels[indices]).long()).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), solver.clip_gradient_norm or 1e30))
        if solver.regularisation == "l1":  # which PyTorch leaves to whoever writes the loss
            for parameter in parameters.values():
                parameter.grad += solver.weight_decay * torch.sign(parameter.detach())
        optimiser.step()
        yield {name: value.detach().numpy().copy() for name, value in parameters.items()}, norm


def optimiser_of(solver: SolverConf, groups: list[dict[str, Any]]) -> Any:
    """PyTorch's optimiser for the solver's method."""
    decay = {"weight_decay": solver.weight_decay if solver.regularisation == "l2" else 0.0}
    betas = {"betas": (solver.beta1, solver.beta2), "eps": solver.epsilon}
    momentum = {"momentum": solver.momentum}
    name, arguments = {
        "sgd": ("SGD", {**momentum, "nesterov": solver.momentum_method == "nesterov"}),
        "adam": ("Adam", betas),
        "adamw": ("AdamW", betas),
        "rmsprop": ("RMSprop", {**momentum, "alpha": solver.rho, "eps": solver.epsilon}),
        "adagrad": ("Adagrad", {"eps": solver.epsilon}),
    }[solver.method]
    return getattr(torch.optim, name)(groups, lr=solver.learning_rate, **arguments, **decay)


@in_turn
@pytest.mark.parametrize("multipliers", MULTIPLIERS.values(), ids=MULTIPLIERS.keys())
@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize(
    ("kernels", "precision", "tolerance"),
    [
        pytest.param("reference", "float64", 1e-9, id="reference-float64"),
        pytest.param("onednn", "float32", 1e-4, id="onednn-float32", marks=FAST.marks),
    ],
)
def test_as_pytorch_computes_it(
    values: dict[str, Any],
    multipliers: tuple[float, ...],
    learners: int,
    kernels: str,
    precision: str,
    tolerance: float,
) -> None:
    """Two learners with half the batch each are one with the whole, clipping included."""
    solver = SolverConf(**{"learning_rate": 0.1, **values})
    if solver.clip_gradient_norm is not None:
        tolerance = max(tolerance, 1e-4)  # PyTorch divides by the norm + 1e-6
    with running(solver, multipliers, learners, kernels, precision) as engine:
        theirs, norms = pytorch(engine.variables, solver, multipliers), []
        for step, ours in enumerate(crossbow(engine, learners)):
            expected, norm = next(theirs)
            norms.append(norm)
            for name in NAMES:
                error = np.abs(ours[name] - expected[name]).max()
                assert error <= tolerance, f"{name} after step {step}"
    if solver.clip_gradient_norm is not None:
        assert min(norms) < solver.clip_gradient_norm < max(norms)
