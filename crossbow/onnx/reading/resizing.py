"""Resizing of images."""

from __future__ import annotations

from typing import Any

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.layers import one_or_all
from crossbow.onnx.reading.node import Node, Refused, shortest
from crossbow.onnx.reading.table import reads
from crossbow.ops import Upsample
from crossbow.types import Shape

ATTRIBUTES = "antialias axes coordinate_transformation_mode cubic_coeff_a mode nearest_mode"
ROUNDED = ("round_prefer_floor", "round_prefer_ceil")


@reads("Resize", versions=(11, 13, 18, 19), attributes=ATTRIBUTES, constants=(1, 2, 3), is_form=True)
def resize(node: Node) -> NetworkStep:
    """An Upsample. The modes that PyTorch and Keras export are supported: "nearest", rounded down, and "linear",
    between centres or corners."""
    mode, place = node.text("mode", "nearest"), node.text("coordinate_transformation_mode", "half_pixel")
    rounding = node.text("nearest_mode", "round_prefer_floor")
    if node.integer("antialias", 0):
        raise Refused("expected antialias=0. Received: 1")
    nearest = (place, rounding) == ("asymmetric", "floor") or (place == "half_pixel" and rounding in ROUNDED)
    if mode == "nearest" and nearest:
        settings: dict[str, Any] = {}
    elif mode == "linear" and place in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        settings = {"method": "linear", "align_corners": place == "align_corners"}
    else:
        raise Refused(
            "expected mode='nearest' with coordinate_transformation_mode='asymmetric' and nearest_mode='floor', or "
            f"mode='linear' with 'half_pixel' or 'align_corners'. Received: {mode!r}, {place!r}, {rounding!r}"
        )
    x = node.step()
    kernel, scales = _upsample(node, x.shape, 2, 3, settings)
    sizes = kernel.output_shape(x.shape)[2:]
    if mode == "nearest" and place == "half_pixel" and any(scale % 1 for scale in scales):
        # Only with whole factors is the nearest centre that of the repeated pixel.
        raise Refused(f"expected whole factors with mode='nearest' and 'half_pixel'. Received: {scales}")
    if place == "pytorch_half_pixel" and 1 in sizes:
        raise Refused(f"expected sizes above 1 with 'pytorch_half_pixel'. Received: {sizes}")
    if place == "align_corners" and any(round(n * s, 6) % 1 for n, s in zip(x.shape[2:], scales, strict=True)):
        raise Refused(f"expected factors that give whole sizes with 'align_corners'. Received: {scales}")
    return node.apply(kernel, x)


@reads("Upsample", versions=(9, 10), attributes="mode", constants=(1,))
def upsample(node: Node) -> NetworkStep:
    if (mode := node.text("mode", "nearest")) != "nearest":
        raise Refused(f"expected mode='nearest'. Received: {mode!r}")
    x = node.step()
    return node.apply(_upsample(node, x.shape, 1, None, {})[0], x)


def _upsample(
    node: Node, x: Shape, scales: int, sizes: int | None, settings: dict[str, Any]
) -> tuple[Upsample, list[float]]:
    """The operator, and the factor of each spatial axis. scales, sizes: indices of the inputs with these values."""
    factors = node.constant(scales)
    if factors is not None and factors.size:
        by_axis = _by_axis(node, len(x), [shortest(value) for value in factors.reshape(-1)], 1.0)
        if by_axis[:2] != [1.0, 1.0]:
            raise Refused(f"expected scales of 1 for examples and channels. Received: {by_axis[:2]}")
        values = by_axis[2:]
        same = len(values) == 2 and len(set(values)) == 1
        return Upsample(values[0] if same else tuple(values), **settings), values
    wanted = None if sizes is None else node.constant(sizes, varying=True)
    given = [] if wanted is None else [int(value) for value in wanted.reshape(-1)]
    target = _by_axis(node, len(x), given, None)
    if target[1] not in (None, x[1]):
        raise Refused(f"expected sizes that leave the channels. Received: {target} for {x}")
    size = [own if new is None else new for new, own in zip(target[2:], x[2:], strict=True)]
    ratios = [new / own for new, own in zip(size, x[2:], strict=True)]
    return Upsample(size=one_or_all(size), **settings), [round(ratio, 9) for ratio in ratios]


def _by_axis(node: Node, rank: int, values: list[Any], missing: Any) -> list[Any]:
    """A value for every dimension of the input. The attribute `axes` may assign the values to some dimensions only; the
    others get `missing`."""
    axes = node.integers("axes", range(rank)) or ()
    if len(axes) != len(values):
        raise Refused(f"expected scales or sizes for {len(axes)} dimensions. Received: {values}")
    found = dict(zip((axis % rank for axis in axes), values, strict=True))
    return [found.get(axis, missing) for axis in range(rank)]
