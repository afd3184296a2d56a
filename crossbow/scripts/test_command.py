"""The command `crossbow test`: loss and accuracy of a saved model on the test set of a data set."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow import Dataset, ExecutionContext, ModelConf, SystemConf
from crossbow.data.fingerprint import fingerprint
from crossbow.files import reason
from crossbow.model_file import ModelFile, ModelSettings, read_model
from crossbow.runtime.device import CpuDevice, parse_devices
from crossbow.scripts.data_sources import KNOWN, NUMBERED, SEQUENCE, SYNTHETIC, DataSource
from crossbow.scripts.graph_command import script_of
from crossbow.scripts.model_script import ModelScript
from crossbow.scripts.predict_command import add_model
from crossbow.scripts.run_summary import confusion, good_examples
from crossbow.scripts.values import expanded_path, integer
from crossbow.types import ConfigurationError, DataError, Phase

LARGEST_TABLE = 20
"""Maximum number of classes of a confusion matrix that is printed as a table."""
SYNTHETIC_SIZES = {"training": 2048, "check": 512}
"""Numbers of synthetic examples, unless the run states other numbers."""


def add_test_command(commands: Any) -> None:
    """Add `test` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "test",
        help="print loss and accuracy of a saved model",
        description="Tests a model as its training did: with the same batches, kernels and threads, so that the "
        "numbers are those of the log.",
    )
    add_model(parser)
    parser.add_argument(
        "--dataset", choices=tuple(KNOWN), metavar="NAME", help=f"{', '.join(KNOWN)} (default: that of the run)"
    )
    parser.add_argument(
        "--data-directory",
        type=expanded_path,
        metavar="DIR",
        help="where the data set's files lie (default: that of the run, or they are downloaded)",
    )
    parser.add_argument(
        "--on-bad-record",
        choices=("error", "skip"),
        help="what to do with an image that cannot be decoded (default: that of the run, or error)",
    )
    parser.add_argument("--confusion", action="store_true", help="print the confusion matrix, too")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    for name, what in (("training_examples", "training"), ("test_examples", "check")):
        default = f"that of the run, or {SYNTHETIC_SIZES[what]:,}"
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            dest=what,
            type=integer(1),
            metavar="N",
            help=f"{SYNTHETIC}: number of {name.replace('_', ' ')} (default: {default})",
        )
    parser.set_defaults(run=_test)


def _test(options: argparse.Namespace) -> None:
    file = read_model(options.model)
    data = _data(options, file.settings)
    _check_data(data, file)
    on_bad_record = options.on_bad_record or settings_of_run(options.model).get("on_bad_record", "error")
    with _context(file, data, options.device, on_bad_record) as context:
        result = context.test()
        left_out = len(context.bad_examples(Phase.CHECK))
        confusion = _confusion(context) if options.confusion else None
    names = _class_names(file.settings)
    if options.json:
        values = {
            "model": str(file.path),
            "examples": result.examples,
            "loss": result.loss,
            "accuracy": result.accuracy,
            "metrics": dict(result.metrics),
        }
        more = {} if confusion is None else {"classes": names, "confusion": confusion.tolist()}
        print(json.dumps({**values, **more}))
        return
    accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy!r} ({result.accuracy:.2%})"
    accuracy += "".join(f", {name} {value!r}" for name, value in result.metrics.items())
    bad = f" ({left_out:,} bad left out)" if left_out else ""
    print(f"{file.path}: {result.examples:,} examples{bad}, loss {result.loss!r}{accuracy}")
    if confusion is not None:
        print(confusion_text(confusion, names))


