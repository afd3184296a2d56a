"""cuDNN's interface: its descriptors, which work without a GPU, where it is installed, and its errors."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from ctypes import POINTER, c_int
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from crossbow.kernels.cuda import convolution, cudnn, cudnn_library
from crossbow.kernels.cuda.api import replaced
from crossbow.kernels.cuda.cudnn_library import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from crossbow.kernels.cuda.storage import ChannelsLastStorage
from crossbow.kernels.interface import Variable
from crossbow.kernels.strides import strides
from crossbow.ops import Conv
from crossbow.types import ConfigurationError, Layout, Shape, Tensor
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.cuda.fake_cudnn import FakeCudnn, Refused

Windows = tuple[Shape, Shape, Shape]
"""Padding, stride and dilation of a convolution."""
FLOAT32 = np.dtype(np.float32)
ASKED_BY_TESTS = {
    "cudnnGetTensorNdDescriptor": (TensorDescriptor, c_int, *[POINTER(c_int)] * 4),
    "cudnnGetConvolutionNdForwardOutputDim": (
        *(ConvolutionDescriptor, TensorDescriptor, FilterDescriptor),
        *(c_int, POINTER(c_int)),
    ),
}
"""Functions of the library with which these tests read descriptors, and the types of their arguments."""
# The library


@pytest.fixture
def library() -> Iterator[Any]:
    """The real one, put into the place of CUDA's libraries."""
    try:
        loaded = cudnn_library.load()
    except ConfigurationError as error:
        pytest.skip(str(error))
    for name, types in ASKED_BY_TESTS.items():
        getattr(loaded, name).argtypes = types
    with replaced(cast(Any, SimpleNamespace(cudnn=loaded))):
        yield loaded


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as cuda:
        cuda.cudnn = FakeCudnn(cuda.calls)  # without streams: errors come from the call itself
        yield cuda


def output_sizes(*descriptors: cudnn.Descriptor, axes: int) -> Shape:
    """Those of a convolution, of a tensor and of a filter."""
    sizes = (c_int * axes)()
    cudnn.check("cudnnGetConvolutionNdForwardOutputDim", *descriptors, axes, sizes)
    return tuple(sizes)


def random_problem(choose: Callable[[int, int], int]) -> convolution.Problem | None:
    """A convolution of any kind, its output as our operator has it; None where it refuses."""
    axes, groups = choose(1, 3), choose(1, 3)
    pairs = tuple((choose(0, 3), choose(0, 3)) for _ in range(axes))
    stride, dilation, kernel = (tuple(choose(1, most) for _ in range(axes)) for most in (3, 3, 4))
    operator = Conv(
        number_of_outputs=groups * choose(1, 3),
        kernel_size=kernel,
        stride=stride,
        padding=pairs,
        dilation=dilation,
        groups=groups,
    )
    shape = (choose(1, 3), groups * choose(1, 3), *(choose(1, 9) for _ in range(axes)))
    try:
        y = operator.output_shape(shape)
    except ValueError:
        return None
    layout = Layout.CHANNELS_LAST if axes == 2 and choose(0, 1) else Layout.PLAIN
    weights = operator.variables(shape)[0].shape
    storage = ChannelsLastStorage(weights, weights[1:]) if layout is Layout.CHANNELS_LAST else None
    return convolution.problem_of(
        Tensor(shape, FLOAT32, layout),
        Variable(weights, FLOAT32, storage),
        Tensor(y, FLOAT32, layout),
        operator.geometry(shape),
        convolution.EXACT,
    )[0]


@pytest.mark.slow
def test_convolutions_have_the_shapes_of_our_operator(library: Any) -> None:
    """Also those that it is asked for in the place of convolutions with one spatial axis or unlike padding."""
    generator = np.random.default_rng(0)
    known = [random_problem(lambda low, high: int(generator.integers(low, high + 1))) for _ in range(2000)]
    problems = [problem for problem in known if problem is not None]
    assert len(problems) > 500
    for problem in problems:
        d = problem.descriptors()
        sizes = output_sizes(d["convolution"], d["x"], d["w"], axes=len(problem.y.shape))
        assert sizes == problem.y.shape, problem


def test_the_library_has_the_version_that_is_expected(library: Any) -> None:
    assert library.cudnnGetVersion() // 10_000 == cudnn_library.MAJOR


@pytest.mark.parametrize("layout", list(Layout), ids=str)
def test_the_library_takes_tensors_as_they_lie(library: Any, layout: Layout) -> None:
    tensor = Tensor((2, 3, 5, 7), np.dtype(np.float64), layout)
    made = cudnn.tensor_descriptor(tensor.shape, strides(tensor), tensor.dtype)
    dtype, axes, sizes, steps = c_int(), c_int(), (c_int * 4)(), (c_int * 4)()
    places = (ctypes.byref(dtype), ctypes.byref(axes), sizes, steps)
    cudnn.check("cudnnGetTensorNdDescriptor", made, 4, *places)
    itemsize = tensor.dtype.itemsize
    bytes_apart = tensor.view(np.zeros(tensor.nbytes, np.uint8)).strides
    assert (dtype.value, axes.value, tuple(sizes)) == (cudnn.DATA_DOUBLE, 4, tensor.shape)
    assert tuple(step * itemsize for step in steps) == bytes_apart


