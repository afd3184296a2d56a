"""Foreign models that train in Crossbow's engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.cluster.process import join
from crossbow.cluster.ranks import Ranks
from crossbow.conf import is_integer, shown
from crossbow.context import ExecutionContext
from crossbow.data import Dataset
from crossbow.dataflow import Dataflow
from crossbow.foreign.contract import ModelClass, check_model, takes, wrong
from crossbow.foreign.learners import ForeignLearners
from crossbow.foreign.operator import foreign_dataflow, initial_parameters
from crossbow.foreign.parameters import host_arrays
from crossbow.runtime.checkpointing import Checkpoints
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.monitor import Monitor
from crossbow.runtime.results import Record
from crossbow.solver import SolverConf
from crossbow.synch import Rule, RuleSequence, TwoLevel
from crossbow.types import ConfigurationError

OWN_STEP = SolverConf(learning_rate=1.0)
"""The solver of models that make their own steps: it subtracts w − w', the difference that `train_iter` has made."""


class ForeignModels:
    """One model of any framework for each learner of this process, which the engine trains under any rule.

    A task is one iteration of a model: the engine copies the learner's weights to `params`, the model trains on its
    next batch, on the learner's own thread, and the engine reads the changed parameters. The model's own optimiser
    makes the step, and its state stays with the learner. With a `SolverConf`, the model computes gradients instead, and
    Crossbow's solver makes the step; rules whose learners send gradients need this.

    >>> with ForeignModels(LeNet, 2) as models, models.context(ModelConf(rule=SMA())) as context:  # doctest: +SKIP
    ...     context.train_and_test(models.epochs)
    """

    def __init__(
        self,
        model_class: Callable[[dict[str, Any]], ModelClass],
        learners: int,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the models.

        model_class: class that follows the contract of `ModelClass`. It is called with the dictionary `config` and
        these additional entries: `rank`, the number of the learner, from 0; `size`, the number of learners of all
        processes; `verbose`, whether rank is 0; and `mname`, the name of the class. learners: number of learners of
        this process; all processes must have equally many.

        Raises ConfigurationError if a model does not follow the contract.
        """
        if not is_integer(learners) or learners < 1:
            raise ConfigurationError(
                f"ForeignModels: learners must be an integer ≥ 1. Received: learners={shown(learners)}"
            )
        if not callable(model_class):
            raise ConfigurationError(
                f"ForeignModels: model_class must be a class of models. Received: {shown(model_class)}"
            )
        self._ranks = join()
        self._ranks.end_joining()  # the models have divided their data among the present learners
        counts: list[int] = self._ranks.gather(int(learners))
        if len(set(counts)) > 1:
            received = ", ".join(map(str, counts))
            raise ConfigurationError(f"ForeignModels: learners must be the same on all ranks. Received: {received}")
        self._size, self._first = sum(counts), sum(counts[: self._ranks.rank])
        self._models: list[ModelClass] = []
        self._closed = False
        try:
            for rank in range(self._first, self._first + learners):
                name = getattr(model_class, "__name__", type(model_class).__name__)
                added = {"rank": rank, "size": self._size, "verbose": rank == 0, "mname": name}
                self._models.append(_made(model_class, {**(config or {}), **added}))
            _check_alike(self._models[0], self._ranks.gather([_sizes(model) for model in self._models]))
            _check_shapes(self._models[0], self._ranks.gather([_shapes(model) for model in self._models]))
        except BaseException:
            self.close()
            raise

    @property
    def models(self) -> tuple[ModelClass, ...]:
        """The models of this process, in the order of its learners."""
        return tuple(self._models)

    @property
    def size(self) -> int:
        """Number of learners of all processes."""
        return self._size

    @property
    def epochs(self) -> int:
        """Number of epochs that the models ask for."""
        return self._models[0].n_epochs

    def context(
        self,
        model: ModelConf | None = None,
        solver: SolverConf | None = None,
        system: SystemConf | None = None,
        *,
        monitors: Sequence[Monitor] | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> ExecutionContext:
        """A context that trains the models. Its examples are iterations, so `images_per_second` counts iterations, and
        an epoch has n_batch_train · n_subb iterations of each learner.

        model: the rule and the test interval. `batch_size` has no effect, because models have their own. solver: None
        if models make their own steps (`train_iter`); otherwise they compute gradients (`gradients`). system: the
        number of learners per device follows from that of the models. Other arguments: see `ExecutionContext`.
        `predict` and exports are not possible, because the context has no network that it could run.

        Raises ConfigurationError, also if the rule or the solver needs a method `gradients` that the models lack.
        """
        learners, settings = self._learners(model, solver), self._settings(model, solver, system)
        context = ExecutionContext(
            [self._dataflow(learners), None],
            data=_iterations(learners),
            monitors=monitors,
            checkpoints=checkpoints,
            **settings,
        )
        context.add_monitor(_EndOnRequest(learners))
        return context

    def resume(
        self,
        checkpoints: Checkpoints | str | os.PathLike[str],
        model: ModelConf | None = None,
        solver: SolverConf | None = None,
        system: SystemConf | None = None,
        *,
        monitors: Sequence[Monitor] | None = None,
    ) -> ExecutionContext:
        """A context that continues from the newest checkpoint; see `ExecutionContext.resume`.

        Other arguments are those of `context`, and must be given again. The internal state of models, such as that of
        an optimiser, is not part of checkpoints.
        """
        learners = self._learners(model, solver)
        context = ExecutionContext.resume(
            checkpoints,
            [self._dataflow(learners), None],
            data=_iterations(learners),
            monitors=monitors,
            **self._settings(model, solver, system),
        )
        context.add_monitor(_EndOnRequest(learners))
        return context

    def close(self) -> None:
        """Call `cleanup` of all models. Close their contexts first."""
        if not self._closed:
            self._closed = True
            for model in self._models:
                model.cleanup()

    def __enter__(self) -> ForeignModels:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _learners(self, model: ModelConf | None, solver: SolverConf | None) -> ForeignLearners:
        first, by_gradients = self._models[0], solver is not None
        rule = None if model is None else model.rule
        if by_gradients and getattr(first, "gradients", None) is None:
            raise wrong(first, "a method `gradients`, which a solver needs", "none")
        if not by_gradients and _sends_gradients(rule):
            raise wrong(
                first, f"a solver, and a method `gradients`, under {rule}, which combines gradients", "no solver"
            )
        return ForeignLearners(self._models, self._size, self._first, by_gradients=by_gradients)

    def _settings(
        self, model: ModelConf | None, solver: SolverConf | None, system: SystemConf | None
    ) -> dict[str, Any]:
        model, system = model or ModelConf(), system or SystemConf()
        devices, own = len(system.devices), len(self._models)
        if own % devices:
            raise ConfigurationError(
                f"ForeignModels: learners must be a multiple of the number of devices, {devices}. Received: "
                f"learners={own}"
            )
        return {
            "model": replace(model, batch_size=1, check_batch_size=1),
            "solver": solver or OWN_STEP,
            "system": replace(system, learners_per_device=own // devices),
        }

    def _dataflow(self, learners: ForeignLearners) -> Dataflow:
        return foreign_dataflow(learners, _of_first_rank(self._ranks, initial_parameters(learners)))


class _EndOnRequest(Monitor):
    """Ends the training after a test in which a model's `val_iter` has returned "stop"."""

    on_all_ranks = True

    def __init__(self, learners: ForeignLearners) -> None:
        self._learners = learners

    def record(self, record: Record) -> None:
        if self._learners.stopped:
            self.end_training("val_iter returned 'stop'")


def _made(model_class: Callable[[dict[str, Any]], ModelClass], config: dict[str, Any]) -> ModelClass:
    model = model_class(config)
    check_model(model)
    prepare: Callable[..., object] = model.compile_iter_fns
    if takes(prepare, "sync_type"):
        prepare(sync_type="avg")
    else:
        prepare()
    return model


def _sizes(model: ModelClass) -> dict[str, int]:
    """The numbers of a model that determine the lengths of an epoch, of a test and of the training."""
    of_data = {f"data.{name}": int(getattr(model.data, name)) for name in ("n_batch_train", "n_batch_val")}
    return {**of_data, "n_subb": int(model.n_subb), "n_epochs": int(model.n_epochs)}


def _check_alike(model: ModelClass, of_ranks: Sequence[Sequence[Mapping[str, int]]]) -> None:
    """Raise ConfigurationError if the sizes differ between the learners of all ranks."""
    of_learners = [sizes for of_rank in of_ranks for sizes in of_rank]
    for name in of_learners[0]:
        values = [sizes[name] for sizes in of_learners]
        if len(set(values)) > 1:
            raise wrong(model, f"{name} to be equal for all learners", ", ".join(map(str, values)))


def _shapes(model: ModelClass) -> list[list[int]]:
    return [list(array.shape) for array in host_arrays(model.params)]


def _check_shapes(model: ModelClass, of_ranks: Sequence[Sequence[Sequence[Sequence[int]]]]) -> None:
    """Raise ConfigurationError if the parameters of the learners of all ranks differ in number or shape."""
    of_learners = [shapes for of_rank in of_ranks for shapes in of_rank]
    for number, shapes in enumerate(of_learners):
        for index, (expected, received) in enumerate(zip(of_learners[0], shapes, strict=False)):
            if expected != received:
                what = f"params[{index}] of learner {number} to have the shape of learner 0's, {tuple(expected)}"
                raise wrong(model, what, str(tuple(received)))
        if len(shapes) != len(of_learners[0]):
            raise wrong(model, f"{len(of_learners[0])} params of learner {number}, as of learner 0", str(len(shapes)))


def _iterations(learners: ForeignLearners) -> Dataset:
    """A data set whose examples stand for iterations."""

    def empty(count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return np.zeros((count, 1), np.float32), np.zeros(count, np.float32)

    tests = learners.tasks_per_test
    return Dataset(empty(learners.tasks_per_epoch), empty(tests) if tests else None)


def _sends_gradients(rule: Rule | RuleSequence | TwoLevel | None) -> bool:
    if isinstance(rule, RuleSequence):
        return any(map(_sends_gradients, rule.rules))
    if isinstance(rule, TwoLevel):
        return rule.within.sends_gradient
    return rule is not None and rule.sends_gradient


def _of_first_rank(ranks: Ranks, parameters: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The initial parameters of rank 0. Raises ConfigurationError if the parameters of this rank have another size."""
    received = ranks.agree_on_bytes(b"".join(each.tobytes() for each in parameters))
    if len(received) != sum(each.nbytes for each in parameters):
        raise ConfigurationError(
            f"expected parameters of {len(received):,} bytes, as on rank 0. Received: "
            f"{sum(each.nbytes for each in parameters):,}"
        )
    values, start = [], 0
    for each in parameters:
        values.append(np.frombuffer(received, each.dtype, each.size, start).reshape(each.shape))
        start += each.nbytes
    return values
