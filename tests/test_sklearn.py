"""The classifier and the regressor with scikit-learn's interface."""

from __future__ import annotations

import doctest
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import crossbow.sklearn
from crossbow import SSGD, ConfigurationError, DataflowNode, Operator, Sequential, SolverConf
from crossbow.kernels.cpu.simd import processor
from crossbow.ops import Conv, InnerProduct, Pool, ReLU, SoftMax, SoftMaxLoss
from crossbow.sklearn import CrossbowClassifier, CrossbowRegressor, NetworkEstimator
from examples.custom_operator import Swish

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]


def wide(number_of_classes: int) -> Sequential:
    return Sequential(InnerProduct(40), ReLU("tanh"), InnerProduct(number_of_classes))


def images(number_of_classes: int) -> Sequential:
    return Sequential(Conv(16, 3), ReLU(), Pool(), InnerProduct(number_of_classes))


def linear_network(number_of_targets: int) -> Sequential:
    return Sequential(InnerProduct(number_of_targets))


def with_an_own_operator(number_of_classes: int) -> Sequential:
    return Sequential(InnerProduct(20), Swish(), InnerProduct(number_of_classes))


LANES = processor.VECTORS.lanes
ROUNDED = "in float32, the last bits of a prediction depend on its place in the batch"


def rounded(estimator: NetworkEstimator) -> dict[str, str]:
    """The checks that expect more digits than float32 has. Classes, and on AVX-512 their probabilities, have enough."""
    order, subset = "check_methods_sample_order_invariance", "check_methods_subset_invariance"
    failing = [order] * (LANES < 16) + [order, subset] * isinstance(estimator, CrossbowRegressor)
    return dict.fromkeys(failing, ROUNDED)


@pytest.mark.slow  # the tests below are the fast ones
@parametrize_with_checks(
    [CrossbowClassifier(random_state=0), CrossbowRegressor(random_state=0)],
    expected_failed_checks=rounded,
)
def test_it_passes_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_predictions_do_not_depend_on_the_order_of_samples() -> None:
    classifier = CrossbowClassifier(random_state=0, epochs=2).fit(X, Y)
    there, back = classifier.predict_proba(X), classifier.predict_proba(X[::-1])[::-1]
    # Probabilities near 0 have larger relative errors: those of exponentials of large differences.
    np.testing.assert_allclose(there, back, rtol=1e-6, atol=1e-12)


@pytest.mark.slow
def test_doctests() -> None:
    """A grid search."""
    assert doctest.testmod(crossbow.sklearn).failed == 0


def test_it_learns_classes_of_any_type() -> None:
    classifier = CrossbowClassifier(random_state=0).fit(X, NAMES)
    assert classifier.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert classifier.score(X, NAMES) > 0.93
    probabilities = classifier.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert (classifier.predict(X) == classifier.classes_[probabilities.argmax(axis=1)]).all()
    assert [record.epoch for record in classifier.history_.records] == list(range(1, 21))


def test_a_fitted_classifier_is_pickled_and_cloned() -> None:
    classifier = CrossbowClassifier(with_an_own_operator, epochs=3, random_state=0).fit(X, Y)
    other = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(other.predict_proba(X), classifier.predict_proba(X))
    again = clone(classifier)
    assert not hasattr(again, "model_")
    np.testing.assert_array_equal(again.fit(X, Y).predict_proba(X), classifier.predict_proba(X))


@pytest.mark.slow
@pytest.mark.parametrize("targets", [(), (1,), (2,)])
def test_a_regressor_has_one_target_or_several(targets: tuple[int, ...]) -> None:
    x, y = load_diabetes(return_X_y=True)
    y = np.broadcast_to(y.reshape(-1, *[1] * len(targets)), (len(y), *targets)) * np.arange(1, np.prod(targets) + 1)
    y = y.reshape(len(x), *targets)
    pipeline = make_pipeline(StandardScaler(), CrossbowRegressor(wide, learning_rate=0.001, learners=2, random_state=0))
    model = TransformedTargetRegressor(pipeline, transformer=StandardScaler()).fit(x[:300], y[:300])
    assert model.predict(x[300:]).shape == (142, *targets)
    assert model.score(x[300:], y[300:]) > 0.4  # as of scikit-learn's linear regression


def test_a_regressor_predicts_targets_in_their_shape() -> None:
    """A linear function of the features is found exactly."""
    x = np.random.default_rng(0).normal(size=(200, 3))
    y = x @ [[1.0, -2.0], [0.5, 0.0], [0.0, 3.0]] + [4.0, -1.0]
    linear = CrossbowRegressor(linear_network, solver=SolverConf(learning_rate=0.05), random_state=0).fit(x, y)
    np.testing.assert_allclose(linear.predict(x), y, atol=1e-3)
    other = pickle.loads(pickle.dumps(linear))
    np.testing.assert_array_equal(other.predict(x), linear.predict(x))
    assert CrossbowRegressor(epochs=1, random_state=0).fit(x, y[:, 0]).predict(x).shape == (200,)


def test_targets_that_are_no_numbers_are_named() -> None:
    with pytest.raises(ValueError, match=r"y: expected finite numbers that float32 can hold\. Received: "):
        CrossbowRegressor().fit(X, Y * 1e39)
    with pytest.raises(ConfigurationError, match=r"CrossbowRegressor: network must be a function of the number of out"):
        CrossbowRegressor(wide(1)).fit(X, Y)


