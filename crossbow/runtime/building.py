"""Builds a run's assembly on a backend: compiles, allocates, and sets initial values."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from crossbow.cluster.placement import Placement
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.shared_memory import shared_memory
from crossbow.compile import BatchSource, Layouts, ModelLayout, Program, check_memory, compile_graph
from crossbow.data import Dataset
from crossbow.data.bad_examples import BadExamples
from crossbow.data.examples import Examples, Indices
from crossbow.data.loader import Loader
from crossbow.data.order import CheckOrder, Order, TrainingOrder
from crossbow.data.rank_shares import ShareOrder
from crossbow.dataflow.graph import Graph
from crossbow.runtime.alike import differently_stored, same_error
from crossbow.runtime.arithmetic import Ranges, VectorArithmetic
from crossbow.runtime.assembly import Assembly, Needs, Pipeline, slots_memory
from crossbow.runtime.backend import Backend, Learner
from crossbow.runtime.clock import fitted_wpc, work_clock
from crossbow.runtime.collection import PausedCollection
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.coordination import Coordination
from crossbow.runtime.cpu.backend import CpuBackend
from crossbow.runtime.device import CudaDevice, parse_devices
from crossbow.runtime.flags import Flags
from crossbow.runtime.flow import Flow
from crossbow.runtime.free import FreeCoordination
from crossbow.runtime.memory import assign
from crossbow.runtime.replica import BaseModel, Replica, new_base_model, new_outer_model, new_replica
from crossbow.runtime.reports import Reports
from crossbow.runtime.setting import RunSetting
from crossbow.runtime.sharing import Sharing
from crossbow.runtime.tick import TickCoordination
from crossbow.solver import SolverConf
from crossbow.synch import SMA, BarrierRule, Collective, FreeRule, Grouping, Rule, RuleSequence, TwoLevel, has_barrier
from crossbow.synch.progress import check_local_variables, check_skip
from crossbow.timeline.recorder import Recorder
from crossbow.types import ConfigurationError, LabelRange, Phase

CLOSE_SECONDS = 0.5
"""Seconds that closing waits for each learner's current task."""


def new_backend(rule: Rule | RuleSequence | TwoLevel | None, system: SystemConf) -> Backend:
    """Return the configured devices, without streams yet. Raises ConfigurationError, also for a rule that does not run
    on them."""
    devices = parse_devices(system.devices)
    if isinstance(devices[0], CudaDevice):
        if not has_barrier(rule) and len(devices) > 1:
            raise ConfigurationError(
                "ModelConf: rule must be one with a barrier on several GPUs; without one, learners need memory that "
                f"all of them reach. Received: rule={rule}, devices={','.join(system.devices)}"
            )
        from crossbow.runtime.cuda.backend import CudaBackend  # CUDA's libraries, only if used

        return CudaBackend(system, between_ranks=has_barrier(rule) and not isinstance(rule, TwoLevel))
    return CpuBackend(system)


def _check_ranks(model: ModelConf, system: SystemConf, ranks: Ranks, collective: Collective | None) -> None:
    """Raise ConfigurationError for settings that do not work across ranks."""
    if not has_barrier(model.rule):
        _check_free_ranks(model)
    if isinstance(parse_devices(system.devices)[0], CudaDevice):
        _check_gpus_of_ranks(model, system, ranks)
    if collective is not None:
        raise ConfigurationError("collective must be None across ranks. Received: one")


def _check_gpus_of_ranks(model: ModelConf, system: SystemConf, ranks: Ranks) -> None:
    """Raise ConfigurationError for settings that do not work across ranks with GPUs. With two levels or without a
    barrier, and if ranks may join and leave, ranks only exchange the host's memory; otherwise NCCL computes the
    sums."""
    if isinstance(model.rule, TwoLevel) or not has_barrier(model.rule):
        return
    if ranks.elastic:
        if len(parse_devices(system.devices)) > 1:
            raise ConfigurationError(
                "SystemConf: devices must be one GPU for each rank that may join and leave, unless the rule has two "
                f"levels, as with --between. Received: rule={model.rule}, devices={','.join(system.devices)}"
            )
        return
    if system.check_numerics:  # the host would wait forever for a failed rank's part of a sum
        raise ConfigurationError("SystemConf: check_numerics must be False across ranks with GPUs. Received: True")


