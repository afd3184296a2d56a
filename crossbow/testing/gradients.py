"""Comparison of gradients with finite differences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from crossbow.conf import is_integer, plain
from crossbow.kernels.library import KernelLibrary
from crossbow.ops.kernel import Kernel
from crossbow.testing.arguments import (
    Numbers,
    check_array,
    check_inputs,
    check_kernel,
    gpu_settings,
    label_range,
    library_of,
    name_of,
    refuse_argument,
)
from crossbow.testing.bench import Bench
from crossbow.testing.bench_device import BenchDevice, bench_device
from crossbow.tracebacks import without_own_frames
from crossbow.types import Shape

Draw = Callable[[np.random.Generator, Shape], Numbers]

_REDRAWS = 50


@without_own_frames
def check_gradients(
    kernel: Kernel,
    input_shapes: Sequence[Shape],
    *,
    labels: ArrayLike | None = None,
    variables: Mapping[str, ArrayLike] | None = None,
    draw: Draw | None = None,
    directions: int = 2,
    step: float = 1e-4,
    tolerance: float = 1e-6,
    device: str = "reference",
    seed: int = 0,
    channels_last: bool | None = None,
) -> float:
    """Compare an operator's gradients with central differences in float64, and return the largest relative error.

    For a random point x, a random direction d and random weights g of the outputs, it compares, for every input and
    every variable in turn, Σ gradient · d with the derivative of f(t) = Σ g · y(x + t·d) at 0. The derivative is
    extrapolated from two step sizes: (4 D(h/2) − D(h)) / 3 with D(h) = (f(h) − f(−h)) / 2h. At a kink (ReLU at 0, equal
    maxima of a pooling window), it does not exist: if the two steps or the two sides disagree, the point is redrawn.

    An operator whose gradient bypasses another one (`SoftMaxLoss`, which bypasses the SoftMax) is checked together with
    that operator: the input is drawn for the SoftMax, f is the loss of its output, and the gradient is with respect to
    the logits.

    Random numbers of the operator (such as a dropout mask) are the same in every evaluation.

    Args:
        input_shapes: shapes of the inputs; if the operator takes labels, their shape comes last.
        labels: None draws classes in [0, C) for labels of shape (N, …) with a first input (N, C, …), and normal
            numbers for any other shape, or if the operator does not take classes.
        variables: values by name, which are not redrawn. All others are drawn by the initialisers, plus 0.1 × normal
            numbers.
        draw: function that creates an input from a generator and a shape, for operators with a restricted domain; None
            draws standard normal numbers.
        directions: number of points and directions for each input and variable.
        step: the step size h.
        tolerance: maximum relative error.
        device: "reference" (NumPy) or "cuda:i" (an NVIDIA GPU), which support float64.
        channels_last: whether images are channels-last on a GPU; None uses the engine's choice.

    Raises:
        AssertionError: a gradient is wrong; the message names the operator and the input or variable.
        ConfigurationError: the operator has no gradient, or an argument is invalid.

    >>> from crossbow.ops import InnerProduct
    >>> check_gradients(InnerProduct(number_of_outputs=3), [(2, 5)]) < 1e-6
    True
    """
    check_kernel(kernel)
    directions, step, tolerance, seed = plain((directions, step, tolerance, seed))
    generator = np.random.default_rng(seed)
    shapes = [_checked_shape(kernel, shape) for shape in input_shapes]
    drawing = draw or (lambda generator, shape: generator.standard_normal(shape))
    first = [drawing(generator, shape) for shape in shapes]
    if kernel.takes_labels and shapes:
        values = _draw_labels(kernel, generator, shapes) if labels is None else labels
        first[-1] = check_array(kernel, "labels", values, shapes[-1], np.asarray(values).dtype)
    library = library_of(device, np.dtype(np.float64), **gpu_settings(channels_last))
    check = _GradientCheck(kernel, library, bench_device(device), first, variables or {}, seed)
    worst = 0.0
    for target in check.targets:
        for _ in range(directions):
            worst = max(worst, check.compare(target, generator, drawing, step, tolerance))
    return worst


def _checked_shape(kernel: Kernel, shape: Shape) -> Shape:
    if not isinstance(shape, tuple | list) or not all(is_integer(size) and size >= 0 for size in shape):
        raise refuse_argument(kernel, "input_shapes", "shapes, as [(8, 3), (8,)]", repr(shape))
    return tuple(map(int, shape))


class _GradientCheck:
    """An operator as a function f(t) of its inputs and variables, and the gradients to compare."""

    def __init__(
        self,
        kernel: Kernel,
        library: KernelLibrary,
        device: BenchDevice,
        inputs: Sequence[Numbers],
        given: Mapping[str, ArrayLike],
        seed: int,
    ) -> None:
        dtype = np.dtype(np.float64)
        arrays, labels = check_inputs(kernel, inputs, dtype)
        shapes = [array.shape for array in arrays]
        self.kernel, self.given = kernel, given
        self.bench = Bench(kernel, library, dtype, shapes, labels, seed=seed, device=device)
        self.examples = shapes[0][0] if shapes[0] else 1
        self.before: Bench | None = None
        if kernel.gradient_past is not None:
            self.before = Bench(kernel.gradient_past(), library, dtype, shapes[:1], None, device=device)
        peers = [kernel.gradient(number) for number in range(len(shapes))]
        differentiable = [f"input {i}" for i, peer in enumerate(peers) if peer is not None and not kernel.takes_indices]
        if all(peer is None for peer in peers):
            raise refuse_argument(kernel, "the operator", "one with a gradient", "one without")
        self.targets = (*differentiable, *(spec.name for spec in self.bench.specs))
        self.shapes = {f"input {i}": shape for i, shape in enumerate(shapes)}

    def compare(self, target: str, generator: np.random.Generator, draw: Draw, step: float, tolerance: float) -> float:
        """The relative error of one gradient along one direction."""
        for _ in range(_REDRAWS):
            point = self._draw_point(generator, draw)
            weights = np.ones(1) if self.kernel.is_loss else generator.standard_normal(self.bench.site.output.shape)
            direction = generator.standard_normal(point[target].shape)
            gradient = self._gradient(point, weights, target)
            received = float(np.sum(gradient * direction))
            # A direction may be nearly orthogonal to the gradient, so the gradient's length defines the usual size of a
            # derivative.
            usual = 0.1 * float(np.linalg.norm(gradient))
            value = functools.partial(self._value, point, target, direction, weights)
            expected = _derivative(value, step, tolerance, usual)
            if expected is None:
                continue
            largest = max(abs(expected), abs(received), usual)
            error = abs(expected - received) / largest if largest > 0 else 0.0
            if not error <= tolerance:  # also for NaN
                raise AssertionError(
                    f"{name_of(self.kernel)}: the gradient of {self._describe(target)} is wrong. Along a random "
                    f"direction expected {expected:.10g} (central differences), received {received:.10g}; relative "
                    f"error {error:.3g}, tolerance {tolerance:g}"
                )
            return error
        raise AssertionError(
            f"{name_of(self.kernel)}: found no point in {_REDRAWS} draws at which the output is a smooth "
            f"function of {self._describe(target)}: expected differences with steps {step:g} and {step / 2:g} to agree"
        )

    def _describe(self, target: str) -> str:
        return target if target in self.shapes else f"variable {target!r}"

    def _draw_point(self, generator: np.random.Generator, draw: Draw) -> dict[str, Numbers]:
        point = {name: np.asarray(draw(generator, shape), np.float64) for name, shape in self.shapes.items()}
        for name, value in self.bench.initial_variables(self.given).items():
            point[name] = value if name in self.given else value + 0.1 * generator.standard_normal(value.shape)
        return point

    def _value(
        self, point: Mapping[str, Numbers], target: str, direction: Numbers, weights: Numbers, t: float
    ) -> float:
        """The value of f(t)."""
        return float(np.sum(weights * self._output({**point, target: point[target] + t * direction})))

    def _output(self, point: Mapping[str, Numbers]) -> Numbers:
        inputs = [point[name] for name in self.shapes]
        if self.before is not None:
            self.before.load(inputs[:1], {}, 0, self.examples)
            inputs[0] = self.before.forward()
        self.bench.load(inputs, {spec.name: point[spec.name] for spec in self.bench.specs}, 0, self.examples)
        return self.bench.forward()

    def _gradient(self, point: Mapping[str, Numbers], weights: Numbers, target: str) -> Numbers:
        self._output(point)
        inputs, variables = self.bench.backward(None if self.kernel.is_loss else weights)
        return variables[target] if target in variables else inputs[list(self.shapes).index(target)]


def _derivative(value: Callable[[float], float], step: float, tolerance: float, usual: float) -> float | None:
    """The derivative f'(0), or None if f has a kink within a step."""
    middle = value(0.0)
    sides = [(value(t), value(-t)) for t in (step, step / 2)]
    central = [(right - left) / (2 * t) for (right, left), t in zip(sides, (step, step / 2), strict=True)]
    # The right-hand minus the left-hand difference is f''·h if f is smooth, so it halves with h.
    bend = [(right - 2 * middle + left) / t for (right, left), t in zip(sides, (step, step / 2), strict=True)]
    allowed = tolerance * max(abs(central[1]), usual)
    # The division by the step amplifies rounding errors of f.
    allowed = max(allowed, 8 * float(np.finfo(np.float64).eps) * abs(middle) / step)
    if abs(central[0] - central[1]) > allowed or abs(bend[0] - 2 * bend[1]) > 4 * allowed:
        return None
    return (4 * central[1] - central[0]) / 3


def _draw_labels(kernel: Kernel, generator: np.random.Generator, shapes: Sequence[Shape]) -> Numbers:
    """Classes if the operator accepts them, else normal numbers."""
    x, shape = shapes[0], shapes[-1]
    if len(x) > 1 and shape == x[:1] + x[2:]:
        labels = generator.integers(0, max(x[1], 1), shape)
        try:
            kernel.check_labels(label_range(labels.astype(np.int32)), *shapes[:-1])
        except ValueError:
            pass
        else:
            return labels
    return generator.standard_normal(shape)