@pytest.mark.slow
def test_a_search_in_a_pipeline_chooses_network_and_rule() -> None:
    pipeline = make_pipeline(StandardScaler(), CrossbowClassifier(epochs=5, learners=2, random_state=0))
    grid = {"crossbowclassifier__network": [wide, with_an_own_operator], "crossbowclassifier__rule": [None, SSGD()]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, NAMES)
    assert search.best_score_ > 0.75
    assert len(search.cv_results_["params"]) == 4


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_images(dtype: Any) -> None:
    digits = load_digits(n_class=4)
    x = digits.images[:, None].astype(dtype) * (15 if dtype == np.uint8 else 1 / 16)
    x = x.astype(dtype)
    classifier = CrossbowClassifier(images, epochs=8, random_state=0).fit(x[:400], digits.target[:400])
    assert classifier.score(x[400:], digits.target[400:]) > 0.9
    with pytest.raises(ValueError, match=r"X: expected examples of shape \(N, 1, 8, 8\) .*\(2, 1, 4, 8\)"):
        classifier.predict(x[:2, :, :4])


@pytest.mark.parametrize("shape", [(1, 8, 8), (64,)])
def test_pixels_are_scaled_as_a_data_set_scales_them(shape: tuple[int, ...]) -> None:
    """The same numbers as floating point, already scaled, give the same model."""
    digits = load_digits(n_class=4)
    pixels = (digits.images * 15).astype(np.uint8).reshape(-1, *shape)
    scaled = pixels.astype(np.float32) * np.float32(1 / 255)
    models = [CrossbowClassifier(epochs=2, random_state=0).fit(x, digits.target) for x in (pixels, scaled)]
    np.testing.assert_allclose(models[0].predict_proba(pixels), models[1].predict_proba(scaled), atol=1e-5)
    with pytest.raises(
        ValueError, match=r"X: expected examples of shape \(N, .* and type uint8, as in `fit`\. Received"
    ):
        models[0].predict(scaled)


def test_pixels_without_a_channel_are_named() -> None:
    x, y = np.zeros((150, 8, 8), np.uint8), Y
    message = (
        r"X: expected images \(N, C, H, W\), .*so add the channel, X\[:, None\]\. Received: shape \(150, 8, 8\), uint8"
    )
    for fit in (CrossbowClassifier().fit, CrossbowRegressor().fit):
        with pytest.raises(ValueError, match=message):
            fit(x, y)
    fitted = CrossbowClassifier(epochs=1, random_state=0).fit(x.astype(np.float32), y)
    with pytest.raises(ValueError, match=message):
        fitted.predict(x)


@pytest.mark.parametrize(
    ("estimator", "expected", "received"),
    [
        (CrossbowClassifier, r"\(N, 3\), one number for each class", r"\(N, 50\) from 'innerproduct1'$"),
        (CrossbowRegressor, r"\(N, 1\), one number for each target", r"\(N, 50\) from 'innerproduct1'$"),
    ],
)
def test_a_network_of_another_number_of_outputs(estimator: Any, expected: str, received: str) -> None:
    message = rf"{estimator.__name__}: network must return a network whose output is {expected}\. Received: {received}"
    with pytest.raises(ConfigurationError, match=message):
        estimator(lambda outputs: linear_network(50)).fit(X, Y)


def test_a_network_with_a_loss_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"output is \(N, 3\), .*Received: \(N\) from 'softmaxloss1'$"):
        CrossbowClassifier(lambda classes: Sequential(InnerProduct(classes), SoftMax(), SoftMaxLoss())).fit(X, Y)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (wide(3), r"network must be a function of the number of outputs .*\. Received: Sequential\(innerproduct1, "),
        (
            lambda classes: DataflowNode(Operator(InnerProduct(classes))),
            r"network must return a SubGraph, .*Received: Data",
        ),
    ],
)
def test_what_builds_no_network(network: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CrossbowClassifier(network).fit(X, Y)


@pytest.mark.slow
def test_a_whole_solver_takes_the_place_of_its_fields() -> None:
    adam = SolverConf(
        method="adam", learning_rate=0.01, policy="cosine", decay_steps=20, learning_rate_step_unit="epochs"
    )
    search = GridSearchCV(CrossbowClassifier(random_state=0), {"solver": [adam, SolverConf(learning_rate=1e-6)]}, cv=2)
    assert search.fit(X, Y).best_params_ == {"solver": adam}
    last = search.best_estimator_.history_.records[-1]
    assert 0 < last.learning_rate < 1e-4
    with pytest.raises(ConfigurationError, match=r"solver must be a SolverConf or None\. Received: 'adam'"):
        CrossbowClassifier(solver="adam").fit(X, Y)


def test_numbers_that_are_too_large_are_named() -> None:
    with pytest.raises(ValueError, match=r"X: expected finite numbers that float32 can hold\. Received: "):
        CrossbowClassifier().fit(X * 1e39, Y)


@pytest.mark.slow
def test_without_scikit_learn_one_sentence_tells_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn'] = None\ntry: import crossbow.sklearn\nexcept Exception as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("crossbow.sklearn needs the package sklearn: pip install 'crossbow[zoo]'. Received: ")
