"""NumPy's integers, floats and booleans are numbers wherever users give some."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import crossbow
from crossbow import (
    Checkpoints,
    Dataflow,
    Dataset,
    ExecutionContext,
    ModelConf,
    Phase,
    Profile,
    SolverConf,
    SystemConf,
    TrainingUnit,
)
from crossbow.conf import plain
from crossbow.data import synthetic
from crossbow.ops import (
    MSRA,
    Constant,
    Conv,
    Gaussian,
    Gradient,
    InnerProduct,
    Pool,
    ReLU,
    TotalLoss,
    Uniform,
    Values,
    VariableSpec,
    Xavier,
)
from crossbow.ops.conv import Convolving
from crossbow.ops.scale import AlongAxes
from crossbow.ops.softmax import AlongAxis
from crossbow.runtime.limits import Limits
from crossbow.synch import RULES, SMA, Gossip, Grouping, RuleSequence, simulate
from crossbow.testing import check_gradients, run_operator
from models.lenet import lenet
from tests.operators.table import CASES

INTEGERS, FLOATS = (np.int64, np.uint8, np.int16), (np.float64, np.float32, np.float16, np.longdouble)

BASES = (AlongAxes, AlongAxis, Convolving)
"""Classes whose fields operators have."""
CONFIGURATIONS: list[Any] = [
    *(case.kernel for case in CASES),
    Checkpoints("directory", keep=2),
    Profile("trace.json.gz", tasks=3, warm_up=2),
    SolverConf(policy="multistep", step_values=(3, 5), momentum=0.5, weight_decay=0.25, clip_gradient_norm=2.0),
    SolverConf(
        policy="clr",
        step_size=3,
        maximum_learning_rate=0.5,
        momentum=0.5,
        minimum_momentum=0.25,
        super_convergence=True,
        annihilation_steps=2,
        final_learning_rate=0.0,
    ),
    SolverConf(method="adamw", beta1=0.5, beta2=0.75, epsilon=0.125, weight_decay=0.25),
    SolverConf(method="rmsprop", rho=0.5, momentum=0.25),
    SolverConf(policy="inv", gamma=0.5, power=0.25, warmup_steps=3),
    ModelConf(batch_size=8, wpc=4, slack=0, skip=0.5, restart=False, test_interval=2, check_batch_size=16),
    SystemConf(learners_per_device=2, threads_per_learner=1, seed=7, graphs=False, deterministic=True),
    Limits(count=3, seconds=1.5, loss=0.5, accuracy=0.75),
    Constant(0.5),
    Values(np.ones(2)),
    Uniform(minimum=-0.5, maximum=1.0),
    Gaussian(mean=0.5, std=2.0, truncate=True),
    MSRA(truncate=True),
    Xavier(gain=2.0),
    TotalLoss(weights=(1.0, 0.25)),
    Gradient(input=1),
    *(rule() for name, rule in RULES.items() if rule not in (Gossip, Grouping)),
    SMA(alpha=0.25, tau=2, base_momentum=0.5),
    Gossip(probability=0.25),
    Grouping(groups=((0, 1), (2,))),
    RuleSequence(((SMA(), 3), (SMA(alpha=0.5), 2))),
]


def classes() -> Iterator[type]:
    """Every configuration of the package with a field that may hold a number."""
    for module in pkgutil.walk_packages(crossbow.__path__, "crossbow."):
        if module.name.endswith("__main__"):
            continue
        for name, item in vars(importlib.import_module(module.name)).items():
            own = inspect.isclass(item) and item.__module__ == module.name and not name.startswith("_")
            if own and dataclasses.is_dataclass(item) and hasattr(item.__init__, "__wrapped__"):
                yield item


def as_numpy(value: Any, turn: int) -> Any:
    """Numbers as NumPy's, of the types in turn; a float only where it is the same number there."""
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        integers = [t for t in INTEGERS if np.iinfo(t).min <= value <= np.iinfo(t).max]
        return integers[turn % len(integers)](value)
    if isinstance(value, float):
        floats = [t for t in FLOATS if float(t(value)) == value]
        return floats[turn % len(floats)](value)
    if isinstance(value, tuple):
        return tuple(as_numpy(each, turn) for each in value)
    return value


def of_numpy(value: Any) -> bool:
    return isinstance(value, np.generic) or (isinstance(value, tuple) and any(map(of_numpy, value)))


def test_every_configuration_with_numbers_is_among_them() -> None:
    numbers = ("int", "float", "bool", "Sizes", "Padding")
    wanted = {
        each
        for each in classes()
        if any(name in str(field.type) for field in dataclasses.fields(each) for name in numbers)
        and not issubclass(each, Gradient)  # all have the one field of `Gradient`
        and each not in BASES
    }
    assert {each.__name__ for each in wanted - {type(conf) for conf in CONFIGURATIONS}} == set()
    assert {"Conv", "SystemConf", "SMA", "Limits", "Constant"} <= {each.__name__ for each in classes()}


