"""Common part of model scripts: read the options, train, print, log, and plot the learning curves."""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossbow import (
    Checkpoints,
    ConsoleMonitor,
    Dataflow,
    Dataset,
    EarlyStopping,
    ExecutionContext,
    History,
    JsonLinesMonitor,
    Monitor,
    Profile,
    WandbMonitor,
)
from crossbow.cluster.host_files import sharding_of
from crossbow.cluster.launch import is_rank
from crossbow.cluster.members import GivenUp, Left
from crossbow.cluster.output import arrange_output
from crossbow.cluster.process import is_first, join, leave
from crossbow.cluster.program import BEGUN_AGAIN, RankProgram
from crossbow.cluster.ray.launching import RayLaunch, launch_on_ray
from crossbow.conf import settings
from crossbow.console import printable, run_command
from crossbow.data.fingerprint import fingerprint
from crossbow.data.rank_shares import share_of_rank
from crossbow.files import reason
from crossbow.host_memory import peak_memory
from crossbow.monitors.status import StatusMonitor
from crossbow.runtime.alike import check_equal
from crossbow.runtime.checkpoint import checkpoint_files
from crossbow.runtime.checkpointing import Written
from crossbow.runtime.device import parse_devices
from crossbow.runtime.recorded import differences, recorded
from crossbow.runtime.resumption import Resumption
from crossbow.scripts.bad_records import BadRecordsMonitor
from crossbow.scripts.between_ranks import chosen_between, chosen_later
from crossbow.scripts.compilation import announced
from crossbow.scripts.curves import write_learning_curves
from crossbow.scripts.data_sources import IMAGE_FOLDER, SYNTHETIC, DataSource
from crossbow.scripts.initial_model import digest_of_initial_model, load_initial_model
from crossbow.scripts.logged_run import read_run
from crossbow.scripts.logs import log_monitors
from crossbow.scripts.parser import Configurations, Defaults, configurations, new_parser, wants_cluster
from crossbow.scripts.run_directory import (
    VERSION,
    RunDirectory,
    commit,
    machine,
    module_of,
    now,
    repeated,
    settings_of,
    versions,
)
from crossbow.scripts.run_summary import SUMMARY, write_summary
from crossbow.scripts.run_texts import count, header, print_configuration, weights_of_losses
from crossbow.scripts.setting_options import those_given
from crossbow.scripts.top_k import with_top_k
from crossbow.scripts.watch_command import STATUS
from crossbow.types import CrossbowError, DataError, Shape

__all__ = ["Defaults", "ModelDescription", "ModelScript"]


@dataclass(frozen=True)
class ModelDescription:
    """The model that a script trains with some options, for the data set that these or the defaults select."""

    name: str
    """Name of the script, and of the selected model."""
    command: str
    parameters: int
    """Number of elements of all variables."""
    input_shape: Shape
    """Shape of one example."""
    paper: str


LONG_WAIT = 0.1, 1.0
"""Fraction of the time, and number of seconds, that learners may wait for data before a script recommends more
threads."""


OF_ALL_RANKS = ("epochs", "time_limit", "target_accuracy", "patience", "resume", "top_k")
"""Options that must be the same on all ranks, in addition to those of the context."""
SLOWEST = 12
"""Number of operators that a script prints after a run with a timeline."""


