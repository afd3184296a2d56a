"""The command line of all model scripts, and its conversion to Crossbow's configurations."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossbow.cluster.launch import is_rank
from crossbow.conf import settings
from crossbow.runtime.checkpointing import Checkpoints
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.profiling import Profile
from crossbow.scripts.command_parser import CommandParser, OuterCommand
from crossbow.scripts.data_sources import (
    BATCH_FILES,
    IMAGE_FOLDER,
    IMAGES,
    KNOWN,
    NUMBERED,
    OF_FILES,
    SYNTHETIC,
    DataSource,
)
from crossbow.scripts.initial_model import add_initial_model, check_initial_model
from crossbow.scripts.launch_command import launch_as_outer
from crossbow.scripts.logs import add_log
from crossbow.scripts.rule_options import add_rule, rule_conf, rule_hints
from crossbow.scripts.setting_options import add_settings, refuse_idle, those_given
from crossbow.scripts.solver_options import add_solver, solver_conf
from crossbow.scripts.top_k import add_top_k
from crossbow.scripts.values import expanded_path, expanded_sharding, integer, number
from crossbow.solver import SolverConf
from crossbow.solver.configuration import STEPWISE_POLICIES
from crossbow.types import ConfigurationError, Shape

MODEL = settings(ModelConf)
SYSTEM = settings(SystemConf)
LEARNERS = ("batch_size", "devices", "learners_per_device", "threads_per_learner")
LOADING = ("loader_threads", "order", "files_together", "on_bad_record")
TESTS = ("test_interval", "test_interval_unit", "check_batch_size")
"""Settings with their own heading in `--help`. The other settings of `MODEL` are listed with the rule, and those of
`SYSTEM` last."""
SYNTHETIC_SIZES = {
    "classes": ("number_of_classes", "classes"),
    "training_examples": ("training", "training examples"),
    "test_examples": ("check", "examples to test with"),
}
"""For each option of the synthetic data set, the field of DataSource and Defaults, and the name of the items."""
IMAGE_OPTIONS = {"image_size": IMAGES, "colour_distortion": IMAGES, "check_fraction": (IMAGE_FOLDER,)}
"""Options of data sets of image files, which are fields of DataSource, and the data sets that they apply to."""


@dataclass(frozen=True)
class Defaults:
    """Defaults of a model script."""

    epochs: Mapping[str, int]
    """Number of epochs by data set, for all data sets of `data_sources.KNOWN` that the script supports, except
    OF_FILES. The first is the default."""
    batch_size: int
    solver: SolverConf
    """Default solver. Its schedule applies only if its policy is used."""
    epochs_with_files: int | None = None
    """Number of epochs with a data set whose shape is that of its files, by default that of the default data set."""
    image_shape: Shape = (3, 32, 32)
    """Shape of a synthetic example. Only that of an image, (C, H, W), is an option of the script."""
    number_of_classes: int | None = 10
    """Number of classes of synthetic examples; None if the script's labels are numbers instead of classes."""
    examples: str = "images"
    """Name of the synthetic examples, such as "images"."""
    training: int = 2048
    """Number of synthetic training examples."""
    check: int = 512
    """Number of synthetic examples to test with."""

    @property
    def dataset(self) -> str:
        """The default data set."""
        return next(iter(self.epochs))

    @property
    def datasets(self) -> tuple[str, ...]:
        """All data sets that the script supports."""
        of_images = self.number_of_classes is not None and len(self.image_shape) == 3
        return (*self.epochs, *(OF_FILES if of_images else (BATCH_FILES,)))

    @property
    def image_size(self) -> int:
        """Height and width to which image files are resized: those of a synthetic image."""
        return self.image_shape[-1]

    def epochs_with(self, dataset: str) -> int:
        """Number of epochs with a data set."""
        others = self.epochs[self.dataset] if self.epochs_with_files is None else self.epochs_with_files
        return self.epochs.get(dataset, others)


class _Parser(CommandParser):
    """Adds the options of the rule to the message about an unknown option."""

    def outer(self) -> OuterCommand | None:
        return super().outer() or (launch_as_outer() if is_rank(os.environ) else None)

    def hint(self, options: argparse.Namespace) -> str:
        return "; ".join(rule_hints(options))


