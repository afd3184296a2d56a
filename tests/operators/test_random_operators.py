"""The operators that the other files of random shapes leave out, in random configurations and shapes: reference, fast
library and PyTorch agree. And no operator of the table is left out by all."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crossbow.kernels import why_not_compiled
from crossbow.ops import (
    GELU,
    Accuracy,
    Broadcast,
    ChannelShuffle,
    Classify,
    Constant,
    DataTransform,
    Dropout,
    Embedding,
    EuclideanLoss,
    Flatten,
    Gaussian,
    HardSwish,
    Kernel,
    LayerNorm,
    LogSoftMax,
    MatFact,
    MatFactPrediction,
    Noop,
    Pad,
    PReLU,
    ReLU,
    Reshape,
    SelfAttention,
    SigmoidLoss,
    SiLU,
    Slice,
    SoftMax,
    SoftMaxLoss,
    Transpose,
    Upsample,
    Values,
)
from crossbow.types import Shape
from tests.combinations import one_in
from tests.operators import test_random_combinations, test_random_shapes, test_table
from tests.operators.table import CASES, Case

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
with_pytorch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch, only for comparisons, is not installed")
# Derandomised: a suite that fails on some days only would not say what changed. max_examples keeps it to seconds.
modest = settings(max_examples=12, deadline=None, derandomize=True)
few = settings(modest, max_examples=6)
"""Where most kernels are those that `test_fast_library` compares."""


def shapes(least: int, most: int, longest: int = 5) -> st.SearchStrategy[Shape]:
    """Every number of dimensions alike, but four, whose layout is another on the fast library, three times as often."""
    dimensions = [*range(least, most + 1), *[4] * (2 if least <= 4 <= most else 0)]
    return st.sampled_from(dimensions).flatmap(lambda n: test_random_combinations.shapes(n, n, longest))


def from_either_end(draw: st.DrawFn, axis: int, dimensions: int) -> int:
    """The same axis, or its number counted from the end."""
    return axis - draw(st.sampled_from([0, dimensions]))


def real_examples(draw: st.DrawFn, batch: int) -> int | None:
    return draw(st.sampled_from([None, 1, max(1, batch - 1), batch - batch // 3]))


@st.composite
def activations(draw: st.DrawFn) -> Case:
    mode = draw(st.sampled_from(["relu", "sigmoid", "tanh", "clipped"]))
    operator = ReLU(
        mode=mode,
        negative_slope=draw(st.sampled_from([0.0, 0.01, 0.25, 3.0])) if mode == "relu" else 0.0,
        ceiling=draw(st.sampled_from([0.3, 1.0, 6.0])) if mode == "clipped" else None,
    )
    return Case(operator, (draw(shapes(1, 6)),))


@st.composite
def soft_maxima(draw: st.DrawFn, operator: type[SoftMax] | type[LogSoftMax] = SoftMax) -> Case:
    shape = draw(shapes(2, 6))
    return Case(operator(axis=from_either_end(draw, draw(st.integers(1, len(shape) - 1)), len(shape))), (shape,))


def label_maps(draw: st.DrawFn) -> tuple[Shape, str]:
    """The shape of class values, and the labels: a map, or one label an example, which fits a map of one place too."""
    shape = draw(shapes(2, 5))
    if draw(st.booleans()):
        shape = (*shape[:2], *[1] * len(shape[2:]))
    return shape, draw(st.sampled_from(["class", "classes"])) if math.prod(shape[2:]) == 1 else "classes"


def ignored_labels(draw: st.DrawFn, classes: int) -> int | None:
    """None, a label beside the classes, or one of them."""
    return draw(st.sampled_from([None, -1, 255, 0, classes - 1, classes // 2]))


@st.composite
def cross_entropies(draw: st.DrawFn) -> Case:
    shape, labels = label_maps(draw)
    operator = SoftMaxLoss(
        ignored_label=ignored_labels(draw, shape[1]),
        normalisation=draw(st.sampled_from(["batch", "full", "valid", "none"])),
    )
    return Case(operator, (shape,), labels, real_examples(draw, shape[0]))


@st.composite
def accuracies(draw: st.DrawFn) -> Case:
    shape, labels = label_maps(draw)
    operator = Accuracy(top_k=draw(st.integers(1, shape[1])), ignored_label=ignored_labels(draw, shape[1]))
    return Case(operator, (shape,), labels, real_examples(draw, shape[0]))


@st.composite
def resizings(draw: st.DrawFn) -> Case:
    shape = draw(shapes(3, 5))
    method = draw(st.sampled_from(["nearest", "linear"]))
    corners = method == "linear" and draw(st.booleans())
    if draw(st.booleans()):
        size = tuple(draw(st.integers(1, 9)) for _ in shape[2:])
        return Case(Upsample(size=size, method=method, align_corners=corners), (shape,))
    # Fractions that floating-point numbers hold: others round at the same places in no two libraries.
    scale = draw(st.sampled_from([1.0, 1.25, 1.5, 2, 3, 4]))
    return Case(Upsample(scale, method=method, align_corners=corners), (shape,))


@st.composite
def squared_errors(draw: st.DrawFn) -> Case:
    shape = draw(shapes(1, 5) | st.builds(lambda n, ones: (n, *[1] * ones), st.integers(1, 40), st.integers(0, 4)))
    labels = draw(st.sampled_from(["value", "values"])) if math.prod(shape[1:]) == 1 else "values"
    return Case(EuclideanLoss(), (shape,), labels, real_examples(draw, shape[0]))


@st.composite
def binary_cross_entropies(draw: st.DrawFn) -> Case:
    shape = draw(shapes(1, 5))
    operator = SigmoidLoss(normalisation=draw(st.sampled_from(["full", "batch", "none"])))
    return Case(operator, (shape,), "fractions", real_examples(draw, shape[0]))


@st.composite
def dropouts(draw: st.DrawFn) -> Case:
    return Case(
        Dropout(ratio=draw(st.sampled_from([0.0, 0.1, 0.5, 0.75, 0.9]) | st.floats(0.01, 0.99))), (draw(shapes(1, 6)),)
    )


@st.composite
def classifications(draw: st.DrawFn) -> Case:
    shape = draw(shapes(2, 6))
    operator = Classify(
        axis=from_either_end(draw, draw(st.integers(1, len(shape) - 1)), len(shape)),
        ties=draw(st.sampled_from(["first", "last"])),
        keep_axis=draw(st.booleans()),
    )
    return Case(operator, (shape,))


@st.composite
def flattened(draw: st.DrawFn) -> Case:
    shape = draw(shapes(1, 6))
    return Case(Flatten(axis=draw(st.integers(-len(shape), len(shape)))), (shape,))


@st.composite
def transpositions(draw: st.DrawFn) -> Case:
    shape = draw(shapes(2, 6))
    return Case(Transpose(order=(0, *draw(st.permutations(range(1, len(shape)))))), (shape,))


@st.composite
def channel_shuffles(draw: st.DrawFn) -> Case:
    shape, groups = draw(shapes(2, 5)), draw(st.integers(1, 4))
    return Case(ChannelShuffle(groups=groups), ((shape[0], groups * shape[1], *shape[2:]),))


@st.composite
def reshapes(draw: st.DrawFn) -> Case:
    """Neighbouring axes are joined or one is divided, and one size follows from the others."""
    shape = draw(shapes(2, 5))
    sizes = [*shape[1:], draw(st.integers(1, 3))]
    wanted = draw(st.permutations(sizes))
    wanted[draw(st.integers(0, len(wanted) - 1))] = -1
    return Case(Reshape(shape=tuple(wanted)), ((shape[0], *sizes[:-2], sizes[-2] * sizes[-1]),))


@st.composite
def slices(draw: st.DrawFn) -> Case:
    shape = draw(shapes(2, 5))
    axis = draw(st.integers(1, len(shape) - 1))
    start = draw(st.integers(0, shape[axis] - 1))
    stop = draw(st.none() | st.integers(start + 1, shape[axis]))
    return Case(Slice(axis=axis, start=start, stop=stop, step=draw(st.integers(1, 3))), (shape,))


@st.composite
def paddings(draw: st.DrawFn) -> Case:
    shape, sides = draw(shapes(2, 5)), st.integers(0, 3)
    padding = tuple((draw(sides), draw(sides)) for _ in shape[1:])
    return Case(Pad(padding=padding, value=draw(st.sampled_from([0.0, 0.5, -1.5]))), (shape,))


@st.composite
def repetitions(draw: st.DrawFn) -> Case:
    shape = draw(shapes(2, 5))
    x = (shape[0], *(draw(st.sampled_from([size, 1])) for size in shape[1:]))
    # Of a few sums only, all may happen to be near 0, and rounding errors relatively large.
    assume(math.prod(x) >= 8)
    return Case(Broadcast(shape=shape[1:]), (x,))


@st.composite
def transforms(draw: st.DrawFn) -> Case:
    shape, padding = draw(shapes(4, 4, 9)), draw(st.integers(0, 4))
    crop = tuple(draw(st.integers(1, size + 2 * padding)) for size in shape[2:])
    # Eighths: float32 represents them, so that a pixel near the mean differs from it by the same in both types.
    eighths = st.integers(-16, 16).map(lambda n: n / 8)
    per_channel = st.lists(eighths, min_size=shape[1], max_size=shape[1]).map(tuple)
    pixels = st.integers(0, 99).map(lambda seed: np.random.default_rng(seed).integers(-16, 17, shape[1:]) / 8)
    means: dict[str, st.SearchStrategy[Any]] = {"number": eighths, "channels": per_channel}
    mean = draw(st.sampled_from(["none", "pixels", *means]))
    operator = DataTransform(
        crop_size=draw(st.none() | st.just(crop)),  # type: ignore[arg-type]
        padding=padding,
        mirror=draw(st.sampled_from([True, True, False])),
        mean=draw(means[mean]) if mean in means else None,
        mean_image=Values(draw(pixels)) if mean == "pixels" else None,
        scale=draw(st.just(1.0) | st.sampled_from([-3.0, 0.1, 2.0]) | per_channel.filter(all)),
    )
    return Case(operator, (shape,))


@st.composite
def factorisations(draw: st.DrawFn) -> Case:
    operator = MatFact(
        rows=draw(st.integers(4, 30)),
        columns=draw(st.integers(4, 30)),
        latents=draw(st.integers(1, 40)),
        regularisation=draw(st.sampled_from([0.0, 0.1, 2.0])),
        learning_rate=draw(st.sampled_from([None, 0.1])),
    )
    examples = draw(st.integers(1, 60))
    real = real_examples(draw, examples)
    # As above: the errors of the examples add up in few rows.
    assume(operator.latents * min(operator.rows, operator.columns, real or examples) >= 8)
    return Case(operator, ((examples, 2),), "value", real)


@st.composite
def factorisation_predictions(draw: st.DrawFn) -> Case:
    sizes = [draw(st.integers(1, 30)) for _ in range(2)]
    operator = MatFactPrediction(rows=sizes[0], columns=sizes[1], latents=draw(st.integers(4, 40)))
    return Case(operator, ((draw(st.integers(8, 60)), 2),))


@st.composite
def layer_normalisations(draw: st.DrawFn) -> Case:
    shape, bias = draw(shapes(2, 5)), draw(st.booleans())
    axis = draw(st.integers(1, len(shape) - 1))
    number = draw(st.integers(1, len(shape) - axis))
    # Of few numbers, all may be almost equal, and rounding errors relatively large.
    assume(math.prod(shape[axis : axis + number]) >= 4)
    operator = LayerNorm(
        axis=axis,
        number_of_axes=number,
        epsilon=draw(st.sampled_from([1e-5, 0.1])),
        bias=bias,
        weight_initialiser=Gaussian(mean=1.0, std=0.5),
        bias_initialiser=Gaussian(std=0.5) if bias else Constant(),
    )
    return Case(operator, (shape,))


@st.composite
def embeddings(draw: st.DrawFn) -> Case:
    operator = Embedding(draw(st.integers(1, 30)), draw(st.integers(1, 40)))
    return Case(operator, ((draw(st.integers(1, 20)), draw(st.integers(1, 10))),))


@st.composite
def attentions(draw: st.DrawFn) -> Case:
    operator = SelfAttention(draw(st.integers(1, 5)), causal=draw(st.booleans()))
    width = 3 * operator.heads * draw(st.integers(1, 12))
    return Case(operator, ((draw(st.integers(1, 4)), draw(st.integers(1, 20)), width),))


def element_wise(*operators: Kernel) -> st.SearchStrategy[Case]:
    return st.builds(lambda operator, shape: Case(operator, (shape,)), st.sampled_from(operators), shapes(1, 6))


DRAWN: dict[type[Kernel], st.SearchStrategy[Case]] = {
    Accuracy: accuracies(),
    Broadcast: repetitions(),
    ChannelShuffle: channel_shuffles(),
    Classify: classifications(),
    DataTransform: transforms(),
    Dropout: dropouts(),
    Embedding: embeddings(),
    EuclideanLoss: squared_errors(),
    Flatten: flattened(),
    GELU: element_wise(GELU(), GELU(approximate="tanh")),
    HardSwish: element_wise(HardSwish()),
    LayerNorm: layer_normalisations(),
    LogSoftMax: soft_maxima(LogSoftMax),
    MatFact: factorisations(),
    MatFactPrediction: factorisation_predictions(),
    Noop: shapes(1, 6).map(lambda shape: Case(Noop(), (shape,))),
    PReLU: st.builds(lambda shared, shape: Case(PReLU(shared), (shape,)), st.booleans(), shapes(2, 6)),
    Pad: paddings(),
    ReLU: activations(),
    Reshape: reshapes(),
    SelfAttention: attentions(),
    Upsample: resizings(),
    SigmoidLoss: binary_cross_entropies(),
    SiLU: element_wise(SiLU()),
    Slice: slices(),
    SoftMax: soft_maxima(),
    SoftMaxLoss: cross_entropies(),
    Transpose: transpositions(),
}
every_operator = pytest.mark.parametrize("operator", DRAWN, ids=lambda operator: operator.__name__)
with_kinks = pytest.mark.parametrize(
    "operator", [Accuracy, Classify, HardSwish, ReLU], ids=lambda operator: operator.__name__
)


@fast
@every_operator
@modest
@given(data=st.data())
def test_fast_library(operator: type[Kernel], data: st.DataObject) -> None:
    test_table.test_fast_library_agrees_with_reference(data.draw(DRAWN[operator]), {"device": "cpu"})


@fast
@every_operator
@few
@given(data=st.data())
def test_fast_library_when_checking(operator: type[Kernel], data: st.DataObject) -> None:
    test_table.test_fast_library_agrees_with_reference_when_checking(data.draw(DRAWN[operator]), {"device": "cpu"})


@fast
@every_operator
@few
@given(data=st.data())
def test_fast_library_in_place(operator: type[Kernel], data: st.DataObject) -> None:
    test_table.test_in_place_changes_nothing(data.draw(DRAWN[operator]), {"device": "cpu"})


@one_in(2)
@with_pytorch
@every_operator
@modest
@given(data=st.data())
def test_in_pytorch(operator: type[Kernel], data: st.DataObject) -> None:
    test_table.test_agrees_with_pytorch(data.draw(DRAWN[operator]))


@pytest.mark.slow
@fast
@with_kinks
@modest
@given(data=st.data())
def test_fast_library_at_kinks(operator: type[Kernel], data: st.DataObject) -> None:
    test_table.test_fast_library_agrees_with_reference_at_kinks(data.draw(DRAWN[operator]), {"device": "cpu"})


@with_pytorch
@with_kinks
@modest
@given(data=st.data())
def test_in_pytorch_at_kinks(operator: type[Kernel], data: st.DataObject) -> None:
    test_table.test_agrees_with_pytorch_at_kinks(data.draw(DRAWN[operator]))


def drawn_operators() -> set[type[Kernel]]:
    """What the three files draw, found by drawing."""
    elsewhere = [
        test_random_combinations.cases,
        test_random_shapes.convolutions(),
        test_random_shapes.inner_products(),
        test_random_shapes.matrix_products(),
        test_random_shapes.poolings(),
        test_random_shapes.transposed(),
    ]
    found: set[type[Kernel]] = set()

    @settings(modest, max_examples=50)
    @given(st.tuples(*elsewhere, *DRAWN.values()))
    def draw_all(drawn: tuple[Case | tuple[Kernel, Shape], ...]) -> None:
        found.update(type(each.kernel if isinstance(each, Case) else each[0]) for each in drawn)

    draw_all()
    return found


@pytest.mark.slow
def test_every_operator_is_drawn() -> None:
    wanted = {*test_table.operators(), *(type(case.kernel) for case in CASES)}
    missing = sorted(operator.__name__ for operator in wanted - drawn_operators())
    assert not missing, f"random shapes and configurations leave out {', '.join(missing)}"
