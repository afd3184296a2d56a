"""The operator-testing kit finds what it is there to find."""

from __future__ import annotations

import dataclasses
import doctest
import functools
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import crossbow.testing
import crossbow.testing.gradients
import crossbow.testing.operator
from crossbow.conf import configuration
from crossbow.kernels import why_not_compiled
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.ops import (
    Accuracy,
    Constant,
    Conv,
    Dropout,
    ElementWiseOp,
    Gaussian,
    Gradient,
    InnerProduct,
    Kernel,
    Pool,
    ReLU,
    Site,
    SoftMax,
    SoftMaxLoss,
    VariableSpec,
)
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, Phase, Shape, address
from tests.kernels.cuda.fake import fake_cuda

Array = NDArray[Any]
X = np.arange(12.0).reshape(3, 4) - 5


# Operators of a user.


@configuration
class Blend(Kernel):
    """y = tanh(a) · b + c · a, with the variable c: two inputs and a variable. The factors make mistakes on purpose."""

    number_of_inputs = 2
    first_factor: float = 1.0
    second_factor: float = 1.0
    variable_factor: float = 1.0

    def output_shape(self, *inputs: Shape) -> Shape:
        if inputs[0] != inputs[1]:
            raise ValueError(f"expected two inputs of one shape. Received: {inputs[0]} and {inputs[1]}")
        return inputs[0]

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return (VariableSpec("c", (inputs[0][1],), Constant(0.5)),)

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        a, b = inputs
        return xp.tanh(a) * b + variables["c"] * a

    def backward(
        self,
        xp: ModuleType,
        inputs: Sequence[Array],
        output: Array,
        variables: Mapping[str, Array],
        output_gradient: Array,
    ) -> tuple[Sequence[Array], Mapping[str, Array]]:
        a, b = inputs
        first = output_gradient * ((1 - xp.tanh(a) ** 2) * b + variables["c"])
        second = output_gradient * xp.tanh(a)
        c = (output_gradient * a).sum(axis=0)
        return [self.first_factor * first, self.second_factor * second], {"c": self.variable_factor * c}


@configuration
class Masked(Kernel):
    """y = x · m, where m is not differentiable."""

    number_of_inputs = 2

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        return inputs[0] * inputs[1]

    def backward(
        self, xp: ModuleType, inputs: Sequence[Array], output: Array, variables: Mapping[str, Array], dy: Array
    ) -> tuple[Sequence[Array | None], Mapping[str, Array]]:
        return [dy * inputs[1], None], {}

    def gradient(self, input: int = 0) -> Gradient | None:
        return super().gradient(input) if input == 0 else None


@configuration
class Logarithm(Kernel):
    """y = log x, which has a domain."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        return xp.log(inputs[0])

    def backward(
        self, xp: ModuleType, inputs: Sequence[Array], output: Array, variables: Mapping[str, Array], dy: Array
    ) -> tuple[Sequence[Array], Mapping[str, Array]]:
        return [dy / inputs[0]], {}


@configuration
class Steps(Kernel):
    """y = ⌊1000 x⌋ / 1000: smooth nowhere that matters, whatever gradient it claims."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        return xp.floor(inputs[0] * 1e6) / 1e6

    def backward(
        self, xp: ModuleType, inputs: Sequence[Array], output: Array, variables: Mapping[str, Array], dy: Array
    ) -> tuple[Sequence[Array], Mapping[str, Array]]:
        return [dy], {}


@configuration
class AbsoluteLoss(Kernel):
    """Σ |x − labels| / N: a user's loss with real labels."""

    takes_labels = True
    is_loss = True
    slope: float = 1.0

    def output_shape(self, *inputs: Shape) -> Shape:
        return (1,)

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        x, labels = inputs
        return xp.sum(xp.abs(x - labels)).reshape(1) / len(x)

    def backward(
        self, xp: ModuleType, inputs: Sequence[Array], output: Array, variables: Mapping[str, Array], dy: Array
    ) -> tuple[Sequence[Array | None], Mapping[str, Array]]:
        x, labels = inputs
        return [dy * self.slope * xp.sign(x - labels) / len(x)], {}


# Operators with kernels of their own, broken in many ways.


