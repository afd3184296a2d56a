"""A classifier with the interface of scikit-learn, for its grid searches, pipelines and cross-validation.

Needs scikit-learn: `pip install 'crossbow[zoo]'`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import shown
from crossbow.context import ExecutionContext
from crossbow.data import Dataset
from crossbow.dataflow import Sequential, SubGraph
from crossbow.dataflow.description import BUILT_IN
from crossbow.extras import optional_module
from crossbow.monitors.verbosity import Verbosity
from crossbow.ops import InnerProduct, ReLU, SoftMax, SoftMaxLoss
from crossbow.predictor import Predictor
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.solver import SolverConf
from crossbow.synch import Rule
from crossbow.types import ConfigurationError

optional_module("sklearn", "crossbow.sklearn", "zoo")

from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: E402 - after the message for users without it
from sklearn.utils import check_random_state  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

Build = Callable[[int], SubGraph]


def perceptron(number_of_classes: int) -> Sequential:
    """The default network: one hidden layer of 100."""
    return Sequential(InnerProduct(100), ReLU(), InnerProduct(number_of_classes))


class CrossbowClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network that is trained as a classifier of scikit-learn.

    X: features (N, F), images (N, C, H, W), or examples of any other shape that a `Dataset` takes; uint8 images are
    scaled to [0, 1], and all else becomes float32. y: the classes of the examples, (N,), of any type.

    network: a function of the number of classes, which returns the network without softmax and loss: a `SubGraph`,
    as a `Sequential`, whose output is (N, classes). Default: `perceptron`.
    epochs, batch_size: length of training, and examples of a task; a batch is never larger than the training set.
    learning_rate, momentum, weight_decay: fields of `SolverConf`. solver: a whole `SolverConf` in their place, as for
    Adam or a schedule. rule: how the learners are combined, as SMA().
    learners: per device, each with one thread on a CPU; "auto" finds their number. devices: as in `SystemConf`.
    random_state: of the initial values and the order of the examples; an integer makes results reproducible. verbose:
    as in `ExecutionContext`.

    After `fit`, `classes_` has the classes, `history_` the `History`, `n_features_in_` the size of the first axis of an
    example, and `model_` the saved model, as the bytes of a file. Every prediction loads the model; for many small
    ones, write these bytes to a file for `Predictor.load`.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import GridSearchCV
    >>> search = GridSearchCV(CrossbowClassifier(random_state=0), {"epochs": [1, 10]}, cv=2)
    >>> search.fit(*load_iris(return_X_y=True)).best_params_
    {'epochs': 10}
    """

    def __init__(
        self,
        network: Build = perceptron,
        *,
        epochs: int = 20,
        batch_size: int = 16,
        learning_rate: float = 0.02,
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

    def fit(self, X: Any, y: Any) -> CrossbowClassifier:  # noqa: N803 - scikit-learn's name
        """Train a new network. Raises ValueError for data that do not fit, and Crossbow's errors for settings that do
        not."""
        X, y = validate_data(self, X, y, allow_nd=True, dtype=None)  # noqa: N806
        check_classification_targets(y)
        x = self._examples(X)
        self.image_dtype_, self.image_shape_ = x.dtype, x.shape[1:]
        self.classes_, labels = np.unique(y, return_inverse=True)
        network = self._classifier(len(self.classes_))
        data = Dataset((x, labels), number_of_classes=len(self.classes_), sequences=True)
        model = ModelConf(batch_size=min(self.batch_size, len(x)), rule=self.rule)
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
        return self

    def predict_proba(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The probability of each class, (N, classes), in the order of `classes_`."""
        check_is_fitted(self, "model_")
        x = self._examples(validate_data(self, X, reset=False, allow_nd=True, dtype=None))
        if x.shape[1:] != self.image_shape_ or x.dtype != self.image_dtype_:
            expected = f"examples of shape (N, {', '.join(map(str, self.image_shape_))}) and type {self.image_dtype_}"
            raise ValueError(f"X: expected {expected}, as in `fit`. Received: {x.shape}, {x.dtype}")
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model.safetensors"
            path.write_bytes(self.model_)
            with Predictor.load(path, self.devices, operators=self.operators_) as predictor:
                probabilities: NDArray[Any] = predictor(x)
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each example, (N,)."""
        probabilities = self.predict_proba(X)
        classes: NDArray[Any] = self.classes_[np.argmax(probabilities, axis=1)]
        return classes

    def _examples(self, x: Any) -> NDArray[Any]:
        """Images of type uint8 as they are, and all else as float32. Raises ValueError if there are larger numbers."""
        array = np.asarray(x)
        if array.ndim == 4 and array.dtype == np.uint8:
            return array
        with np.errstate(over="ignore"):
            numbers: NDArray[Any] = array.astype(np.float32)
        if not np.isfinite(numbers).all():
            raise ValueError("X: expected finite numbers that float32 can hold. Received: NaN, infinity or larger ones")
        return numbers

    def _solver(self) -> SolverConf:
        if self.solver is None:
            return SolverConf(learning_rate=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)
        if not isinstance(self.solver, SolverConf):
            expected = "a SolverConf or None"
            raise ConfigurationError(f"CrossbowClassifier: solver must be {expected}. Received: {shown(self.solver)}")
        return self.solver

    def _classifier(self, number_of_classes: int) -> SubGraph:
        """The network with softmax and loss."""
        if not callable(self.network):
            expected = "a function of the number of classes that returns a SubGraph"
            raise ConfigurationError(f"CrossbowClassifier: network must be {expected}. Received: {shown(self.network)}")
        network = self.network(number_of_classes)
        if not isinstance(network, SubGraph):
            expected = "a SubGraph, as a Sequential, without softmax and loss"
            raise ConfigurationError(f"CrossbowClassifier: network must return {expected}. Received: {shown(network)}")
        return Sequential(network, SoftMax(), SoftMaxLoss())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.non_deterministic = self.learners == "auto"
        return tags