def _check_free_ranks(model: ModelConf) -> None:
    """Raise ConfigurationError for settings that do not work across ranks without a barrier."""
    if model.slack is not None:
        raise ConfigurationError(
            f"ModelConf: slack must be None across ranks under a rule without a barrier. Received: slack={model.slack}"
        )


def check_served(rule: Rule | RuleSequence | TwoLevel | None, system: SystemConf) -> None:
    """Raise ConfigurationError for several servers if no rule uses servers."""
    rules = rule.rules if isinstance(rule, RuleSequence) else (rule,)
    if system.servers > 1 and not any(isinstance(each, FreeRule) for each in rules):
        raise ConfigurationError(
            "SystemConf: servers must be 1 under a rule by which learners do not exchange with z one by one. "
            f"Received: servers={system.servers}, rule={SMA() if rule is None else rule}"
        )


def _check_servers(rule: Rule, solver: SolverConf, system: SystemConf, ranks: Ranks) -> None:
    """Raise ConfigurationError for settings that do not work with several servers."""
    served = isinstance(rule, FreeRule) and rule.sends_gradient and min(system.servers, ranks.size) > 1
    if served and solver.clip_gradient_norm is not None:
        raise ConfigurationError(
            "SystemConf: servers must be 1 if gradients that are sent are clipped by their norm as a whole. "
            f"Received: servers={system.servers}, rule={rule}"
        )


def _check_one_kind(threads: Sequence[Sequence[int]], ranks: Ranks) -> None:
    """Raise ConfigurationError if some ranks have CPUs, and others GPUs. (A GPU's learner counts as one with 0
    threads.)"""
    kinds = ["CPUs" if of_rank[0] else "GPUs" for of_rank in threads]
    for rank, kind in zip(ranks.view.ranks, kinds, strict=True):
        if kind != kinds[0]:
            raise ConfigurationError(
                f"SystemConf: devices must be of one kind on all ranks: expected {kinds[0]}, as on "
                f"{ranks.view.ranks[0]}. Received: {kind} on {rank}"
            )


def new_setting(
    data: Dataset,
    model: ModelConf,
    solver: SolverConf,
    system: SystemConf,
    backend: Backend,
    bad: Mapping[Phase, BadExamples],
    recorder: Recorder,
    ranks: Ranks,
    collective: Collective | None = None,
) -> RunSetting:
    """Return the setting for a backend's learners and those of other ranks, which must also call this. Raises
    ConfigurationError for options that cannot be combined."""
    given = model.rule if isinstance(model.rule, Rule | TwoLevel) else SMA()
    if ranks.several:
        _check_ranks(model, system, ranks, collective)
    elif isinstance(backend.devices[0], CudaDevice) and isinstance(given, BarrierRule) and len(backend.devices) > 1:
        ranks.end_joining()  # training would end, because no rank can join this one
    of_ranks = ranks.gather([backend.threads[device] for device in backend.device_of])
    _check_one_kind(of_ranks, ranks)
    threads = [each for of_rank in of_ranks for each in of_rank]
    placement = Placement(len(threads), sum(map(len, of_ranks[: ranks.rank])), len(of_ranks[ranks.rank]))
    between, changes = None, ranks.view.number > 0 or ranks.joins
    if isinstance(given, TwoLevel):
        own = [float(max(each, 1)) for each in of_ranks[ranks.rank]]
        # If one rank rejects its number of learners, all ranks raise the error.
        within, between = same_error(ranks, functools.partial(given.settled, own, ranks.size))
        rule: Rule = within
    else:
        if changes and isinstance(given, Grouping):
            given = given.fitted(len(threads))
        rule = given.settled([float(max(each, 1)) for each in threads])
    check_local_variables(model.local_variables, rule)
    rule.check_solver(solver)
    check_skip(model.skip, rule, solver)
    _check_servers(rule, solver, system, ranks)
    host_ticks = None if between is None else between.tau
    wpc = fitted_wpc(model.wpc, rule.tau, len(threads)) if changes else model.wpc
    if ranks.several and (wpc or 0) % len(threads):
        raise ConfigurationError(
            f"ModelConf: wpc must be a multiple of the number of learners, {len(threads)}, across ranks. "
            f"Received: wpc={wpc}"
        )
    clock = work_clock(len(threads), rule.tau, wpc, barrier=isinstance(rule, BarrierRule), host_ticks=host_ticks)
    shared, wanted = None, system.shared_memory and isinstance(given, BarrierRule) and backend.shares_memory
    if ranks.several and not ranks.elastic and all(ranks.gather(wanted)):
        shared = shared_memory(ranks)
    sizes = len(threads), len(backend.devices)
    confs = data, model, solver, system, given, rule
    return RunSetting(*confs, *sizes, clock, bad, ranks, placement, between, recorder, shared)