def _context(file: ModelFile, data: Dataset, device: str, on_bad_record: str) -> ExecutionContext:
    """A context with the model and the settings of its training."""
    settings, dataflows = file.settings, file.dataflows()
    (place,) = parse_devices((device,))
    threads = settings.threads_per_learner
    system: dict[str, Any] = {"precision": settings.precision}
    if isinstance(place, CpuDevice):
        cores = len(place.cores)
        threads = cores if threads is None else min(threads, cores)
        system = {
            "precision": settings.precision if settings.precision == "float64" else "float32",
            "kernels": settings.kernels,
            "winograd": settings.winograd,
            "threads_per_learner": threads,
            "learners_per_device": cores // threads,
        }
    context = ExecutionContext(
        dataflows,
        data=data,
        model=ModelConf(batch_size=settings.batch_size, check_batch_size=settings.check_batch_size),
        system=SystemConf(devices=device, on_bad_record=on_bad_record, **system),
    )
    try:
        context.load(file.path)
    except BaseException:
        context.close()
        raise
    return context


# The data set


def _data(options: argparse.Namespace, settings: ModelSettings) -> Dataset:
    """The data set of the options or, without --dataset, of the run. Raises DataError if it cannot be read, or if the
    data set of the run has changed."""
    recorded = data_of_run(options.model)
    if options.dataset is None and recorded is None:
        raise DataError(f"{options.model}: expected --dataset, because no run.json tells the data set. Received: none")
    if options.dataset is not None:
        same = recorded if recorded is not None and recorded["name"] == options.dataset else {}
        recorded = {"name": options.dataset, **{key: same[key] for key in same if key == "check_fraction"}}
    assert recorded is not None
    digest = recorded.pop("check_digest", None)
    given = {name: getattr(options, name) for name in SYNTHETIC_SIZES if getattr(options, name) is not None}
    if options.data_directory is not None:
        given["directory"] = options.data_directory
    if options.dataset is None and recorded["name"] == SEQUENCE:
        raise DataError(
            f"{options.model}: expected --dataset sequence --data-directory DIR, because a test runs dataset.py there. "
            f"Received: no --dataset; the run was trained with {recorded.get('directory')}"
        )
    name, shape, classes = recorded["name"], settings.image_shape, settings.number_of_classes
    own = _own_synthetic(options.model) if name == SYNTHETIC else None
    if name == SYNTHETIC and classes is None and own is None:
        raise DataError(
            f"{options.model}: expected a model of classes, to test with synthetic examples. Received: one of numbers"
        )
    if given.get("directory") is not None and not KNOWN[name].files:
        raise ConfigurationError(f"--data-directory does nothing with {name}: {KNOWN[name].summary}")
    values = {
        "image_size": shape[-1],
        **SYNTHETIC_SIZES,
        **recorded,
        **given,
        "image_shape": shape,
        "number_of_classes": classes,
        "classes": classes if name in NUMBERED else None,
    }
    if own is not None:
        script, arguments = own
        data = script.synthetic_data(arguments, training=values["training"], check=values["check"])
    else:
        data = DataSource(**{"directory": None, **values}).load()
    if digest is not None and not given and (received := fingerprint(data).get("check_digest")) != digest:
        raise DataError(
            f"{options.model}: expected the test set of the run, of digest {digest}; to test with another data set, "
            f"use --dataset. Received: one of digest {received}"
        )
    return data


def _record_of_run(path: Path) -> tuple[Path, dict[str, Any] | None]:
    """The path of run.json, which is in the directory of a run or next to the file of a model, and its content; the
    content is None if there is no such file. Raises DataError if it is damaged."""
    record = (path if path.is_dir() else path.parent) / "run.json"
    try:
        run = json.loads(record.read_text("utf-8"))
        return record, {**run, "data": run["data"]}
    except FileNotFoundError:
        return record, None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{record}: expected the record of a run, with its data set. Received: {reason(error)}"
        ) from error


def settings_of_run(path: Path) -> dict[str, Any]:
    """The options of a run; {} if they are not recorded. Raises DataError if the record is damaged."""
    _, run = _record_of_run(path)
    settings = {} if run is None else run.get("settings")
    return settings if isinstance(settings, dict) else {}


def _own_synthetic(path: Path) -> tuple[ModelScript, list[str]] | None:
    """The script of a run, and its arguments, if it is a script of the zoo that makes its synthetic examples itself,
    as `models.matrix_factorisation` makes ratings."""
    _, run = _record_of_run(path)
    module = "" if run is None else str(run.get("module"))
    if run is None or not module.startswith("models."):
        return None
    script = script_of(module)
    arguments = [str(each) for each in run.get("arguments", ())]
    return None if script.synthetic is None else (script, arguments)


