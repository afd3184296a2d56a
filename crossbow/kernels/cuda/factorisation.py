"""The loss of a matrix factorisation, its gradients, and its predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import BLOCK, Argument, CudaKernel, Launch
from crossbow.kernels.cuda.loss import is_double
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel, Variable
from crossbow.kernels.requests import FactorisationBackward, FactorisationForward, FactorisationPrediction

EXAMPLE = 4 * 8
"""Bytes of an `Example` of sources/factorisation.cu."""


@CUDA.kernel(FactorisationForward)
def forward(request: FactorisationForward) -> PreparedKernel:
    x, regularisation = request.x, request.regularisation
    kernel = CudaKernel("factorisation", "factorisation_loss", x.dtype)
    shared = BLOCK * np.dtype(np.float64).itemsize

    def bind(buffers: Buffers) -> Sequence[Call]:
        arguments = (buffers["workspace"], buffers["state"], np.float64(regularisation), buffers["output"])
        return (_examples(request, buffers), kernel.blocks(1, *arguments, shared=shared))

    return request.prepared("cuda", bind, workspace=x.shape[0] * EXAMPLE)


@CUDA.kernel(FactorisationBackward)
def backward(request: FactorisationBackward) -> PreparedKernel:
    x, users, items, regularisation = request.x, request.users, request.items, request.regularisation
    zero, kernel = (CudaKernel("factorisation", f"factorisation_{name}", x.dtype) for name in ("zero", "backward"))
    constants = (np.int64(users.shape[1]), np.float64(regularisation))
    threads = _threads(users)
    sizes = [int(np.prod(variable.shape)) for variable in (users, items)]

    def bind(buffers: Buffers) -> Sequence[Call]:
        gradients = [buffers[role] for role in request.writes]
        tables = (buffers["users"], buffers["items"])
        arguments: list[Argument] = [buffers["workspace"], buffers["state"], *tables, *gradients, *constants]
        return (
            _examples(request, buffers),
            zero.each(max(sizes), gradients[0], np.int64(sizes[0]), gradients[1], np.int64(sizes[1])),
            kernel.blocks(2 * x.shape[0], *arguments, threads=threads, shared=threads * np.dtype(np.int32).itemsize),
        )

    return request.prepared("cuda", bind, workspace=x.shape[0] * EXAMPLE)


@CUDA.kernel(FactorisationPrediction)
def prediction(request: FactorisationPrediction) -> PreparedKernel:
    (batch, _), users, items = request.x.shape, request.users, request.items
    kernel, threads = CudaKernel("factorisation", "factorisation_prediction", request.x.dtype), _threads(users)
    sizes = (np.int64(users.shape[0]), np.int64(items.shape[0]), np.int64(users.shape[1]))

    def bind(buffers: Buffers) -> Sequence[Call]:
        arguments: list[Argument] = [*(buffers[role] for role in request.roles), *sizes]
        return (kernel.blocks(batch, *arguments, threads=threads, shared=threads * np.dtype(np.float64).itemsize),)

    return request.prepared("cuda", bind)


def _examples(request: FactorisationForward | FactorisationBackward, buffers: Buffers) -> Launch:
    """Return the call that computes each example's values in the workspace."""
    x, labels, users, items = request.x, request.labels, request.users, request.items
    kernel, threads = CudaKernel("factorisation", "factorisation_examples", x.dtype), _threads(users)
    sizes = (np.int64(users.shape[0]), np.int64(items.shape[0]), np.int64(users.shape[1]), is_double(labels))
    arguments: list[Argument] = [*(buffers[role] for role in request.reads), buffers["workspace"], *sizes]
    return kernel.blocks(x.shape[0], *arguments, threads=threads, shared=threads * np.dtype(np.float64).itemsize)


def _threads(users: Variable) -> int:
    """A power of two near the number of latents."""
    return min(max(32, 1 << (users.shape[1] - 1).bit_length()), BLOCK)
