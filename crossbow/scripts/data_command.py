"""The command `crossbow data`: conversion to Crossbow's file formats, and inspection of files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from crossbow.data.batch_metadata import LARGEST
from crossbow.data.batch_writer import DEFAULT_PARTITION
from crossbow.data.encoding import ENCODINGS, encode, rebatch
from crossbow.data.inspection import inspect, verify
from crossbow.data.progress import ProgressBars
from crossbow.scripts.data_sources import IMAGE_FOLDER, KNOWN, DataSource
from crossbow.scripts.values import expanded_path, integer, number
from crossbow.types import ConfigurationError, DataError

MOST_PROBLEMS = 20
"""Maximum number of errors that `verify` prints. It counts all others."""


def add_data_command(commands: Any) -> None:
    """Add `data` with its subcommands to the commands of `crossbow`."""
    data = commands.add_parser("data", help="convert data sets to Crossbow's file formats, inspect and verify files")
    actions = data.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_encode(actions)
    _add_rebatch(actions)
    _add_inspect(actions)
    _add_verify(actions)
    _add_imagenet(actions)
    _add_records(actions)


def _add_encode(actions: Any) -> None:
    parser = actions.add_parser(
        "encode",
        help="write a data set as batch-aligned files",
        description="Writes the training and the test set, each as NAME.metadata, NAME.examples.N and NAME.labels.N. "
        "MNIST and CIFAR have the names, scales, borders and mean images of the original's encoders.",
    )
    parser.add_argument("dataset", choices=tuple(ENCODINGS), metavar="DATASET", help=", ".join(ENCODINGS))
    files = "; or ".join(filter(None, dict.fromkeys(KNOWN[name].files for name in ENCODINGS)))
    parser.add_argument(
        "--data-directory",
        type=expanded_path,
        metavar="DIR",
        help=f"directory of the data set's files: {files} (default: they are downloaded)",
    )
    _add_batches(parser)
    parser.set_defaults(run=_encode)


def _add_rebatch(actions: Any) -> None:
    parser = actions.add_parser("rebatch", help="copy batch-aligned files with another batch size")
    parser.add_argument("file", type=expanded_path, metavar="FILE.metadata", help="metadata file of the data set")
    _add_batches(parser)
    parser.set_defaults(run=_rebatch)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=expanded_path,
        metavar="DIR",
        required=True,
        help="directory to write to; older files are replaced",
    )


def _add_batches(parser: argparse.ArgumentParser) -> None:
    _add_output(parser)
    parser.add_argument(
        "--batch-size",
        type=_integer_to_largest,
        metavar="N",
        required=True,
        help="examples in a batch; batches are aligned to pages of 4,096 bytes",
    )
    parser.add_argument(
        "--partition-size",
        type=integer(1),
        metavar="BYTES",
        default=DEFAULT_PARTITION,
        help="maximum size of a file (default: %(default)s)",
    )


def _integer_to_largest(text: str) -> int:
    value = integer(1)(text)
    if value > LARGEST:
        raise argparse.ArgumentTypeError(f"expected an integer ≤ {LARGEST}. Received: {text!r}")
    return value


def _add_inspect(actions: Any) -> None:
    parser = actions.add_parser("inspect", help="print a summary of a metadata file or a record file")
    parser.add_argument("file", type=expanded_path, metavar="FILE", help="metadata file or record file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_inspect)


def _add_verify(actions: Any) -> None:
    parser = actions.add_parser(
        "verify",
        help="check a record file, or a metadata file with its files, completely",
        description="Reads all examples, decodes all images, and prints the errors.",
        epilog="Exit status: 0 if there are no errors, else 2.",
    )
    parser.add_argument("file", type=expanded_path, metavar="FILE", help="metadata file or record file")
    parser.set_defaults(run=_verify)


def _add_imagenet(actions: Any) -> None:
    parser = actions.add_parser(
        "imagenet",
        help="convert ImageNet in TFRecord files to record files",
        description="Writes crossbow-train.records.N and imagenet-train.metadata, and crossbow-validation.records.N "
        "and imagenet-test.metadata. After an interruption, the same command continues the conversion; the resulting "
        "files are the same.",
    )
    parser.add_argument(
        "--tfrecords",
        type=expanded_path,
        metavar="DIR",
        required=True,
        help="directory with train-00000-of-01024 … and validation-00000-of-00128 …, or with folders train and "
        "validation",
    )
    parser.add_argument("--output", type=expanded_path, metavar="DIR", required=True, help="directory to write to")
    parser.add_argument(
        "--subset",
        choices=("train", "validation"),
        help="the files to convert (default: both, or the one that exists)",
    )
    parser.set_defaults(run=_imagenet)


def _add_records(actions: Any) -> None:
    parser = actions.add_parser(
        "records",
        help="write image folders as record files",
        description="Writes images-train.records.N and images-test.records.N, with the bytes of the image files, the "
        "names of the classes, and metadata files, for --dataset records. The training images are in a random order, "
        "which is the same in each conversion.",
    )
    parser.add_argument(
        "directory", type=expanded_path, metavar="DIR", help=f"directory with {KNOWN[IMAGE_FOLDER].files}"
    )
    _add_output(parser)
    parser.add_argument(
        "--check-fraction",
        type=number(0, 1, below=True),
        metavar="X",
        default=0.1,
        help="fraction of each class for tests, ≥ 0 and < 1, unless there are train and val (default: %(default)s)",
    )
    parser.add_argument(
        "--on-bad-record",
        choices=("error", "skip"),
        default="error",
        help="what happens with an image that cannot be decoded: an error, or it is printed and left out "
        "(default: %(default)s)",
    )
    parser.set_defaults(run=_records)


def _encode(options: argparse.Namespace) -> None:
    known = KNOWN[options.dataset]
    if options.data_directory is not None and not known.files:
        raise ConfigurationError(f"--data-directory does nothing with {options.dataset}: {known.summary}")
    assert known.image_shape is not None
    source = DataSource(options.dataset, options.data_directory, known.image_shape, known.number_of_classes, 0, 0)
    encoding = ENCODINGS[options.dataset]
    for path in encode(source.load(), encoding, options.output, options.batch_size, options.partition_size):
        print(path)


def _rebatch(options: argparse.Namespace) -> None:
    print(rebatch(options.file, options.output, options.batch_size, options.partition_size))


def _inspect(options: argparse.Namespace) -> None:
    summary = {"file": str(options.file), **inspect(options.file)}
    if options.json:
        print(json.dumps(summary))
        return
    width = max(map(len, summary)) + 2
    for name, value in summary.items():
        print(f"{name:{width}}{_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return f"from {value['least']:,} to {value['most']:,}"
    if isinstance(value, tuple | list):
        return " × ".join(map(str, value))
    return "not stated" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _verify(options: argparse.Namespace) -> None:
    path: Path = options.file
    problems, notes = 0, list[str]()
    with ProgressBars("examples") as progress:
        for problem in verify(path, progress.begin(path.name), notes.append):
            problems += 1
            if problems <= MOST_PROBLEMS:
                print(problem, flush=True)
    for note in notes:
        print(note)
    if problems:
        raise DataError(f"{path}: expected no errors. Received: {problems:,} error{'' if problems == 1 else 's'}")
    print(f"{path}: intact")


def _imagenet(options: argparse.Namespace) -> None:
    from crossbow.data.imagenet import convert_imagenet  # this imports numba, which takes time

    for path in convert_imagenet(options.tfrecords, options.output, options.subset):
        print(path)


def _records(options: argparse.Namespace) -> None:
    from crossbow.data.folder_records import convert_image_folder  # this imports numba, which takes time

    left_out: list[DataError] = []
    try:
        paths = convert_image_folder(
            options.directory,
            options.output,
            check_fraction=options.check_fraction,
            on_bad_image=left_out.append if options.on_bad_record == "skip" else None,
        )
    finally:
        for error in left_out:
            print(f"left out: {error}")
    for path in paths:
        print(path)
