"""Operators as users write them, and operators whose kernels are broken in many ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import configuration
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.ops import (
    Constant,
    Gaussian,
    Gradient,
    Kernel,
    Site,
    VariableSpec,
)
from crossbow.types import Shape, address

Array = NDArray[Any]


X = np.arange(12.0).reshape(3, 4) - 5


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
