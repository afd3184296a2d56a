"""ExecutionContext, the user's interface: it trains, tests, predicts, saves and loads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from crossbow.cluster.process import join
from crossbow.data import Dataset
from crossbow.data.dataset import checked_like
from crossbow.data.examples import BadExample, Examples, predict_examples
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import Graph
from crossbow.duties import Duties
from crossbow.files import checked_path
from crossbow.matching import Matching, VariableSelection, read_matching
from crossbow.model_file import ModelSettings, model_path, write_model
from crossbow.monitors.verbosity import Verbosity
from crossbow.runtime.alike import check_alike
from crossbow.runtime.arguments import (
    Network,
    check_kinds,
    checked_monitors,
    new_setup,
    replaced_variables,
    two_dataflows,
)
from crossbow.runtime.checkpointing import Checkpoints, CheckpointWriter
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.keeper import Resumable, find_checkpoint
from crossbow.runtime.limits import Kept, Limits, epochs_done
from crossbow.runtime.monitor import Monitor
from crossbow.runtime.profiling import Profile, Profiler, timeline_of
from crossbow.runtime.recorded import rebuilt
from crossbow.runtime.results import History, TestResult
from crossbow.runtime.resumption import Resumption, changes, check_same_run, describe_run
from crossbow.runtime.shared_checkpoint import shared
from crossbow.runtime.summary import RunSummary
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.solver import SolverConf
from crossbow.synch import Collective
from crossbow.timeline.recorder import Recorder, Recording
from crossbow.timeline.timeline import Timeline
from crossbow.tracebacks import without_own_frames
from crossbow.training_calls import TrainingCalls
from crossbow.types import (
    Array,
    ConfigurationError,
    CrossbowError,
    DataError,
    DurationUnit,
    Phase,
    TrainingUnit,
)


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
        check_kinds(data=data, model=model, solver=solver, system=system, checkpoints=checkpoints, profile=profile)
        self._ranks = join()
        with self._ranks.call():
            used_monitors = checked_monitors(monitors)
            self._setup = new_setup(training, check, data, model, solver, system)
            self._checkpoints, recorder = checkpoints, Recorder()
            writer = (
                None if checkpoints is None else partial(CheckpointWriter, checkpoints, self._write_model, recorder)
            )
            used_profile = profile if self._ranks.is_first else None
            profiler = None if used_profile is None else Profiler(used_profile, recorder, self._write_timeline)
            self.timeline: Timeline | None = None
            """The recorded timeline; None without `profile`, or before the recording has ended."""
            self.resumed: Resumption | None = None
            """Description of the resumption; None if training was not resumed."""
            self._closed = False
            described = checkpoints is not None or self._ranks.connected
            self._about = describe_run(self._setup) if described else {}
            """The description of the run in its checkpoints."""
            check_alike(self._ranks, self._about)
            self._duties = Duties(self._ranks, used_monitors, writer, self._about, recorder)
            self._calls = TrainingCalls(
                self._ranks, self._setup, self._duties, recorder, profiler, collective, given_monitors=monitors
            )

    @property
    def model(self) -> ModelConf:
        """Batch size, rule, and test interval."""
        return self._calls.model

    @property
    def solver(self) -> SolverConf:
        """Method, learning rate and its schedule, momentum, weight decay; those of the operators, if they have some."""
        return self._setup.solver

    @property
    def system(self) -> SystemConf:
        """Devices, number of learners, precision, seed."""
        return self._setup.system

    @property
    def data(self) -> Dataset:
        """The examples."""
        return self._setup.data

    @property
    def engine(self) -> TrainingEngine:
        """The engine, which another one replaces after ranks have left or joined."""
        return self._calls.engine

    @property
    def on_new_ranks(self) -> Callable[[], ModelConf] | None:
        """Returns the model's configuration for the new ranks, after ranks have left or joined. All ranks call it at
        the same time. None: the configuration stays the same."""
        return self._calls.on_new_ranks

    @on_new_ranks.setter
    def on_new_ranks(self, choose: Callable[[], ModelConf] | None) -> None:
        self._calls.on_new_ranks = choose

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
        whole = self._calls.resume(found)
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
        for each in checked_monitors([monitor]):
            self._duties.add(each)

    def close(self) -> None:
        """End all threads, and close the monitors. The base model is lost unless it was saved before."""
        if not self._closed:
            self._closed = True
            self._calls.close()
            try:
                self.engine.check_process()
            except CrossbowError:
                return  # the files of checkpoints and monitors belong to the process that created them
            self._duties.close()

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
        tables = [self._setup.training.describe(compiled=self.engine.program)]
        if (program := self.engine.check_program) is not None:
            tables.append(self._setup.check.describe(compiled=program))
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
        return self._train(Limits.of(count, unit), verbose)

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
        limits = Limits.of(count, unit, target_accuracy=target_accuracy, duration=duration, duration_unit=duration_unit)
        return self._train(limits, verbose, test=True)

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
        return self._train(Limits.of(count, unit, duration=duration, duration_unit=duration_unit), verbose)

    def train_until_condition(
        self,
        target_loss: float,
        count: int | None = None,
        unit: TrainingUnit = TrainingUnit.EPOCHS,
        *,
        verbose: Verbosity = "auto",
    ) -> History:
        """Train until the mean training loss of the last epoch's tasks is at most `target_loss`, or for `count`."""
        return self._train(Limits.of(count, unit, target_loss=target_loss), verbose)

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
        limits = Limits.of(count, unit, target_loss=target_loss, duration=duration, duration_unit=duration_unit)
        return self._train(limits, verbose)

    def _train(self, limits: Limits, verbose: Verbosity, *, test: bool = False) -> History:
        self._check_open()
        if test and self.data.check is None:
            raise ConfigurationError("train_and_test needs check data. Received: a Dataset without check data")
        return self._calls.train(limits, verbose, test=test)

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
        state = self._calls.unfinished
        if state is None:
            raise CrossbowError("there is no training call to continue: use `train` or another method that trains")
        limits = Limits.continued(
            state.values["limits"],
            count=count,
            target_loss=target_loss,
            target_accuracy=target_accuracy,
            duration=duration,
            duration_unit=duration_unit,
        )
        return self._calls.train(limits, verbose, test=state.values["test"], state=state)

    @property
    def history(self) -> History:
        """The history of the current or last training call, also if it was interrupted or failed. After `resume`, the
        history of the call to continue."""
        return self._calls.history

    def _write_timeline(self, profile: Profile, recording: Recording) -> None:
        self.timeline = timeline_of(recording, self.engine)
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
        if self._duties.keeper is not None:
            self._duties.keeper.write_now(self._calls.state())

    # The base model

    def test(self) -> TestResult:
        """Test the base model on the check set. Every example counts exactly once, except bad ones.

        Raises CrossbowError if there is no check set."""
        self._check_open()
        self._calls.check_ranks()
        with self._ranks.call():
            return TestResult(**self._ranks.together(self._tested))

    def _tested(self) -> dict[str, Any]:
        self._ranks.forget_failures()
        return asdict(self.engine.test())

    @without_own_frames
    def predict(self, images: Array | Examples) -> Array:
        """The base model's output for images (N, …): probabilities, for a network that ends with SoftMax.

        The images must have the type and the range of the training images: uint8 from 0 to 255 if these are uint8, else
        finite floating-point numbers. They may also be the examples of a data set, such as `data.check`, which are read
        piece by piece and are not changed at random. Raises DataError if they do not fit or cannot be decoded, and
        TaskError if an operator fails; a task is then one part of the images.
        """
        self._check_open()
        self._calls.check_known()
        return predict_examples(images, self._predict)

    def _predict(self, images: Array) -> Array:
        train = self.data.train
        return self.engine.predict(checked_like(images, train.image_shape, train.image_dtype, self.system.dtype))

    @property
    def variables(self) -> dict[str, Array]:
        """A copy of the base model's variables and running statistics, by name, such as "conv1.weights" or
        "bn1.running_mean"."""
        self._check_open()
        self._calls.check_known()
        return self.engine.weights

    @property
    def operator_variables(self) -> dict[tuple[int, str], Array]:
        """A copy of the same values, by the id of the operator and the name of the variable in the operator."""
        self._check_open()
        self._calls.check_known()
        values, program = self.engine.weights, self.engine.program
        segments = {**program.model.segments, **program.statistics.segments}
        return {key: values[segment.name] for key, segment in segments.items()}

    @property
    def prediction_graph(self) -> Graph:
        """The graph that `predict` computes: the check dataflow without loss and metrics. A loss with a prediction, as
        `MatFact`, is replaced by it."""
        return derive_prediction(self._setup.check.graph)

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
        threads = self.summary().devices[0].threads_per_learner
        settings = ModelSettings.of(self.data, self.model, self.system, threads)
        write_model(path, dict(variables), self._setup.training, self._setup.given_check, settings)

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
        self._calls.check_ranks()
        selection, path = VariableSelection(only, exclude), model_path(path)
        with self._ranks.call():
            layouts = self.engine.program.layouts
            matching, values = read_matching(path, self.engine.weights, layouts, selection, strict=strict)
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
        self._calls.check_ranks()
        with self._ranks.call():
            self.engine.load(replaced_variables(self.engine.weights, values), "set_variables")

    def _check_open(self) -> None:
        if self._closed:
            raise CrossbowError("the context is closed")
        self.engine.check_usable()
