"""The contract of foreign models: Theano-MPI's ModelClass and DataClass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from crossbow.conf import is_integer, shown
from crossbow.foreign.parameters import host_array
from crossbow.foreign.recorder import IterationRecorder
from crossbow.types import ConfigurationError, CrossbowError


class DataClass(Protocol):
    """The data of a model. The model reads its batches itself."""

    n_batch_train: int
    """Number of training batches that this model goes through in an epoch, ≥ 1."""
    n_batch_val: int
    """Number of validation batches that this model goes through in a test, ≥ 0."""


class ModelClass(Protocol):
    """A model of any framework. The constructor takes a dictionary `config`, see `ForeignModels`.

    Optional members are `gradients(count, recorder)`, which returns the gradients of the next training batch in the
    order of `params` without changing these, and reports the batch as `train_iter` does; and `scale_lr(size)`.
    """

    params: Sequence[Any]
    """The parameters, which Crossbow reads and overwrites: NumPy arrays, or tensors in the host's memory that export
    DLPack."""
    data: DataClass
    epoch: int
    """Number of the current epoch, from 0. Crossbow sets it."""
    n_epochs: int
    """Number of epochs to train, ≥ 1."""
    n_subb: int
    """Number of iterations for each batch, ≥ 1."""

    def compile_iter_fns(self) -> object:
        """Prepare for iterations. Called once, with `sync_type="avg"` if the method takes it."""

    def train_iter(self, count: int, recorder: IterationRecorder) -> object:
        """Train on the next batch, and report it with `recorder.train_error`. count: number of previous iterations."""

    def val_iter(self, count: int, recorder: IterationRecorder) -> object:
        """Test the next validation batch, and report it with `recorder.val_error`. The return value "stop" ends the
        training."""

    def reset_iter(self, mode: str) -> object:
        """Return to the first batch. mode: "train" after n_batch_train batches, "val" after a test."""

    def adjust_hyperp(self, epoch: int) -> object:
        """Adjust the hyperparameters after this epoch of all learners. Called when the next one begins."""

    def cleanup(self) -> object:
        """Release resources after training."""


METHODS: Mapping[str, int] = {
    "train_iter": 2,
    "val_iter": 2,
    "reset_iter": 1,
    "adjust_hyperp": 1,
    "cleanup": 0,
    "compile_iter_fns": 0,
}
"""The methods of a model, with the number of arguments of a call."""
OPTIONAL = {"gradients": 2, "scale_lr": 1}


def check_model(model: object) -> None:
    """Check that an object follows the contract of `ModelClass`.

    Raises ConfigurationError with one sentence about the first member that is missing or wrong.
    """
    for name, arguments in METHODS.items():
        _check_method(model, name, arguments)
    for name, arguments in OPTIONAL.items():
        if getattr(model, name, None) is not None:
            _check_method(model, name, arguments)
    _check_integer(model, model, "epoch", 0)
    _check_integer(model, model, "n_epochs", 1)
    _check_integer(model, model, "n_subb", 1)
    data = getattr(model, "data", None)
    if data is None:
        raise wrong(model, "an attribute `data` with n_batch_train and n_batch_val", "none")
    _check_integer(model, data, "n_batch_train", 1, "data.")
    _check_integer(model, data, "n_batch_val", 0, "data.")
    _check_params(model)


def wrong(model: object, expected: str, received: str) -> ConfigurationError:
    """The error for a member of a model."""
    return ConfigurationError(f"{type(model).__name__}: expected {expected}. Received: {received}")


def takes(method: Callable[..., object], argument: str) -> bool:
    """Whether a method has a keyword argument of this name."""
    try:
        found = inspect.signature(method).parameters
    except (TypeError, ValueError):  # of a compiled extension
        return False
    return argument in found or any(each.kind is each.VAR_KEYWORD for each in found.values())


def _check_method(model: object, name: str, arguments: int) -> None:
    method = getattr(model, name, None)
    expected = f"a method `{name}` of {arguments} argument{'' if arguments == 1 else 's'}"
    if method is None:
        raise wrong(model, expected, "none")
    if not callable(method):
        raise wrong(model, expected, shown(method))
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # of a compiled extension
        return
    more = {"sync_type": "avg"} if name == "compile_iter_fns" and takes(method, "sync_type") else {}
    try:
        signature.bind(*[None] * arguments, **more)
    except TypeError:
        raise wrong(model, expected, f"{name}{signature}") from None


def _check_integer(model: object, owner: object, name: str, minimum: int, prefix: str = "") -> None:
    value = getattr(owner, name, None)
    if not is_integer(value) or int(value) < minimum:  # type: ignore[arg-type]
        expected = f"an attribute `{prefix}{name}`, an integer ≥ {minimum}"
        raise wrong(model, expected, shown(value) if hasattr(owner, name) else "none")


def _check_params(model: object) -> None:
    params = getattr(model, "params", None)
    if not isinstance(params, list | tuple) or not params:
        raise wrong(
            model,
            "an attribute `params`, a list of arrays that is not empty",
            "none" if params is None else shown(params),
        )
    for index, each in enumerate(params):
        try:
            array = host_array(each)
        except CrossbowError as error:
            raise wrong(model, f"params[{index}] to be an array in the host's memory", str(error)) from error
        if array.dtype.kind != "f" or not array.flags.writeable:
            kind = f"{array.dtype}" if array.dtype.kind != "f" else "an array that is read-only"
            raise wrong(model, f"params[{index}] to be a floating-point array that can be overwritten", kind)
