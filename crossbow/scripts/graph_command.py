"""The command `crossbow graph`: a picture of a model's graph."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import pkgutil
from pathlib import Path
from typing import Any

import numpy as np

from crossbow.compile import BatchSource, Program, compile_graph
from crossbow.dataflow import Dataflow
from crossbow.kernels import select_library
from crossbow.runtime.configuration import SystemConf
from crossbow.scripts.model_script import ModelScript
from crossbow.scripts.values import expanded_path, meant
from crossbow.types import ConfigurationError, Phase, Shape, Tensor


def add_graph_command(commands: Any) -> None:
    """Add `graph` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "graph",
        help="draw the graph of a model",
        usage="crossbow graph MODEL [-o FILE] [--compiled] [--gradients] [options of the model's script]",
        description="Draws the operators of a model with their parameters, variables and output shapes.",
        allow_abbrev=False,
    )
    _add_options(parser)
    parser.add_argument("model", metavar="MODEL", help="a module with a training script, as models.resnet")
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, metavar="options", help="of the model's script, as --depth 32"
    )
    parser.set_defaults(run=_draw)


def _add_options(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """Add the options of the command. again: whether these are the options after the model, which must not reset the
    options before it to their defaults."""
    default: Any = argparse.SUPPRESS if again else None
    parser.add_argument(
        "-o",
        "--output",
        type=expanded_path,
        metavar="FILE",
        default=default,
        help="file to write, which ends with .svg, .png or .dot (default: the model's name with .svg)",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        default=default,
        help="compile the model for this machine's CPU, and add kernels, fusions and buffers",
    )
    parser.add_argument("--gradients", action="store_true", default=default, help="draw gradient operators, too")


def _draw(options: argparse.Namespace) -> None:
    further = argparse.ArgumentParser(prog="crossbow graph", add_help=False, allow_abbrev=False)
    _add_options(further, again=True)
    _, rest = further.parse_known_args(options.rest, options)
    script = script_of(options.model)
    _, confs, dataflow = script.network(rest)
    batch = (confs.model.batch_size, *confs.data.image_shape)
    path = options.output or Path(f"{script.name}.svg")
    dtypes = (np.uint8, np.int32) if confs.data.number_of_classes is not None else (np.float32, np.float32)
    program = _compiled(dataflow, batch, dtypes, confs.system) if options.compiled else None
    dataflow.draw(path, batch, compiled=program, gradients=bool(options.gradients))
    print(f"{path}: {dataflow.parameters(batch):,} parameters, batches of {'×'.join(map(str, batch))}")


def script_of(name: str) -> ModelScript:
    """The script of a module. Raises ConfigurationError, with the most similar name in the zoo, if there is none."""
    known = _zoo()
    try:
        found = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    script = getattr(importlib.import_module(name), "SCRIPT", None) if found else None
    if isinstance(script, ModelScript):
        return script
    hint = meant(name, known, cutoff=0.5)
    raise ConfigurationError(f"expected a module with a model script, as models.resnet. Received: {name!r}{hint}")


def _zoo() -> list[str]:
    """The names of the modules in the package `models`, such as "models.resnet"."""
    package = importlib.util.find_spec("models")
    places = (package and package.submodule_search_locations) or ()
    return [f"models.{module.name}" for module in pkgutil.iter_modules(places)]


def _compiled(dataflow: Dataflow, batch: Shape, dtypes: tuple[type, type], system: SystemConf) -> Program:
    """The training program on this machine's CPU, for examples and labels of these types."""
    library, set_threads = select_library(system.kernels, system.dtype, winograd=system.winograd)
    set_threads(system.threads_per_learner or 1)
    images, labels = (
        Tensor((1, *shape), np.dtype(dtype)) for shape, dtype in zip((batch, batch[:1]), dtypes, strict=True)
    )
    source = BatchSource(images, labels, 1 / 255)
    return compile_graph(dataflow.graph, source, library, system.dtype, phase=Phase.TRAIN)
