"""What the operator table does not say of convolution: fused ReLU, the choice of algorithms, long sums, fallbacks."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda import convolution, cudnn, cudnn_library
from crossbow.kernels.cuda.launch import Stream, on
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.mixed import narrow_type
from crossbow.kernels.interface import PlainStorage, PreparedKernel, Variable
from crossbow.kernels.reference import convolution as reference
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
)
from crossbow.types import ConfigurationError, Layout, Shape, Tensor
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.cuda.fake_cudnn import Asked, FakeCudnn, Refused

Numbers = NDArray[Any]
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
layouts = pytest.mark.parametrize("layout", list(Layout), ids=["plain", "channels-last"])


@pytest.fixture(autouse=True)
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as cuda:
        cuda.cudnn = FakeCudnn(cuda.calls)  # without streams: errors come from the call itself
        yield cuda


class Example:
    """A convolution with random operands, and its three kernels."""

    def __init__(
        self,
        x: Shape = (2, 4, 7, 6),
        outputs: int = 6,
        geometry: ConvolutionGeometry | None = None,
        *,
        layout: Layout = Layout.PLAIN,
        dtype: np.dtype[Any] = FLOAT32,
        plain_weights: bool = False,
        deterministic: bool = True,
    ) -> None:
        self.geometry = g = geometry or ConvolutionGeometry((3, 2), groups=2)
        sizes = [
            (size + sum(p) - extent) // s + 1
            for size, p, extent, s in zip(x[2:], g.padding, g.extent, g.stride, strict=True)
        ]
        self.x = Tensor(x, dtype, layout)
        self.y = Tensor((x[0], outputs, *sizes), dtype, layout)
        weights = Variable((outputs, x[1] // g.groups, *g.kernel), dtype)
        if plain_weights:
            weights = Variable(weights.shape, dtype, PlainStorage(weights.shape))
        self.bias = Variable((outputs,), dtype)
        self.arithmetic = convolution.ConvolutionArithmetic(deterministic)
        self.forward = convolution.forward(
            ConvolutionForward(self.x, weights, self.bias, self.y, g, True), self.arithmetic
        )
        self.weights = Variable(weights.shape, dtype, self.forward.storages.get("weights", weights.storage))
        generator = np.random.default_rng(0)
        self.values = {
            "input0": generator.standard_normal(x),
            "weights": generator.standard_normal(weights.shape),
            "bias": generator.standard_normal(outputs),
            "output_gradient": generator.standard_normal(self.y.shape),
        }

    def backward_data(self) -> PreparedKernel:
        return convolution.backward_data(
            ConvolutionBackwardData(self.y, self.weights, self.x, self.geometry), self.arithmetic
        )

    def backward_data_and_sum(self) -> PreparedKernel:
        return convolution.backward_data(
            ConvolutionBackwardData(self.y, self.weights, self.x, self.geometry, sum=True), self.arithmetic
        )

    def backward_weights(self) -> PreparedKernel:
        x, y, arithmetic = self.x, self.y, self.arithmetic
        return convolution.backward_weights(
            ConvolutionBackwardWeights(x, y, self.weights, self.bias, self.geometry), arithmetic
        )

    def buffers(self, kernel: PreparedKernel) -> dict[str, Numbers]:
        """For all roles of a kernel, what is written filled with NaN."""
        inputs = dict.fromkeys(("input0", "input_gradient", "addend"), self.x)
        tensors = {**inputs, "output": self.y, "output_gradient": self.y}
        made: dict[str, Numbers] = {}
        for role in (*kernel.reads, *kernel.writes):
            name = role if role in tensors else role.removesuffix("_gradient")
            value = self.values.get(role, np.nan)
            if name in tensors:
                made[role] = tensors[name].view(aligned_zeros(tensors[name].nbytes))
                made[role][...] = value
                continue
            variable = {"weights": self.weights, "bias": self.bias}[name]
            plain = np.full(variable.shape, value, variable.dtype)
            made[role] = plain
            if isinstance(variable.storage, convolution.ChannelsLastStorage):
                made[role] = np.empty(variable.storage.elements, variable.dtype)
                variable.storage.pack(plain, made[role])
        made["workspace"] = aligned_zeros(kernel.workspace, 256)
        return made

    def run(self, kernel: PreparedKernel) -> dict[str, Numbers]:
        """What the kernel writes, in logical order."""
        buffers = self.buffers(kernel)
        for call in kernel.bind(buffers):
            call()
        written = {role: buffers[role] for role in kernel.writes}
        if "weights_gradient" in written and written["weights_gradient"].ndim == 1:
            plain = np.empty(self.weights.shape, self.weights.dtype)
            assert self.weights.storage is not None
            self.weights.storage.unpack(written["weights_gradient"], plain)
            written["weights_gradient"] = plain
        return written

    def expected(self, relu: bool = True, bias: bool = True) -> dict[str, Numbers]:
        """What the kernels should write."""
        v, g = self.values, self.geometry
        y, dx, dw, db = (np.empty(shape) for shape in (self.y.shape, self.x.shape, self.weights.shape, self.bias.shape))
        reference.forward(
            input0=v["input0"], weights=v["weights"], output=y, geometry=g, bias=v["bias"] if bias else None
        )
        reference.backward_data(
            output_gradient=v["output_gradient"], weights=v["weights"], input_gradient=dx, geometry=g
        )
        reference.backward_weights(
            input0=v["input0"],
            output_gradient=v["output_gradient"],
            weights_gradient=dw,
            geometry=g,
            bias_gradient=db,
        )
        y = np.maximum(y, 0) if relu else y
        return {"output": y, "input_gradient": dx, "weights_gradient": dw, "bias_gradient": db}

    def check(self) -> None:
        """Run all three."""
        expected = self.expected()
        for kernel in (self.forward, self.backward_data(), self.backward_weights()):
            for role, value in self.run(kernel).items():
                np.testing.assert_allclose(value, expected[role], rtol=1e-5, atol=1e-5, err_msg=role)


def names(fake: FakeCuda) -> list[str]:
    return [call.name for call in fake.calls]


@layouts
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_the_kernels_agree_with_the_reference(layout: Layout, dtype: np.dtype[Any]) -> None:
    Example(layout=layout, dtype=dtype).check()


@layouts
def test_weights_may_lie_in_logical_order_whatever_the_images_do(layout: Layout) -> None:
    Example(layout=layout, plain_weights=True).check()


@layouts
@pytest.mark.parametrize("padding", [((1, 1), (1, 1)), ((0, 2), (1, 0))], ids=["equal", "with a border"])
@pytest.mark.parametrize("shared", [False, True])
def test_another_gradient_is_added(
    fake: FakeCuda, layout: Layout, padding: tuple[tuple[int, int], ...], shared: bool
) -> None:
    """By cuDNN's beta, where the other gradient is; otherwise after a copy. If the gradient is cut out of a larger one,
    then while it is cut out."""
    geometry = ConvolutionGeometry((3, 3), padding=padding)
    example = Example(geometry=geometry, layout=layout)
    example.values["addend"] = np.random.default_rng(1).standard_normal(example.x.shape)
    kernel = example.backward_data_and_sum()
    assert kernel.in_place == ("addend", "input_gradient")
    buffers = example.buffers(kernel)
    if shared:
        buffers["input_gradient"] = buffers["addend"]
    calls = kernel.bind(buffers)
    for call in calls:
        call()
    expected = example.expected()["input_gradient"] + example.values["addend"]
    np.testing.assert_allclose(buffers["input_gradient"], expected, rtol=1e-5, atol=1e-5)
    if padding[0] == padding[1]:
        assert len(calls) == (1 if shared else 2)


@layouts
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_bias_and_relu_are_one_pass(fake: FakeCuda, layout: Layout, bias: bool, relu: bool) -> None:
    example = Example(layout=layout)
    given = example.bias if bias else None
    kernel = convolution.forward(
        ConvolutionForward(example.x, example.weights, given, example.y, example.geometry, relu)
    )
    fake.calls.clear()
    received = example.run(kernel)["output"]
    np.testing.assert_allclose(received, example.expected(relu, bias)["output"], rtol=1e-5, atol=1e-5)
    assert names(fake) == ["cudnnConvolutionForward", *(["add_bias"] if bias or relu else [])]


def test_nan_stays_nan_behind_a_relu() -> None:
    example = Example()
    example.values["input0"][0, 0, 0, 0] = np.nan
    output = example.run(example.forward)["output"]
    assert np.isnan(output[0, :3, 0, 0]).all()
    assert np.isfinite(output[1]).all()


UNLIKE = ConvolutionGeometry((3, 2), padding=((2, 0), (1, 3)), stride=(2, 1), dilation=(1, 2), groups=2)


@layouts
def test_unlike_padding(fake: FakeCuda, layout: Layout) -> None:
    """By a border in the workspace, which only holds what the two sides differ by."""
    example = Example(geometry=UNLIKE, layout=layout)
    example.check()
    made = [call.arguments for call in fake.calls if call.name == "cudnnSetConvolutionNdDescriptor"]
    assert {tuple(arguments[2][:2]) for arguments in made} == {(0, 1)}
    assert names(fake).count("move") == 3


def test_like_padding_moves_nothing(fake: FakeCuda) -> None:
    Example(geometry=ConvolutionGeometry((3, 3), padding=((1, 1), (2, 2)))).check()
    assert "move" not in names(fake)


# Algorithms


def chosen(fake: FakeCuda, function: str) -> list[int]:
    """The algorithms that a function was called with."""
    return [call.arguments[7] for call in fake.calls if call.name == function]


def run_all(example: Example) -> None:
    for kernel in (example.forward, example.backward_data(), example.backward_weights()):
        example.run(kernel)


def test_deterministic_algorithms_are_the_preferred_ones(fake: FakeCuda) -> None:
    """Each is called once before it is chosen."""
    run_all(Example())
    assert chosen(fake, "cudnnConvolutionForward") == [cudnn.CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM] * 2
    assert chosen(fake, "cudnnConvolutionBackwardData") == [cudnn.CONVOLUTION_BWD_DATA_ALGO_1] * 2
    assert chosen(fake, "cudnnConvolutionBackwardFilter") == [cudnn.CONVOLUTION_BWD_FILTER_ALGO_1] * 2
    assert not [name for name in names(fake) if name.startswith("cudnnFind")]


def test_else_they_are_the_fastest(fake: FakeCuda) -> None:
    example = Example(deterministic=False)
    run_all(example)  # the fake finds the last ones fastest
    assert chosen(fake, "cudnnConvolutionForward") == [cudnn.CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED]
    assert chosen(fake, "cudnnConvolutionBackwardData") == [cudnn.CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED]
    assert chosen(fake, "cudnnConvolutionBackwardFilter") == [cudnn.CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING]
    assert example.forward.name == "convolution_forward relu cudnn:winograd_nonfused"


def test_the_fastest_keep_within_the_workspace_limit(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    large = 1024 + 72 * cudnn.CONVOLUTION_FWD_ALGO_WINOGRAD  # of the fake, and what depends on the output's size
    monkeypatch.setattr(convolution, "workspace_limit", lambda deterministic: large)
    run_all(Example(x=(1, 4, 3, 2), outputs=2, deterministic=False))
    assert chosen(fake, "cudnnConvolutionForward") == [cudnn.CONVOLUTION_FWD_ALGO_FFT_TILING]
    monkeypatch.setattr(convolution, "workspace_limit", lambda deterministic: 0)  # none does: the one that needs least
    run_all(Example(x=(1, 4, 3, 2), outputs=4, deterministic=False))
    assert chosen(fake, "cudnnConvolutionForward")[1:] == [cudnn.CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM] * 2


@pytest.mark.parametrize(
    ("free", "limit"), [(0, 64 << 20), (4 << 30, 64 << 20), (20 << 30, 320 << 20), (75 << 30, 1 << 30)]
)
def test_the_workspace_limit_is_a_part_of_the_free_memory(fake: FakeCuda, free: int, limit: int) -> None:
    fake.runtime.total_memory = free
    assert convolution.workspace_limit(False) == limit
    assert convolution.workspace_limit(True) == convolution.LEAST_LIMIT  # two runs choose the same


def test_an_algorithm_is_chosen_once(fake: FakeCuda) -> None:
    run_all(Example())
    asked = [name for name in names(fake) if name.endswith("WorkspaceSize")]
    run_all(Example())
    assert len(asked) == 4  # forward, two
    assert [name for name in names(fake) if name.endswith("WorkspaceSize")] == asked
    run_all(Example(x=(3, 4, 7, 6)))
    assert [name for name in names(fake) if name.endswith("WorkspaceSize")] == asked * 2


@pytest.mark.parametrize(("dtype", "math_type"), [(FLOAT32, cudnn.FMA_MATH), (FLOAT64, cudnn.DEFAULT_MATH)], ids=str)
def test_float32_is_never_rounded_to_tf32(fake: FakeCuda, dtype: np.dtype[Any], math_type: int) -> None:
    run_all(Example(dtype=dtype))
    made = [call.arguments[1] for call in fake.calls if call.name == "cudnnSetConvolutionMathType"]
    assert set(made) == {math_type}


def test_an_algorithm_that_is_refused_only_when_it_runs(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = cudnn.CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
    original = FakeCudnn._convolve

    def convolve(library: FakeCudnn, *arguments: Any, kind: str) -> None:
        if kind == "Forward" and arguments[7] == refused:
            raise Refused(cudnn.STATUS_NOT_SUPPORTED, "not today")
        original(library, *arguments, kind=kind)

    monkeypatch.setattr(FakeCudnn, "_convolve", convolve)
    run_all(Example())
    other = cudnn.CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM
    assert chosen(fake, "cudnnConvolutionForward") == [refused, other, other]


def forward(*, deterministic: bool = True) -> convolution.Convolution:
    x, y = Tensor((2, 4, 5, 5), FLOAT32), Tensor((2, 3, 3, 3), FLOAT32)
    weights, geometry = Variable((3, 4, 3, 3), FLOAT32), ConvolutionGeometry((3, 3))
    return convolution.Convolution(
        convolution.FORWARD, x, weights, y, geometry, convolution.ConvolutionArithmetic(deterministic=deterministic)
    )


FAILED = {
    "bad parameter": cudnn.STATUS_BAD_PARAM,
    "allocation failed": 1003,
    "internal error": 4000,
    "execution failed": 5000,
}


@pytest.mark.parametrize("status", FAILED.values(), ids=FAILED)
@pytest.mark.parametrize("where", ["_convolve", "_workspace_size"])
def test_after_any_failure_the_next_algorithm_is_tried(
    where: str, status: int, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cudnn.CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, cudnn.CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM
    original = getattr(FakeCudnn, where)

    def fails(library: FakeCudnn, *arguments: Any, kind: str) -> None:
        if kind == "Forward" and arguments[7 if where == "_convolve" else 5] == first:
            raise Refused(status, "not today")
        original(library, *arguments, kind=kind)

    monkeypatch.setattr(FakeCudnn, where, fails)
    made = forward()
    assert made.algorithm.number == second


@pytest.mark.parametrize("status", FAILED.values(), ids=FAILED)
def test_where_timing_fails_the_usual_algorithms_are_tried(
    status: int, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(library: FakeCudnn, *arguments: Any, kind: str) -> None:
        raise Refused(status, "not today")

    monkeypatch.setattr(FakeCudnn, "_timed_algorithms", fails)
    made = forward(deterministic=False)
    assert made.algorithm.number == cudnn.CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM


def test_where_the_gpu_is_lost_no_other_algorithm_is_tried(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def lost(stream: int) -> None:
        raise OSError("cudaErrorIllegalAddress")

    def fails(library: FakeCudnn, *arguments: Any, kind: str) -> None:
        tried.append(arguments[5])
        monkeypatch.setattr(fake.runtime, "streamSynchronize", lost)
        raise Refused(5000, "execution failed")

    monkeypatch.setattr(FakeCudnn, "_workspace_size", fails)
    with pytest.raises(OSError, match="cudaErrorIllegalAddress") as raised:
        forward()
    assert "cudnnGetConvolutionForwardWorkspaceSize returned 5000" in str(raised.value.__cause__)
    assert len(tried) == 1


def test_where_every_algorithm_fails_the_last_status_is_said(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(library: FakeCudnn, *arguments: Any, kind: str) -> None:
        raise Refused(5000, "not today")

    monkeypatch.setattr(FakeCudnn, "_convolve", fails)
    with pytest.raises(cudnn.CudnnError, match="cudnnConvolutionForward returned 5000"):
        forward()


def test_what_was_chosen_is_known(fake: FakeCuda) -> None:
    exact, _, timed = forward(), forward(), forward(deterministic=False)
    assert convolution.chosen() == {
        (convolution.FORWARD, exact.problem, True): exact.algorithm,
        (convolution.FORWARD, exact.problem, False): timed.algorithm,
    }


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_tensors_of_16_bits_have_the_arithmetic_that_is_fastest(
    fake: FakeCuda, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN also tries its default arithmetic, whatever it is asked for."""
    original = FakeCudnn._timed_algorithms

    def timed(library: FakeCudnn, *arguments: Any, kind: str) -> None:
        original(library, *arguments, kind=kind)
        arguments[10][0].mathType = cudnn.DEFAULT_MATH

    monkeypatch.setattr(FakeCudnn, "_timed_algorithms", timed)
    x, y = (Tensor((2, 4, 5, 5), narrow_type(name), Layout.CHANNELS_LAST) for _ in range(2))
    weights = Variable((4, 4, 3, 3), narrow_type(name))
    geometry = ConvolutionGeometry((3, 3), padding=((1, 1), (1, 1)))
    kernel = Cuda(narrow=name).prepare(ConvolutionForward(x, weights, None, y, geometry))
    assert kernel.name == "convolution_forward cudnn:winograd_nonfused"
    made = [call.arguments[1] for call in fake.calls if call.name == "cudnnSetConvolutionMathType"]
    assert (made[0], made[-1]) == (cudnn.TENSOR_OP_MATH, cudnn.DEFAULT_MATH)
    kinds = [call.arguments[1] for call in fake.calls if call.name == "cudnnSetTensorNdDescriptor"]
    assert set(kinds) == {cudnn.DATA_TYPES[name]}


