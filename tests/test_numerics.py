"""`SystemConf(check_numerics=True)`: a number that is not finite is reported where it arises, with its task."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
    Dataflow,
    Dataset,
    ExecutionContext,
    NonFiniteLossError,
    SolverConf,
    SubGraph,
    SystemConf,
    TaskError,
    TrainingUnit,
)
from crossbow.conf import configuration
from crossbow.data.order import TrainingOrder
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import CheckFinite
from crossbow.ops import (
    BatchNorm,
    Constant,
    Conv,
    ElementWiseOp,
    EuclideanLoss,
    InnerProduct,
    Kernel,
    Pool,
    ReLU,
    VariableSpec,
)
from crossbow.testing import FakeCollective
from crossbow.types import ConfigurationError, DataError, NonFiniteError, Shape
from tests.combinations import pairwise
from tests.support import (
    KERNELS,
    Action,
    Array,
    Probe,
    Trap,
    blobs,
    chain,
    context,
    engine_of,
    perceptron,
    pictures,
    same_weights,
    tell,
    training,
    until,
)

TASKS = TrainingUnit.TASKS
SEVERAL = pytest.mark.parametrize(("devices", "learners"), [("cpu", 1), ("cpu", 2), ("cpu", 3), ("cpu:0/2,cpu:1/2", 2)])
VALUES = pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)


def fails(running: ExecutionContext, work: Any = None) -> TaskError:
    """The error of a training run, with its cause."""
    with pytest.raises(TaskError) as caught:
        (work or (lambda: running.train(200, TASKS)))()
    error = caught.value
    assert isinstance(error.__cause__, NonFiniteError)
    assert f"task {error.task} failed in operator {error.operator!r}" in str(error)
    assert "expected finite numbers in the" in str(error)
    return error


def assert_usable(running: ExecutionContext) -> None:
    assert all(np.isfinite(value).all() for value in running.variables.values())
    assert np.isfinite(running.train(12, TASKS).loss)
    assert np.isfinite(running.test().loss)


# In the data.


def poison(images: Array, example: int, value: float) -> None:
    """A data set refuses such numbers when it is made; afterwards its memory is its owner's."""
    images[example].reshape(-1)[1] = value


@pairwise
@KERNELS
@SEVERAL
@VALUES
def test_an_example(value: float, devices: str, learners: int, kernels: str) -> None:
    data = blobs()
    with context(data=data, devices=devices, learners=learners, kernels=kernels, check_numerics=True) as running:
        poison(data.train.images, 17, value)
        error = fails(running)
        order, batch = TrainingOrder(40, 4, seed=0), np.empty(4, np.intp)
        order.indices(error.task, batch)
        assert 17 in batch
        assert error.task < 10  # in the first epoch
        assert error.operator == "batch"
        counted = "1 NaN and 0 infinite" if np.isnan(value) else "0 NaN and 1 infinite"
        row = list(batch).index(17)
        assert f"in the input. Received: {counted} of 24, the first at ({row}, 1)" in str(error)
        poison(data.train.images, 17, 0.5)
        assert_usable(running)


@KERNELS
@pytest.mark.parametrize("learners", [1, 2])
def test_an_example_to_test_with(learners: int, kernels: str) -> None:
    data = blobs()
    with context(data=data, learners=learners, kernels=kernels, check_numerics=True, check_batch_size=4) as running:
        assert data.check is not None
        poison(data.check.images, 9, np.nan)
        error = fails(running, running.test)
        assert (error.task, error.operator) == (2, "batch")
        assert "the first at (1, 1)" in str(error)
        poison(data.check.images, 9, 0.5)
        assert_usable(running)


