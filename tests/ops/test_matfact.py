from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import Dataflow, DataflowNode, Dataset, ExecutionContext, Operator, Predictor, SolverConf, SubGraph
from crossbow.kernels import why_not_compiled
from crossbow.ops import (
    Constant,
    Gaussian,
    InnerProduct,
    MatFact,
    MatFactGradient,
    MatFactPrediction,
    Reshape,
    SoftMax,
    SoftMaxLoss,
)
from crossbow.runtime.scheduler import Callbacks
from crossbow.synch import SSGD
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, DataError, GraphError, LabelRange, TaskError
from tests.support import KERNELS, chain, context, same_weights

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
DEVICES = pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
ROWS, COLUMNS, LATENTS = 12, 9, 2
STEEP = SolverConf(learning_rate=1e6, momentum=0.9, weight_decay=0.5)


def matfact(**values: Any) -> MatFact:
    wide = Gaussian(std=0.5)
    defaults = {"rows": ROWS, "columns": COLUMNS, "latents": LATENTS, "users_initialiser": wide}
    return MatFact(**{**defaults, "items_initialiser": wide, **values})


def ratings(check: int = 20) -> Dataset:
    """All elements of a matrix of rank 2, some of them kept for the test."""
    generator = np.random.default_rng(0)
    full = generator.standard_normal((ROWS, LATENTS)) @ generator.standard_normal((LATENTS, COLUMNS))
    pairs = generator.permutation([(i, j) for i in range(ROWS) for j in range(COLUMNS)]).astype(np.float32)
    values = full[pairs[:, 0].astype(int), pairs[:, 1].astype(int)].astype(np.float32)
    return Dataset((pairs[check:], values[check:]), (pairs[:check], values[:check]))


def factorise(kernel: MatFact, data: Dataset | None = None, **options: Any) -> ExecutionContext:
    dataflow = Dataflow(SubGraph(DataflowNode(Operator("mf", kernel))))
    return context(dataflow, data=data or ratings(), batch_size=8, **options)


def test_shapes_and_variables() -> None:
    kernel = matfact()
    assert kernel.output_shape((8, 2)) == (1,)
    assert [(spec.name, spec.shape) for spec in kernel.variables((8, 2))] == [("users", (12, 2)), ("items", (9, 2))]
    assert kernel.gradient() == MatFactGradient()
    kernel.check_labels(LabelRange((8,), False, -1, 1), (8, 2))


@pytest.mark.parametrize("shape", [(8,), (8, 3), (8, 2, 1)])
def test_wrong_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shape \(N, 2\), with pairs of user and item\. Received: \(8"):
        matfact().output_shape(shape)


def test_the_shape_of_a_prediction() -> None:
    kernel = matfact().prediction()
    wide = Gaussian(std=0.5)
    sizes = {"rows": ROWS, "columns": COLUMNS, "latents": LATENTS}
    assert kernel == MatFactPrediction(**sizes, users_initialiser=wide, items_initialiser=wide)
    assert kernel.output_shape((8, 2)) == (8,)
    assert [(spec.name, spec.shape) for spec in kernel.variables((8, 2))] == [("users", (12, 2)), ("items", (9, 2))]
    with pytest.raises(ValueError, match=r"shape \(N, 2\), with pairs of user and item\. Received: \(8, 3\)"):
        kernel.output_shape((8, 3))
    with pytest.raises(ConfigurationError, match=r"MatFactPrediction: columns must be at most 16777216"):
        MatFactPrediction(rows=1, columns=2**24 + 1, latents=2)


@pytest.mark.parametrize("labels", [LabelRange((8,), True, 0, 1), LabelRange((8, 2), False, 0, 1)])
def test_wrong_labels(labels: LabelRange) -> None:
    with pytest.raises(ValueError, match=r"expected floating-point ratings of shape \(8,\). Received: "):
        matfact().check_labels(labels, (8, 2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": 0}, "rows must be an integer ≥ 1"),
        ({"columns": 2**24 + 1}, "columns must be at most 16777216"),
        ({"latents": 1.5}, "latents must be an integer ≥ 1"),
        ({"regularisation": -0.1}, "regularisation must be a finite number ≥ 0"),
        ({"learning_rate": 0}, "learning_rate must be a finite number > 0 or None"),
        ({"users_learning_rate_multiplier": -1}, "users_learning_rate_multiplier must be a finite number ≥ 0"),
        ({"items_learning_rate_multiplier": "1"}, "items_learning_rate_multiplier must be a finite number ≥ 0"),
    ],
)
def test_bad_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"MatFact: {message}"):
        matfact(**values)