def new_parser(name: str, title: str, defaults: Defaults) -> tuple[argparse.ArgumentParser, argparse._ArgumentGroup]:
    """The parser, and its group for a model's own options."""
    parser = _Parser(
        prog=f"python -m models.{name}",
        usage="%(prog)s [options]",
        description=f"{title} Without options: {_without_options(defaults)}, SMA, one learner per core.",
        epilog="Exit status: 0; 1 if training fails; 2 if an option, a file or the graph is wrong; 130 after Ctrl-C.",
        allow_abbrev=False,
    )
    _add_data(parser.add_argument_group("data and output"), name, defaults)
    model = parser.add_argument_group("model")
    add_initial_model(model)
    _add_length(parser.add_argument_group("length of training (whichever comes first)"), defaults)
    rest = {**MODEL, **SYSTEM}
    learners, loading, tests = ({name: rest.pop(name) for name in names} for names in (LEARNERS, LOADING, TESTS))
    add_settings(parser.add_argument_group("learners"), learners, {"batch_size": str(defaults.batch_size)})
    add_settings(parser.add_argument_group("loading"), loading)
    add_settings(parser.add_argument_group("checkpoints"), settings(Checkpoints))
    rule = parser.add_argument_group("rule")
    add_rule(rule)
    add_settings(rule, {name: rest.pop(name) for name in MODEL if name in rest})
    add_solver(parser.add_argument_group("solver"), defaults.solver)
    testing = parser.add_argument_group("tests")
    add_settings(testing, tests)
    add_top_k(testing)
    add_settings(parser.add_argument_group("system"), rest)
    return parser, model


def _add_data(group: argparse._ArgumentGroup, name: str, defaults: Defaults) -> None:
    summaries = "; ".join(f"{dataset}: {_summary(dataset, defaults)}" for dataset in defaults.datasets)
    group.add_argument(
        "--dataset",
        choices=defaults.datasets,
        default=defaults.dataset,
        help=f"{summaries} (default: %(default)s)",
    )
    files = "; or ".join(filter(None, dict.fromkeys(KNOWN[dataset].files for dataset in defaults.datasets)))
    group.add_argument(
        "--data-directory",
        type=expanded_path,
        metavar="DIR",
        help=f"where the data set's files lie: {files or 'none here has any'} (default: they are downloaded)",
    )
    if set(IMAGES) <= set(defaults.datasets):
        _add_images(group, defaults)
    group.add_argument(
        "--data-sharding",
        type=expanded_sharding,
        metavar="stride|FILE",
        help="with several ranks: each keeps a part of the training examples in memory, and shuffles it by "
        "itself; stride: every n-th example; FILE: line r has begin and end of rank r's part, fractions of the set "
        "(default: each rank has the whole set)",
    )
    if SYNTHETIC in defaults.epochs:
        _add_synthetic(group, defaults)
    group.add_argument(
        "--output-directory",
        type=expanded_path,
        metavar="DIR",
        default=Path("output") / name,
        help="directory of the run: run.json, log.jsonl, model.safetensors, best.safetensors, checkpoints and "
        "pictures; an older run, model or log there is not replaced without --overwrite (default: %(default)s)",
    )
    add_log(group)
    group.add_argument(
        "--profile",
        type=integer(1),
        nargs="?",
        const=settings(Profile)["tasks"].default,
        metavar="TASKS",
        help="record a timeline of this many tasks, trace.json.gz, and print where the time went (default: none; "
        "%(const)s without TASKS)",
    )
    group.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)  # passed by `crossbow resume`
    group.add_argument("--quiet", action="store_true", help="print nothing but warnings and errors")
    add_cluster(group)
    group.add_argument(
        "--log-all", action="store_true", help="with several ranks: print the output of all, not only of rank 0"
    )


def add_cluster(group: Any) -> None:
    """Add the option that trains on a cluster."""
    group.add_argument(
        "--cluster",
        choices=("ray",),
        help="train on a rank for each node of the Ray cluster at RAY_ADDRESS, or on this machine; crossbow launch has "
        "more options (default: in this process)",
    )


