from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.kernels import why_not_compiled
from crossbow.kernels.requests import BatchNormSetting
from crossbow.ops import BatchNorm, BatchNormGradient, Constant, Gaussian, InnerProduct, Values
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, GraphError, Phase, Shape
from tests.combinations import in_turn
from tests.support import blobs, context, training

Array = NDArray[Any]
DEVICES = pytest.mark.parametrize(
    "device",
    [
        "reference",
        pytest.param("cpu", marks=pytest.mark.skipif(why_not_compiled() is not None, reason=f"{why_not_compiled()}")),
    ],
)
SHAPES: list[Shape] = [(6, 3), (4, 5, 3), (3, 4, 5, 2), (2, 3, 2, 3, 2)]


def draw(shape: Shape, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(1.5, 2.0, shape).astype(np.float32)


def own_variables(channels: int) -> dict[str, Array]:
    return {"weights": draw((channels,), 8), "bias": draw((channels,), 9)}


@DEVICES
def test_a_worked_example(device: str) -> None:
    """Channel 0: 1, 3, 5, 7, of mean 4 and variance 5, with √(5 + ε) = 3. Channel 1: four times 5, √(0 + ε) = 2."""
    x = np.array([[[1, 3], [5, 5]], [[5, 7], [5, 5]]], np.float32)
    gradient = np.array([[[1, 0], [1, 2]], [[0, 0], [3, 4]]], np.float32)
    run = run_operator(
        BatchNorm(epsilon=4.0),
        [x],
        output_gradient=gradient,
        variables={"weights": [2, 2], "bias": [1, -1]},
        device=device,
    )
    thirds = np.array([[[-3, 1], [-3, -3]], [[5, 9], [-3, -3]]])
    np.testing.assert_allclose(run.outputs[0], thirds / 3, rtol=1e-6)
    # dx = 2/3 · (dy − 1/4 + x̂ / 4) with x̂ = −1, −1/3, 1/3, 1; and dy − 10/4.
    eighteenths = np.array([[[6, -4], [-27, -9]], [[-2, 0], [9, 27]]])
    np.testing.assert_allclose(run.input_gradients[0], eighteenths / 18, atol=1e-6)
    np.testing.assert_allclose(run.variable_gradients["weights"], [-1, 0], atol=1e-6)
    np.testing.assert_allclose(run.variable_gradients["bias"], [1, 10], rtol=1e-6)
    np.testing.assert_allclose(run.statistics["running_mean"], [0.4, 0.5], rtol=1e-6)
    np.testing.assert_allclose(run.statistics["running_variance"], [0.9 + 0.1 * 20 / 3, 0.9], rtol=1e-6)


@DEVICES
@pytest.mark.parametrize("shape", SHAPES)
def test_the_output_is_of_the_biased_variance_and_the_running_one_is_unbiased(shape: Shape, device: str) -> None:
    x, axes = draw(shape), (0, *range(2, len(shape)))
    run = run_operator(BatchNorm(moving_average_fraction=0.0), [x], device=device)
    np.testing.assert_allclose(run.outputs[0].mean(axis=axes), 0, atol=1e-5)
    np.testing.assert_allclose(run.outputs[0].var(axis=axes), 1, rtol=1e-4)
    np.testing.assert_allclose(run.statistics["running_mean"], x.mean(axis=axes), rtol=1e-5)
    np.testing.assert_allclose(run.statistics["running_variance"], x.var(axis=axes, ddof=1), rtol=1e-5)


@DEVICES
def test_all_of_the_running_statistics_can_be_kept(device: str) -> None:
    before = {"running_mean": draw((3,), 1), "running_variance": draw((3,), 2)}
    run = run_operator(BatchNorm(moving_average_fraction=1.0), [draw((6, 3))], statistics=before, device=device)
    for name, value in before.items():
        np.testing.assert_array_equal(run.statistics[name], value)


@DEVICES
def test_a_cumulative_average_is_the_mean_of_all_tasks(device: str) -> None:
    """The values before the first task count for nothing."""
    batches, statistics = [draw((6, 3), seed) for seed in range(5)], {"running_mean": np.full(3, 100.0)}
    for x in batches:
        statistics = run_operator(BatchNorm(statistics="cma"), [x], statistics=statistics, device=device).statistics
    assert statistics["count"] == [5]
    np.testing.assert_allclose(statistics["running_mean"], np.mean([x.mean(0) for x in batches], axis=0), rtol=1e-5)
    expected = np.mean([x.var(0, ddof=1) for x in batches], axis=0)
    np.testing.assert_allclose(statistics["running_variance"], expected, rtol=1e-5)


@in_turn
@DEVICES
@pytest.mark.parametrize(("statistics", "fraction"), [("fixed", 0.9), ("fixed", 0.25), ("cma", 0.9)])
@pytest.mark.parametrize("shape", SHAPES)
def test_several_steps_are_those_of_pytorch(shape: Shape, fraction: float, statistics: str, device: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    dtype = np.float64 if device == "reference" else np.float32
    operator = BatchNorm(epsilon=0.01, moving_average_fraction=fraction, statistics=statistics)
    kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
    momentum = None if statistics == "cma" else 1 - fraction
    theirs = kind[len(shape)](shape[1], eps=0.01, momentum=momentum, dtype=torch.float64)
    variables = own_variables(shape[1])
    theirs.weight.data, theirs.bias.data = (torch.tensor(variables[name]).double() for name in ("weights", "bias"))
    options: dict[str, Any] = {"variables": variables, "device": device, "dtype": dtype}
    tolerance: dict[str, Any] = (
        {"rtol": 1e-12, "atol": 1e-12} if device == "reference" else {"rtol": 1e-5, "atol": 1e-5}
    )
    running: dict[str, Array] = {}
    for step in range(6):
        x, gradient = draw(shape, step), draw(shape, 100 + step)
        ours = run_operator(operator, [x], output_gradient=gradient, statistics=running, **options)
        running = ours.statistics
        leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        theirs.zero_grad()
        output = theirs.train()(leaf)
        output.backward(torch.tensor(gradient, dtype=torch.float64))
        checked = run_operator(operator, [x], statistics=running, phase=Phase.CHECK, **options)
        for received, expected in (
            (ours.outputs[0], output.detach()),
            (ours.input_gradients[0], leaf.grad),
            (ours.variable_gradients["weights"], theirs.weight.grad),
            (ours.variable_gradients["bias"], theirs.bias.grad),
            (running["running_mean"], theirs.running_mean),
            (running["running_variance"], theirs.running_var),
            (checked.outputs[0], theirs.eval()(leaf).detach()),
        ):
            np.testing.assert_allclose(received, expected.numpy(), **tolerance)


# Training and testing.


@DEVICES
@pytest.mark.parametrize("shape", SHAPES)
def test_a_test_uses_the_running_statistics_and_changes_none(shape: Shape, device: str) -> None:
    channels = shape[1]
    statistics = {"running_mean": draw((channels,), 3), "running_variance": np.abs(draw((channels,), 4))}
    variables, x = own_variables(channels), draw(shape)
    run = run_operator(BatchNorm(), [x], variables=variables, statistics=statistics, phase=Phase.CHECK, device=device)
    per_channel = (channels, *[1] * (len(shape) - 2))
    mean, variance, weights, bias = (
        vector.reshape(per_channel).astype(np.float64) for vector in (*statistics.values(), *variables.values())
    )
    np.testing.assert_allclose(run.outputs[0], weights * (x - mean) / np.sqrt(variance + 1e-5) + bias, rtol=1e-4)
    for name, value in statistics.items():
        np.testing.assert_array_equal(run.statistics[name], value)


@DEVICES
def test_an_example_is_tested_alone_as_among_others(device: str) -> None:
    statistics = {"running_mean": draw((3,), 3), "running_variance": np.abs(draw((3,), 4))}
    x, options = draw((7, 3)), {"statistics": statistics, "phase": Phase.CHECK, "device": device}
    together = run_operator(BatchNorm(), [x], **options).outputs[0]  # type: ignore[arg-type]
    for number, example in enumerate(x):
        alone = run_operator(BatchNorm(), [example[None]], **options).outputs[0]  # type: ignore[arg-type]
        np.testing.assert_array_equal(alone[0], together[number])


@pytest.mark.parametrize("shape", [(1, 4), (1, 4, 1), (1, 4, 1, 1), (1, 1)])
def test_one_value_in_a_channel_is_enough_for_testing_only(shape: Shape) -> None:
    run_operator(BatchNorm(), [draw(shape)], phase=Phase.CHECK)
    text = f"expected more than one value per channel to train on. Received: an input of shape {shape}"
    with pytest.raises(ValueError, match=re.escape(text)):
        BatchNorm().check_training(shape)
    for enough in ((2, 4), (1, 4, 2), (1, 1, 1, 2)):
        BatchNorm().check_training(enough)


def test_a_batch_with_one_value_in_a_channel_names_the_node() -> None:
    layers = InnerProduct(number_of_outputs=3), BatchNorm(), InnerProduct(number_of_outputs=3)
    text = r"node 'BatchNorm1' \(BatchNorm\): expected more than one value per channel to train on.*\(1, 3\)"
    with pytest.raises(GraphError, match=text):
        context(training(*layers), batch_size=1)
    with context(training(*layers), data=blobs(check=5), batch_size=2, check_batch_size=1) as running:
        running.train(1)
        assert running.test().examples == 5


@pytest.mark.parametrize("bias", [True, False])
def test_what_an_operator_has(bias: bool) -> None:
    operator, x = BatchNorm(bias=bias), (2, 3, 4, 5)
    assert operator.output_shape(x) == x
    assert [(s.name, s.shape) for s in operator.variables(x)] == [("weights", (3,)), ("bias", (3,))][: 1 + bias]
    expected = [("running_mean", (3,)), ("running_variance", (3,))]
    assert [(s.name, s.shape) for s in operator.running_statistics(x)] == expected
    cumulative = BatchNorm(bias=bias, statistics="cma")
    assert [(s.name, s.shape) for s in cumulative.running_statistics(x)] == [*expected, ("count", (1,))]
    assert operator.gradient() == BatchNormGradient(input=0)


def test_initial_values() -> None:
    run = run_operator(BatchNorm(statistics="cma"), [draw((2, 3))], phase=Phase.CHECK)
    assert {name: value.tolist() for name, value in run.variables.items()} == {"weights": [1] * 3, "bias": [0] * 3}
    assert {name: value.tolist() for name, value in run.statistics.items()} == {
        "running_mean": [0] * 3,
        "running_variance": [1] * 3,
        "count": [0],
    }
    values = np.array([1.0, 2.0, 3.0])
    other = BatchNorm(mean_initialiser=Values(values), variance_initialiser=Constant(4.0))
    run = run_operator(other, [draw((2, 3))], phase=Phase.CHECK)
    assert run.statistics["running_mean"].tolist() == [1, 2, 3]
    assert run.statistics["running_variance"].tolist() == [4, 4, 4]


def test_gradients_without_a_bias_and_with_large_weights() -> None:
    operator = BatchNorm(bias=False, weight_initialiser=Gaussian(mean=-3.0, std=2.0), statistics="cma")
    assert check_gradients(operator, [(5, 3, 2, 2)]) < 1e-6


@pytest.mark.parametrize("fused", [False, True])
def test_what_is_fused_is_part_of_the_setting(fused: bool) -> None:
    site: Any = SimpleNamespace(fused_relu=not fused, fused_sum=fused)
    setting = BatchNorm(epsilon=0.5, statistics="cma", bias=False).setting(site)
    assert setting == BatchNormSetting(0.5, None, bias=False, relu=not fused, sum=fused)


# What is refused.


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"epsilon": 0}, "epsilon must be"),
        ({"epsilon": -1e-5}, "epsilon must be"),
        ({"epsilon": float("nan")}, "epsilon must be"),
        ({"moving_average_fraction": 1.5}, "moving_average_fraction must be"),
        ({"moving_average_fraction": -0.1}, "moving_average_fraction must be"),
        ({"moving_average_fraction": "0.9"}, "moving_average_fraction must be"),
        ({"statistics": "global"}, "statistics must be one of"),
        ({"bias": 1}, "bias must be"),
        (
            {"count_initialiser": Constant(3.0)},
            r"count_initialiser must be left at Constant\(value=0.0\) with statistics='fixed', where it does nothing",
        ),
        ({"count_initialiser": Values([0.0]), "statistics": "fixed"}, "count_initialiser must be left at"),
        (
            {"moving_average_fraction": 0.5, "statistics": "cma"},
            "moving_average_fraction must be left at 0.9 with statistics='cma', where it does nothing",
        ),
        (
            {"bias_initialiser": Constant(0.5), "bias": False},
            r"bias_initialiser must be left at Constant\(value=0.0\) with bias=False, where it does nothing",
        ),
        (
            {"bias_learning_rate_multiplier": 2, "bias": False},
            "bias_learning_rate_multiplier must be left at 1.0 with bias=False, where it does nothing",
        ),
    ],
    ids=str,
)
def test_bad_configurations(configuration: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"BatchNorm: {message}.*Received: {next(iter(configuration))}="):
        BatchNorm(**configuration)


