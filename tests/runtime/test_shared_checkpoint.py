"""A checkpoint that rank 0 reads for all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from crossbow.cluster.members import Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.runtime.checkpoint import Checkpoint
from crossbow.runtime.keeper import Resumable
from crossbow.runtime.shared_checkpoint import shared
from tests.cluster.fake_network import FakeNetwork, at_once

TENSORS: dict[str, Any] = {
    "variables/w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "vectors/z0": np.zeros(8, np.float32),
    "run/losses": np.array([0.5, 0.25]),
}
FOUND = Resumable(Path("run/7.safetensors"), Checkpoint(TENSORS, {"tasks": 7, "about": {"a": None}}), ("damaged",))


def missing() -> Resumable:
    raise AssertionError("only rank 0 reads")


def test_other_ranks_get_what_they_need() -> None:
    first, second = FakeNetwork(2).ranks()
    own, received = at_once([lambda: shared(first, lambda: FOUND), lambda: shared(second, missing)])
    assert own is FOUND
    assert (received.path, received.checkpoint.state) == (FOUND.path, FOUND.checkpoint.state)
    assert set(received.checkpoint.tensors) == {"variables/w", "run/losses"}
    for name, tensor in received.checkpoint.tensors.items():
        assert (tensor.dtype, tensor.tolist()) == (TENSORS[name].dtype, TENSORS[name].tolist())


def test_a_rank_alone_reads() -> None:
    assert shared(Ranks(View(0, (Rank(0, "here"),))), lambda: FOUND) is FOUND