def wants_cluster(arguments: Sequence[str]) -> bool:
    """Whether the arguments of a script have --cluster."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_cluster(parser)
    try:
        return parser.parse_known_args(list(arguments))[0].cluster is not None
    except argparse.ArgumentError:
        return False  # the script's own parser reports the error


def _add_images(group: argparse._ArgumentGroup, defaults: Defaults) -> None:
    names = ", ".join(IMAGES)
    group.add_argument(
        "--image-size",
        type=integer(1),
        metavar="N",
        help=f"{names}: height and width to which images are resized (default: {defaults.image_size})",
    )
    group.add_argument(
        "--colour-distortion",
        action="store_true",
        default=None,
        help=f"{names}: change brightness, saturation, hue and contrast of training images at random",
    )
    group.add_argument(
        "--check-fraction",
        type=number(0, 1, above=True, below=True),
        metavar="X",
        help=f"{IMAGE_FOLDER}: fraction of each class for tests, unless there are train and val "
        f"(default: {DataSource.check_fraction})",
    )


def _without_options(defaults: Defaults) -> str:
    """The default data set in words."""
    if defaults.dataset == SYNTHETIC:
        return f"synthetic {defaults.examples}"
    return KNOWN[defaults.dataset].without_options


def _summary(dataset: str, defaults: Defaults) -> str:
    if dataset == SYNTHETIC and len(defaults.image_shape) != 3:
        return f"random {defaults.examples}"
    return KNOWN[dataset].summary


def _add_synthetic(group: argparse._ArgumentGroup, defaults: Defaults) -> None:
    if len(defaults.image_shape) == 3:
        shape = ",".join(map(str, defaults.image_shape))
        group.add_argument(
            "--image-shape",
            type=_shape,
            metavar="C,H,W",
            help=f"synthetic: channels, height and width of an image (default: {shape})",
        )
    for name, (field, what) in SYNTHETIC_SIZES.items():
        option = f"--{name.replace('_', '-')}"
        count = getattr(defaults, field)
        if count is not None:
            more = f"; of {' and '.join(NUMBERED)}, if it is not the largest label + 1" if name == "classes" else ""
            text = f"synthetic: number of {what} (default: {count:,}){more}"
            group.add_argument(option, type=integer(1), metavar="N", help=text)


def _add_length(group: argparse._ArgumentGroup, defaults: Defaults) -> None:
    by_dataset = ", ".join(f"{count} with {dataset}" for dataset, count in defaults.epochs.items())
    if defaults.epochs_with_files is not None:
        by_dataset += f", {defaults.epochs_with_files} with {', '.join(OF_FILES)}"
    group.add_argument(
        "--epochs", type=integer(1), metavar="N", help=f"passes over the training set (default: {by_dataset})"
    )
    group.add_argument(
        "--target-accuracy",
        type=number(0, 1),
        metavar="A",
        help="end when the test accuracy, a fraction in [0, 1], is at least A (default: none)",
    )
    group.add_argument(
        "--time-limit",
        type=number(0, math.inf, above=True),
        metavar="SECONDS",
        help="end after this many seconds of training, tests not included (default: none)",
    )
    group.add_argument(
        "--patience",
        type=integer(1),
        metavar="N",
        help="end when the test accuracy (the test loss, if there is no accuracy) has not improved in N tests "
        "(default: none)",
    )


# Values


def _shape(text: str) -> Shape:
    sizes = tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in text.split(","))
    if len(sizes) != 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"expected three integers ≥ 1, as 3,224,224. Received: {text!r}")
    return sizes


# Configurations


@dataclass(frozen=True)
class Configurations:
    """The arguments of an `ExecutionContext`."""

    data: DataSource
    model: ModelConf
    solver: SolverConf
    system: SystemConf


def configurations(options: argparse.Namespace, defaults: Defaults) -> Configurations:
    """The options as configurations. Raises ConfigurationError, also for an option without effect."""
    check_initial_model(options)
    epochs = options.epochs if options.epochs is not None else defaults.epochs_with(options.dataset)
    solver = solver_conf(options, defaults.solver, epochs)
    model = those_given(options, MODEL)
    if "restart" in model and solver.policy not in STEPWISE_POLICIES:
        typed = MODEL["restart"].typed(model["restart"])
        raise refuse_idle(typed, f"with --learning-rate-policy {solver.policy}")
    return Configurations(
        data=_data(options, defaults),
        model=ModelConf(**{"batch_size": defaults.batch_size, **model}, rule=rule_conf(options)),
        solver=solver,
        system=SystemConf(**those_given(options, SYSTEM)),
    )


def _data(options: argparse.Namespace, defaults: Defaults) -> DataSource:
    known = KNOWN[options.dataset]
    if options.data_directory is not None and not known.files:
        others = [dataset for dataset in defaults.datasets if KNOWN[dataset].files]
        needs = f"--data-directory needs --dataset {' or '.join(others)}"
        raise ConfigurationError(f"{needs}. Received: {options.dataset} ({known.summary})")
    shape = known.image_shape or defaults.image_shape
    sizes: dict[str, Any] = {field: getattr(defaults, field) for field, _ in SYNTHETIC_SIZES.values()}
    if options.dataset != SYNTHETIC and defaults.number_of_classes is not None:
        sizes["number_of_classes"] = known.number_of_classes
    stated = None
    if SYNTHETIC in defaults.epochs:
        given = those_given(options, [name for name in ("image_shape", *SYNTHETIC_SIZES) if name in options])
        stated = given.pop("classes", None) if options.dataset in NUMBERED else None
        if options.dataset != SYNTHETIC:
            for name, value in given.items():
                text = ",".join(map(str, value)) if isinstance(value, tuple) else value
                raise refuse_idle(f"--{name.replace('_', '-')} {text}", f"with --dataset {options.dataset}")
        shape = given.pop("image_shape", shape)
        sizes |= {SYNTHETIC_SIZES[name][0]: size for name, size in given.items()}
    images = those_given(options, [name for name in IMAGE_OPTIONS if name in options])
    if options.dataset in IMAGES:
        images.setdefault("image_size", defaults.image_size)
    for name, value in images.items():
        if options.dataset not in IMAGE_OPTIONS[name]:
            text = "" if value is True else f" {value}"
            raise refuse_idle(f"--{name.replace('_', '-')}{text}", f"with --dataset {options.dataset}")
    source = DataSource(options.dataset, options.data_directory, shape, classes=stated, **sizes, **images)
    if options.dataset not in OF_FILES:
        return source
    data = source.load()
    return replace(source, image_shape=data.image_shape, number_of_classes=data.number_of_classes, loaded=data)