def test_a_count_to_begin_with() -> None:
    assert BatchNorm(count_initialiser=Constant(0.0)) == BatchNorm()
    *_, count = BatchNorm(statistics="cma", count_initialiser=Constant(3.0)).running_statistics((4, 2))
    assert (count.name, count.initialiser) == ("count", Constant(3.0))


def test_an_input_without_channels() -> None:
    with pytest.raises(ValueError, match=r"expected an input of shape \(N, C\) or \(N, C, …\). Received: \(3,\)"):
        BatchNorm().output_shape((3,))


def test_statistics_that_do_not_fit() -> None:
    x = draw((4, 3))
    with pytest.raises(ConfigurationError, match=r"names among.*running_mean.*Received.*'mean'"):
        run_operator(BatchNorm(), [x], statistics={"mean": np.zeros(3)})
    with pytest.raises(ConfigurationError, match="running_mean"):
        run_operator(BatchNorm(), [x], statistics={"running_mean": np.zeros(4)})
    with pytest.raises(ValueError, match=r"'running_variance' has the shape of its values, \(2,\)"):
        BatchNorm(variance_initialiser=Values(np.ones(2))).running_statistics((4, 3))
    layers = BatchNorm(variance_initialiser=Values(np.ones(2))), InnerProduct(number_of_outputs=3)
    text = r"node 'BatchNorm0' \(BatchNorm\): .*'running_variance' has the shape.*\(2,\)"
    with pytest.raises(GraphError, match=text):
        context(training(*layers))
