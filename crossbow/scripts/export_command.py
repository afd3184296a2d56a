"""The command `crossbow export`: a saved model in another format."""

from __future__ import annotations

import argparse
from typing import Any

from crossbow.predictor import Predictor
from crossbow.scripts.values import expanded_path, file_to_write
from crossbow.types import DataError


def add_export_command(commands: Any) -> None:
    """Add `export` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "export",
        help="write a saved model as ONNX",
        description="Writes what the model predicts, without its loss. The input is a batch of images as the first "
        "operator receives them: pixels are divided by 255.",
    )
    parser.add_argument(
        "model", type=expanded_path, metavar="RUN_OR_FILE", help="directory of a run, or file of a saved model"
    )
    parser.add_argument("--onnx", type=file_to_write, metavar="FILE", required=True, help="file to write")
    parser.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> None:
    try:
        from crossbow.onnx import save  # it needs an extra, which takes time to import
    except ModuleNotFoundError as error:
        raise DataError("--onnx needs the package onnx: pip install 'crossbow[onnx]'") from error
    with Predictor.load(options.model) as predictor:
        save(predictor, options.onnx)
    print(options.onnx)