def new_coordination(
    assembly: Assembly, backend: Backend, reports: Reports, collective: Collective | None
) -> Coordination:
    """Return the coordination, under the setting's rule, of the backend's learners, bound to the assembly. If this
    raises ConfigurationError, the backend is closed."""
    try:
        with PausedCollection():
            return _coordination(assembly, backend, reports, collective)
    except BaseException:
        backend.close(CLOSE_SECONDS)
        raise


def _coordination(
    assembly: Assembly, backend: Backend, reports: Reports, collective: Collective | None
) -> Coordination:
    if assembly.setting.barrier:
        return TickCoordination(assembly, backend, reports, collective)
    if collective is not None:
        raise ConfigurationError("collective must be None under a rule without a barrier. Received: one")
    return FreeCoordination(assembly, backend, reports)


def new_flow(reports: Reports, assembly: Assembly, coordination: Coordination, sharing: Sharing | None) -> Flow:
    """Return the flow of tasks, and of results between ranks. sharing: object that several engines share; None for a
    new one."""
    setting = assembly.setting
    if setting.ranks.several:
        sharing = sharing or Sharing(setting.ranks)
    own = None if setting.between is None else setting.placement.own
    return Flow(reports, setting.learners, coordination, setting.recorder, sharing, own, assembly.locate)


def close_all(members: Sequence[Learner], backend: Backend) -> None:
    """End all threads, each after its current task, and release their resources: streams after threads."""
    for member in members:
        member.stop(CLOSE_SECONDS)
    for member in members:
        member.close(CLOSE_SECONDS)
    backend.close(CLOSE_SECONDS)


@contextmanager
def closed_on_error(close: Callable[[], None]) -> Iterator[None]:
    """Call `close` if the context ends with an exception, for example because another rank has failed."""
    try:
        yield
    except BaseException:
        close()
        raise


def assemble(training: Graph, check: Graph, backend: Backend, setting: RunSetting, beside: int) -> Assembly:
    """Compile, allocate, and give every variable its initial value. The backend is open afterwards, or closed if this
    raises GraphError or ConfigurationError. ConfigurationError is raised on all ranks. beside: bytes of the machine's
    memory that other runs use."""
    others = {"learners that are there already": beside} if beside else {}
    ranks, data = setting.ranks, setting.data

    def compiled() -> tuple[TrainingOrder, Pipeline]:
        check_memory({**slots_memory(setting), **others})
        backend.open(synchroniser=setting.adds_parts)
        order = _new_order(setting)
        loader = _new_loader(setting, backend, data.train, order, "loader", Phase.TRAIN)
        # Learners of another rank may have another number of threads, for which kernels choose another layout.
        program = _compile(training, loader, data.train, Phase.TRAIN, None, setting, backend, alone=ranks.connected)
        return order, Pipeline(program, loader)

    def made() -> Assembly:
        with PausedCollection():
            return _assemble(training, check, order, first, plain, backend, setting, others)

    try:
        with PausedCollection():
            order, first = same_error(ranks, compiled)
        plain = differently_stored(ranks, first.program.layouts)
        return same_error(ranks, made)
    except BaseException:
        backend.close(CLOSE_SECONDS)
        raise


