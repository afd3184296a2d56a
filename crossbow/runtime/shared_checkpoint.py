"""Sharing of a checkpoint that only rank 0 can read with all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from safetensors.numpy import load, save

from crossbow.cluster.ranks import Ranks
from crossbow.runtime.checkpoint import Checkpoint
from crossbow.runtime.keeper import Resumable

SHARED = ("variables/", "run/")
"""Prefixes of the names of tensors that other ranks need. These ranks begin at the base model."""


def shared(ranks: Ranks, find: Callable[[], Resumable]) -> Resumable:
    """The checkpoint that `find` returns on rank 0, which alone calls it. Other ranks get the parts that they need."""
    if not ranks.connected:
        return find()
    with ranks.call():
        return _sent(ranks, find) if ranks.is_first else _received(ranks)


def _sent(ranks: Ranks, find: Callable[[], Resumable]) -> Resumable:
    found = find()
    ranks.agree_on_bytes(json.dumps([str(found.path), found.checkpoint.state]).encode())
    tensors = {name: each for name, each in found.checkpoint.tensors.items() if name.startswith(SHARED)}
    ranks.agree_on_bytes(save(tensors))
    return found


def _received(ranks: Ranks) -> Resumable:
    path, state = json.loads(ranks.agree_on_bytes(b""))
    return Resumable(Path(path), Checkpoint(load(ranks.agree_on_bytes(b"")), state), ())