@DEVICES
def test_numbers_by_hand(device: str) -> None:
    """User 1 twice, user 0 never, and a third example that is padding."""
    run = run_operator(
        MatFact(rows=2, columns=2, latents=2, regularisation=0.5),
        [np.array([[1, 0], [1, 1], [0, 0]]), np.array([3.0, 4.0, 100.0])],
        variables={"users": np.array([[9.0, 9.0], [1.0, 2.0]]), "items": np.array([[1.0, 0.0], [0.0, 1.0]])},
        device=device,
        examples=2,
    )
    # e = 3 − 1 and 4 − 2; |u|² = 5 twice, |v|² = 1 twice
    assert run.outputs[0].item() == 4 + 4 + 0.5 * (5 + 1 + 5 + 1)
    # 2 (λ u − e v) of both examples
    expected = 2 * ((np.array([0.5, 1]) - 2 * np.array([1, 0])) + (np.array([0.5, 1]) - 2 * np.array([0, 1])))
    np.testing.assert_array_equal(run.variable_gradients["users"], [[0, 0], expected])
    np.testing.assert_array_equal(run.variable_gradients["items"], [[1 - 4, -8], [-4, 1 - 8]])
    assert not run.input_gradients[0].any()


def test_gradients() -> None:
    pairs = np.array([[0, 0], [3, 1], [3, 0], [3, 1]])
    check_gradients(
        MatFact(rows=4, columns=2, latents=3),
        [(4, 2), (4,)],
        labels=np.array([1.0, -2.0, 0.5, 3.0]),
        draw=lambda generator, shape: pairs.astype(np.float64),
    )


@pytest.mark.parametrize("bad", [-1, 12, 1.5, 2**24, np.inf])
@pytest.mark.parametrize("column", [0, 1])
@DEVICES
def test_a_number_that_is_no_row(device: str, column: int, bad: float) -> None:
    pairs = np.zeros((3, 2))
    pairs[1, column] = bad
    with pytest.raises(DataError) as caught:
        run_operator(matfact(), [pairs, np.zeros(3)], device=device)
    expected = ("11 for every user", "8 for every item")[column]
    received = f"{bad}, in example 1 of the batch"
    assert str(caught.value) == f"expected a whole number from 0 to {expected}. Received: {received}"
    run_operator(matfact(), [pairs, np.zeros(3)], device=device, examples=1)  # padding may hold anything


@KERNELS
@pytest.mark.parametrize("learners", [1, 2])
def test_a_number_that_is_no_row_ends_the_run(learners: int, kernels: str) -> None:
    """In training as in testing; what has to be looked for in the data is named, and the context stays usable."""
    data, chosen = ratings(), np.zeros(8, np.intp)
    assert data.check is not None
    data.train.images[5, 0], data.check.images[9, 1] = ROWS, -3
    text = (
        "'mf' on learner {}: ExampleError: expected a whole number from 0 to {}. Received: {}, in example {} of the "
        "batch (example {} of the data set)"
    )
    with factorise(matfact(), data, kernels=kernels, learners=learners, check_batch_size=8) as run:
        with pytest.raises(TaskError) as caught:
            run.train(1)
        task = caught.value.task
        run.engine.order.indices(task, chosen)
        assert text.format(task % learners, "11 for every user", ROWS, list(chosen).index(5), 5) in str(caught.value)
        assert isinstance(caught.value.__cause__, DataError)
        with pytest.raises(TaskError) as caught:
            run.test()
        assert text.format(1 % learners, "8 for every item", -3, 1, 9) in str(caught.value)
        assert (caught.value.task, caught.value.operator) == (1, "mf")
        data.train.images[5, 0], data.check.images[9, 1] = 0, 0
        run.train(1)
        assert np.isfinite(run.test().loss)