@configuration
class Identity(Kernel):
    """y = x, except that its kernels do what the test wants."""

    fault: str = ""

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (self._kernel("input0", "output", "forward"),)

    def gradient(self, input: int = 0) -> Gradient:
        return IdentityGradient()

    def _kernel(self, source: str, target: str, direction: str) -> PreparedKernel:
        fault = self.fault if self.fault.startswith(direction) else ""

        def bind(buffers: Buffers) -> Sequence[Call]:
            x: Array = buffers[source]
            y: Array = buffers[target]

            def call() -> None:
                if fault.endswith("adds"):
                    y[...] += x
                elif fault.endswith("forgets one"):
                    y[:-1] = x[:-1]
                elif not fault.endswith("forgets"):
                    y[...] = x
                if fault.endswith("changes its input"):
                    x[0] = 3
                if fault.endswith("runs over"):
                    # As a kernel in another language would: past the end of the buffer.
                    beyond = np.ndarray((1,), y.dtype, buffer=_base(y), offset=_offset(y) + y.nbytes)
                    beyond[0] = 1

            return [call]

        reads = (source, "biases") if fault.endswith("asks for too much") else (source,)
        in_place = (source, target)
        return PreparedKernel(f"identity {direction}", reads, (target,), bind, in_place=in_place)


@configuration
class IdentityGradient(Gradient):
    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Identity)
        return (peer._kernel("output_gradient", "input_gradient", "backward"),)


class PaddedStorage:
    """A vector of three in four places."""

    elements = 4

    def pack(self, plain: Array, flat: Array) -> None:
        flat[:3], flat[3] = plain, 0

    def unpack(self, flat: Array, plain: Array) -> None:
        plain[...] = flat[:3]

    def __str__(self) -> str:
        return "padded to 4"


@configuration
class Shift(Kernel):
    """y = x + s, its variable s in a storage of the kernel's choice."""

    padding: float = 0.0

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return (VariableSpec("s", (3,), Gaussian(std=1.0)),)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        def bind(buffers: Buffers) -> Sequence[Call]:
            return [lambda: np.add(buffers["input0"], buffers["s"][:3], out=buffers["output"])]

        return (PreparedKernel("shift", ("input0", "s"), ("output",), bind, storages={"s": PaddedStorage()}),)

    def gradient(self, input: int = 0) -> Gradient:
        return ShiftGradient()


@configuration
class ShiftGradient(Gradient):
    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Shift)
        assert isinstance(site.variables["s"].storage, PaddedStorage)

        def bind(buffers: Buffers) -> Sequence[Call]:
            dy: Array = buffers["output_gradient"]

            def call() -> None:
                buffers["input_gradient"][...] = dy
                buffers["s_gradient"][:3] = dy.sum(axis=0)
                buffers["s_gradient"][3] = peer.padding

            return [call]

        return (PreparedKernel("shift gradient", ("output_gradient",), ("input_gradient", "s_gradient"), bind),)


def _base(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _offset(array: Array) -> int:
    return array.__array_interface__["data"][0] - _base(array).__array_interface__["data"][0]


@configuration
class Copied(Kernel):
    """y = x on a GPU, whose runtime copies it, except that it does what the test wants."""

    fault: str = ""

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        def bind(buffers: Buffers) -> Sequence[Call]:
            x, y = address(buffers["input0"]), address(buffers["output"])
            nbytes = 4 if self.fault == "forgets" else site.output.nbytes
            source, target = (y, x) if self.fault == "changes its input" else (x, y)
            target += 4 * (self.fault == "runs over")

            def call() -> None:
                runtime, stream = api().runtime, current()
                assert stream.device == runtime.getDevice()
                runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream.pointer)

            return [call]

        return (PreparedKernel("copy", ("input0",), ("output",), bind),)

    def gradient(self, input: int = 0) -> None:
        return None


# run_operator