def data_of_run(path: Path) -> dict[str, Any] | None:
    """The fields of the `DataSource` of a run, and its "check_digest", if it is recorded. None if there is no run.json.

    Raises DataError if the file is damaged.
    """
    record, run = _record_of_run(path)
    if run is None:
        return None
    given = run["data"]
    if not isinstance(given, dict) or given.get("name") not in KNOWN:
        raise DataError(f"{record}: expected a data set that is one of {', '.join(KNOWN)}. Received: {given!r}")
    directory = given.get("directory")
    found = {
        "name": given["name"],
        "directory": None if directory is None else Path(run.get("working_directory", ""), directory),
        "training": given.get("training_examples"),
        "check": given.get("check_examples"),
        "check_fraction": given.get("check_fraction"),
        "check_digest": given.get("check_digest"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _check_data(data: Dataset, file: ModelFile) -> None:
    """Raises DataError if the model was trained on other images or classes, or if there is no test set."""
    settings = file.settings
    for text, received, expected in (
        ("images of shape {}", data.image_shape, settings.image_shape),
        ("images of type {}", data.train.image_dtype, settings.image_dtype),
        ("{} classes", data.number_of_classes, settings.number_of_classes),
    ):
        if received != expected:
            raise DataError(f"{file.path}: expected a data set with {text.format(expected)}. Received: {received}")
    pairs = enumerate(zip(settings.class_names or (), data.class_names or (), strict=False))
    for number, (name, other) in pairs:
        if name != other:
            raise DataError(
                f"{file.path}: expected a data set whose class {number} is {name!r}, as in training. "
                f"Received: {other!r}"
            )
    if data.check is None:
        raise DataError(f"{file.path}: expected a data set with test examples. Received: one without")


# The confusion matrix


def _confusion(context: ExecutionContext) -> NDArray[np.int64]:
    """Numbers of test examples by class (row) and predicted class (column)."""
    check, classes = context.data.check, context.data.number_of_classes
    assert check is not None
    if classes is None or check.label_shape:
        raise DataError("--confusion: expected a data set with one class for each example. Received: another one")
    good, _ = good_examples(context, check)
    outputs = context.predict(good)
    predicted = outputs.argmax(axis=1) if outputs.ndim == 2 else outputs  # Classify returns classes
    labels = good.labels.astype(np.int64)
    valid = (labels >= 0) & (labels < classes)  # a loss may ignore a label
    return confusion(labels[valid], predicted[valid].astype(np.int64), classes)


def _class_names(settings: ModelSettings) -> list[str]:
    count = settings.number_of_classes or 0
    names = settings.class_names or ()
    return [names[at] if at < len(names) else str(at) for at in range(count)]


def confusion_text(counts: NDArray[np.int64], names: list[str]) -> str:
    """The matrix as a table or, with many classes, its most frequent confusions.

    >>> print(confusion_text(np.array([[5, 1], [0, 7]]), ["cat", "dog"]))
         predicted
         cat  dog
    cat    5    1
    dog    0    7
    """
    if len(names) > LARGEST_TABLE:
        wrong = np.array(counts)
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:LARGEST_TABLE]
        found = [(int(wrong.flat[at]), *divmod(int(at), len(names))) for at in order if wrong.flat[at]]
        return "\n".join(f"{count:6,}  {names[label]} taken for {names[taken]}" for count, label, taken in found)
    head = max(map(len, names))
    width = max(head, *(len(f"{count:,}") for count in counts.flat)) + 2
    lines = [" " * (head + 2) + "predicted", " " * head + "".join(name.rjust(width) for name in names)]
    lines += [
        name.ljust(head) + "".join(f"{count:,}".rjust(width) for count in row)
        for name, row in zip(names, counts, strict=True)
    ]
    return "\n".join(lines)