def descriptors_of(
    x: Shape, w: Shape, windows: Windows, groups: int
) -> tuple[cudnn.Descriptor, cudnn.Descriptor, cudnn.Descriptor]:
    """A convolution, its input and its weights."""
    return (
        cudnn.convolution_descriptor(*windows, groups, cudnn.FMA_MATH, FLOAT32),
        cudnn.tensor_descriptor(x, strides(Tensor(x, FLOAT32)), FLOAT32),
        cudnn.filter_descriptor(w, cudnn.TENSOR_NCHW, FLOAT32),
    )


def answer_of_library(x: Shape, w: Shape, windows: Windows, groups: int) -> Shape | None:
    """The output's sizes, or None where the library refuses."""
    try:
        return output_sizes(*descriptors_of(x, w, windows, groups), axes=len(x))
    except cudnn.CudnnError as error:
        if not error.is_refusal:
            raise
        return None


def answer_of_fake(fake: FakeCuda, x: Shape, w: Shape, windows: Windows, groups: int) -> Shape | None:
    """The same of the fake."""
    convolution, *tensors = (
        fake.cudnn.objects[made._as_parameter_.value].setting for made in descriptors_of(x, w, windows, groups)
    )
    try:
        sizes: Shape = convolution.output_shape(*tensors)
    except Refused:
        return None
    return sizes


@pytest.mark.slow
def test_the_fake_answers_as_the_library(library: Any, fake: FakeCuda) -> None:
    generator, refused = np.random.default_rng(2), 0

    def draw(low: int, high: int, axes: int) -> tuple[int, ...]:
        return tuple(map(int, generator.integers(low, high + 1, axes)))

    for _ in range(1000):
        axes = int(generator.integers(2, 4))
        x, w = (*draw(1, 2, 2), *draw(2, 8, axes)), (*draw(1, 2, 2), *draw(1, 3, axes))
        windows, groups = (draw(0, 2, axes), draw(1, 3, axes), draw(1, 3, axes)), int(generator.integers(1, 3))
        expected = answer_of_fake(fake, x, w, windows, groups)  # the fake was put into place last
        with replaced(cast(Any, SimpleNamespace(cudnn=library))):
            assert answer_of_library(x, w, windows, groups) == expected, (x, w, windows, groups)
        refused += expected is None
    assert 100 < refused < 900


def wrong_tensor() -> None:
    cudnn.tensor_descriptor((2, 3, 0, 5), (15, 5, 5, 1), FLOAT32)


def test_the_library_s_errors_are_raised(library: Any) -> None:
    with pytest.raises(cudnn.CudnnError, match=r"cudnnSetTensorNdDescriptor returned 2000 \(CUDNN_STATUS_BAD_PARAM"):
        wrong_tensor()


def test_errors_say_what_was_called_and_why_it_failed(fake: FakeCuda) -> None:
    with pytest.raises(
        cudnn.CudnnError, match=r"cudnnSetTensorNdDescriptor returned 2000 \(CUDNN_STATUS_BAD_PARAM\): "
    ) as info:
        wrong_tensor()
    assert info.value.status == cudnn.STATUS_BAD_PARAM
    assert info.value.is_refusal


@pytest.mark.parametrize(
    ("status", "refusal"), [(1999, False), (2000, True), (2004, True), (3000, True), (3012, True), (4000, False)]
)
def test_a_refusal_is_a_bad_parameter_or_what_is_not_supported(fake: FakeCuda, status: int, refusal: bool) -> None:
    """4000 and above are internal errors, by `cudnnStatus_t`."""
    assert cudnn.CudnnError("cudnnConvolutionForward", status).is_refusal is refusal


def test_descriptors_are_destroyed_with_their_last_reference(fake: FakeCuda) -> None:
    first = cudnn.filter_descriptor((2, 3, 4, 5), cudnn.TENSOR_NCHW, FLOAT32)
    second = cudnn.convolution_descriptor((0, 0), (1, 1), (1, 1), 1, cudnn.FMA_MATH, FLOAT32)
    call = cudnn.CudnnCall("cudnnX", (first,))
    del first
    gc.collect()
    assert fake.cudnn.alive() == ["ConvolutionDescriptor", "FilterDescriptor"]
    del call
    gc.collect()
    assert fake.cudnn.alive() == ["ConvolutionDescriptor"]
    del second
    gc.collect()
    assert fake.cudnn.alive() == []


def test_a_descriptor_of_another_kind_is_refused(fake: FakeCuda) -> None:
    tensor = cudnn.tensor_descriptor((2, 3, 4, 5), (60, 20, 5, 1), FLOAT32)
    with pytest.raises(ctypes.ArgumentError, match="cudnnSetConvolutionGroupCount"):
        cudnn.check("cudnnSetConvolutionGroupCount", tensor, 1)


def test_a_descriptor_of_another_kind_is_refused_by_ctypes(library: Any) -> None:
    tensor = cudnn.tensor_descriptor((2, 3, 4, 5), (60, 20, 5, 1), FLOAT32)
    with pytest.raises(ctypes.ArgumentError):
        cudnn.check("cudnnSetConvolutionGroupCount", tensor, 1)