def only(fake: FakeCuda, supports: Callable[[Asked, int], bool]) -> None:
    fake.cudnn.supports = supports


def in_logical_order(asked: Asked, algorithm: int) -> bool:
    return all(tensor.strides[1] > tensor.strides[3] for tensor in (asked.x, asked.w, asked.y))


def test_what_the_library_cannot_channels_last_is_done_in_logical_order(fake: FakeCuda) -> None:
    only(fake, in_logical_order)
    Example(layout=Layout.CHANNELS_LAST).check()
    Example(layout=Layout.CHANNELS_LAST, geometry=UNLIKE).check()
    assert names(fake).count("move") == 2 * 3 * 3  # all operands of all three


def test_what_the_library_cannot_at_all_is_refused(fake: FakeCuda) -> None:
    only(fake, lambda asked, algorithm: False)
    with pytest.raises(ConfigurationError, match=r"that cuDNN computes. Received: input \(2, 4, 7, 6\) of float32"):
        Example(layout=Layout.CHANNELS_LAST)


def test_the_second_choice_where_the_first_is_not_supported(fake: FakeCuda) -> None:
    only(fake, lambda asked, algorithm: algorithm != cudnn.CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
    example = Example()
    assert example.forward.name == "convolution_forward relu cudnn:implicit_gemm"


def test_the_handle_is_that_of_the_stream_when_called(fake: FakeCuda) -> None:
    example, handle = Example(), ctypes.c_void_p()
    cudnn.check("cudnnCreate", ctypes.byref(handle))
    calls = example.forward.bind(example.buffers(example.forward))
    fake.calls.clear()
    with on(Stream(0, 0, cudnn=handle.value or 0)):
        for call in calls:
            call()
    assert next(call.arguments[0] for call in fake.calls if call.name == "cudnnConvolutionForward") == handle.value


def test_bound_calls_need_nothing_but_themselves(fake: FakeCuda) -> None:
    """Descriptors, alpha and beta live as long as the calls."""
    example = Example(geometry=UNLIKE)
    kernel = example.backward_weights()
    buffers = example.buffers(kernel)
    calls, expected = kernel.bind(buffers), example.expected()
    del example, kernel
    gc.collect()
    for _ in range(2):
        for call in calls:
            call()
    np.testing.assert_allclose(buffers["weights_gradient"], expected["weights_gradient"], rtol=1e-5, atol=1e-5)


# The gradient of the bias


def test_storage_is_channels_last_where_the_images_are() -> None:
    assert Example().forward.storages == {}
    storage = Example(layout=Layout.CHANNELS_LAST).weights.storage
    assert isinstance(storage, convolution.ChannelsLastStorage)
    plain = np.arange(storage.elements, dtype=np.float32).reshape(storage.shape)
    flat, again = np.empty(storage.elements, np.float32), np.empty_like(plain)
    storage.pack(plain, flat)
    np.testing.assert_array_equal(flat, np.moveaxis(plain, 1, -1).ravel())
    storage.unpack(flat, again)
    np.testing.assert_array_equal(again, plain)


# The fake itself: what it lets pass, the tests above cannot find


def asked_directly(example: Example) -> tuple[list[Any], cudnn.CudnnCall]:
    """The arguments of cudnnConvolutionForward, with a workspace that is large enough, and what keeps them alive."""
    made = convolution.Convolution(
        convolution.FORWARD, example.x, example.weights, example.y, example.geometry, example.arithmetic
    )
    buffers = example.buffers(example.forward)
    roles = {"x": "input0", "w": "weights", "y": "output"}
    (call,) = made.calls({**buffers, "workspace": aligned_zeros(made.workspace, 256)}, roles)
    assert isinstance(call, cudnn.CudnnCall)
    assert call.name == "cudnnConvolutionForward"
    return [0, *call.arguments], call


@pytest.mark.parametrize(
    ("position", "wrong"),
    [
        (0, 77),  # no handle
        (1, None),  # no alpha
        (3, None),  # no x
        (7, cudnn.CONVOLUTION_FWD_ALGO_DIRECT),  # never supported
        (8, None),  # no workspace
        (9, 1024),  # too small a one
        (10, None),  # no beta
    ],
)
def test_the_fake_refuses_wrong_arguments(fake: FakeCuda, position: int, wrong: Any) -> None:
    arguments, _alive = asked_directly(Example())
    cudnn.check("cudnnConvolutionForward", *arguments)
    arguments[position] = wrong
    with pytest.raises(cudnn.CudnnError):
        cudnn.check("cudnnConvolutionForward", *arguments)


def test_the_fake_refuses_wrong_descriptors(fake: FakeCuda) -> None:
    arguments, _alive = asked_directly(Example())
    other = cudnn.tensor_descriptor((2, 6, 5, 6), (180, 30, 6, 1), FLOAT32)  # a column too many
    for tensor in (other, cudnn.Descriptor(cudnn_library.TensorDescriptor)):  # and one that was never set
        with pytest.raises(cudnn.CudnnError):
            cudnn.check("cudnnConvolutionForward", *arguments[:11], tensor, arguments[12])
    with pytest.raises(ctypes.ArgumentError):
        cudnn.check("cudnnConvolutionForward", *arguments[:4], arguments[2], *arguments[5:])
    with pytest.raises(AssertionError, match="expected 13 arguments"):
        cudnn.check("cudnnConvolutionForward", *arguments, 0)
    number = other._as_parameter_
    cudnn.check("cudnnDestroyTensorDescriptor", number)
    with pytest.raises(cudnn.CudnnError):
        cudnn.check("cudnnDestroyTensorDescriptor", number)


def test_the_fake_scribbles_over_workspaces(fake: FakeCuda) -> None:
    example = Example()
    buffers = example.buffers(example.forward)
    for call in example.forward.bind(buffers):
        call()
    needed = 1024 + 72 + 4 * (example.y.elements % 251)
    assert (buffers["workspace"][:needed] == 0xFF).all()
    assert (buffers["workspace"][needed:] == 0).all()
