"""ExecutionContext, the user's interface: it trains, tests, predicts, saves and loads."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from crossbow.cluster.failure import LOST
from crossbow.cluster.process import join
from crossbow.compile.model import check_names
from crossbow.conf import shown
from crossbow.console import say
from crossbow.data import Dataset
from crossbow.data.dataset import check_data_fits, checked_like
from crossbow.data.examples import BadExample
from crossbow.data.fingerprint import fingerprint
from crossbow.dataflow import Dataflow
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import Graph, reported_measure
from crossbow.files import checked_path
from crossbow.matching import Matching, VariableSelection, match
from crossbow.model_file import ModelSettings, model_path, read_variables, write_model
from crossbow.monitors.verbosity import Verbosity, add_console
from crossbow.runtime.alike import check_alike
from crossbow.runtime.arguments import (
    Network,
    checked_monitors,
    own_solver,
    replaced_variables,
    training_graph,
    two_dataflows,
)
from crossbow.runtime.changing_engine import new_engine
from crossbow.runtime.checkpointing import Checkpoints, CheckpointWriter
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.keeper import Resumable, RunKeeper, find_checkpoint, restore, run_state
from crossbow.runtime.limits import Limits, end_of_decay, epochs_done
from crossbow.runtime.monitor import Monitor, tell
from crossbow.runtime.profiling import Profile, Profiler
from crossbow.runtime.recorded import rebuilt, recorded
from crossbow.runtime.regrouping import IdleModel
from crossbow.runtime.results import History, TestResult, restored_history
from crossbow.runtime.resumption import Resumption, changes, check_same_run, describe_network
from crossbow.runtime.run import Renewal, TrainingRun
from crossbow.runtime.shared_checkpoint import shared
from crossbow.runtime.stretch import RunState
from crossbow.runtime.summary import RunSummary
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.solver import SolverConf
from crossbow.synch import Collective, has_barrier
from crossbow.timeline.recorder import Recorder, Recording, learner_track, synchroniser_track
from crossbow.timeline.timeline import Timeline
from crossbow.tracebacks import without_own_frames
from crossbow.types import (
    Array,
    ConfigurationError,
    CrossbowError,
    DataError,
    DurationUnit,
    Phase,
    Shape,
    TrainingUnit,
)

Kept = Literal["kept"]
"""A limit of `continue_training` that is that of the interrupted call."""


class ExecutionContext:
    """Trains dataflows on a data set.

    Use it as a context manager, or `close` it, because it owns threads. They also end when the context is
    garbage-collected.

    Training without monitors shows its progress: a bar on a terminal, a cell in a notebook, or else a line for each
    epoch. With verbose=0 a call that trains is silent, and with verbose=1 it shows its progress in addition to other
    monitors.

    A context belongs to the process that created it: in a forked process, every method except `close` raises
    CrossbowError.
    """

    @without_own_frames
    def __init__(
        self,
        dataflows: Network | Sequence[Network | None],
        *,
        data: Dataset,
        model: ModelConf | None = None,
        solver: SolverConf | None = None,
        system: SystemConf | None = None,
        monitors: Sequence[Monitor] | None = None,
        collective: Collective | None = None,
        checkpoints: Checkpoints | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Compile the dataflows, and create learners.

        Args:
            dataflows: the TRAIN dataflow and the CHECK dataflow. If the latter is None or missing, it is derived from
                the former. A `SubGraph`, such as a `Sequential`, stands for its dataflow.
            data: examples to train on and, for tests, to test on.
            model: batch size, rule, and test interval.
            solver: method, learning rate and its schedule, momentum, weight decay.
            system: devices, number of learners, precision, seed.
            monitors: receivers of progress and records. None: training shows its progress itself.
            collective: the operation that sums vectors between devices. None: the devices' own operation.
            checkpoints: directory and interval of checkpoints. None: no checkpoints are written.
            profile: settings of a timeline to record, which is then available as the attribute `timeline`.

        Raises:
            GraphError: the network is invalid, or does not fit the data.
            ConfigurationError: the configurations do not fit each other, the data or the machine.
            DataError: the directory for checkpoints cannot be used.

        Each error is raised before anything runs, and names all faults of its kind.
        """
        training, check = two_dataflows(dataflows)
        for name, value, kind in (
            ("data", data, Dataset),
            ("model", model, ModelConf),
            ("solver", solver, SolverConf),
            ("system", system, SystemConf),
            ("checkpoints", checkpoints, Checkpoints),
            ("profile", profile, Profile),
        ):
            if not isinstance(value, kind) and (value is not None or name == "data"):
                raise ConfigurationError(
                    f"ExecutionContext: {name} must be a {kind.__name__}. Received: {shown(value)}"
                )
        self._ranks = join()
        with self._ranks.call():
            self._given_monitors = monitors
            self._own_monitors = checked_monitors(monitors)
            """The caller's monitors. They are used on rank 0, unless they are for all ranks."""
            self._leads = self._ranks.is_first
            """Whether this process is rank 0, which it may also become during training."""
            self._model = model or ModelConf()
            self._solver = solver or SolverConf()
            self._system = system or SystemConf()
            self._data = data
            if self.model.batch_size > len(data.train):
                raise ConfigurationError(
                    f"ModelConf: batch_size must be at most the number of training examples, {len(data.train)}. "
                    f"Received: batch_size={self.model.batch_size}"
                )
            check_data_fits(data, self.system.dtype)
            if self.model.slack and has_barrier(self.model.rule):
                raise ConfigurationError(
                    f"ModelConf: slack must be 0 under a rule with a barrier. Received: slack={self.model.slack}"
                )
            graph = training_graph(training, (self.model.batch_size, *data.image_shape))
            self._solver = own_solver(graph) or self.solver
            self._given_check = check
            check = check or Dataflow(training.subgraph).set_phase(Phase.CHECK)
            self._training, self._check = training, check
            self._recorder, self._checkpoints = Recorder(), checkpoints
            given = profile if self._ranks.is_first else None
            self._profiler = None if given is None else Profiler(given, self._recorder, self._write_timeline)
            self.timeline: Timeline | None = None
            """The recorded timeline; None without `profile`, or before the recording has ended."""
            described = checkpoints is not None or self._ranks.connected
            self._about = self._describe(graph) if described else {}
            """The description of the run in its checkpoints."""
            check_alike(self._ranks, self._about)
            confs, number = (self.model, self.solver, self.system), self._ranks.next_model()
            self._new_engine = functools.partial(
                new_engine, graph, check.graph, data, *confs, collective, self._recorder, self._ranks, number
            )
            self._closed, self._number = False, number
            self._agrees = True
            """Whether all ranks have the same base model, because no training call has failed."""
            self._run: TrainingRun | None = None
            """The current or last training call."""
            self._unfinished: RunState | None = None
            """After `resume`, the state of the training call to continue."""
            self._in_training_call = False
            self._warned = False
            """Whether the user has been warned of a learning rate of 0."""
            self.resumed: Resumption | None = None
            """Description of the resumption; None if training was not resumed."""
            self._keeper: RunKeeper | None = None
            self.engine, self._view = self._new_engine(), self._ranks.view.number
            """The engine, and the number of the view whose ranks it was built for."""
            try:
                if self._leads:
                    self._keeper = self._new_keeper()
                self._mark: str = self._ranks.agree(lambda: "" if self._keeper is None else self._keeper.mark)
                """Identifies the run in its directory."""
            except BaseException:
                self.engine.close()
                raise
            self._ranks.models[number] = self

    @property
    def model(self) -> ModelConf:
        """Batch size, rule, and test interval."""
        return self._model

    @property
    def solver(self) -> SolverConf:
        """Method, learning rate and its schedule, momentum, weight decay; those of the operators, if they have some."""
        return self._solver

    @property
    def system(self) -> SystemConf:
        """Devices, number of learners, precision, seed."""
        return self._system

    @property
    def data(self) -> Dataset:
        """The examples."""
        return self._data

    if not TYPE_CHECKING:  # a type checker then still knows the attributes, and that these have no setters

        def __setattr__(self, name: str, value: object) -> None:
            if name in ("model", "solver", "system", "data"):
                raise AttributeError(
                    f"ExecutionContext.{name} cannot be changed; create another context, and transfer the model with "
                    "`save` and `load`"
                )
            super().__setattr__(name, value)

    def __repr__(self) -> str:
        summary, state = self.summary(), "closed" if self._closed else "open"
        devices = ", ".join(device.name for device in summary.devices)
        learners = f"{summary.learners} learner{'s' * (summary.learners != 1)}"
        rule = type(summary.rule).__name__
        return f"ExecutionContext({devices}, {learners}, {rule}, epoch {epochs_done(self.engine):.4g}, {state})"

    @property
    def _monitors(self) -> tuple[Monitor, ...]:
        return tuple(monitor for monitor in self._own_monitors if self._leads or monitor.on_all_ranks)

    def _new_keeper(self, succeeds: str = "") -> RunKeeper | None:
        """The keeper of this run, if there are checkpoints. succeeds: see `RunKeeper`."""
        if self._checkpoints is None:
            return None
        writer = CheckpointWriter(self._checkpoints, self._write_model, self._recorder)
        best: Mapping[str, Array] = {}
        begun = self._run is not None or self.resumed is not None
        if succeeds and begun and self._checkpoints.best_path.exists():
            with contextlib.suppress(DataError):  # the next record then counts as the first best one
                best = read_variables(self._checkpoints.best_path)
        more = self._about, self._monitors, self._recorder, succeeds, best
        return RunKeeper(self.engine, writer, *more, begun=begun)

    def _describe(self, graph: Graph) -> dict[str, Any]:
        return {
            "network": describe_network(graph),
            "data": fingerprint(self.data),
            **{name: recorded(getattr(self, name)) for name in ("model", "solver", "system")},
        }

    @classmethod
    def resume(
        cls,
        checkpoints: Checkpoints | str | os.PathLike[str],
        dataflows: Network | Sequence[Network | None],
        *,
        data: Dataset,
        model: ModelConf | None = None,
        solver: SolverConf | None = None,
        system: SystemConf | None = None,
        monitors: Sequence[Monitor] | None = None,
        collective: Collective | None = None,
        profile: Profile | None = None,
    ) -> ExecutionContext:
        """A context that continues from the newest checkpoint in a run's directory; see `continue_training`.

        checkpoints: the directory, or the directory and the interval of further checkpoints.
        model, solver, system: by default those of the checkpoint. `resumed` lists the differences if others are given.

        With the same rule and learners, training continues as if it had not been interrupted; otherwise all learners
        begin at the base model. If the newest checkpoint is damaged, it is set aside, and the previous one is used.

        Raises DataError, and changes nothing, if there is no checkpoint, or if network, data set, batch size, seed or
        order of the examples differ.

        >>> context = ExecutionContext.resume("output/run", [dataflow, None], data=data)  # doctest: +SKIP
        >>> history = context.continue_training()  # doctest: +SKIP
        """
        settings = checkpoints
        if not isinstance(settings, Checkpoints):
            settings = Checkpoints(checked_path("resume", settings))
        found = shared(join(), lambda: find_checkpoint(settings.checkpoint_directory))
        about = found.checkpoint.state["about"]
        context = cls(
            dataflows,
            data=data,
            model=model or rebuilt(ModelConf, about["model"]),
            solver=solver or rebuilt(SolverConf, about["solver"]),
            system=system or rebuilt(SystemConf, about["system"]),
            monitors=monitors,
            collective=collective,
            checkpoints=settings,
            profile=profile,
        )
        try:
            context._resume(found)
        except BaseException:
            context.close()
            raise
        return context

    def _resume(self, found: Resumable) -> None:
        before, now = found.checkpoint.state["about"], self._about
        check_same_run(before, now, str(found.path))
        if self._keeper is None:  # this is not the first rank
            whole = restore(self.engine, found.checkpoint, str(found.path))
        else:
            whole = self._keeper.resume(found.checkpoint, str(found.path))
        self._unfinished = run_state(found.checkpoint)
        self.resumed = Resumption(found.path, self.engine.tasks, tuple(changes(before, now)), whole, found.damaged)
        if self._ranks.is_first:
            found.set_damaged_aside()

    def __enter__(self) -> ExecutionContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "an ExecutionContext owns threads, so it can be neither copied nor sent to another process. Create another "
            "one, and transfer the model with `save` and `load`"
        )

    def add_monitor(self, monitor: Monitor) -> None:
        """Add a monitor. Training continues to show its progress by itself if it did so before."""
        self._own_monitors = (*self._own_monitors, *checked_monitors([monitor]))

    def close(self) -> None:
        """End all threads, and close the monitors. The base model is lost unless it was saved before."""
        if not self._closed:
            self._closed = True
            self._ranks.models.pop(self._number, None)
            self.engine.close()
            try:
                self.engine.check_process()
            except CrossbowError:
                return  # the files of checkpoints and monitors belong to the process that created them
            if self._keeper is not None:
                self._keeper.close()
            for monitor in self._monitors:
                tell(monitor, "close")

    def describe(self) -> str:
        """The compiled programs as text: for training and, if there is a check set, for testing.

        There is one line per kernel, in execution order, with its operator, its name, and the location of its buffers.
        Operators without a kernel are in brackets: the kernel of another operator includes them ("in that of 'conv1'"),
        or their output is their input. The last line compares the arena with its lower bound.
        """
        programs = {"training": self.engine.program, "testing": self.engine.check_program}
        return "\n\n".join(
            f"{purpose}, batches of {'×'.join(map(str, program.batch))}\n{program.describe()}"
            for purpose, program in programs.items()
            if program is not None
        )

    @without_own_frames
    def describe_dataflows(self) -> str:
        """The dataflows for training and testing as tables, with the memory and kernels of the compiled programs."""
        tables = [self._training.describe(compiled=self.engine.program)]
        if (program := self.engine.check_program) is not None:
            tables.append(self._check.describe(compiled=program))
        return "\n\n".join(tables)

    def summary(self) -> RunSummary:
        """Devices, learners, threads, kernel library, parameters, memory, rule and progress of the run.

        It is a snapshot, which can be taken at any time, also by a monitor or from a closed context.
        """
        return self.engine.summary()

    def bad_examples(self, phase: Phase = Phase.TRAIN) -> list[BadExample]:
        """The examples of a phase that were left out, with `SystemConf(on_bad_record="skip")`, in the order in which
        they were found. Examples that other ranks find are included when the next record is complete."""
        bad = self.engine.bad_examples.get(phase)
        return [] if bad is None else bad.all()

    # Training

    def train(self, count: int, unit: TrainingUnit = TrainingUnit.EPOCHS, *, verbose: Verbosity = "auto") -> History:
        """Train for `count` epochs or tasks, rounded up to whole ticks.

        Returns the history of this call. Raises NonFiniteLossError if the loss becomes NaN or infinite, TaskError if an
        operator fails, and MonitorError if a monitor fails; `history` then has the records up to the failure. The other
        methods that train behave in the same way.
        """
        return self._train(count, unit, verbose=verbose)

    def train_and_test(
        self,
        count: int,
        unit: TrainingUnit = TrainingUnit.EPOCHS,
        *,
        target_accuracy: float | None = None,
        duration: float | None = None,
        duration_unit: DurationUnit = DurationUnit.SECONDS,
        verbose: Verbosity = "auto",
    ) -> History:
        """Train, and test after every `ModelConf.test_interval` and at the end.

        Training ends early when a test reaches `target_accuracy` (a fraction), or after a `duration` of training.
        """
        return self._train(
            count,
            unit,
            test=True,
            target_accuracy=target_accuracy,
            duration=duration,
            duration_unit=duration_unit,
            verbose=verbose,
        )

    def train_for_duration(
        self,
        duration: float,
        duration_unit: DurationUnit = DurationUnit.SECONDS,
        count: int | None = None,
        unit: TrainingUnit = TrainingUnit.EPOCHS,
        *,
        verbose: Verbosity = "auto",
    ) -> History:
        """Train for a duration, or for `count` if that is shorter. Training ends on a whole tick."""
        return self._train(count, unit, duration=duration, duration_unit=duration_unit, verbose=verbose)

    def train_until_condition(
        self,
        target_loss: float,
        count: int | None = None,
        unit: TrainingUnit = TrainingUnit.EPOCHS,
        *,
        verbose: Verbosity = "auto",
    ) -> History:
        """Train until the mean training loss of the last epoch's tasks is at most `target_loss`, or for `count`."""
        return self._train(count, unit, target_loss=target_loss, verbose=verbose)

    def train_until_condition_or_for_duration(
        self,
        target_loss: float,
        duration: float,
        duration_unit: DurationUnit = DurationUnit.SECONDS,
        count: int | None = None,
        unit: TrainingUnit = TrainingUnit.EPOCHS,
        *,
        verbose: Verbosity = "auto",
    ) -> History:
        """Train until the loss is at most `target_loss`, for a duration, or for `count`, whichever ends first."""
        return self._train(
            count, unit, target_loss=target_loss, duration=duration, duration_unit=duration_unit, verbose=verbose
        )

    def _train(
        self,
        count: int | None,
        unit: TrainingUnit,
        *,
        test: bool = False,
        target_loss: float | None = None,
        target_accuracy: float | None = None,
        duration: float | None = None,
        duration_unit: DurationUnit = DurationUnit.SECONDS,
        verbose: Verbosity,
    ) -> History:
        self._check_open()
        limits = Limits.of(
            count,
            unit,
            target_loss=target_loss,
            target_accuracy=target_accuracy,
            duration=duration,
            duration_unit=duration_unit,
        )
        if test and self.data.check is None:
            raise ConfigurationError("train_and_test needs check data. Received: a Dataset without check data")
        self._check_accuracy(limits)
        self._check_ranks()
        run = TrainingRun(
            self.engine,
            self.model,
            limits,
            self._monitors,
            test=test,
            keeper=self._keeper,
            profiler=self._profiler,
        )
        if self._leads and not self._warned and (text := end_of_decay(limits, self.engine, self.solver, run.start)):
            self._warned = True
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        return self._begin(run, verbose)

    def _check_accuracy(self, limits: Limits) -> None:
        if limits.accuracy is not None and reported_measure(self._check.graph) is None:
            raise ConfigurationError("target_accuracy: expected a network with an accuracy. Received: one without")

    def _begin(self, run: TrainingRun, verbose: Verbosity) -> History:
        if self._in_training_call:
            raise CrossbowError(
                "a training call is under way. Neither a monitor nor another thread can begin a second one"
            )
        self._run, self._unfinished = run, None
        with contextlib.ExitStack() as consoles:

            def show() -> None:
                if console := add_console(run, verbose, self._given_monitors):
                    consoles.enter_context(console)

            def lead(run: TrainingRun) -> None:
                self._lead(run.history)
                run.monitors, run.keeper = self._monitors, self._keeper
                show()

            if self._leads:
                show()
            failed = self._ranks.failed_calls
            try:
                self._in_training_call = True
                return run.run(Renewal(self._rebuild, lead, self._idle_models))
            finally:
                self._in_training_call = False
                self._agrees = not self._ranks.several or self._ranks.failed_calls == failed

    def _rebuild(self) -> TrainingEngine:
        """A new engine, after ranks have left or joined and the previous engine has been closed."""
        found, self.engine, self._view = self.engine.bad_examples, self._new_engine(), self._ranks.view.number
        for phase, bad in self.engine.bad_examples.items():
            bad.continue_from(found[phase])
        return self.engine

    def _idle_models(self) -> dict[int, IdleModel]:
        """The models of the program's other contexts, by the numbers of the contexts."""
        return {
            number: IdleModel(context.engine, context._rebuild, context._go_on)
            for number, context in self._ranks.models.items()
            if context is not self
        }

    def _go_on(self) -> None:
        """Adapt to the present ranks after another context has trained."""
        if self._ranks.is_first and not self._leads:
            self._lead(self.history)
        elif self._keeper is not None:
            self._keeper.use(self.engine)

    def _lead(self, history: History) -> None:
        """Take over the role of rank 0, which has left."""
        self._leads = True
        try:
            self._keeper = self._new_keeper(self._mark)
            for monitor in self._monitors:
                tell(monitor, "take_over", history)
        except DataError as error:
            say(f"error: {self._ranks.own} cannot take the place of rank 0: {error}")
            raise SystemExit(LOST) from error

    def continue_training(
        self,
        *,
        count: int | Kept | None = "kept",
        target_loss: float | Kept | None = "kept",
        target_accuracy: float | Kept | None = "kept",
        duration: float | Kept | None = "kept",
        duration_unit: DurationUnit = DurationUnit.SECONDS,
        verbose: Verbosity = "auto",
    ) -> History:
        """After `resume`, continue the training call that was interrupted. Returns the whole history of the call.

        count, target_loss, target_accuracy, duration: limits that replace those of the call, counted from its
        beginning; None removes one, and "kept" keeps it. The unit of `count` is that of the call. A call that has ended
        continues if a limit is raised. Raises CrossbowError if the checkpoint does not belong to a training call.
        """
        self._check_open()
        state = self._unfinished
        if state is None:
            raise CrossbowError("there is no training call to continue: use `train` or another method that trains")
        before = state.values["limits"]

        def chosen(value: Any, name: str) -> Any:
            return before[name] if isinstance(value, str) and value == "kept" else value

        limits = Limits.of(
            chosen(count, "count"),
            TrainingUnit[before["unit"]],
            target_loss=chosen(target_loss, "loss"),
            target_accuracy=chosen(target_accuracy, "accuracy"),
            duration=chosen(duration, "seconds"),
            duration_unit=DurationUnit.SECONDS if isinstance(duration, str) else duration_unit,
        )
        self._check_accuracy(limits)
        self._check_ranks()
        run = TrainingRun(
            self.engine,
            self.model,
            limits,
            self._monitors,
            test=state.values["test"],
            keeper=self._keeper,
            profiler=self._profiler,
            state=state,
        )
        return self._begin(run, verbose)

    @property
    def history(self) -> History:
        """The history of the current or last training call, also if it was interrupted or failed. After `resume`, the
        history of the call to continue."""
        if self._unfinished is not None:
            return restored_history(self._unfinished.values["history"])
        return History() if self._run is None else self._run.history

    def _write_timeline(self, profile: Profile, recording: Recording) -> None:
        devices = [number for number, each in enumerate(self.summary().devices) for _ in range(each.learners)]
        program = self.engine.program
        kernels = {vertex.name: program.kernels_of(vertex.order) for vertex in program.graph}
        tracks = {learner_track(number): device for number, device in enumerate(devices)}
        tracks |= {synchroniser_track(device): device for device in devices}
        self.timeline = Timeline.of(recording, tracks, {"kernels": kernels, "operations": program.operations()})
        try:
            self.timeline.save(profile.path)
        except DataError as error:  # training continues
            warnings.warn(f"the timeline was not written: {error}", RuntimeWarning, stacklevel=2)

    def checkpoint(self) -> None:
        """Write a checkpoint now. `Monitor.record` may also call this. If there are several ranks, rank 0 writes it.
        Raises CrossbowError without `ExecutionContext(checkpoints=…)`, and DataError if it cannot be written."""
        self._check_open()
        if self._checkpoints is None:
            raise CrossbowError("there is no directory for checkpoints: ExecutionContext(checkpoints=Checkpoints(…))")
        if self._keeper is not None:
            self._keeper.write_now(self._unfinished or (None if self._run is None else self._run.state()))

    # The base model

    def test(self) -> TestResult:
        """Test the base model on the check set. Every example counts exactly once, except bad ones.

        Raises CrossbowError if there is no check set."""
        self._check_open()
        self._check_ranks()
        with self._ranks.call():
            return TestResult(**self._ranks.together(self._tested))

    def _tested(self) -> dict[str, Any]:
        self._ranks.forget_failures()
        return asdict(self.engine.test())

    @without_own_frames
    def predict(self, images: Array) -> Array:
        """The base model's output for images (N, …): probabilities, for a network that ends with SoftMax.

        The images must have the type and the range of the training images: uint8 from 0 to 255 if these are uint8, else
        finite floating-point numbers. Raises DataError if they do not, and TaskError if an operator fails; a task is
        then one part of the images.
        """
        self._check_open()
        self._check_known()
        images = checked_like(images, self.data.train.image_shape, self.data.train.image_dtype, self.system.dtype)
        return self.engine.predict(images)

    @property
    def variables(self) -> dict[str, Array]:
        """A copy of the base model's variables and running statistics, by name, such as "conv1.weights" or
        "bn1.running_mean"."""
        self._check_open()
        self._check_known()
        return self.engine.weights

    @property
    def operator_variables(self) -> dict[tuple[int, str], Array]:
        """A copy of the same values, by the id of the operator and the name of the variable in the operator."""
        self._check_open()
        self._check_known()
        values, program = self.engine.weights, self.engine.program
        segments = {**program.model.segments, **program.statistics.segments}
        return {key: values[segment.name] for key, segment in segments.items()}

    @property
    def prediction_graph(self) -> Graph:
        """The graph that `predict` computes: the check dataflow without loss and metrics."""
        return derive_prediction(self._check.graph)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the base model with its running statistics and its graph (safetensors); `Predictor.load` reads it.

        The file also has the shape, type and scale of the images, and the names of the classes. The graph is left out
        if an operator has no description, for example because of a function in a field. The file is written atomically:
        an existing file is replaced at the end. Missing directories are created. Raises DataError if the file cannot be
        written.
        """
        self._check_open()
        checked = checked_path("save", path)
        if not self._ranks.behind:  # otherwise, the other ranks have already written it
            self._write_model(checked, self.engine.weights)

    def _write_model(self, path: Path, variables: Mapping[str, Array]) -> None:
        write_model(path, dict(variables), self._training, self._given_check, self._settings())

    @without_own_frames
    def load(
        self,
        path: str | os.PathLike[str],
        *,
        strict: bool = True,
        only: Sequence[str] = ("*",),
        exclude: Sequence[str] = (),
    ) -> Matching:
        """Read a base model written by `save`, and restart all learners from it. All ranks must call this.

        path: the file, or the directory of a run.
        only, exclude: patterns of the names of the variables to load, such as ["conv*"], and of exceptions. The other
        variables keep their values.
        strict: whether all of these variables must fit. With strict=False, for example for fine-tuning, only the
        variables that have the same name and shape in the model and in the file are loaded.

        Returns the names of the loaded variables, and all other variables with their shapes in the model and in the
        file. Raises DataError, and changes nothing, if the file is incomplete or damaged, does not fit the model, or
        contains non-finite numbers or a negative running variance; with strict=False, also if no variable fits. Raises
        ConfigurationError for a pattern that matches nothing.
        """
        self._check_open()
        self._check_ranks()
        selection, path, layouts = VariableSelection(only, exclude), model_path(path), self.engine.program.layouts

        def check(shapes: Mapping[str, Shape]) -> None:
            own = {segment.name: segment.spec.shape for layout in layouts for segment in layout}
            if strict:
                chosen = {name: shape for name, shape in shapes.items() if name in selection}
                others = {name: shape for name, shape in own.items() if name not in selection}
                check_names({**others, **chosen}, layouts, str(path))

        with self._ranks.call():
            file = read_variables(path, check)
            matching, values = match(self.engine.weights, file, selection, str(path))
            self.engine.load(values, str(path))
        return matching

    @without_own_frames
    def set_variables(self, values: Mapping[str, Array]) -> None:
        """Set variables and running statistics of the base model by name, for example {"conv1.weights": array}, and
        restart all learners from it. The other variables keep their values. All ranks must call this, with the same
        values.

        Raises DataError, and changes nothing, if the model has no variable of a name and shape, or if a number is not
        finite.
        """
        self._check_open()
        self._check_ranks()
        with self._ranks.call():
            self.engine.load(replaced_variables(self.engine.weights, values), "set_variables")

    def _settings(self) -> ModelSettings:
        """The description of the data for a saved model, and the settings that the bits of a prediction depend on."""
        data, system = self.data, self.system
        return ModelSettings(
            image_shape=data.image_shape,
            image_dtype=data.train.image_dtype,
            scale=data.scale,
            number_of_classes=data.number_of_classes,
            class_names=data.class_names,
            batch_size=self.model.batch_size,
            check_batch_size=self.model.check_batch_size,
            kernels=system.kernels,
            precision=system.precision,
            winograd=system.winograd,
            threads_per_learner=self.summary().devices[0].threads_per_learner,
        )

    def _check_known(self) -> None:
        """End the program of a rank that joins, if it has skipped a training call: it does not have the base model."""
        if self._ranks.behind:
            self._ranks.give_up_joining(
                "a rank cannot join where the program uses the base model between two training calls: it receives the "
                "base model when it joins"
            )

    def _check_ranks(self) -> None:
        """Raise CrossbowError, on all ranks, if the base model of this rank may differ from that of the others."""
        if self._ranks.joins or (self._agrees and self._view == self._ranks.view.number):
            return
        why = "ranks have left or joined while another context trained, and this one was not in use on all of them"
        if not self._agrees:
            why = "training has failed on a rank, and ranks may have come to different places"
        with self._ranks.call():
            raise CrossbowError(f"{why}, so that the context can only predict. Create another one, and load its model")

    def _check_open(self) -> None:
        if self._closed:
            raise CrossbowError("the context is closed")
        self.engine.check_usable()