def test_inputs_gradients_and_variables_by_hand() -> None:
    weights, bias = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]]), np.array([10.0, 20.0, 30.0])
    x, dy = np.array([[1.0, -1.0], [2.0, 0.0]]), np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 1.0]])
    run = run_operator(
        InnerProduct(number_of_outputs=3), [x], variables={"weights": weights, "bias": bias}, output_gradient=dy
    )
    np.testing.assert_array_equal(run.outputs[0], x @ weights.T + bias)
    np.testing.assert_array_equal(run.input_gradients[0], dy @ weights)
    np.testing.assert_array_equal(run.variable_gradients["weights"], dy.T @ x)
    np.testing.assert_array_equal(run.variable_gradients["bias"], dy.sum(axis=0))
    np.testing.assert_array_equal(run.variables["weights"], weights)
    assert {array.dtype for array in (*run.outputs, *run.variables.values())} == {np.dtype(np.float32)}


def test_without_an_output_gradient_it_is_ones() -> None:
    np.testing.assert_array_equal(run_operator(Dropout(ratio=0.0), [X]).input_gradients[0], np.ones_like(X))


def test_checking_and_measures_have_no_gradients() -> None:
    for run in (
        run_operator(InnerProduct(number_of_outputs=2), [X], phase=Phase.CHECK),
        run_operator(Accuracy(), [X, np.array([0, 1, 2])]),
    ):
        assert run.input_gradients == []
        assert run.variable_gradients == {}


def test_initial_variables_follow_the_seed() -> None:
    conv = Conv(number_of_outputs=2, kernel_size=2, bias_initialiser=Gaussian(std=1.0))
    image = np.ones((1, 3, 4, 4))
    runs = [run_operator(conv, [image], seed=seed).variables for seed in (1, 1, 2)]
    assert runs[0]["weights"].shape == (2, 3, 2, 2)
    for name in ("weights", "bias"):
        np.testing.assert_array_equal(runs[0][name], runs[1][name])
        assert np.any(runs[0][name] != runs[2][name])


def test_some_variables_may_be_given() -> None:
    run = run_operator(InnerProduct(number_of_outputs=2), [X], variables={"bias": [1, 2]})
    np.testing.assert_array_equal(run.variables["bias"], [1, 2])
    assert np.any(run.variables["weights"] != 0)


def test_every_input_has_its_gradient() -> None:
    run = run_operator(ElementWiseOp(coefficients=(2.0, -1.0)), [X, X])
    np.testing.assert_array_equal(run.input_gradients[0], np.full_like(X, 2))
    np.testing.assert_array_equal(run.input_gradients[1], np.full_like(X, -1))


def test_an_input_without_a_gradient_has_zeros() -> None:
    run = run_operator(Masked(), [X, X > 0])
    np.testing.assert_array_equal(run.input_gradients[0], X > 0)
    np.testing.assert_array_equal(run.input_gradients[1], np.zeros_like(X))
    assert check_gradients(Masked(), [(3, 4), (3, 4)]) < 1e-8


def test_padding_of_a_batch_does_not_count() -> None:
    p = np.full((4, 2), 0.5)
    run = run_operator(SoftMaxLoss(), [p, np.array([0, 1, 0, 0])], examples=2)
    assert run.outputs[0] == pytest.approx(np.log(2))
    np.testing.assert_array_equal(run.input_gradients[0], [[-0.25, 0.25], [0.25, -0.25], [0, 0], [0, 0]])


def test_results_are_the_callers() -> None:
    x = np.ones((2, 2), np.float32)
    run = run_operator(ReLU(), [x])
    run.outputs[0][...] = 7
    assert x.max() == 1
    assert run.outputs[0].flags.owndata


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("forward forgets", r"every element of 'output',.*12 of 12 elements unwritten"),
        ("forward forgets one", r"every element of 'output',.*4 of 12 elements unwritten"),
        ("forward adds", r"every element of 'output',.*12 of 12"),
        ("forward changes its input", "changed input0"),
        ("forward runs over", "changed memory next to output"),
        ("forward asks for too much", "kernel 'identity forward' to use roles among .*Received: biases"),
        ("backward forgets", "every element of 'input_gradient0',"),
        ("backward adds", "every element of 'input_gradient0',"),
        ("backward changes its input", "changed output_gradient"),
        ("backward runs over", "changed memory next to input_gradient0"),
    ],
)
def test_broken_kernels_are_found(fault: str, message: str) -> None:
    run_operator(Identity(), [X])
    with pytest.raises(AssertionError, match=f"(?s)Identity: expected .*{message}"):
        run_operator(Identity(fault=fault), [X])


