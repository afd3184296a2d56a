"""Summary of a trained model: its operators, its confusion matrix, and the examples with the largest errors."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow import Dataflow, Dataset, ExecutionContext
from crossbow.data.examples import BadExample, Examples, PartOfExamples
from crossbow.dataflow.drawing import shape_text
from crossbow.dataflow.graph import build
from crossbow.dataflow.validate import infer_shapes, variables_of
from crossbow.files import write_whole
from crossbow.png import png
from crossbow.types import Array, Phase, Shape

Integers = NDArray[np.int64]

SUMMARY = "summary.json"
"""File in the output directory that has the summary."""
MOST_EXAMPLES, MOST_CLASSES, WORST = 20_000, 50, 16
"""Maximum numbers of examples that are predicted for the summary, of classes of a confusion matrix, and of examples
that are listed as the worst."""


def write_summary(context: ExecutionContext, dataflow: Dataflow, path: Path) -> None:
    """Write the summary of a context's base model as JSON. Raises DataError if it cannot be written."""
    batch = (context.model.batch_size, *context.data.image_shape)
    summary = {"operators": operators(dataflow, batch), **errors(context, context.data)}
    write_whole(path, json.dumps(summary).encode())


def operators(dataflow: Dataflow, batch: Shape) -> list[dict[str, Any]]:
    """Name, type, output shape and number of parameters of each operator, in the order of computation. The parameters
    of a shared operator count at its first node."""
    graph = build(dataflow.subgraph.nodes)
    shapes = infer_shapes(graph, batch)
    variables = variables_of(graph, batch, shapes)
    counted: set[int] = set()
    rows = []
    for vertex in graph:
        specs = () if id(vertex.operator) in counted else variables.get(vertex.order, ())
        counted.add(id(vertex.operator))
        rows.append(
            {
                "name": vertex.name,
                "type": type(vertex.kernel).__name__,
                "output": shape_text(shapes[vertex.order]),
                "parameters": sum(math.prod(spec.shape) for spec in specs),
            }
        )
    return rows


def errors(context: ExecutionContext, data: Dataset) -> dict[str, Any]:
    """The confusion matrix of the check set, and the worst examples, without the bad examples that a test has skipped.
    Empty if the images do not have one class each or cannot be decoded, and for large data sets."""
    check, classes = data.check, data.number_of_classes
    if check is None or classes is None or check.labels.ndim != 1 or len(check) > MOST_EXAMPLES:
        return {}
    check, good = good_examples(context, check)
    try:
        outputs = context.predict(check)
    except BadExample:
        return {}
    if outputs.shape != (len(check), classes):
        return {}
    labels = check.labels.astype(np.int64)
    valid = (labels >= 0) & (labels < classes)  # others are ignored
    names = list(data.class_names or map(str, range(classes)))
    found: dict[str, Any] = {"classes": names}
    if classes <= MOST_CLASSES:
        found["confusion"] = confusion(labels[valid], outputs[valid].argmax(axis=1), classes).tolist()
    listed = worst(lambda index: check[index][0], labels, outputs, np.flatnonzero(valid))
    found["worst"] = [{**entry, "index": int(good[entry["index"]])} for entry in listed]
    return found


def good_examples(context: ExecutionContext, check: Examples) -> tuple[Examples, NDArray[np.intp]]:
    """The check examples without those that tests have skipped, as they are in tests, and their indices."""
    good = np.setdiff1d(np.arange(len(check)), [bad.index for bad in context.bad_examples(Phase.CHECK)])
    return PartOfExamples(check.for_tests(), good), good


def confusion(labels: Integers, predicted: Integers, classes: int) -> Integers:
    """The number of examples by label (rows) and predicted class (columns).

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    counts: Integers = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, predicted), 1)
    return counts


def worst(
    image: Callable[[int], Array], labels: Integers, outputs: Array, candidates: Sequence[int] | Integers
) -> list[dict[str, Any]]:
    """The wrongly classified examples, sorted by the distance of the output for the right class from the largest
    output, the largest distance first. Grey and colour images are included as PNG files in base64.

    image: returns the image of an index.
    """
    indices = np.asarray(candidates, dtype=np.int64)
    scores, right = outputs[indices].astype(np.float64), labels[indices]
    predicted = scores.argmax(axis=1)
    rows = np.arange(len(indices))
    gaps = scores[rows, predicted] - scores[rows, right]
    wrong = np.flatnonzero(predicted != right)
    chosen = wrong[np.argsort(-gaps[wrong], kind="stable")][:WORST]
    found = []
    for place in chosen:
        index = int(indices[place])
        entry: dict[str, Any] = {"index": index, "label": int(labels[index]), "predicted": int(predicted[place])}
        entry["outputs"] = [float(outputs[index, labels[index]]), float(outputs[index, predicted[place]])]
        picture = _picture(image(index))
        found.append(entry if picture is None else {**entry, "png": picture})
    return found


def _picture(image: Array) -> str | None:
    """An image as PNG in base64; None if it is neither grey nor RGB. The numbers of a floating-point image are
    stretched to the full range."""
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        return None
    if image.dtype != np.uint8:
        numbers = image.astype(np.float64)
        low, high = float(numbers.min()), float(numbers.max())
        image = np.round((numbers - low) * (255 / ((high - low) or 1.0))).astype(np.uint8)
    return base64.b64encode(png(image)).decode()
