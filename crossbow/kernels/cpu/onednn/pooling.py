"""Two-dimensional average pooling and its gradient."""

from __future__ import annotations

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.memory import activation, attributes, engine
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps
from crossbow.kernels.cpu.passes.pooling import after_windows, overhangs, whole_images
from crossbow.kernels.cpu.passes.windows import slides
from crossbow.kernels.cpu.rooms import ONEDNN
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.types import Shape, Tensor


@ONEDNN.kernel(
    PoolingForward,
    lambda request: (
        slides(request.x, request.geometry, "average")
        and not overhangs(request.x.shape, request.y.shape, request.geometry)
        and not whole_images(request.x.shape, request.geometry)
    ),
)
def forward(request: PoolingForward) -> PreparedKernel:
    x, y = request.x, request.y
    steps = PrimitiveSteps(request)
    operands = {dnnl.ARG_SRC: (activation(x), "input0"), dnnl.ARG_DST: (activation(y), "output")}
    steps.add("average", _forward(x, y, request.geometry), operands)
    return steps.prepared()


@ONEDNN.kernel(
    PoolingBackward,
    lambda request: (
        slides(request.dx, request.geometry, "average")
        and not overhangs(request.dx.shape, request.dy.shape, request.geometry)
    ),
)
def backward(request: PoolingBackward) -> PreparedKernel:
    dy, dx, geometry = request.dy, request.dx, request.geometry
    descriptor = dnnl.primitive_desc(
        "pooling_backward",
        engine(),
        _algorithm(geometry),
        activation(dx),
        activation(dy),
        *_sizes(dx.shape, dy.shape, geometry),
        _forward(dx, dy, geometry),
        attributes(),
    )
    steps = PrimitiveSteps(request)
    operands = {
        dnnl.ARG_DIFF_DST: (activation(dy), "output_gradient"),
        dnnl.ARG_DIFF_SRC: (activation(dx), "input_gradient"),
    }
    steps.add("average", descriptor, operands)
    return steps.prepared()


def _forward(x: Tensor, y: Tensor, geometry: PoolingGeometry) -> dnnl.Handle:
    return dnnl.primitive_desc(
        "pooling_forward",
        engine(),
        dnnl.FORWARD_INFERENCE,
        _algorithm(geometry),
        activation(x),
        activation(y),
        *_sizes(x.shape, y.shape, geometry),
        attributes(),
    )


def _algorithm(geometry: PoolingGeometry) -> int:
    return dnnl.POOLING_AVG_INCLUDE_PADDING if geometry.count_padding else dnnl.POOLING_AVG_EXCLUDE_PADDING


def _sizes(x: Shape, y: Shape, geometry: PoolingGeometry) -> tuple[Shape, Shape, Shape, Shape, Shape]:
    """Strides, kernel, dilation, padding before and after, in the library's form."""
    dilation = tuple(d - 1 for d in geometry.dilation)
    before = tuple(before for before, _ in geometry.padding)
    return geometry.stride, geometry.kernel, dilation, before, after_windows(x, y, geometry)
