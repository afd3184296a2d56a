"""The command `crossbow lr-find`: a learning-rate range test of a model, with a picture."""

from __future__ import annotations

import argparse
import io
import json
import math
from pathlib import Path
from typing import Any

from crossbow.files import write_whole
from crossbow.learning_rates import RangeTest, find_learning_rate
from crossbow.scripts.command_parser import OuterCommand, arguments_of
from crossbow.scripts.curves import new_figure, picture_format
from crossbow.scripts.graph_command import script_of
from crossbow.scripts.values import expanded_path, integer, number
from crossbow.types import ConfigurationError


def add_lr_find_command(commands: Any) -> None:
    """Add `lr-find` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "lr-find",
        help="find a learning rate for a model",
        usage="crossbow lr-find [options] -m MODEL [options of the model's script]",
        description="Trains a model for a short time with an increasing learning rate, and draws the loss by learning "
        "rate (L. N. Smith, arXiv:1506.01186). Nothing is kept of the training.",
        allow_abbrev=False,
    )
    rate = number(0, math.inf, above=True)
    parser.add_argument(
        "--from", dest="lowest", type=rate, default=1e-6, metavar="X", help="first learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--to", dest="highest", type=rate, default=10.0, metavar="X", help="last learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--tasks", type=integer(2), default=200, metavar="N", help="number of batches (default: %(default)s)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=expanded_path,
        metavar="FILE",
        help="picture to write, .png or .svg (default: the model's name with -learning-rates.png)",
    )
    parser.add_argument("--json", type=expanded_path, metavar="FILE", help="also write rates and losses to FILE")
    parser.add_argument(
        "-m",
        dest="model",
        nargs=argparse.REMAINDER,
        metavar="MODEL",
        help="a module with a training script, as models.resnet, and its options",
    )
    parser.set_defaults(run=lambda options: _find(options, OuterCommand.of(parser, "-m")))


def _find(options: argparse.Namespace, command: OuterCommand) -> None:
    if not options.model:
        raise ConfigurationError("expected a model, as -m models.resnet. Received: none")
    name, *rest = options.model
    script = script_of(name)
    with arguments_of(command):
        chosen, confs, dataflow = script.network(rest)
    path = options.output or Path(f"{script.name}-learning-rates.png")
    form = picture_format(path)
    figure = new_figure()  # before the training, which would be useless without matplotlib
    found = find_learning_rate(
        [dataflow, None],
        data=script.data(chosen, confs),
        model=confs.model,
        solver=confs.solver,
        system=confs.system,
        lowest=options.lowest,
        highest=options.highest,
        tasks=options.tasks,
    )
    write_whole(path, _picture(figure, found, f"{script.name}, batch {confs.model.batch_size}", form))
    if options.json is not None:
        contents = {"rates": found.rates, "losses": found.losses, "diverged": found.diverged}
        text = json.dumps({**contents, "least": found.least, "suggestion": found.suggestion}, indent=2)
        write_whole(options.json, text.encode())
    print(f"{conclusion(found)}\npicture {path}")


def conclusion(found: RangeTest) -> str:
    """The result of the test in a sentence."""
    end = "training did not diverge" if found.divergence is None else f"training diverged at {found.divergence:.2g}"
    if found.suggestion is None or found.least is None:
        return f"the loss did not decrease with any learning rate; {end}"
    return f"learning rate {found.suggestion:.2g}; the loss was smallest at {found.least:.2g}, and {end}"


def _picture(figure: Any, found: RangeTest, title: str, form: str) -> bytes:
    axes = figure.subplots()
    axes.plot(found.rates, found.losses, color="C0", alpha=0.3, label="loss of a tick")
    axes.plot(found.rates, found.smoothed, color="C0", label="moving mean")
    if found.suggestion is not None:
        axes.axvline(found.suggestion, color="C1", linestyle="--", label=f"suggestion {found.suggestion:.2g}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title=title)
    if found.rates:
        axes.set_ylim(0.9 * min(found.smoothed), 1.1 * max(found.smoothed))
    axes.grid(alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format=form)
    return picture.getvalue()