# In a context.


@pytest.mark.slow
@KERNELS
@pytest.mark.parametrize("learning_rate", [None, 0.05])
def test_a_matrix_of_low_rank_is_found(learning_rate: float | None, kernels: str) -> None:
    kernel = matfact(regularisation=1e-4, learning_rate=learning_rate)
    solver = SolverConf(learning_rate=0.05) if learning_rate is None else STEEP
    with factorise(kernel, kernels=kernels, solver=solver) as run:
        before = run.test().loss
        history = run.train(300)
        assert history.loss < 0.01  # of a batch
        assert run.test().loss < 0.01 * before  # of elements that were not shown


@KERNELS
@pytest.mark.parametrize("rule", [None, SSGD()])
def test_its_own_update_is_a_plain_step_whatever_the_solver(rule: SSGD | None, kernels: str) -> None:
    models = []
    for learning_rate, solver in ((None, SolverConf(learning_rate=0.01)), (0.01, STEEP)):
        with factorise(matfact(learning_rate=learning_rate), kernels=kernels, solver=solver, rule=rule) as run:
            history = run.train(3)
            models.append(run.variables)
            assert history.records[-1].learning_rate == 0.01
    assert same_weights(*models)


def test_its_own_update_is_that_of_the_original() -> None:
    """One learner's first task: w ← w + η (2 e v − 2 λ u), on the values before the batch."""
    data, rate, decay = ratings(), 0.05, 0.3
    kernel = matfact(learning_rate=rate, regularisation=decay)
    with factorise(kernel, data, learners=1, rule=SSGD(), solver=STEEP, precision="float64") as run:
        before = run.variables
        chosen = np.zeros(8, np.intp)
        run.engine.order.indices(0, chosen)
        run.engine.run(1, Callbacks())
        after = run.variables
    users, items = before["mf.users"].copy(), before["mf.items"].copy()
    for (i, j), rating in zip(data.train.images[chosen].astype(int), data.train.labels[chosen], strict=True):
        u, v = before["mf.users"][i], before["mf.items"][j]
        error = rating - u @ v
        users[i] += rate * (2 * error * v - 2 * decay * u)
        items[j] += rate * (2 * error * u - 2 * decay * v)
    np.testing.assert_allclose(after["mf.users"], users, rtol=1e-12)
    np.testing.assert_allclose(after["mf.items"], items, rtol=1e-12)