@dataclass(frozen=True)
class ModelScript:
    """A model with a command line: `ModelScript(…).main(sys.argv[1:])`."""

    name: str
    """Name of the module in `models`, and of the default output directory."""
    title: str
    """One sentence for `--help`."""
    build: Callable[[argparse.Namespace], Dataflow]
    """Function from the options to the training dataflow. They include the data set's `image_shape` and `classes`."""
    defaults: Defaults
    paper: str = ""
    """Publication of the model, such as "arXiv:1512.03385"."""
    variants: tuple[str, ...] = ("",)
    """Options of the models that `crossbow models` lists."""
    add_options: Callable[[argparse._ArgumentGroup], None] = lambda group: None
    """Function that adds the model's own options."""
    choose_defaults: Callable[[argparse.Namespace], Defaults] | None = None
    """Function from the model's own options to the defaults, if these are not always `defaults`."""
    variant: Callable[[argparse.Namespace], str] = lambda options: getattr(options, "variant", "")
    """Function from the options to the name of the selected model; empty if there is only one."""

    synthetic: Callable[[argparse.Namespace, DataSource], Dataset] | None = None
    """Function from the options to the synthetic data set, if that has no images."""

    def defaults_for(self, arguments: Sequence[str] | None) -> Defaults:
        """The defaults of the other options. They depend on the model's own options, which are therefore read first."""
        if self.choose_defaults is None:
            return self.defaults
        parser, group = new_parser(self.name, self.title, self.defaults)
        first = argparse.ArgumentParser(prog=parser.prog, usage=parser.usage, add_help=False, allow_abbrev=False)
        self.add_options(first.add_argument_group(group.title))
        return self.choose_defaults(first.parse_known_args(arguments)[0])

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Train as the command line says. Returns the exit status. Expected errors are printed as one sentence on
        stderr."""
        given, command = sys.argv[1:] if arguments is None else list(arguments), f"python -m models.{self.name}"
        if wants_cluster(given) and not is_rank(os.environ):
            module = module_of(self.build)
            program = RankProgram(module, tuple(given), is_module=not module.endswith(".py"))
            return run_command(command, lambda: launch_on_ray(program, RayLaunch()))
        arrange_output(is_first, log_all="--log-all" in given)
        return leave(run_command(command, lambda: self._train(arguments)))

    def describe(self, arguments: Sequence[str] = ()) -> ModelDescription:
        """The model that these options select. Nothing is read or trained."""
        options, confs, dataflow = self.network(arguments)
        data = confs.data
        words = self.variant(options)
        given = f", {options.dataset}" if "--dataset" in arguments else ""
        return ModelDescription(
            name=f"{self.name} ({words}{given})" if words else f"{self.name}{given}",
            command=" ".join(["python -m", f"models.{self.name}", *arguments]),
            parameters=dataflow.parameters((1, *data.image_shape)),
            input_shape=data.image_shape,
            paper=self.paper,
        )

    def network(self, arguments: Sequence[str] = ()) -> tuple[argparse.Namespace, Configurations, Dataflow]:
        """Options, configurations and training dataflow of a command line. Nothing is trained, and files are read only
        if the network depends on the shape of their examples."""
        options, defaults = self._options(arguments)
        confs = configurations(options, defaults)
        options.image_shape, options.classes = confs.data.image_shape, confs.data.number_of_classes
        return options, confs, self.built(options)

    def built(self, options: argparse.Namespace) -> Dataflow:
        """The training dataflow that these options select, with the metrics that they add."""
        dataflow = self.build(options)
        return dataflow if options.top_k is None else with_top_k(dataflow, options.top_k)

    def dataflow(self, arguments: Sequence[str] = ()) -> Dataflow:
        """The training dataflow that these options select."""
        return self.network(arguments)[2]

    def data(self, options: argparse.Namespace, confs: Configurations) -> Dataset:
        """The data set that these options select, or this rank's part. Raises DataError if it cannot be read."""
        make = self.synthetic if options.dataset == SYNTHETIC else None
        data = confs.data.load() if make is None else make(options, confs.data)
        if (sharding := options.data_sharding) is None:
            return data
        return share_of_rank(data, sharding_of(sharding))

    def synthetic_data(self, arguments: Sequence[str] = (), *, training: int, check: int) -> Dataset:
        """Synthetic examples, of the shape that these options select."""
        options, confs, _ = self.network(arguments)
        source = replace(confs.data, name=SYNTHETIC, training=training, check=check)
        return source.load() if self.synthetic is None else self.synthetic(options, source)

    def _options(self, arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Defaults]:
        """The options of a command line, and the defaults that the model's own options select."""
        defaults = self.defaults_for(arguments)
        parser, group = new_parser(self.name, self.title, defaults)
        self.add_options(group)
        return parser.parse_args(arguments), defaults

    def _train(self, arguments: Sequence[str] | None) -> int:
        options, defaults = self._options(arguments)
        if options.epochs is None:
            options.epochs = defaults.epochs_with(options.dataset)
        with _silence() if options.quiet else contextlib.nullcontext():
            if os.environ.pop(BEGUN_AGAIN, "") and options.resume:
                _resume_if_possible(options)
            _Run(self, options, defaults, sys.argv[1:] if arguments is None else arguments).run()
        return 0


