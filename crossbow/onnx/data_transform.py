"""Import and export of DataTransform, which ONNX represents by Sub, Slice and Mul; or by Pad, Slice, Sub and Mul."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.node import Node, Numbers, Refused, shortest
from crossbow.onnx.reading.table import reads_group
from crossbow.onnx.writing.table import writes
from crossbow.onnx.writing.written_operator import WrittenOperator
from crossbow.ops import DataTransform, Values


@writes(DataTransform)
def write(operator: WrittenOperator) -> None:
    """Write the transform for testing. A mean image is subtracted first, a channel mean after cropping."""
    kernel, (x,), shape = operator.kernel, operator.inputs, operator.shapes[0]
    assert isinstance(kernel, DataTransform)
    setting = kernel.transform(shape)
    top, left = (start - setting.padding for start in setting.centre(shape, operator.shape))
    spans = [(top, top + operator.shape[2], shape[2]), (left, left + operator.shape[3], shape[3])]
    border = [(max(-start, 0), max(stop - size, 0)) for start, stop, size in spans]
    by_pixel = setting.mean.shape[1:] != (1, 1)
    if by_pixel and any(map(any, border)):
        operator.fault("expected a window inside the image if a mean image is subtracted. Received: a larger window")
        return
    if by_pixel:
        x = operator.add("Sub", x, operator.constant("mean", setting.mean[None]), part="centred")
    if any(map(any, border)):
        pads = [0, 0, *(before for before, _ in border), 0, 0, *(after for _, after in border)]
        x = operator.add("Pad", x, operator.constant("pads", pads, np.int64), part="padded")
    if any(start > 0 or stop < size for start, stop, size in spans):
        starts = [max(start, 0) for start, _, _ in spans]
        stops = [stop + before for (_, stop, _), (before, _) in zip(spans, border, strict=True)]
        indices = {"starts": starts, "ends": stops, "axes": [2, 3]}
        x = operator.add("Slice", x, *(operator.constant(n, v, np.int64) for n, v in indices.items()), part="window")
    if not by_pixel and setting.mean.any():
        x = operator.add("Sub", x, operator.constant("mean", setting.mean[None]), part="centred")
    operator.add("Mul", x, operator.constant("scale", setting.scale[None]))


@reads_group("DataTransform", least=1)
def read(nodes: Sequence[Node]) -> NetworkStep:
    """Read the operator that is equivalent in testing. Its behaviour in training is in the model's metadata."""
    found = {node.proto.op_type: node for node in nodes}
    x = nodes[0].step()
    size, padding = list(x.shape[2:]), 0
    if "Pad" in found:
        pads = _constant(found["Pad"], 1)
        size = [length + int(pads[axis]) + int(pads[axis + 4]) for axis, length in zip((2, 3), size, strict=True)]
        padding = int(pads.max())
    if "Slice" in found:
        starts, ends = _constant(found["Slice"], 1), _constant(found["Slice"], 2)
        size = [int(end - start) for start, end in zip(starts, ends, strict=True)]
    mean = _constant(found["Sub"], 1) if "Sub" in found else None
    image = mean if mean is not None and mean.shape[2:] != (1, 1) else None
    kernel = DataTransform(
        crop_size=None if size == list(x.shape[2:]) else (size[0], size[1]),
        padding=padding,
        mean=None if mean is None or image is not None else _channels(mean),
        mean_image=None if image is None else Values(image[0]),
        scale=_channels(_constant(found["Mul"], 1)),
    )
    return nodes[-1].apply(kernel, x)


def _constant(node: Node, index: int) -> Numbers:
    array = node.constant(index)
    if array is None:
        raise Refused(f"expected input {index}. Received: none")
    return array


def _channels(array: Numbers) -> float | tuple[float, ...]:
    """One number, or one per channel."""
    values = [shortest(value) for value in array.reshape(-1)]
    return values[0] if len(set(values)) == 1 else tuple(values)