@KERNELS
@pytest.mark.parametrize("learners", [1, 2])
def test_an_image_to_predict(learners: int, kernels: str) -> None:
    """A task is a part of the images, here of eight. What is left of it is not reported when there are fewer the next
    time."""
    images = blobs().train.images.copy()
    with context(learners=learners, kernels=kernels, check_numerics=True, check_batch_size=8) as running:
        expected = running.predict(images)
        poison(images, 21, np.nan)
        error = fails(running, lambda: running.engine.predict(images))  # `predict` itself refuses them
        assert (error.task, error.operator) == (2, "batch")
        assert "in the input. Received: 1 NaN and 0 infinite of 48, the first at (5, 1)" in str(error)
        np.testing.assert_allclose(running.predict(images[:3]), expected[:3], rtol=1e-6)
        error = fails(running, lambda: running.engine.predict(images[21:22]))
        assert (error.task, error.operator) == (0, "batch")
        assert_usable(running)
    with context(learners=learners, kernels=kernels) as running:
        np.testing.assert_allclose(running.predict(blobs().train.images), expected, rtol=1e-5)
        with pytest.raises(DataError, match=r"predict: expected finite numbers\. Received: nan in example 0"):
            running.predict(images[21:22])
        assert np.isnan(running.engine.predict(images[21:22])).all()  # no ReLU hides it


@KERNELS
def test_a_label(kernels: str) -> None:
    x, y = np.zeros((8, 3), np.float32), np.ones((8, 1), np.float32)
    data = Dataset((x, y), (x, y))
    network = Dataflow(SubGraph(chain(InnerProduct(number_of_outputs=1), EuclideanLoss())[0]))
    with context(network, data=data, kernels=kernels, check_numerics=True) as running:
        data.train.labels[3] = np.inf
        error = fails(running)
        assert error.operator == "batch"
        assert "in the labels. Received: 0 NaN and 1 infinite of 4" in str(error)


# In the weights.


NETWORKS = {
    "inner product": (
        lambda: training(InnerProduct(number_of_outputs=8), ReLU(), InnerProduct(number_of_outputs=3)),
        0,
    ),
    "second": (lambda: training(InnerProduct(number_of_outputs=8), ReLU(), InnerProduct(number_of_outputs=3)), 2),
    "convolution": (
        lambda: training(
            Conv(number_of_outputs=20, kernel_size=3), ReLU(), Pool(kernel_size=2), InnerProduct(number_of_outputs=3)
        ),
        0,
    ),
    "norm": (
        lambda: training(
            Conv(number_of_outputs=16, kernel_size=3),
            BatchNorm(),
            ReLU(),
            Pool(kernel_size=2),
            InnerProduct(number_of_outputs=3),
        ),
        1,
    ),
}


def spoil(running: ExecutionContext, variable: str) -> None:
    """The base model's variable is no number any more; no file with such a one would be loaded."""
    engine = running.engine
    (segment,) = (segment for segment in engine.program.model if segment.name == variable)
    segment.flat(engine.parts.bases[0].current(engine.tick))[:] = np.nan
    engine_of(running).recovery.restart()


@pairwise
@KERNELS
@SEVERAL
@pytest.mark.parametrize("network", list(NETWORKS))
def test_a_weight(network: str, devices: str, learners: int, kernels: str) -> None:
    """Behind it stands a ReLU, which would make 0 of NaN."""
    make, place = NETWORKS[network]
    data = pictures()
    with context(
        make(), data=data, devices=devices, learners=learners, kernels=kernels, check_numerics=True
    ) as running:
        head = make().graph[place].name
        variables = running.variables
        spoil(running, f"{head}.weights")
        error = fails(running)
        # With several devices, the learners' weights are added up while the learners compute: either is the first.
        if "," in devices and error.operator == "all-reduce":
            assert "in the mean of what learners send" in str(error)
        else:
            assert error.operator == head
            assert "in the output." in str(error)
        assert error.task < running.engine.parts.setting.learners  # all of the first tick fail; one is the first
        spoil(running, f"{head}.weights")
        assert fails(running, running.test).operator == head
        assert fails(running, lambda: running.predict(data.train.images)).operator == head
        running.engine.load(variables, "the test")
        assert_usable(running)


# In operators of one's own.

_now = threading.local()


