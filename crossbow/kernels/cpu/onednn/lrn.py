"""Local response normalisation by oneDNN's primitive, where it is fast.

It is fast for β = 3/4 and channels last, on some processors only (AVX-512, or AVX2 within channels). Otherwise it
computes a power for every pair of neighbours. The fast version keeps two tensors of the input's size for the gradient.
"""

from __future__ import annotations

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.memory import activation, attributes, engine
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps, implementation
from crossbow.kernels.cpu.rooms import ONEDNN, alike
from crossbow.kernels.cpu.steps import Place
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LRNBackward, LRNForward, ResponseGeometry
from crossbow.types import Layout, Phase, Tensor

PRIMITIVE_SIZES = (3, 5)
"""Window sizes for which the primitive is used: with even sizes it omits an element, and with size 1 preparing the
gradient ends the process."""


def _primitive_is_fast(request: LRNForward | LRNBackward) -> bool:
    x, geometry = request.x, request.geometry
    like = (x, request.y) if isinstance(request, LRNForward) else (x, request.dy, request.dx)
    if geometry.size not in PRIMITIVE_SIZES or x.layout is not Layout.CHANNELS_LAST or not alike(*like):
        return False
    descriptors = (_forward(x, geometry, dnnl.FORWARD_TRAINING), _backward(x, geometry))
    return all("jit" in implementation(descriptor) for descriptor in descriptors)


@ONEDNN.kernel(LRNForward, _primitive_is_fast)
def forward(request: LRNForward) -> PreparedKernel:
    """In training, the primitive also writes a workspace for the gradient."""
    x, geometry, training = request.x, request.geometry, request.phase is Phase.TRAIN
    descriptor = _forward(x, geometry, dnnl.FORWARD_TRAINING if training else dnnl.FORWARD_INFERENCE)
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (activation(x), "input0"),
        dnnl.ARG_DST: (activation(x), "output"),
    }
    kept = dnnl.query_memory_desc(descriptor, dnnl.QUERY_WORKSPACE_MD) if training else None
    if kept is not None:
        operands[dnnl.ARG_WORKSPACE] = (kept, "kept")
    steps = PrimitiveSteps(request)
    steps.add("lrn", descriptor, operands)
    return steps.prepared() if kept is None else steps.prepared(more_writes=("kept",), kept=dnnl.size(kept))


@ONEDNN.kernel(LRNBackward, _primitive_is_fast)
def backward(request: LRNBackward) -> PreparedKernel:
    x = request.x
    descriptor = _backward(x, request.geometry)
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (activation(x), "input0"),
        dnnl.ARG_DIFF_DST: (activation(x), "output_gradient"),
        dnnl.ARG_DIFF_SRC: (activation(x), "input_gradient"),
    }
    kept = dnnl.query_memory_desc(descriptor, dnnl.QUERY_WORKSPACE_MD)
    if kept is not None:
        operands[dnnl.ARG_WORKSPACE] = (kept, "kept")
    steps = PrimitiveSteps(request)
    steps.add("lrn", descriptor, operands)
    return steps.prepared(more_reads=() if kept is None else ("kept",), in_place=False)


def _forward(x: Tensor, geometry: ResponseGeometry, propagation: int) -> dnnl.Handle:
    memory = activation(x)
    return dnnl.primitive_desc(
        "lrn_forward", engine(), propagation, _algorithm(geometry), memory, memory, *_constants(geometry), attributes()
    )


def _backward(x: Tensor, geometry: ResponseGeometry) -> dnnl.Handle:
    memory, hint = activation(x), _forward(x, geometry, dnnl.FORWARD_TRAINING)
    return dnnl.primitive_desc(
        "lrn_backward",
        engine(),
        _algorithm(geometry),
        memory,
        memory,
        memory,
        *_constants(geometry),
        hint,
        attributes(),
    )


def _algorithm(geometry: ResponseGeometry) -> int:
    return dnnl.LRN_ACROSS_CHANNELS if geometry.axes == (1,) else dnnl.LRN_WITHIN_CHANNEL


def _constants(geometry: ResponseGeometry) -> tuple[int, float, float, float]:
    """Size, α, β and κ for the library, which divides α by the size itself."""
    alpha = geometry.share * geometry.size ** len(geometry.axes)
    return geometry.size, alpha, geometry.beta, geometry.kappa