def _assemble(
    training: Graph,
    check: Graph,
    order: TrainingOrder,
    first: Pipeline,
    plain: Collection[str],
    backend: Backend,
    setting: RunSetting,
    others: dict[str, int],
) -> Assembly:
    """first: the compiled training graph; with other ranks, compiled for one thread. plain: the variables that are
    stored differently on other ranks."""
    data, model, loader, program = setting.data, setting.model, first.loader, first.program
    if plain or (setting.ranks.connected and max(backend.threads) > 1):
        layouts = program.model.plain(plain), program.statistics.plain(plain)
        program = _compile(training, loader, data.train, Phase.TRAIN, layouts, setting, backend)
    trained, checked, check_order = Pipeline(program, loader), None, None
    if data.check is not None:
        check_order = CheckOrder(len(data.check), setting.check_batch_size(len(data.check)))
        check_loader = _new_loader(setting, backend, data.check, check_order, "check-loader", Phase.CHECK)
        checked = Pipeline(
            _compile(check, check_loader, data.check, Phase.CHECK, program.layouts, setting, backend),
            check_loader,
            tests=True,
        )
    narrow = 0 if backend.library.mixed is None else backend.library.mixed.dtype.itemsize
    needs = Needs(setting, program, None if checked is None else checked.program, narrow)
    backend.check_plan(needs, others)
    bases = _new_bases(setting, backend, program)
    outer = None
    if setting.between is not None:
        # CPUs share their memory.
        memories = setting.devices if isinstance(backend.devices[0], CudaDevice) else 1
        zeros = [backend.zeros(device) for device in range(memories)]
        outer = new_outer_model(program, setting.between, zeros[0], zeros[1:])
        assign(outer.base.buffers[0], bases[0].buffers[0])
        assign(outer.base.statistics[0], bases[0].statistics[0])
    arithmetic = VectorArithmetic(
        backend.library,
        setting.dtype,
        Ranges(
            program.model.learning_rates,
            _kept(program.model, model),
            program.model if setting.system.check_numerics else None,
        ),
        setting.solver.clip_gradient_norm,
        backend.to_device,
    )
    confs = program, setting.rule, setting.solver
    replicas, all_replicas, flags = _new_learners_memory(setting, backend, program)
    part = setting.parts(program.model.elements)[setting.ranks.rank] if setting.serves else None
    mirrors = tuple(new_replica(*confs, backend.zeros(0), part) for _ in range(setting.mirrored))
    parts = trained, checked, check_order, bases, replicas
    return Assembly(setting, check, order, *parts, flags, arithmetic, needs, outer, part, mirrors, all_replicas)


def _new_learners_memory(
    setting: RunSetting, backend: Backend, program: Program
) -> tuple[tuple[Replica, ...], tuple[Replica, ...], Flags]:
    """The replicas of this rank, the replicas of all ranks if they share memory, and the flags."""
    confs, placement, shared = (program, setting.rule, setting.solver), setting.placement, setting.shared
    if shared is None:
        replicas = tuple(new_replica(*confs, backend.zeros(device)) for device in backend.device_of)
        return replicas, (), Flags(placement.own, 1 if setting.adds_parts else placement.own)
    all_replicas = tuple(new_replica(*confs, shared.zeros) for _ in range(placement.learners))
    own = slice(placement.first, placement.first + placement.own)
    flags = Flags(placement.learners, placement.learners, shared.zeros, own)
    shared.close()
    return all_replicas[own], all_replicas, flags


def _new_loader(
    setting: RunSetting, backend: Backend, examples: Examples, order: Order, name: str, phase: Phase
) -> Loader:
    """The loader of this rank's batches."""
    return backend.new_loader(
        examples,
        order,
        name,
        in_turn=setting.barrier,
        bad=setting.bad.get(phase),
        placement=setting.placement,
        recorder=setting.recorder,
    )


def _new_order(setting: RunSetting) -> TrainingOrder:
    """The order of the training examples. Raises ConfigurationError for an order of files if the data set is not stored
    in files of several examples."""
    examples, system = setting.data.train, setting.system
    if system.group_of_files is None:
        return _shuffled(setting, None, 1)
    files = examples.groups
    if files is None:
        raise ConfigurationError(
            "SystemConf: order must be 'examples' with a data set that is not stored in files of several examples. "
            f"Received: order={system.order!r}"
        )
    return _shuffled(setting, files, system.group_of_files)