def _resume_if_possible(options: argparse.Namespace) -> None:
    """Let a run that lost ranks before its first checkpoint begin again instead of resuming. Rank 0 decides this."""
    directory = RunDirectory(options.output_directory).checkpoints
    options.resume = join().agree(lambda: bool(checkpoint_files(directory)))
    options.overwrite = not options.resume
    if not options.resume and join().is_first:
        print(f"{directory}: no checkpoint, so the run begins again", flush=True)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard standard output."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def new_context(
    script: ModelScript,
    options: argparse.Namespace,
    defaults: Defaults,
    monitors: Sequence[Monitor],
    profile: Profile | None,
    tell: Callable[[str], None],
) -> tuple[ExecutionContext, Dataflow, list[str]]:
    """The context of a run, its training dataflow, and the lines to print about the measured exchange and the initial
    model. tell: called with the line about the exchange if it is measured when ranks join."""
    confs = configurations(options, defaults)
    options.image_shape, options.classes = confs.data.image_shape, confs.data.number_of_classes
    dataflow = script.built(options)
    parse_devices(confs.system.devices)  # reports an invalid name before data are read, or downloaded
    data = script.data(options, confs)
    model, exchange = confs.model, ""
    if options.between is None:
        model, exchange = chosen_between(join(), confs, dataflow, data)
    check_equal(
        join(),
        {
            **{f"--{name.replace('_', '-')}": getattr(options, name) for name in OF_ALL_RANKS},
            "--initial-model": digest_of_initial_model(options),
        },
    )
    checkpoints = Checkpoints(options.output_directory, **those_given(options, settings(Checkpoints)))
    create: Callable[..., ExecutionContext] = functools.partial(ExecutionContext, checkpoints=checkpoints)
    if options.resume:
        create = functools.partial(ExecutionContext.resume, checkpoints)
    context = create(
        [dataflow, None],
        data=data,
        model=model,
        solver=confs.solver,
        system=confs.system,
        monitors=monitors,
        profile=profile,
    )
    if options.between is None and not exchange:
        context.on_new_ranks = chosen_later(join(), confs, dataflow, data, tell)
    try:
        initial = [] if options.resume else load_initial_model(context, options)
        return context, dataflow, [*([exchange] if exchange else []), *initial]
    except BaseException:
        context.close()
        raise


def train(context: ExecutionContext, options: argparse.Namespace) -> History:
    """Train as the options say, or continue a resumed run."""
    if context.resumed is None:
        return context.train_and_test(
            options.epochs, target_accuracy=options.target_accuracy, duration=options.time_limit
        )
    return context.continue_training(
        count=options.epochs, target_accuracy=options.target_accuracy, duration=options.time_limit
    )


class _CheckpointWarnings(Monitor):
    """With --quiet, warns on stderr of checkpoints that could not be written."""

    def checkpoint(self, written: Written) -> None:
        if written.error:
            warn(written.warning)


def _check_fraction(options: argparse.Namespace) -> float | None:
    """The fraction of an image folder for checks; None with other data sets."""
    if options.dataset != IMAGE_FOLDER:
        return None
    given: float | None = options.check_fraction
    return DataSource.check_fraction if given is None else given


def warn(sentence: str) -> None:
    """Print a warning on stderr."""
    print(printable(sentence, sys.stderr), file=sys.stderr, flush=True)


class _Successor(Monitor):
    """Continues the files of a run on a rank that becomes rank 0."""

    def __init__(self) -> None:
        self.succeed: Callable[[], None]

    def take_over(self, history: History) -> None:
        self.succeed()