@pytest.mark.parametrize("turn", range(len(FLOATS)))
def test_a_configuration_takes_them_and_keeps_pythons(turn: int) -> None:
    for conf in CONFIGURATIONS:
        values = {f.name: getattr(conf, f.name) for f in dataclasses.fields(conf) if f.init}
        made = type(conf)(**{name: as_numpy(value, turn) for name, value in values.items()})
        assert made == conf
        assert [name for name, value in vars(made).items() if of_numpy(value)] == []


def test_an_array_is_not_a_number() -> None:
    assert isinstance(plain(np.array(8)), np.ndarray)
    with pytest.raises(crossbow.ConfigurationError, match=r"Received: batch_size=an array of shape \(\), int64"):
        ModelConf(batch_size=np.array(8))


def digits(number: Callable[[Any], Any]) -> Dataset:
    sizes = {"training": number(40), "check": number(10), "seed": number(3)}
    return synthetic((number(1), number(14), number(14)), number(10), **sizes)


def simulated(number: Callable[[Any], Any]) -> Any:
    settings = {"tasks_per_epoch": number(4.0), "skip": number(0.0), "restart": number(True), "seed": number(2)}
    return simulate(
        SMA(tau=number(1)),
        initial=[8.0, 4.0],
        gradient=lambda w, learner, task: w,
        learners=number(2),
        speeds=[number(1.0), number(2.0)],
        tasks=number(6),
        variables=[number(1), number(1)],
        **settings,
    ).base


def operator_run(number: Callable[[Any], Any]) -> Any:
    options = {"seed": number(3), "task": number(1), "examples": number(1), "in_place": number(False)}
    conv = Conv(number_of_outputs=number(3), kernel_size=(number(2), number(2)))
    return run_operator(conv, [np.ones((2, 1, 4, 4))], **options).outputs[0]


def gradient_error(number: Callable[[Any], Any]) -> Any:
    sizes = {"directions": number(1), "step": number(2.0**-13), "tolerance": number(2.0**-16), "seed": number(5)}
    return check_gradients(InnerProduct(number_of_outputs=number(2)), [(number(2), number(3))], **sizes)


def labels_of(number: Callable[[Any], Any]) -> Any:
    data = Dataset((np.zeros((2, 5)), np.array([0, -1])), number_of_classes=number(3), ignored_label=number(-1))
    return np.array(data.number_of_classes)


def trained(number: Callable[[Any], Any]) -> Any:
    """The losses of a short run whose every number is given by `number`."""
    model = ModelConf(batch_size=number(8), wpc=number(2), rule=SMA(alpha=number(0.5), tau=number(1)))
    system = SystemConf(
        learners_per_device=number(2), threads_per_learner=number(1), seed=number(9), kernels="reference"
    )
    solver = SolverConf(learning_rate=number(0.25), policy="step", step_size=number(2), gamma=number(0.5))
    flow = lenet(dropout=number(0.5), number_of_outputs=number(10))
    with ExecutionContext([flow], data=digits(number), model=model, solver=solver, system=system) as context:
        history = context.train_and_test(number(4), TrainingUnit.TASKS, duration=number(512.0))
        context.train_until_condition(number(64.0), number(1))
    return np.array([record.loss for record in history.records])


FUNCTIONS = (
    lambda number: digits(number).train.images,
    simulated,
    operator_run,
    gradient_error,
    labels_of,
    trained,
)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("turn", [0, 1])
def test_functions_take_them(function: Callable[[Callable[[Any], Any]], Any], turn: int) -> None:
    np.testing.assert_array_equal(function(lambda value: as_numpy(value, turn)), function(lambda value: value))


def test_own_operators_may_give_shapes_and_factors_of_them() -> None:
    spec = VariableSpec("weights", (np.int64(2), np.int32(3)), Gaussian(std=np.float32(0.5)), np.float32(2))
    assert spec == VariableSpec("weights", (2, 3), Gaussian(std=0.5), 2.0)
    assert [type(each) for each in (*spec.shape, spec.learning_rate_multiplier)] == [int, int, float]


def test_sizes_of_windows() -> None:
    """As outsiders gave them: what came of it was an OverflowError, or a page of the compiler's."""
    x = np.random.default_rng(0).standard_normal((2, 16, 9, 8))
    for device in ("reference", "cpu"):
        for made, plainly in (
            (Conv(number_of_outputs=np.int64(16), kernel_size=np.int64(3), padding=np.uint8(1)),) * 2,
            (Pool(kernel_size=np.int64(2), stride=(np.int32(2), np.int64(1))), Pool(kernel_size=2, stride=(2, 1))),
            (ReLU(negative_slope=np.float32(0.25)), ReLU(negative_slope=0.25)),
        ):
            ours, theirs = (run_operator(kernel, [x], device=device).outputs[0] for kernel in (made, plainly))
            np.testing.assert_array_equal(ours, theirs)


def test_a_dataflow_is_described_for_them() -> None:
    flow: Dataflow = lenet()
    assert flow.phase is Phase.TRAIN
    assert flow.describe((np.int64(2), np.int32(1), np.int64(28), 28)) == flow.describe((2, 1, 28, 28))