def test_a_storage_of_the_kernels_choice() -> None:
    run = run_operator(Shift(), [np.zeros((2, 3))], variables={"s": [1, 2, 3]})
    np.testing.assert_array_equal(run.outputs[0], [[1, 2, 3]] * 2)
    np.testing.assert_array_equal(run.variable_gradients["s"], [2, 2, 2])
    assert check_gradients(Shift(), [(2, 3)]) < 1e-8
    with pytest.raises(AssertionError, match="zeros in the padding of 's_gradient', stored as padded to 4"):
        run_operator(Shift(padding=1.0), [np.zeros((2, 3))])


def test_in_place_gives_kernels_one_buffer_for_both() -> None:
    """A kernel that adds to its output doubles its input there."""
    run = run_operator(Identity(), [X], in_place=True)
    np.testing.assert_array_equal(run.outputs[0], X)
    doubled = run_operator(Identity(fault="forward adds"), [X], in_place=True)
    np.testing.assert_array_equal(doubled.outputs[0], 2 * X)


P = np.array([[0.25, 0.75]])


@pytest.mark.parametrize(
    ("kernel", "inputs", "options", "message"),
    [
        (ReLU(), X, {}, "ReLU: inputs: expected a list of arrays. Received: ndarray"),
        (ReLU(), [], {}, "ReLU: number of inputs: expected 1. Received: 0"),
        (ReLU(), [X, X], {}, "ReLU: number of inputs: expected 1. Received: 2"),
        (ElementWiseOp(), [], {}, "ElementWiseOp: number of inputs: expected at least 1. Received: 0"),
        (SoftMaxLoss(), [P], {}, "SoftMaxLoss: number of inputs: expected 1 .and the labels, last.. Received: 1"),
        (SoftMaxLoss(), [P, [2]], {}, "SoftMaxLoss: expected class labels .* from 0 to 1. Received: classes"),
        (SoftMaxLoss(), [P, [0.5]], {}, "SoftMaxLoss: expected class labels .* Received: values"),
        (SoftMaxLoss(), [P, [1]], {"output_gradient": [1.0]}, "output_gradient: expected None.*Received: an array"),
        (SoftMaxLoss(), [P, [1]], {"examples": 2}, "examples: expected a number from 0 to 1.*Received: 2"),
        (Pool(), [X], {}, r"Pool: expected an input of shape .*\(N, C, H, W\).* Received: \(3, 4\)"),
        (ReLU(), [X], {"output_gradient": X[:2]}, r"output_gradient: expected shape \(3, 4\). Received: \(2, 4\)"),
        (ReLU(), [np.full((2, 2), np.nan)], {}, "ReLU: input 0: expected numbers. Received: 4 NaN of 4"),
        (ReLU(), [X], {"output_gradient": X * np.nan}, "output_gradient: expected numbers. Received: 12 NaN of 12"),
        (ReLU(), [np.array(["a"])], {}, "ReLU: input 0: expected an array of numbers. Received: type <U1"),
        (ReLU(), [X], {"variables": {"weights": X}}, r"ReLU: variables: expected names among \[\].*weights"),
        (
            InnerProduct(number_of_outputs=2),
            [X],
            {"variables": {"weights": X}},
            r"InnerProduct: variable 'weights': expected shape \(2, 4\). Received: \(3, 4\)",
        ),
        (ReLU(), [X], {"phase": "train"}, "ReLU: phase: expected Phase.TRAIN or Phase.CHECK. Received: 'train'"),
        (ReLU(), [X], {"device": "gpu"}, "device: expected 'reference', 'cpu' or 'cuda:i'. Received: 'gpu'"),
        (ReLU(), [X], {"device": "cuda"}, "device: expected 'reference', 'cpu' or 'cuda:i'. Received: 'cuda'"),
        (ReLU(), [X], {"channels_last": True}, "settings of GPUs. Received: channels_last=True, device='reference'"),
        (ReLU(), [X], {"device": "cpu", "tf32": True}, "settings of GPUs. Received: tf32=True, device='cpu'"),
        (ReLU(), [X], {"dtype": np.int32}, "dtype: expected float32 or float64. Received: int32"),
        (ReLU, [X], {}, r"kernel: expected an operator's configuration, as ReLU\(\). Received: <class"),
    ],
)
def test_bad_arguments(kernel: Kernel, inputs: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run_operator(kernel, inputs, **options)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("forgets", "every element of 'output',.*11 of 12 elements unwritten"),
        ("changes its input", "a changed input0"),
        ("runs over", "a changed memory next to output"),
    ],
)
def test_broken_kernels_are_found_on_a_gpu(fault: str, message: str) -> None:
    with fake_cuda(2):
        for device in ("cuda:0", "cuda:1"):
            run = run_operator(Copied(), [X], device=device)
            np.testing.assert_array_equal(run.outputs[0], X)
        with pytest.raises(AssertionError, match=f"(?s)Copied: expected .*{message}"):
            run_operator(Copied(fault=fault), [X], device="cuda:1")