@configuration
class Spoiler(Kernel):
    """y = factor · x; at one call of one learner a number that it computes is another."""

    train_only: ClassVar[bool] = True

    trap: Trap
    value: float = float("nan")
    what: str = "input"

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return (VariableSpec("factor", (2,), Constant(1.0)),)

    def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
        return self._spoiled("forward", variables["factor"][0] * inputs[0])

    def backward(  # type: ignore[no-untyped-def]
        self, xp: ModuleType, inputs, output, variables, output_gradient
    ):
        x_gradient, gradient = variables["factor"][0] * output_gradient, xp.zeros(2, inputs[0].dtype)
        gradient[0] = (inputs[0] * output_gradient).sum()
        spoiled = self._spoiled("backward", {"input": x_gradient, "factor": gradient}[self.what])
        return [spoiled if self.what == "input" else x_gradient], {
            "factor": spoiled if self.what == "factor" else gradient
        }

    def _spoiled(self, where: str, numbers: Any) -> Any:
        _now.spoil = False
        tell(self.trap, where)
        if _now.spoil:
            numbers = numbers.copy()
            numbers.reshape(-1)[-1] = self.value
        return numbers


def spoiling(where: str, k: int, **options: Any) -> Spoiler:
    """At the eighth call of the last of k learners."""
    return Spoiler(trap=Trap(lambda: setattr(_now, "spoil", True), where=where, learner=k - 1, call=7), **options)


RULES = pytest.mark.parametrize("rule", [SMA(), SMA(tau=3, base_momentum=0.5), SSGD()], ids=str)


@pairwise
@KERNELS
@SEVERAL
@RULES
@pytest.mark.parametrize(
    ("where", "options", "operator", "role"),
    [
        ("forward", {}, "Spoiler1", "output"),
        ("forward", {"value": np.inf}, "Spoiler1", "output"),
        ("backward", {}, "Spoiler1.gradient", "input gradient"),
        ("backward", {"value": -np.inf}, "Spoiler1.gradient", "input gradient"),
        ("backward", {"what": "factor"}, "Spoiler1.gradient", "factor gradient"),
    ],
)
def test_an_operator(
    where: str, options: dict[str, Any], operator: str, role: str, rule: Any, devices: str, learners: int, kernels: str
) -> None:
    k = learners * (devices.count(",") + 1)
    network = perceptron(spoiling(where, k, **options))
    with context(
        network, rule=rule, devices=devices, learners=learners, kernels=kernels, check_numerics=True
    ) as running:
        error = fails(running)
        assert error.operator == operator
        assert error.task == 7 * k + k - 1
        assert f"in the {role}. Received: " in str(error)
        assert_usable(running)


# In the solver's step.

HUGE = 1e30
"""A gradient that is a number in single precision; the step along it, at a rate of 1e10, is not."""


@configuration
class Steep(Kernel):
    """The identity, with a variable on which nothing depends; at one call of one learner its gradient is huge."""

    train_only: ClassVar[bool] = True

    trap: Action
    huge: float = HUGE

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return (VariableSpec("slope", (4, 15), Constant(1.0), learning_rate_multiplier=1e11),)

    def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
        return inputs[0]

    def backward(  # type: ignore[no-untyped-def]
        self, xp: ModuleType, inputs, output, variables, output_gradient
    ):
        _now.spoil = False
        tell(self.trap, "backward")
        gradient = xp.zeros((4, 15), inputs[0].dtype)
        gradient[2, 3] = self.huge if _now.spoil else 0
        return [output_gradient], {"slope": gradient}


def steep(k: int) -> Dataflow:
    """The gradient is huge at the eighth call of the last of k learners."""
    return perceptron(Steep(trap=Trap(lambda: setattr(_now, "spoil", True), where="backward", learner=k - 1, call=7)))


@pairwise
@KERNELS
@SEVERAL
@RULES
@pytest.mark.parametrize("solver", [{}, {"momentum": 0.5}], ids=str)
def test_a_step(solver: dict[str, Any], rule: Any, devices: str, learners: int, kernels: str) -> None:
    """Whoever writes the variable, a learner or what merges gradients, names it."""
    k = learners * (devices.count(",") + 1)
    conf = SolverConf(learning_rate=0.1, **solver)
    with context(
        steep(k), rule=rule, devices=devices, learners=learners, kernels=kernels, solver=conf, check_numerics=True
    ) as running:
        error = fails(running)
        if rule == SSGD():
            assert error.operator == "average"
            assert error.task // k == 7
        else:
            assert error.operator == "optimiser"
            assert error.task == 7 * k + k - 1
        written = "base model's " * (rule == SSGD()) + ("velocity of" if "momentum" in solver else "new value of")
        assert f"expected finite numbers in the {written} 'Steep1.slope'" in str(error)
        assert "Received: 0 NaN and 1 infinite of " in str(error)
        if rule != SSGD() or devices != "cpu" or learners == 1:  # else it is one learner's part of the variable
            assert "Received: 0 NaN and 1 infinite of 60, the first at (2, 3)" in str(error)
        assert_usable(running)


