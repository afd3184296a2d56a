"""Fingerprints differ when data sets do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from crossbow import Dataset
from crossbow.data import fingerprint as module
from crossbow.data import image_folder, records, sequence
from crossbow.data.fingerprint import fingerprint
from tests.data.picture_files import picture, record, write_folder, write_record_set
from tests.support import blobs, pictures


def test_equal_data_have_equal_fingerprints() -> None:
    first, second = fingerprint(pictures()), fingerprint(pictures())
    assert first == second
    assert json.loads(json.dumps(first)) == first


def test_each_difference_shows() -> None:
    x, y = np.zeros((6, 3), np.float32), np.array([0, 1, 2, 0, 1, 2])
    base = fingerprint(Dataset((x, y), (x, y)))
    other = x.copy()
    other[0, 0] = 1
    for changed, names in (
        (Dataset((x, y)), {"check_examples", "check_digest"}),
        (Dataset((other, y), (x, y)), {"training_digest"}),
        (Dataset((x, y), (other, y)), {"check_digest"}),
        (Dataset((x, y[::-1]), (x, y)), {"training_digest"}),
        (Dataset((x, y), (x, y), number_of_classes=4), {"classes"}),
    ):
        found = fingerprint(changed)
        assert {name for name in base.keys() | found.keys() if base.get(name) != found.get(name)} == names


def test_every_image_counts_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.zeros((300, 3), np.float32), np.zeros(300, np.int64)
    one, last = x.copy(), x.copy()
    one[1, 2], last[-1, 2] = 1e-3, 1e-3
    digests = [fingerprint(Dataset((images, y), number_of_classes=2))["training_digest"] for images in (x, one, last)]
    assert len(set(digests)) == 3
    monkeypatch.setattr(module, "LARGEST", 12 * 100)
    digests = [fingerprint(Dataset((images, y), number_of_classes=2))["training_digest"] for images in (x, one, last)]
    assert digests[0] == digests[1] != digests[2]


def test_images_that_are_not_in_memory_are_not_read() -> None:
    class Pairs(list[tuple[np.ndarray, int]]):
        reads = 0

        def __getitem__(self, index: object) -> object:  # type: ignore[override]
            type(self).reads += 1
            return super().__getitem__(index)  # type: ignore[index]

    pairs = Pairs([(np.zeros((1, 8, 8), np.uint8), number % 3) for number in range(9)])
    data = sequence(pairs)
    before = Pairs.reads
    assert fingerprint(data)["training_examples"] == 9
    assert Pairs.reads == before
    assert fingerprint(blobs())["image_shape"] == [6]


def test_files_of_other_names_or_sizes_show(tmp_path: Path) -> None:
    """Wherever they are."""
    found = []
    for number, names in enumerate(("ab", "ab", "bc")):
        root = tmp_path / str(number)
        write_folder(root, {f"{name}/{n}.jpg": picture(n) for name in names for n in range(4)})
        found.append(fingerprint(image_folder(root, image_size=8, check_fraction=0.25)))
    assert found[0] == found[1]
    assert found[0].keys() >= {"training_files", "check_files"}
    assert {name for name in found[0] if found[0][name] != found[2][name]} == {"training_files", "check_files"}
    first, second = (write_record_set(tmp_path / f"r{n}", "a-train", [[record(n)] * 2]) for n in (0, 7))
    data, other = (records(path, image_size=8) for path in (first, second))
    assert data.train.labels.tolist() == other.train.labels.tolist()
    assert fingerprint(data) != fingerprint(other)
    assert fingerprint(data.shard(offset=(1, 2)))["training_files"] != fingerprint(data)["training_files"]