def test_a_gpu_that_is_not_there() -> None:
    with fake_cuda(2), pytest.raises(ConfigurationError, match=r"cuda:0 to cuda:1\. Received: 'cuda:2'"):
        run_operator(ReLU(), [X], device="cuda:2")


def test_a_gpu_is_given_a_stream_once() -> None:
    with fake_cuda() as cuda:
        for _ in range(3):
            run_operator(Copied(), [X], device="cuda:0")
        assert [call.name for call in cuda.calls].count("cudnnCreate") == 1


ON_THE_FAKE = """
import sys, pytest
from tests.kernels.cuda.fake import fake_cuda
with fake_cuda():
    sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_rows_of_the_table_run_on_the_gpu_that_is_named() -> None:
    rows = ["tests/operators/test_table.py", "-k", "gpu and Conv and 2x4x6x6"]
    command = [sys.executable, "-c", ON_THE_FAKE, "-q", "-p", "no:cacheprovider", *rows, "--device"]
    run = functools.partial(subprocess.run, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120)
    done = run([*command, "cuda:0"])
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
    assert " passed" in done.stdout
    done = run([*command, "cuda:7"])
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--device: device: expected an available GPU, cuda:0 to cuda:0. Received: 'cuda:7'" in done.stderr


def test_the_fast_library_has_no_float64() -> None:
    message = "dtype: expected float32 on device 'cpu'" if why_not_compiled() is None else "fast CPU kernels do not run"
    with pytest.raises(ConfigurationError, match=message):
        run_operator(ReLU(), [X], device="cpu", dtype=np.float64)


# check_gradients


def test_right_gradients_pass() -> None:
    assert check_gradients(Blend(), [(3, 4), (3, 4)]) < 1e-8
    assert check_gradients(AbsoluteLoss(), [(3, 4), (3, 4)]) < 1e-8


@pytest.mark.parametrize(
    ("field", "name"),
    [("first_factor", "input 0"), ("second_factor", "input 1"), ("variable_factor", "variable 'c'")],
)
@pytest.mark.parametrize("factor", [0.0, -1.0, 1.001, 1e9])
def test_wrong_gradients_are_found(field: str, name: str, factor: float) -> None:
    wrong = dataclasses.replace(Blend(), **{field: factor})
    with pytest.raises(AssertionError, match=f"Blend: the gradient of {name} is wrong.*expected .* received"):
        check_gradients(wrong, [(3, 4), (3, 4)])


def test_gradients_on_a_gpu() -> None:
    with fake_cuda():
        for kernel in (ReLU(mode="tanh"), InnerProduct(number_of_outputs=3)):
            assert check_gradients(kernel, [(2, 3, 4, 5)], device="cuda:0", channels_last=True) < 1e-6
        assert check_gradients(SoftMaxLoss(), [(3, 4), (3,)], device="cuda:0") < 1e-6


def test_a_wrong_gradient_of_a_loss_is_found() -> None:
    with pytest.raises(AssertionError, match="AbsoluteLoss: the gradient of input 0 is wrong"):
        check_gradients(AbsoluteLoss(slope=0.5), [(3, 4), (3, 4)])


def test_a_wrong_gradient_of_nan_is_found() -> None:
    with pytest.raises(AssertionError, match=r"Blend: the gradient of input 0 is wrong.*received nan"):
        check_gradients(Blend(first_factor=np.nan), [(3, 4), (3, 4)])


def test_kinks_are_drawn_again() -> None:
    """Half of these inputs are exactly at ReLU's kink, or are equal maxima: no derivative, and no false alarm."""
    calls = 0

    def draw(generator: np.random.Generator, shape: Shape) -> Array:
        nonlocal calls
        calls += 1
        x = generator.standard_normal(shape)
        return x * 0 if generator.random() < 0.5 else x

    assert check_gradients(ReLU(), [(2, 3)], draw=draw, directions=10) < 1e-6
    assert calls > 12
    assert check_gradients(Pool(), [(1, 1, 4, 4)], draw=draw, directions=10) < 1e-6


