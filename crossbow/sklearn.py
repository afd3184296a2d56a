"""A classifier and a regressor with scikit-learn's interface, for its searches, pipelines and cross-validation.

Needs scikit-learn: `pip install 'crossbow[zoo]'`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import shown
from crossbow.context import ExecutionContext
from crossbow.data import Dataset
from crossbow.dataflow import Sequential, SubGraph
from crossbow.dataflow.description import BUILT_IN
from crossbow.dataflow.graph import build
from crossbow.dataflow.validate import infer_shapes
from crossbow.extras import optional_module
from crossbow.monitors.verbosity import Verbosity
from crossbow.ops import EuclideanLoss, InnerProduct, ReLU, SoftMax, SoftMaxLoss
from crossbow.ops.kernel import Kernel
from crossbow.predictor import Predictor
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.solver import SolverConf
from crossbow.synch import SSGD, Rule
from crossbow.types import ConfigurationError, Shape

optional_module("sklearn", "crossbow.sklearn", "zoo")

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # noqa: E402 - after the message
from sklearn.utils import check_random_state  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

Build = Callable[[int], SubGraph]


def perceptron(number_of_outputs: int) -> Sequential:
    """The default network: a perceptron with one hidden layer of 100 outputs."""
    return Sequential(InnerProduct(100), ReLU(), InnerProduct(number_of_outputs))


class NetworkEstimator(BaseEstimator):  # type: ignore[misc]
    """Common base class, with the parameters, and with training and prediction of a network."""

    def __init__(
        self,
        network: Build = perceptron,
        *,
        epochs: int = 20,
        batch_size: int = 16,
        learning_rate: float | None = None,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        solver: SolverConf | None = None,
        rule: Rule | None = None,
        learners: int | str = 1,
        devices: str = "cpu",
        random_state: Any = None,
        verbose: Verbosity = 0,
    ) -> None:
        self.network = network
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.solver = solver
        self.rule = rule
        self.learners = learners
        self.devices = devices
        self.random_state = random_state
        self.verbose = verbose

    def _train(self, x: NDArray[Any], labels: NDArray[Any], outputs: int, *loss: Kernel) -> None:
        """Train a network of this number of outputs, which the operators of the loss follow."""
        classes = outputs if isinstance(self, CrossbowClassifier) else None
        self.image_dtype_, self.image_shape_ = x.dtype, x.shape[1:]
        data = Dataset((x, labels), number_of_classes=classes, sequences=True)
        network = Sequential(self._network(outputs, data.image_shape), *loss)
        rule = (
            SSGD() if self.rule is None and self.learners == 1 else self.rule
        )  # with one learner, SMA would take half steps
        model = ModelConf(batch_size=min(self.batch_size, len(x)), rule=rule)
        threads = 1 if self.devices.startswith("cpu") else None
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        system = SystemConf(
            devices=self.devices, learners_per_device=self.learners, threads_per_learner=threads, seed=seed
        )
        with ExecutionContext(network, data=data, model=model, solver=self._solver(), system=system) as context:
            self.history_ = context.train(self.epochs, verbose=self.verbose)
            with tempfile.TemporaryDirectory() as directory:
                context.save(Path(directory) / "model.safetensors")
                self.model_ = (Path(directory) / "model.safetensors").read_bytes()
        kinds = {type(node.operator.kernel) for node in network.nodes}
        self.operators_ = tuple(kind for kind in kinds if BUILT_IN.get(kind.__name__) is not kind)

    def _outputs(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The output of the fitted network for each example."""
        check_is_fitted(self, "model_")
        x = self._examples(validate_data(self, X, reset=False, allow_nd=True, dtype=None))
        if x.shape[1:] != self.image_shape_ or x.dtype != self.image_dtype_:
            expected = f"examples of shape {_with_examples(self.image_shape_)} and type {self.image_dtype_}"
            raise ValueError(f"X: expected {expected}, as in `fit`. Received: {x.shape}, {x.dtype}")
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model.safetensors"
            path.write_bytes(self.model_)
            with Predictor.load(path, self.devices, operators=self.operators_) as predictor:
                outputs: NDArray[Any] = predictor(x)
        return outputs

    @staticmethod
    def _examples(x: Any) -> NDArray[Any]:
        """uint8 examples unchanged, because a `Dataset` scales them, and all others as float32. Raises ValueError if a
        number is too large, or images have no channel."""
        array = np.asarray(x)
        if array.dtype == np.uint8:
            if array.ndim == 3:
                raise ValueError(
                    "X: expected images (N, C, H, W), or sequences (N, C, L) that are not uint8; these may be "
                    f"grayscale images, so add the channel, X[:, None]. Received: shape {array.shape}, uint8"
                )
            return array
        return _as_float32("X", array)

    def _solver(self) -> SolverConf:
        if self.solver is None:
            default = self._default_solver()
            rate = default.learning_rate if self.learning_rate is None else self.learning_rate
            return replace(default, learning_rate=rate, weight_decay=self.weight_decay)
        if not isinstance(self.solver, SolverConf):
            raise self._refused("solver must be a SolverConf or None", self.solver)
        return self.solver

    def _default_solver(self) -> SolverConf:
        raise NotImplementedError

    def _network(self, number_of_outputs: int, image_shape: Shape) -> SubGraph:
        """The network without loss. Raises ConfigurationError unless its output is (N, number_of_outputs)."""
        if not callable(self.network):
            raise self._refused(
                "network must be a function of the number of outputs that returns a SubGraph", self.network
            )
        network = self.network(number_of_outputs)
        if not isinstance(network, SubGraph):
            raise self._refused("network must return a SubGraph, as a Sequential, without loss", network)
        graph = build(network.nodes)
        last = graph[network.nodes.index(network.last)]
        output = infer_shapes(graph, (1, *image_shape))[last.order][1:]
        if output != (number_of_outputs,):
            what = "class" if isinstance(self, CrossbowClassifier) else "target"
            raise ConfigurationError(
                f"{type(self).__name__}: network must return a network whose output is (N, {number_of_outputs}), one "
                f"number for each {what}. Received: {_with_examples(output)} from {last.name!r}"
            )
        return network

    def _refused(self, expected: str, received: Any) -> ConfigurationError:
        return ConfigurationError(f"{type(self).__name__}: {expected}. Received: {shown(received)}")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.non_deterministic = self.learners == "auto"
        return tags


