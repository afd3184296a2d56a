"""The command `crossbow predict`: it predicts the classes of images with a saved model."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from crossbow.console import WRONG, say
from crossbow.data.pictures import Picture, read_pictures
from crossbow.predictor import Predictor
from crossbow.scripts.values import expanded_path, integer
from crossbow.types import Array, DataError

AT_ONCE = 256
"""Number of images that are in memory at once."""


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the argument and the option that select a model and its device."""
    parser.add_argument(
        "model", type=expanded_path, metavar="RUN_OR_FILE", help="directory of a run, or file of a saved model"
    )
    parser.add_argument(
        "--device", metavar="NAME", default="cpu", help="cpu, a part of it as cpu:0/2, or cuda:0 (default: %(default)s)"
    )


def add_predict_command(commands: Any) -> None:
    """Add `predict` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "predict",
        help="print the classes of images",
        description="Prints the most probable classes of each image, by a model that a script or ExecutionContext.save "
        "wrote; of a model without classes, its output. Images of another size than the model's are resized. Files "
        "that cannot be read are named on stderr; the exit status is then 2.",
    )
    add_model(parser)
    parser.add_argument(
        "files", nargs="+", type=expanded_path, metavar="FILE", help="image file, folder of image files, or .npy file"
    )
    parser.add_argument(
        "--top", type=integer(1), metavar="N", default=5, help="number of classes to print (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list with an object for each image")
    parser.set_defaults(run=_predict)


def _predict(options: argparse.Namespace) -> int:
    """Print the classes of all images that can be read. Returns the exit status."""
    status = 0

    def tell(error: DataError) -> None:
        nonlocal status
        status = WRONG
        say(f"crossbow: error: {error}")

    with Predictor.load(options.model, options.device) as predictor:
        settings = predictor.settings
        assert settings is not None
        pictures = read_pictures(options.files, settings.image_shape, settings.image_dtype, tell)
        rows: list[dict[str, Any]] = []
        for batch, outputs in _batches(predictor, pictures):
            described = _described(predictor, batch, outputs, options.top)
            if options.json:
                rows += described
                continue
            for row in described:
                print(f"{row['file']}  {_text(row)}", flush=True)
        if options.json and (rows or not status):
            print(json.dumps(rows))
    return status


def _batches(predictor: Predictor, pictures: Iterator[Picture]) -> Iterator[tuple[Sequence[Picture], Array]]:
    while batch := list(itertools.islice(pictures, AT_ONCE)):
        yield batch, predictor(np.stack([picture.image for picture in batch]))


def _described(predictor: Predictor, batch: Sequence[Picture], outputs: Array, top: int) -> list[dict[str, Any]]:
    """A JSON object for each image: its file, and its classes or, if the model does not return probabilities of
    classes, the model's output."""
    if not predictor.gives_probabilities:
        return [
            {"file": picture.source, "output": output.tolist()} for picture, output in zip(batch, outputs, strict=True)
        ]
    return [
        {
            "file": picture.source,
            "classes": [{"class": name, "probability": probability} for name, probability in ranked],
        }
        for picture, ranked in zip(batch, predictor.ranked(outputs, top), strict=True)
    ]


def _text(row: dict[str, Any]) -> str:
    if "output" in row:
        return json.dumps(row["output"])
    return ", ".join(f"{each['class']} {each['probability']:.1%}" for each in row["classes"])