def test_kinks_between_two_steps_are_seen() -> None:
    """ReLU with kinks at every distance below the step: the check neither raises nor takes a wrong derivative."""
    for distance in np.linspace(-1.2e-4, 1.2e-4, 49):

        def draw(generator: np.random.Generator, shape: Shape, distance: float = distance) -> Array:
            near = generator.random() < 0.5
            return np.full(shape, distance) if near else generator.standard_normal(shape)

        assert check_gradients(ReLU(), [(1, 1)], draw=draw, directions=4) < 1e-6


def test_an_operator_without_a_smooth_point_is_named() -> None:
    with pytest.raises(AssertionError, match="Steps: found no point in 50 draws"):
        check_gradients(Steps(), [(3, 4)])


def test_softmax_loss_is_checked_with_its_softmax() -> None:
    loss = SoftMaxLoss(normalisation="valid", ignored_label=-1)
    assert check_gradients(loss, [(4, 5), (4,)], labels=[1, -1, 0, 4]) < 1e-8
    # The same gradient through SoftMaxGradient would be the one of the pair only if it were that of p: it is not.
    assert check_gradients(SoftMax(), [(4, 5)]) < 1e-8


def test_dropout_keeps_its_mask() -> None:
    assert check_gradients(Dropout(ratio=0.5), [(4, 5)], directions=5) < 1e-8


def test_inputs_can_be_drawn_from_a_domain() -> None:
    assert check_gradients(Logarithm(), [(2, 3)], draw=lambda g, shape: g.uniform(1, 2, shape)) < 1e-8


def test_given_variables_are_the_point() -> None:
    assert check_gradients(Blend(), [(2, 3), (2, 3)], variables={"c": [1.0, 2.0, 3.0]}) < 1e-8
    with pytest.raises(ConfigurationError, match=r"Blend: variable 'c': expected shape \(3,\). Received: \(2,\)"):
        check_gradients(Blend(), [(2, 3), (2, 3)], variables={"c": [1.0, 2.0]})


def test_what_has_no_gradient_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Accuracy: the operator: expected one with a gradient"):
        check_gradients(Accuracy(), [(3, 4), (3,)])


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ConfigurationError, match="Blend: expected two inputs of one shape"):
        check_gradients(Blend(), [(2, 3), (2, 4)])
    with pytest.raises(ConfigurationError, match=r"Blend: number of inputs: expected 2\. Received: 1"):
        check_gradients(Blend(), [(2, 3)])
    with pytest.raises(ConfigurationError, match=r"labels: expected shape \(3,\). Received: \(2,\)"):
        check_gradients(SoftMaxLoss(), [(3, 4), (3,)], labels=[0, 1])


def test_the_worst_error_follows_the_seed() -> None:
    assert check_gradients(Blend(), [(3, 4), (3, 4)], seed=1) == check_gradients(Blend(), [(3, 4), (3, 4)], seed=1)


# Documentation


@pytest.mark.parametrize("module", [crossbow.testing, crossbow.testing.gradients, crossbow.testing.operator])
def test_examples_in_docstrings(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_worked_example_outside_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[1] / "examples" / "custom_operator.py"
    swish = runpy.run_path(str(path))["Swish"]
    assert check_gradients(swish(), [(3, 5)]) < 1e-8
    assert check_gradients(swish(beta_initialiser=Constant(2.0)), [(2, 3, 4, 5)]) < 1e-8
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert "worst relative error" in printed
    assert "y = [[-0.119  0.     0.881]]" in printed