@KERNELS
@pytest.mark.parametrize("learning_rate", [None, 0.01], ids=["the solver's", "its own"])
@pytest.mark.parametrize("rule", [None, SSGD()], ids=["sma", "ssgd"])
def test_multipliers_of_the_learning_rate(rule: SSGD | None, learning_rate: float | None, kernels: str) -> None:
    """Users keep their values; items go three times as far in the first tick, or as far at three times the rate."""
    steps = {}
    for users, items, scale in ((1, 1, 1), (0, 3, 1), (1, 1, 3)):
        own = None if learning_rate is None else learning_rate * scale
        kernel = matfact(learning_rate=own, users_learning_rate_multiplier=users, items_learning_rate_multiplier=items)
        solver = SolverConf(learning_rate=0.01 * scale) if learning_rate is None else STEEP
        with factorise(kernel, kernels=kernels, solver=solver, rule=rule, learners=1) as run:
            before = run.variables
            run.engine.run(1 if rule else 2, Callbacks())  # SMA's z is a tick behind
            steps[users, items, scale] = {name: value - before[name] for name, value in run.variables.items()}
    plain, multiplied, steep = steps.values()
    assert np.abs(plain["mf.users"]).max() > 0
    assert not multiplied["mf.users"].any()
    np.testing.assert_allclose(multiplied["mf.items"], 3 * plain["mf.items"], rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(multiplied["mf.items"], steep["mf.items"], rtol=1e-5, atol=1e-8)


def test_latents_that_start_equal_stay_equal() -> None:
    """Why the initial values are not 1, as they were in the original."""
    ones = {"users_initialiser": Constant(1.0), "items_initialiser": Constant(1.0)}
    with factorise(matfact(**ones, learning_rate=0.01)) as run:
        run.train(2)
        users = run.variables["mf.users"]
    np.testing.assert_array_equal(users[:, 0], users[:, 1])
    assert len(np.unique(users)) > 1


def test_with_its_own_update_it_is_alone() -> None:
    before = chain(InnerProduct(number_of_outputs=2))[0]
    before.connect_to(DataflowNode(Operator("mf", matfact(learning_rate=0.1))))
    with pytest.raises(
        GraphError, match=r"'mf'.*: expected a gradient, because it lies between variables and the loss"
    ):
        context(Dataflow(SubGraph(before)), data=ratings())
    # Beside it, where nothing of the loss depends on it.
    fork = chain(SoftMax())[0]
    fork.connect_to(DataflowNode(Operator("mf", matfact(learning_rate=0.1))))
    fork.connect_to(DataflowNode(Operator("other", InnerProduct(number_of_outputs=2))))
    with pytest.raises(GraphError, match=r"'mf'.*: expected no other operator with variables.* Received: 'other'"):
        context(Dataflow(SubGraph(fork)), data=ratings())


@DEVICES
def test_predictions_by_hand(device: str) -> None:
    tables = {"users": np.array([[1.0, 2.0], [3.0, 4.0]]), "items": np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])}
    kernel = MatFactPrediction(rows=2, columns=3, latents=2)
    run = run_operator(kernel, [np.array([[0, 0], [0, 2], [1, 1]])], variables=tables, device=device)
    assert run.outputs[0].tolist() == [1, 3, 4]
    for pair, what in (([2, 0], "1 for every user. Received: 2"), ([0, -1], "2 for every item. Received: -1")):
        with pytest.raises(DataError, match=rf"from 0 to {what}, in example 1 of the batch"):
            run_operator(kernel, [np.array([[0, 0], pair])], variables=tables, device=device)


@KERNELS
def test_a_context_predicts_ratings(kernels: str) -> None:
    """Of any pairs; a wrong one is named, and the context stays usable."""
    pairs = np.array([[3, 8], [0, 0], [11, 2]], np.float32)
    with factorise(matfact(), kernels=kernels) as trained:
        trained.train(3)
        users, items = (trained.variables[f"mf.{name}"] for name in ("users", "items"))
        expected = [users[int(u)] @ items[int(v)] for u, v in pairs]
        np.testing.assert_allclose(trained.predict(pairs), expected, rtol=1e-5)
        with pytest.raises(TaskError, match=r"11 for every user\. Received: 12, in example"):
            trained.predict(np.array([[0, 0], [12, 0]], np.float32))
        np.testing.assert_allclose(trained.predict(pairs), expected, rtol=1e-5)


def test_an_untrained_network_predicts_with_its_initial_values() -> None:
    kernel = matfact(rows=2, columns=2, users_initialiser=Constant(2.0), items_initialiser=Constant(3.0))
    with Predictor(SubGraph(DataflowNode(Operator("mf", kernel)))) as predictor:
        assert predictor(np.array([[0, 1], [1, 1]], np.float32)).tolist() == [12, 12]


def test_ratings_are_inputs_of_a_network() -> None:
    """A prediction is not trained, so it needs no gradient."""
    nodes = chain(
        MatFactPrediction(rows=2, columns=2, latents=3), Reshape((1,)), InnerProduct(2), SoftMax(), SoftMaxLoss()
    )
    x = np.array([[0, 1], [1, 1]], np.float32)
    with context(Dataflow(SubGraph(nodes[0])), data=Dataset((x, np.array([0, 1], np.int32))), batch_size=2) as trained:
        before = trained.variables
        trained.train(3)
        after = trained.variables
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert changed == ["InnerProduct2.weights", "InnerProduct2.bias"]
