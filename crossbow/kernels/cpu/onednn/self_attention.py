"""Multi-head attention of a sequence to itself: the library's matrix products of each head, and passes between them.

The heads of all examples are divided among the learner's threads. Each thread computes the products of its heads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, in_any_order, inlined, int32_at, native_pass
from crossbow.kernels.cpu.onednn.matrix import dnnl_sgemm, sgemm_address
from crossbow.kernels.cpu.passes.team import TEAM, team_size, team_thread, threads_for
from crossbow.kernels.cpu.rooms import ONEDNN
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SelfAttentionBackward, SelfAttentionForward
from crossbow.kernels.requests.products import probabilities_of

LOWEST = np.float32(-87.0)
"""Number whose exp is near float32's smallest normal number."""
LOG2_E, LN_2_HIGH, LN_2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
"""1 / ln 2; ln 2 in two parts, of which the first has few digits, so that its products with integers are exact."""
C2, C3, C4, C5, C6 = (np.float32(1 / math.factorial(n)) for n in (2, 3, 4, 5, 6))
ONE, HALF = np.float32(1), np.float32(0.5)

HEADS: dict[str, Any] = {
    **dict.fromkeys(("sgemm", "count", "heads", "length", "depth"), int),
    "scale": float,
    "x": Address,
    "probabilities": Address,
}
"""count: heads of all examples. heads: heads of an example. length: positions. depth: numbers of a head. scale: 1 /
√depth.
"""


@ONEDNN.kernel(SelfAttentionForward)
def forward(request: SelfAttentionForward) -> PreparedKernel:
    steps, threads = Steps(request, "sgemm"), threads_for(request.x.nbytes)
    keeps, size = "kept" in request.writes, request.x.shape[1] ** 2 * 4
    place: Place = "kept" if keeps else steps.reserve(threads * size)
    steps.add_team_pass(
        "attention",
        attend,
        threads,
        **_sizes(request),
        x="input0",
        y="output",
        probabilities=place,
        keeps=int(keeps),
        causal=int(request.causal),
    )
    return steps.prepared(kept=probabilities_of(request.x, request.heads) if keeps else 0)


@ONEDNN.kernel(SelfAttentionBackward)
def backward(request: SelfAttentionBackward) -> PreparedKernel:
    steps, threads = Steps(request, "sgemm"), threads_for(request.x.nbytes)
    steps.add_team_pass(
        "attention gradient",
        attend_gradient,
        threads,
        **_sizes(request),
        x="input0",
        dy="output_gradient",
        dx="input_gradient",
        probabilities="kept",
        scores=steps.reserve(threads * request.x.shape[1] ** 2 * 4),
    )
    return steps.prepared()


def _sizes(request: SelfAttentionForward | SelfAttentionBackward) -> dict[str, Any]:
    (examples, length, width), heads = request.x.shape, request.heads
    depth = width // (3 * heads)
    sizes = {"count": examples * heads, "heads": heads, "length": length, "depth": depth}
    return {**sizes, "scale": 1 / math.sqrt(depth), "sgemm": sgemm_address()}


@inlined
def _largest(x: Any, count: int) -> Any:
    largest = x[0]
    for i in range(1, count):
        largest = x[i] if x[i] > largest else largest
    return largest


@in_any_order
def _exponentials(x: Any, bits: Any, count: int, largest: Any, scale: Any) -> Any:
    """x ← exp(scale · (x − largest)), and the sum. bits: x as integers, to whose exponents the power of 2 is added."""
    total = np.float32(0)
    for i in range(count):
        t = (x[i] - largest) * scale
        t = LOWEST if t < LOWEST else t  # keeps NaN
        power = np.float32(math.floor(t * LOG2_E + HALF))
        r = t - power * LN_2_HIGH - power * LN_2_LOW
        x[i] = ONE + r * (ONE + r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * C6)))))
        bits[i] += np.int32(power) << np.int32(23)
        total += x[i]
    return total


@in_any_order
def _product(a: Any, b: Any, count: int) -> Any:
    total = np.float32(0)
    for i in range(count):
        total += a[i] * b[i]
    return total


@native_pass(Arguments(team=TEAM, **HEADS, y=Address, keeps=int, causal=int))
def attend(block: Any) -> int:
    """For each head the scores q kᵀ, their softmax, and the product with v. Later keys have the probability 0."""
    length, depth, scale = block.length, block.depth, np.float32(block.scale)
    thread, threads, row = team_thread(block.team), team_size(block.team), block.heads * block.depth
    for number in range(block.count * thread // threads, block.count * (thread + 1) // threads):
        first = 4 * (number % block.heads * depth)
        x = block.x + first + 12 * (number // block.heads * length * row)
        y = block.y + first + 4 * (number // block.heads * length * row)
        p = block.probabilities + 4 * length * length * (number if block.keeps else thread)
        # (length × depth) · (length × depth)ᵀ
        status: int = dnnl_sgemm(block.sgemm, 0, 1, length, length, depth, x, 3 * row, x + 4 * row, 3 * row, p, length)
        if status != 0:
            return status
        for t in range(length):
            scores, end = float32_at(p + 4 * t * length), t + 1 if block.causal else length
            largest = _largest(scores, end)
            total = _exponentials(scores, int32_at(p + 4 * t * length), end, largest, scale)
            for s in range(end, length):
                scores[s] = np.float32(0)
            inverse = ONE / total
            for s in range(length):  # all positions, so that NaN spreads to all, as in the reference
                scores[s] *= inverse
        status = dnnl_sgemm(block.sgemm, 0, 0, length, depth, length, p, length, x + 8 * row, 3 * row, y, row)
        if status != 0:
            return status
    return 0


@native_pass(Arguments(team=TEAM, **HEADS, dy=Address, dx=Address, scores=Address))
def attend_gradient(block: Any) -> int:
    """For each head, dp = dy vᵀ and, in the same memory, ds; then dq, dk and dv."""
    length, depth, scale = block.length, block.depth, np.float32(block.scale)
    thread, threads, row = team_thread(block.team), team_size(block.team), block.heads * block.depth
    ds = block.scores + 4 * length * length * thread
    for number in range(block.count * thread // threads, block.count * (thread + 1) // threads):
        first, example = 4 * (number % block.heads * depth), 4 * (number // block.heads * length * row)
        x, dx, dy = block.x + first + 3 * example, block.dx + first + 3 * example, block.dy + first + example
        p = block.probabilities + 4 * length * length * number
        status: int = dnnl_sgemm(block.sgemm, 0, 1, length, length, depth, dy, row, x + 8 * row, 3 * row, ds, length)
        if status != 0:
            return status
        for t in range(length):
            probabilities, gradients = float32_at(p + 4 * t * length), float32_at(ds + 4 * t * length)
            common = _product(probabilities, gradients, length)
            for s in range(length):
                gradients[s] = probabilities[s] * (gradients[s] - common) * scale
        # dq = ds k, dk = dsᵀ q, dv = pᵀ dy
        status = dnnl_sgemm(block.sgemm, 0, 0, length, depth, length, ds, length, x + 4 * row, 3 * row, dx, 3 * row)
        status |= dnnl_sgemm(block.sgemm, 1, 0, length, depth, length, ds, length, x, 3 * row, dx + 4 * row, 3 * row)
        status |= dnnl_sgemm(block.sgemm, 1, 0, length, depth, length, p, length, dy, row, dx + 8 * row, 3 * row)
        if status != 0:
            return status
    return 0
