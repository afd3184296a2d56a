"""The SHA-256 of two epochs' batches of image files: `python -m tests.data.loader_digest FOLDER THREADS`."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from crossbow.data import image_folder
from crossbow.data.loader import Loader
from crossbow.data.order import TrainingOrder


def digest(folder: Path, threads: int) -> str:
    """Of images, labels and positions."""
    data = image_folder(folder, image_size=16, check_fraction=0, colour_distortion=True)
    order = TrainingOrder(len(data.train), batch_size=5, seed=7)
    found = hashlib.sha256()
    with Loader(data.train, order, slots=3, threads=threads) as loader:
        loader.start()
        for slot, _, _ in loader.batches(2 * len(data.train) // 5):
            for part in (loader.images, loader.labels, loader.positions):
                found.update(part[slot].tobytes())
            loader.release(slot)
    return found.hexdigest()


if __name__ == "__main__":
    print(digest(Path(sys.argv[1]), int(sys.argv[2])))