@KERNELS
def test_a_step_of_a_part_of_a_variable(kernels: str) -> None:
    """A learner merges its slice of the vector, whatever variables begin and end in it."""
    network = perceptron(Steep(trap=Trap(lambda: setattr(_now, "spoil", True), where="backward", learner=1, call=7)))
    with context(network, rule=SSGD(), learners=3, kernels=kernels, check_numerics=True) as running:
        error = fails(running)
    what = r"base model's new value of 'Steep1\.slope' \(elements (\d+) to (\d+) as it lies in memory\)"
    found = re.search(what + r"\. Received: 0 NaN and 1 infinite of \d+, the first at \((\d+)\)", str(error))
    assert found is not None
    first, last, position = map(int, found.groups())
    assert first + position == 2 * 15 + 3
    assert (first, last) != (0, 59)


@pytest.mark.slow
@KERNELS
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
@pytest.mark.parametrize(
    ("call", "operator", "what"),
    [
        (6, "all-reduce", r"mean of what learners send of 'Conv0\.\w+'.*"),
        (7, "statistics", "learners' mean of the running statistics"),
    ],
)
def test_a_sum_between_devices(call: int, operator: str, what: str, rule: Any, kernels: str) -> None:
    """A tick has two: of what is sent, and of the statistics."""

    def damage(number: int, vectors: Sequence[Array]) -> None:
        if number == call:
            vectors[1][0] = np.nan

    with context(
        NETWORKS["norm"][0](),
        data=pictures(),
        rule=rule,
        devices="cpu:0/2,cpu:1/2",
        learners=1,
        kernels=kernels,
        collective=FakeCollective(2, inject=damage),
        check_numerics=True,
    ) as running:
        error = fails(running)
        assert (error.task, error.operator) == (6, operator)
        assert re.search(f"between the devices: .*expected finite numbers in the {what}. Received: 1 NaN", str(error))
        assert_usable(running)


@pairwise
@KERNELS
@SEVERAL
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_running_statistics_that_are_merged(rule: Any, devices: str, learners: int, kernels: str) -> None:
    """Somebody else has written into a learner's, after its operator did.

    What learners send under SMA may be merged before the learner of the trap is there: the next merge finds it then. It
    would compete with the learner's next task, which reads the same numbers, so that task waits for the failure."""
    k = learners * (devices.count(",") + 1)
    running: ExecutionContext
    failed = False

    def write(value: float) -> None:
        for statistics in running.engine.members[k - 1].replica.statistics:
            statistics[:] = value

    def wait_for_failure() -> None:
        until(lambda: running.engine.parts.flags.aborted or failed)
        write(1.0)

    # A task calls both probes: backward the trap's first, forward the waiting one's.
    place = ("backward", 14) if rule == SSGD() else ("forward", 15)
    trap = Trap(lambda: write(np.nan), where=place[0], learner=k - 1, call=place[1])
    waiting = Trap(wait_for_failure, learner=k - 1, call=16)
    head = [Conv(number_of_outputs=16, kernel_size=3), Probe(action=waiting), BatchNorm(), Probe(action=trap)]
    head += [Pool(kernel_size=2)]
    with context(
        training(*head, InnerProduct(number_of_outputs=3)),
        data=pictures(),
        rule=rule,
        devices=devices,
        learners=learners,
        kernels=kernels,
        check_numerics=True,
    ) as running:
        error = fails(running)
        failed = True
        assert error.operator == "statistics"
        assert "expected finite numbers in the learners' mean of the running statistics. Received: " in str(error)
        assert_usable(running)