class _Run:
    """One training run of a script. Only rank 0 prints, and writes files."""

    def __init__(
        self, script: ModelScript, options: argparse.Namespace, defaults: Defaults, arguments: Sequence[str]
    ) -> None:
        self.script, self.options, self.defaults, self.arguments = script, options, defaults, arguments
        self.directory = RunDirectory(options.output_directory)
        self.bad = BadRecordsMonitor(self.directory.bad_records)
        self.log = JsonLinesMonitor(self.directory.log)
        self.status = StatusMonitor(
            options.output_directory / STATUS, epochs=options.epochs, seconds=options.time_limit
        )
        self.others = log_monitors(options.log, options.output_directory, script.name, resume=options.resume)
        self.description: dict[str, Any] = {}
        """The contents of `run.json`."""
        if options.patience is not None:
            measure = "test_loss" if defaults.number_of_classes is None else "test_accuracy"
            self.others.append(EarlyStopping(options.patience, measure))
        self.console = ConsoleMonitor(epochs=options.epochs, seconds=options.time_limit)

    def run(self) -> None:
        options = self.options
        leads = join().is_first
        if leads and not (options.resume or options.overwrite):
            self.directory.check_new()
        successor = _Successor()
        monitors = [successor, self.log, self.status, *self.others, self.bad, self.console]
        if options.quiet:
            monitors.append(_CheckpointWarnings())
        profile = None if options.profile is None else Profile(self.directory.timeline, tasks=options.profile)
        with announced() if leads and not options.quiet else contextlib.nullcontext():
            context, dataflow, initial = new_context(
                self.script, options, self.defaults, monitors, profile, self._tell_exchange
            )
        with context:
            weights, variant = weights_of_losses(dataflow), self.script.variant(options)
            head = header(self.script.name, variant, options.dataset, context, weights)
            for monitor in self.others:
                if isinstance(monitor, WandbMonitor):
                    monitor.settings.update(head)
            successor.succeed = functools.partial(self._succeed, context, head)
            if leads:
                print_configuration(self.script.name, variant, options, context, context.data, weights, initial)
                self._begin(context, head)
            self._train(context, dataflow)

    def _begin(self, context: ExecutionContext, head: Mapping[str, Any]) -> None:
        """Start writing the files. head: the first line of the log."""
        self.directory.prepare()
        self.description = self._describe(context)
        if context.resumed is None:
            self.directory.timeline.unlink(missing_ok=True)  # the timeline of an older run
            self.bad.prepare()
            self.log.header(head)
        else:
            self.description = self._continue(context.resumed, self.description)
        self._write("running")

    def _succeed(self, context: ExecutionContext, head: Mapping[str, Any]) -> None:
        """Continue the files of a run whose rank 0 has left, or create new ones on this machine."""
        self.directory.prepare()
        self.description = self._describe(context)
        if self.directory.description.exists():
            before = self.directory.read()
            self.description |= {name: before[name] for name in ("command", "started", "resumed") if name in before}
        else:
            self.log.header(head)
        self._write("running")

    def _tell_exchange(self, sentence: str) -> None:
        """Print and log how often ranks average, which was chosen when ranks joined."""
        print(sentence, flush=True)
        self.log.note(exchange=sentence)

    def _write(self, state: str, **more: Any) -> None:
        self.directory.write({**self.description, "state": state, **more})

    def _describe(self, context: ExecutionContext) -> dict[str, Any]:
        """The contents of `run.json`."""
        module, arguments = module_of(self.script.build), repeated(self.arguments, self.options)
        return {
            "version": VERSION,
            "command": shlex.join(["python", "-m", module, *self.arguments]),
            "module": module,
            "arguments": arguments,
            "working_directory": os.getcwd(),
            "settings": settings_of(self.options),
            "configuration": {name: recorded(getattr(context, name)) for name in ("model", "solver", "system")},
            "seed": context.system.seed,
            "data": {
                "name": self.options.dataset,
                "directory": None if self.options.data_directory is None else str(self.options.data_directory),
                "check_fraction": _check_fraction(self.options),
                **fingerprint(context.data),
            },
            "versions": versions(),
            "machine": machine(),
            "commit": commit(),
            "process": os.getpid(),
            "started": now(),
        }

    def _continue(self, resumed: Resumption, description: dict[str, Any]) -> dict[str, Any]:
        """Print and log the resumption of the run. Returns the new contents of `run.json`."""
        before = self.directory.read()
        limits = [
            {name: each["settings"].get(name) for name in ("epochs", "time_limit", "target_accuracy", "patience")}
            for each in (before, description)
        ]
        changed = list(differences(*limits))
        print("\n".join([str(resumed), *changed]), flush=True)
        if self.options.quiet:
            for sentence in resumed.damaged:
                warn(sentence)
        self._replay(resumed.tasks)
        self.log.note(resumed=resumed.tasks, changes=[*changed, *resumed.changes], exact=resumed.exact)
        times = [*before.get("resumed", []), {"at": description["started"], "tasks": resumed.tasks}]
        return {**description, "command": before["command"], "started": before["started"], "resumed": times}

    def _replay(self, tasks: int) -> None:
        """If the checkpoint has no state of early stopping, give it the records of the earlier process, up to the task
        at which training continues."""
        for monitor in self.others:
            if isinstance(monitor, EarlyStopping) and math.isnan(monitor.best):
                for record in read_run(self.directory.path).records:
                    if record.tasks <= tasks:
                        monitor.record(record)
                monitor.take_request()

    def _train(self, context: ExecutionContext, dataflow: Dataflow) -> None:
        """Train and, on rank 0, complete the files."""
        options = self.options
        try:
            with self.console:
                history = train(context, options)
        except (Left, GivenUp):
            raise  # the other ranks continue the files
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
            if join().is_first:
                self._fail(context, "interrupted" if interrupted else "failed")
            raise
        if join().is_first:
            self._write("finished", ended=now())
            self._finish(context, dataflow, history)

    def _fail(self, context: ExecutionContext, state: str) -> None:
        try:
            self._end(context, f"{state}: ")
            if state == "interrupted" and checkpoint_files(self.directory.checkpoints):
                print(f"continue with: crossbow resume {shlex.quote(str(self.directory.path))}", flush=True)
        finally:
            self._write(state, ended=now())

    def _finish(self, context: ExecutionContext, dataflow: Dataflow, history: History) -> None:
        try:
            write_summary(context, dataflow, self.directory.path / SUMMARY)
        except CrossbowError as error:  # the training itself has succeeded
            print(f"no summary: {error}")
        reasons = {"accuracy": "target accuracy reached: ", "duration": "time limit reached: "}
        reasons["monitor"] = f"{history.message}: "
        self._end(context, reasons.get(history.stopped, ""))

    def _end(self, context: ExecutionContext, reason: str) -> None:
        """Plot and summarise the run. reason: beginning of the printed text, which says why training ended."""
        history = context.history
        if not history.records:
            print(f"{reason}nothing was recorded, and no picture is drawn", flush=True)
            return
        done = history.records[-1]
        images = done.tasks * context.model.batch_size
        learners = context.summary().learners
        peak = peak_memory()
        memory = "" if peak is None else f"; peak memory {peak / 1e6:,.0f} MB"
        print(
            f"{reason}trained {count(done.epoch, 'epoch')} ({done.tasks:,} tasks) in {done.time:.1f} s; "
            f"{images / done.time:,.0f} images/s with {count(learners, 'learner')}{memory}; "
            f"learners waited for data {history.data_wait:.0%} of the time"
        )
        share, seconds = LONG_WAIT
        if history.data_wait > share and history.data_wait * done.time > seconds:
            threads = context.system.loader_threads
            print(f"hint: more than --loader-threads {threads} may be faster, if there are cores for them")
        if left_out := self.bad.summary():
            print(left_out)
        best = history.best
        if best is not None and best.test is not None and best.test.accuracy is not None:
            print(
                f"best test accuracy {best.test.accuracy:.2%}, reached in {best.time:.1f} s "
                f"({count(best.epoch, 'epoch')})"
            )
        if context.timeline is not None:
            print(f"\ntimeline {self.directory.timeline}, for ui.perfetto.dev\n{context.timeline.describe(SLOWEST)}\n")
        sys.stdout.flush()  # before the plot, which may fail
        print(f"log {self.directory.log}; {self._draw(context, history)}", flush=True)

    def _draw(self, context: ExecutionContext, history: History) -> str:
        """Write the plot. Returns the text to print about it."""
        options = self.options
        title = f"{self.script.name} on {options.dataset}: {options.rule}, batch {context.model.batch_size}"
        try:
            write_learning_curves(history.records, self.directory.picture, title)
        except DataError as error:
            return f"no picture: {error}"
        except OSError as error:
            return f"no picture: {self.directory.picture}: {reason(error)}"
        return f"picture {self.directory.picture}"
