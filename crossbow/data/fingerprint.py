"""Fingerprints of data sets, which show whether a resumed run has the data that it began with."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from crossbow.data.dataset import Dataset
from crossbow.data.examples import Examples

LARGEST = 64 << 20
"""Maximum size in bytes of the images in memory that the digest includes: all images of a data set that is not larger,
otherwise evenly spaced images of about this size."""


def fingerprint(data: Dataset) -> dict[str, Any]:
    """The properties that identify a data set, as JSON values: numbers of examples, shape and type of an image, number
    of classes, digests of all labels and of the images in memory, and of the names or sizes of files of images.

    >>> data = Dataset((np.zeros((4, 2), np.float32), np.array([0, 1, 1, 0])))
    >>> fingerprint(data)["training_examples"], fingerprint(data)["classes"]
    (4, 2)
    """
    found: dict[str, Any] = {
        "training_examples": len(data.train),
        "check_examples": None if data.check is None else len(data.check),
        "image_shape": list(data.image_shape),
        "image_type": str(data.train.image_dtype),
        "classes": data.number_of_classes,
        "training_digest": _digest(data.train),
    }
    if data.check is not None:
        found["check_digest"] = _digest(data.check)
        found |= _files("check_files", data.check)
    if data.share is not None:  # the training examples are only those of this rank
        return {**found, **data.share.described()}
    return found | _files("training_files", data.train)


def _digest(examples: Examples) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(examples.labels).tobytes())
    size = len(examples) * math.prod(examples.image_shape) * examples.image_dtype.itemsize
    if size <= LARGEST:
        indices = np.arange(len(examples))
    else:
        count = max(1, LARGEST * len(examples) // size)
        indices = np.linspace(0, len(examples) - 1, count).astype(np.intp)
    images = examples.stored_images(indices)
    if images is not None:
        digest.update(np.ascontiguousarray(images).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:16]


def _files(name: str, examples: Examples) -> dict[str, str]:
    """The digest of the files of the images by this name; empty if there are no files."""
    names = examples.names_of_files()
    return {name: hashlib.sha256(names).hexdigest()[:16]} if names else {}