def _shuffled(setting: RunSetting, files: Indices | None, files_together: int) -> TrainingOrder:
    """The order of all training examples, or of this rank's part. Raises ConfigurationError if the parts do not fit."""
    share, batch_size, seed = setting.data.share, setting.model.batch_size, setting.system.seed
    count = len(setting.data.train)
    if share is None:
        return TrainingOrder(count, batch_size, seed, files, files_together)
    if len(share.sizes) != setting.ranks.size or share.sizes[setting.ranks.rank] != count:
        raise ConfigurationError(
            f"data sharding: expected the data set of this rank, one of {setting.ranks.size}. Received: {count} "
            f"training examples, and shares of {', '.join(map(str, share.sizes))}"
        )
    if setting.barrier and not share.is_equal:
        raise ConfigurationError(
            "data sharding: expected equal shares under a rule with a barrier. Received: shares of "
            f"{', '.join(map(str, share.sizes))} examples"
        )
    return ShareOrder(share, batch_size, seed, setting.placement, files, files_together)


def _new_bases(setting: RunSetting, backend: Backend, program: Program) -> tuple[BaseModel, ...]:
    """A base model on every device. The first one has the initial values."""
    rule, solver, several = setting.rule, setting.solver, setting.adds_parts
    shared, placement = setting.shared, setting.placement
    learners = placement.own if shared is None else placement.learners
    bases = tuple(
        new_base_model(
            program,
            rule,
            solver,
            several=several,
            mean_first=setting.mean_first,
            zeros=backend.zeros(device) if shared is None else shared.zeros,
            learners=learners,
        )
        for device in range(setting.base_models)
    )
    for layout, vector in (
        (program.model, bases[0].buffers[0]),
        (program.statistics, bases[0].statistics[0]),
    ):
        values = layout.new_vector()
        layout.initialise(values, setting.system.seed)
        assign(vector, values)
    return bases


def _kept(layout: ModelLayout, model: ModelConf) -> list[slice]:
    """The ranges of the local variables. Raises ConfigurationError for an unknown name."""
    places: dict[int, slice] = {}
    for pattern in model.local_variables:
        found = [segment for segment in layout if fnmatch.fnmatchcase(segment.name, pattern)]
        if not found:
            known = ", ".join(segment.name for segment in layout)
            raise ConfigurationError(
                f"ModelConf: local_variables must be of {known}. Received: local_variables={pattern!r}"
            )
        for segment in found:
            places[segment.offset] = slice(segment.offset, segment.offset + segment.storage.elements)
    return [places[offset] for offset in sorted(places)]


# Compiling


def _compile(
    graph: Graph,
    loader: Loader,
    examples: Examples,
    phase: Phase,
    layouts: Layouts | None,
    setting: RunSetting,
    backend: Backend,
    *,
    alone: bool = False,
) -> Program:
    """layouts: layouts of the variables and statistics; with None, the kernels choose them. alone: compile for learners
    with one thread."""
    model, statistics = layouts or (None, None)
    return backend.call(
        lambda: compile_graph(
            graph,
            backend.batch_source(loader, setting.data.scale),
            backend.library,
            setting.dtype,
            phase=phase,
            labels=_label_range(examples, loader),
            model=model,
            statistics=statistics,
            seed=setting.system.seed,
            check_numerics=setting.system.check_numerics,
        ),
        alone=alone,
    )


def compile_prediction(
    graph: Graph, source: BatchSource, system: SystemConf, backend: Backend, trained: Program | None = None
) -> Program:
    """Compile a graph of `derive_prediction`. trained: the program whose layout of variables it shares; with None, the
    kernels choose a layout."""
    model, statistics = (None, None) if trained is None else trained.layouts
    return backend.call(
        lambda: compile_graph(
            graph,
            source,
            backend.library,
            system.dtype,
            phase=Phase.CHECK,
            model=model,
            statistics=statistics,
            seed=system.seed,
            check_numerics=system.check_numerics,
        )
    )


def _label_range(examples: Examples, loader: Loader) -> LabelRange:
    labels = examples.labels
    classes = bool(np.issubdtype(labels.dtype, np.integer))
    return LabelRange(loader.labels.shape[1:], classes, float(labels.min()), float(labels.max()))
