"""What holds for every kernel library, as the compiler and the runtime use it."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels import why_not_compiled
from crossbow.kernels.interface import Variable
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import (
    BatchNormSetting,
    BatchNormTraining,
    ConvolutionForward,
    ConvolutionGeometry,
    CopyForward,
    InnerProductForward,
    PoolingBackward,
    PoolingGeometry,
    Request,
    WeightedSum,
)
from crossbow.types import Layout, Tensor


def libraries() -> dict[str, KernelLibrary]:
    from crossbow.kernels.cuda.library import Cuda

    found: dict[str, KernelLibrary] = {"reference": Reference(), "float64": Reference(np.float64)}
    found |= {"cuda": Cuda(channels_last=False), "cuda channels-last": Cuda(channels_last=True)}
    if why_not_compiled() is None:
        from crossbow.kernels.cpu.library import Cpu

        found |= {"cpu": Cpu(), "compiled": Cpu(onednn=False)}
    return found


LIBRARIES = libraries()
every_library = pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)


@every_library
def test_only_images_have_another_order(library: KernelLibrary) -> None:
    """A channels-last tensor has four dimensions."""
    for shape in ((8,), (8, 3), (8, 3, 4), (8, 3, 4, 5, 6)):
        assert library.layout(shape) is Layout.PLAIN
    assert library.layout((8, 3, 4, 5)) is library.layout((1, 16, 2, 2))


@every_library
def test_a_type_is_named_and_has_kernels(library: KernelLibrary) -> None:
    assert library.name
    for dtype in library.dtypes:
        kernel = library.prepare(CopyForward(Tensor((2, 3), dtype), Tensor((6,), dtype)))
        assert (kernel.reads, kernel.writes) == (("input0",), ("output",))


def fused(kind: type[Request], library: KernelLibrary) -> Request:
    """A request of this kind, with its ReLU."""
    dtype = library.dtypes[0]
    x, image = Tensor((2, 3), dtype), Tensor((2, 3, 4, 5), dtype, library.layout((2, 3, 4, 5)))
    return {
        BatchNormTraining: BatchNormTraining(x, x, BatchNormSetting(0.1, 0.9, bias=True, relu=True)),
        ConvolutionForward: ConvolutionForward(
            image, Variable((3, 3, 1, 1), dtype), None, image, ConvolutionGeometry((1, 1)), relu=True
        ),
        InnerProductForward: InnerProductForward(x, Variable((3, 3), dtype), None, x, relu=True),
        PoolingBackward: PoolingBackward(image, image, PoolingGeometry((1, 1)), relu=True),
        WeightedSum: WeightedSum((x, x), x, (1.0, 1.0), relu=True),
    }[kind]


@every_library
def test_kernels_with_a_fused_relu_are_named_so(library: KernelLibrary) -> None:
    """Convolutions on GPUs are chosen on the device: `tests/kernels/cuda/test_convolution.py`."""
    for kind in library.fused_relu:
        if library.name != "cuda" or kind is not ConvolutionForward:
            assert " relu" in library.prepare(fused(kind, library)).name