class CrossbowClassifier(ClassifierMixin, NetworkEstimator):  # type: ignore[misc]
    """A network that is trained as a classifier of scikit-learn.

    X: features (N, F), images (N, C, H, W), or examples of any other shape that a `Dataset` takes. uint8 is scaled to
    [0, 1], as in a `Dataset`, and all other types become float32. y: the classes of the examples, (N,), of any type.

    network: a function of the number of classes, which returns the network without softmax and loss: a `SubGraph`,
    such as a `Sequential`, whose output is (N, classes). Default: `perceptron`.
    epochs, batch_size: number of epochs, and of examples in a batch, which is never larger than the training set.
    learning_rate, momentum, weight_decay: fields of `SolverConf`; learning_rate: None is 0.02. solver: a complete
    `SolverConf` that replaces them, for example for Adam or a schedule. rule: the rule that combines the learners; None
    is SMA() or, with one learner, plain steps of the solver.
    learners: number of learners per device, each with one thread on a CPU; "auto" finds the number. devices: as in
    `SystemConf`.
    random_state: seed of the initial values and the order of the examples; an integer makes results reproducible.
    verbose: as in `ExecutionContext`.

    After `fit`, `classes_` has the classes, `history_` the `History`, `n_features_in_` the size of the first axis of an
    example, and `model_` the saved model, as the bytes of a file. Every prediction loads the model; for many small
    ones, write these bytes to a file for `Predictor.load`.

    See also: `CrossbowRegressor`.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import GridSearchCV
    >>> search = GridSearchCV(CrossbowClassifier(random_state=0), {"epochs": [1, 10]}, cv=2)
    >>> search.fit(*load_iris(return_X_y=True)).best_params_
    {'epochs': 10}
    """

    def fit(self, X: Any, y: Any) -> CrossbowClassifier:  # noqa: N803 - scikit-learn's name
        """Train a new network. Raises ValueError if the data are invalid, and Crossbow's errors if the settings are
        invalid."""
        X, y = validate_data(self, X, y, allow_nd=True, dtype=None)  # noqa: N806
        check_classification_targets(y)
        x = self._examples(X)
        self.classes_, labels = np.unique(y, return_inverse=True)
        self._train(x, labels, len(self.classes_), SoftMax(), SoftMaxLoss())
        return self

    def predict_proba(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The probability of each class, (N, classes), in the order of `classes_`."""
        return self._outputs(X)

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each example, (N,)."""
        probabilities = self.predict_proba(X)
        classes: NDArray[Any] = self.classes_[np.argmax(probabilities, axis=1)]
        return classes

    def _default_solver(self) -> SolverConf:
        return SolverConf(learning_rate=0.02, momentum=self.momentum)


class CrossbowRegressor(RegressorMixin, NetworkEstimator):  # type: ignore[misc]
    """A network that is trained as a regressor of scikit-learn. It minimises the squared error (`EuclideanLoss`).

    X: as for `CrossbowClassifier`. y: the target of each example, (N,), or several, (N, targets).

    network: a function of the number of targets, which returns the network without loss: a `SubGraph`, such as a
    `Sequential`, whose output is (N, targets). Default: `perceptron`.
    learning_rate, momentum, weight_decay: settings of Adam, whose steps do not depend on the scale of the targets. A
    learning_rate of None is 0.01; momentum is β₁. The other parameters are those of `CrossbowClassifier`.

    Large targets need many steps. So scale X and y, for example with a `StandardScaler` in a pipeline in a
    `TransformedTargetRegressor`.

    After `fit`, `history_` has the `History`, `n_features_in_` the size of the first axis of an example, and `model_`
    the saved model, as the bytes of a file.

    >>> from sklearn.compose import TransformedTargetRegressor
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> x, y = load_diabetes(return_X_y=True)
    >>> pipeline = make_pipeline(StandardScaler(), CrossbowRegressor(learning_rate=0.001, random_state=0))
    >>> model = TransformedTargetRegressor(pipeline, transformer=StandardScaler()).fit(x[:300], y[:300])
    >>> model.score(x[300:], y[300:]) > 0.4
    True
    """

    def fit(self, X: Any, y: Any) -> CrossbowRegressor:  # noqa: N803 - scikit-learn's name
        """Train a new network. Raises ValueError if the data are invalid, and Crossbow's errors if the settings are
        invalid."""
        X, y = validate_data(self, X, y, allow_nd=True, multi_output=True, y_numeric=True, dtype=None)  # noqa: N806
        x, targets = self._examples(X), _as_float32("y", y)
        self.target_shape_ = targets.shape[1:]
        targets = targets.reshape(len(targets), -1)
        self._train(x, targets, targets.shape[1], EuclideanLoss())
        return self

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The target of each example, (N,), or (N, targets) as in `fit`, float64."""
        outputs = self._outputs(X)
        return outputs.reshape(len(outputs), *self.target_shape_).astype(np.float64)

    def _default_solver(self) -> SolverConf:
        return SolverConf(method="adam", learning_rate=0.01, beta1=self.momentum)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _with_examples(shape: Shape) -> str:
    """The shape of N examples, such as "(N, 3)"."""
    return f"({', '.join(['N', *map(str, shape)])})"


def _as_float32(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """The array as float32. Raises ValueError if it has numbers that float32 cannot represent."""
    with np.errstate(over="ignore"):
        numbers: NDArray[Any] = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        expected = "finite numbers that float32 can hold"
        raise ValueError(f"{name}: expected {expected}. Received: NaN, infinity or larger ones")
    return numbers
