"""The arguments of a context, checked and completed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossbow.conf import shown
from crossbow.data import Dataset
from crossbow.data.dataset import check_data_fits
from crossbow.dataflow import Dataflow, SubGraph
from crossbow.dataflow.graph import Graph, build, other_measures, reported_measure, trains
from crossbow.dataflow.validate import infer_shapes
from crossbow.files import reason
from crossbow.runtime.checkpointing import Checkpoints
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.monitor import Monitor
from crossbow.runtime.profiling import Profile
from crossbow.runtime.results import OF_TEST
from crossbow.solver import SolverConf
from crossbow.synch import has_barrier
from crossbow.types import Array, ConfigurationError, DataError, GraphError, Phase, Shape

Network = Dataflow | SubGraph
_KINDS = {
    "data": Dataset,
    "model": ModelConf,
    "solver": SolverConf,
    "system": SystemConf,
    "checkpoints": Checkpoints,
    "profile": Profile,
}


@dataclass(frozen=True)
class Setup:
    """What a context trains, on which data, and how."""

    training: Dataflow
    given_check: Dataflow | None
    """None if `check` is derived from the training dataflow."""
    check: Dataflow
    graph: Graph
    """The training graph."""
    data: Dataset
    model: ModelConf
    solver: SolverConf
    """The given solver, or that of the operators."""
    system: SystemConf

    @property
    def has_accuracy(self) -> bool:
        """Whether tests report an accuracy."""
        return reported_measure(self.check.graph) is not None


def new_setup(
    training: Dataflow,
    check: Dataflow | None,
    data: Dataset,
    model: ModelConf | None,
    solver: SolverConf | None,
    system: SystemConf | None,
) -> Setup:
    """Complete the arguments. Raises GraphError, ConfigurationError or DataError if they do not fit each other."""
    model, system = model or ModelConf(), system or SystemConf()
    if model.batch_size > len(data.train):
        raise ConfigurationError(
            f"ModelConf: batch_size must be at most the number of training examples, {len(data.train)}. "
            f"Received: batch_size={model.batch_size}"
        )
    check_data_fits(data, system.dtype)
    if model.slack and has_barrier(model.rule):
        raise ConfigurationError(
            f"ModelConf: slack must be 0 under a rule with a barrier. Received: slack={model.slack}"
        )
    graph = training_graph(training, (model.batch_size, *data.image_shape))
    solver = own_solver(graph) or solver or SolverConf()
    used_check = check or Dataflow(training.subgraph).set_phase(Phase.CHECK)
    if data.check is not None:
        check_metric_names(used_check.graph)
    return Setup(training, check, used_check, graph, data, model, solver, system)


def check_kinds(**given: object) -> None:
    """Raise ConfigurationError for an argument of another class. All but `data` may be None."""
    for name, value in given.items():
        kind = _KINDS[name]
        if not isinstance(value, kind) and (value is not None or name == "data"):
            raise ConfigurationError(f"ExecutionContext: {name} must be a {kind.__name__}. Received: {shown(value)}")


def check_metric_names(check: Graph) -> None:
    """Raise ConfigurationError if a metric has the name of a number that every test has, which would hide it in
    records."""
    for vertex in other_measures(check):
        if vertex.name in OF_TEST:
            raise ConfigurationError(
                f"ExecutionContext: expected metrics with other names than a test's own numbers, {', '.join(OF_TEST)}. "
                f"Received: the operator {vertex.name!r} ({type(vertex.kernel).__name__}); rename it"
            )


def replaced_variables(own: Mapping[str, Array], values: Mapping[str, Any]) -> dict[str, Array]:
    """Variables by name, with some replaced by given ones. Raises DataError if these are not named arrays."""
    if not isinstance(values, Mapping):
        raise DataError(f"set_variables: expected a dictionary of arrays by name. Received: {shown(values)}")
    if unknown := [name for name in values if name not in own]:
        close = difflib.get_close_matches(str(unknown[0]), own)
        hint = f". Did you mean {close[0]!r}?" if close else f". Names: {', '.join(own)}"
        raise DataError(f"set_variables: expected names of variables. Received: {unknown[0]!r}{hint}")
    replaced = dict(own)
    for name, value in values.items():
        try:
            array = np.asarray(value)
        except ValueError as error:  # rows of different lengths
            raise DataError(f"set_variables: {name}: expected an array. Received: {reason(error)}") from error
        replaced[name] = array.astype(np.float64) if array.dtype.kind in "biu" else array
    return replaced


def checked_monitors(monitors: object) -> tuple[Monitor, ...]:
    if monitors is None:
        return ()
    if not isinstance(monitors, Iterable):
        raise ConfigurationError(
            f"ExecutionContext: monitors must be a list of crossbow.Monitor. Received: {shown(monitors)}"
        )
    given = tuple(monitors)
    for monitor in given:
        if not isinstance(monitor, Monitor):
            raise ConfigurationError(
                f"ExecutionContext: monitors must be of crossbow.Monitor. Received: {shown(monitor)} among them"
            )
    return given


def training_graph(training: Dataflow, batch: Shape) -> Graph:
    """The training graph. If no gradients can be derived, the error also names the shapes that do not fit."""
    try:
        return training.graph
    except GraphError as error:
        faults, cause = list(error.faults), error.__cause__
        try:
            infer_shapes(build(training.subgraph.nodes), batch)
        except GraphError as other:
            faults += [fault for fault in other.faults if fault not in faults]
            cause = cause or other.__cause__
        raise GraphError(faults) from cause


def own_solver(graph: Graph) -> SolverConf | None:
    """The solver of an operator that has its own, if there is one. No other operator may have variables."""
    training = {id(vertex.operator): vertex for vertex in graph if vertex.forward and trains(vertex.forward)}
    for vertex in training.values():
        solver = vertex.forward.own_solver() if vertex.forward else None
        if solver is None:
            continue
        others = ", ".join(repr(other.name) for other in training.values() if other is not vertex)
        if others:
            where = f"node {vertex.name!r} ({type(vertex.kernel).__name__})"
            expected = "expected no other operator with variables, because this one defines its own update"
            raise GraphError([f"{where}: {expected}. Received: {others}"])
        return solver
    return None


def two_dataflows(given: Network | Sequence[Network | None]) -> tuple[Dataflow, Dataflow | None]:
    dataflows = [given] if isinstance(given, Dataflow | SubGraph) else given
    expected = "[train, check], where check may be None"
    if not isinstance(dataflows, Sequence) or len(dataflows) not in (1, 2):
        raise ConfigurationError(f"ExecutionContext: expected the dataflows {expected}. Received: {shown(given)}")
    training, check = (*dataflows, None)[:2]
    if isinstance(training, SubGraph):
        training = Dataflow(training)
    if isinstance(check, SubGraph):
        check = Dataflow(check).set_phase(Phase.CHECK)
    if not isinstance(training, Dataflow) or training.phase is not Phase.TRAIN:
        raise ConfigurationError(
            f"ExecutionContext: expected a dataflow of Phase.TRAIN first. Received: {shown(training)}"
        )
    if check is not None and (not isinstance(check, Dataflow) or check.phase is not Phase.CHECK):
        raise ConfigurationError(
            f"ExecutionContext: expected a dataflow of Phase.CHECK second, or None. Received: {shown(check)}"
        )
    return training, check
