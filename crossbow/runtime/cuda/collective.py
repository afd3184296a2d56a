"""The sum of one vector per GPU, on every GPU, by NCCL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.synch.collective import check_vectors
from crossbow.types import Array, address


class NcclCollective:
    """One rank for each of this process's GPUs; all of them are called from one thread, as a group."""

    def __init__(self, streams: Sequence[CudaStream]) -> None:
        """`streams`: of each GPU, on which its vectors are made and the sum is wanted."""
        self._streams = streams
        self._ranks: list[Any] = api().nccl.NcclCommunicator.initAll([stream.device for stream in streams])

    def close(self) -> None:
        """Give the ranks back. Nothing may be running."""
        for rank in self._ranks:
            rank.destroy()
        self._ranks = []

    def all_reduce(self, vectors: Sequence[Array]) -> None:
        """Submit the sum. It happens in the order of the GPUs' streams."""
        check_vectors(len(self._streams), vectors)
        nccl = api().nccl
        kind = nccl.NCCL_FLOAT32 if vectors[0].dtype == np.float32 else nccl.NCCL_FLOAT64
        nccl.groupStart()
        try:
            for rank, stream, vector in zip(self._ranks, self._streams, vectors, strict=True):
                place = address(vector)
                rank.allReduce(place, place, vector.size, kind, nccl.NCCL_SUM, stream.place.pointer)
        finally:
            nccl.groupEnd()  # or whatever is called later belongs to this group, and is never done
