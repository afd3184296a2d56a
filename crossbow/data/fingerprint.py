"""Fingerprints of data sets, which show whether a resumed run has the data that it began with."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from crossbow.data.dataset import Dataset
from crossbow.data.examples import ArrayExamples, Examples

LARGEST = 64 << 20
"""Maximum size in bytes of the images in memory that the digest includes: all images of a data set that is not larger,
otherwise evenly spaced images of about this size. Of images in files, it includes their `Examples.identity`."""


def fingerprint(data: Dataset) -> dict[str, Any]:
    """The properties that identify a data set, as JSON values: numbers of examples, shape and type of an image, number
    of classes, and digests of all labels, of the images in memory, and of the names or sizes of files of images.

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
    return found if data.share is None else {**found, **data.share.described()}


def _digest(examples: Examples) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(examples.labels).tobytes())
    if isinstance(examples, ArrayExamples):
        images = examples.images
        if images.nbytes > LARGEST:
            count = max(1, LARGEST * len(images) // images.nbytes)
            images = images[np.linspace(0, len(images) - 1, count).astype(np.intp)]
        digest.update(np.ascontiguousarray(images).reshape(-1).view(np.uint8).data)
    digest.update(examples.identity())
    return digest.hexdigest()[:16]