@KERNELS
def test_a_step_that_nobody_checks(kernels: str) -> None:
    with context(steep(1), learners=1, kernels=kernels) as running, pytest.raises(NonFiniteLossError) as caught:
        running.train(200, TASKS)
    assert "the base model has values that are not finite" in str(caught.value)


@KERNELS
@pytest.mark.parametrize("learners", [1, 2])
def test_nothing_is_checked_unless_asked(learners: int, kernels: str) -> None:
    assert SystemConf().check_numerics is False
    network = perceptron(spoiling("backward", learners))
    with context(network, learners=learners, kernels=kernels) as running:
        names = [step.kernel.name for step in running.engine.program.steps]
        assert not any("check_finite" in name for name in names)
        with pytest.raises(NonFiniteLossError):
            running.train(200, TASKS)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_it_is_true_or_false(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="check_numerics"):
        SystemConf(check_numerics=value)


# Where nothing is wrong.


@pairwise
@KERNELS
@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("network", [*NETWORKS, "sum"])
def test_the_numbers_are_the_same(network: str, learners: int, kernels: str) -> None:
    def make() -> Dataflow:
        if network != "sum":
            return NETWORKS[network][0]()
        head = chain(InnerProduct(number_of_outputs=8), ElementWiseOp(coefficients=(0.5,)), ReLU())
        return training(*(node.operator.kernel for node in head), InnerProduct(number_of_outputs=3))

    results = []
    solver = SolverConf(learning_rate=0.05, momentum=0.9)
    for check_numerics in (False, True):
        with context(
            make(), data=pictures(), learners=learners, kernels=kernels, check_numerics=check_numerics, solver=solver
        ) as running:
            history = running.train(24, TASKS)
            results.append((running.variables, history.records[-1].loss, running.test().loss))
            checks = sum("check_finite" in step.kernel.name for step in running.engine.program.steps)
            assert (checks > 0) == check_numerics
    assert same_weights(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]


@pytest.mark.slow
@KERNELS
def test_large_gradients_are_checked_as_a_whole(kernels: str) -> None:
    """Else they come in blocks, each used before the next is computed."""
    wide = lambda: training(InnerProduct(number_of_outputs=1024), ReLU(), InnerProduct(number_of_outputs=1024))  # noqa: E731
    data = Dataset((np.eye(8, 600, dtype=np.float32), np.arange(8) % 3), None, number_of_classes=1024)
    results = []
    for check_numerics in (False, True):
        with context(wide(), data=data, learners=1, kernels=kernels, check_numerics=check_numerics) as running:
            steps = running.engine.program.steps
            blocks = [step.operator for step in steps if step.kernel.blocks is not None]
            assert bool(blocks) == (kernels == "onednn" and not check_numerics)
            running.train(3, TASKS)
            results.append(running.variables)
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)
        assert np.abs(value).max() > 0


@KERNELS
def test_everything_that_is_computed_is_looked_through(kernels: str) -> None:
    make, _ = NETWORKS["norm"]
    with context(make(), data=pictures(), kernels=kernels, check_numerics=True) as running:
        steps = running.engine.program.steps
        for number, step in enumerate(steps):
            if step.elided or "check_finite" in step.kernel.name:
                continue
            written = [role for role in step.kernel.writes if role != "kept"]
            behind = steps[number + 1 : number + 1 + len(written)]
            assert [(other.operator, other.places["value"]) for other in behind] == [
                (step.operator, step.places[role]) for role in written
            ]
        assert "check_finite" in running.engine.program.describe()


def test_what_is_said_of_an_array() -> None:
    values = np.zeros((2, 3, 2))[:, ::-1]
    check = Reference(np.float64).prepare(CheckFinite("output"))
    assert check.reads == ("value",)
    assert check.writes == ()
    (call,) = check.bind({"value": values})
    call()
    values[1, 2, 0], values[1, 0, 1], values[1, 2, 1] = np.nan, -np.inf, np.nan
    with pytest.raises(
        NonFiniteError, match=r"the output. Received: 2 NaN and 1 infinite of 12, the first at \(1, 0, 1\)"
    ):
        call()
