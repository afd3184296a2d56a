"""Numbers that are not finite go through every kernel as in the reference: a run that diverged must not look healthy.

A convolution by Winograd's transforms is an exception: there NaN also reaches other elements of the same tile, and
other weights of the same channels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from crossbow import Dataset
from crossbow.kernels import why_not_compiled
from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import ConvolutionForward
from crossbow.ops import (
    LRN,
    BatchNorm,
    Concat,
    Conv,
    ElementWiseOp,
    EuclideanLoss,
    InnerProduct,
    Kernel,
    LogSoftMax,
    Pool,
    ReLU,
    Scale,
    SigmoidLoss,
    SoftMax,
    SoftMaxLoss,
)
from crossbow.testing.arguments import Numbers, check_inputs, library_of
from crossbow.testing.bench import Bench
from crossbow.types import Phase, Shape, Tensor
from tests.combinations import pairwise
from tests.operators.table import CASES, Case
from tests.support import context, pictures, training

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
FLOAT32 = np.dtype(np.float32)


def forward(kernel: Kernel, x: Numbers, labels: Numbers | None, device: str) -> Numbers:
    """As `run_operator`, which refuses such an input."""
    bench = Bench(kernel, library_of(device, FLOAT32), FLOAT32, [x.shape], labels)
    bench.load([x], {}, task=0, examples=len(x))
    return bench.forward()


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize(
    ("kernel", "labels"),
    [
        (SoftMaxLoss(), np.array([0, 1], np.int32)),
        (EuclideanLoss(), np.zeros((2, 2), np.float32)),
        (SigmoidLoss(), np.zeros((2, 2), np.float32)),
        (SoftMax(), None),
        (LogSoftMax(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_losses_pass_it_on(kernel: Kernel, labels: Numbers | None, device: str) -> None:
    x = np.array([[0.5, 0.5], [np.nan, np.nan]], np.float32)
    output = forward(kernel, x, labels, device)
    assert np.isnan(output[-1]).all()


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize("shape", [(2, 40), (2, 3, 4, 5)])
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("kernel", [*(ElementWiseOp(type=t) for t in ("sum", "product", "max")), Concat()], ids=str)
@pytest.mark.parametrize("phase", Phase)
def test_one_among_several_inputs_is_in_the_output(
    kernel: Kernel, position: int, shape: Shape, phase: Phase, device: str
) -> None:
    inputs = [np.ones(shape, np.float32) for _ in range(3)]
    inputs[position][0, 1] = np.nan
    bench = Bench(kernel, library_of(device, FLOAT32), FLOAT32, [shape] * 3, None, phase=phase)
    bench.load(inputs, {}, task=0, examples=2)
    output = bench.forward()
    place = position * shape[1] + 1 if isinstance(kernel, Concat) else 1
    assert np.isnan(output[0, place]).all()
    output[0, place] = 0
    assert not np.isnan(output).any()
    if phase is Phase.TRAIN:
        gradients, _ = bench.backward(np.ones(bench.site.output.shape, np.float32))
        passed_on = any(np.isnan(gradient).any() for gradient in gradients)
        assert passed_on == (kernel == ElementWiseOp(type="product"))


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize("first", [True, False])
def test_the_gradient_of_a_largest_that_is_none_goes_to_the_first_such(first: bool, device: str) -> None:
    inputs = [np.full((1, 1), value, np.float32) for value in (1, np.nan if first else 2, np.nan)]
    bench = Bench(ElementWiseOp(type="max"), library_of(device, FLOAT32), FLOAT32, [(1, 1)] * 3, None)
    bench.load(inputs, {}, task=0, examples=1)
    assert np.isnan(bench.forward()).all()
    assert bench.backward(np.ones((1, 1), np.float32))[0] == ([0, 1, 0] if first else [0, 0, 1])


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kernel", [LRN(), LRN(beta=0.5), LRN(region="within_channel"), Scale(bias=True)], ids=str)
def test_one_in_an_image_reaches_the_output_and_no_other_example(kernel: Kernel, value: float, device: str) -> None:
    x = np.ones((2, 16, 8, 8), np.float32)
    x[0, 3, 2, 2] = value
    bench = Bench(kernel, library_of(device, FLOAT32), FLOAT32, [x.shape], None)
    bench.load([x], bench.initial_variables({}), task=0, examples=2)
    with np.errstate(invalid="ignore"):
        output = bench.forward()
    assert not np.isfinite(output[0, 3, 2, 2])
    assert np.isfinite(output[1]).all()


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
def test_a_probability_of_zero_costs_a_finite_amount(device: str) -> None:
    loss = forward(SoftMaxLoss(), np.array([[1.0, 0.0]], np.float32), np.array([1], np.int32), device)
    assert loss == pytest.approx(-np.log(np.finfo(np.float32).tiny), rel=1e-5)


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
def test_large_scores_do_not_overflow(device: str) -> None:
    output = forward(SoftMax(), np.array([[1e4, -1e4, 1e4, 0]], np.float32), None, device)
    np.testing.assert_allclose(output, [[0.5, 0, 0.5, 0]])


# Every operator


@contextlib.contextmanager
def threads_of_onednn(count: int) -> Iterator[None]:
    """Let oneDNN have so many threads."""
    from crossbow.kernels.cpu.onednn.shared_library import omp_get_max_threads, omp_set_num_threads

    before = omp_get_max_threads()
    omp_set_num_threads(count)
    try:
        yield
    finally:
        omp_set_num_threads(before)


def _rows() -> dict[str, list[Case]]:
    """Rows of every operator: of each kind and number of dimensions up to three."""
    found: dict[tuple[object, ...], list[Case]] = {}
    for case in CASES:
        names = ("method", "mode", "type", "region", "normalisation", "kernel_size", "groups")
        kind = (case.name, *(getattr(case.kernel, name, None) for name in names), *map(len, case.shapes))
        found.setdefault(kind, []).append(case)
    rows: dict[str, list[Case]] = {}
    for cases in found.values():
        rows.setdefault(cases[0].name, []).extend(cases[:1])
    return rows


ROWS = _rows()


def computed(
    case: Case,
    device: str,
    inputs: list[Numbers],
    labels: Numbers | None,
    dy: Numbers,
    variables: Mapping[str, Numbers] | None = None,
) -> dict[str, Numbers]:
    """Output, gradients and statistics of a training task."""
    bench = Bench(case.kernel, library_of(device, FLOAT32), FLOAT32, [x.shape for x in inputs], labels)
    examples = len(inputs[0]) if case.examples is None else case.examples
    bench.load(inputs, bench.initial_variables({}) if variables is None else variables, 0, examples)
    with np.errstate(all="ignore"):
        found = {"output": bench.forward()}
        takes = not (case.kernel.is_loss or case.kernel.is_measure)
        gradients, of_variables = bench.backward(dy if takes else None)
    found |= {f"gradient {number}": gradient for number, gradient in enumerate(gradients)}
    return found | of_variables | bench.observed()


def initial_variables(case: Case, inputs: list[Numbers], labels: Numbers | None) -> dict[str, Numbers]:
    bench = Bench(case.kernel, library_of("reference", FLOAT32), FLOAT32, [x.shape for x in inputs], labels)
    return {name: np.array(value, np.float32) for name, value in bench.initial_variables({}).items()}


def expected_of_padding(case: Case, inputs: list[Numbers], place: int, shape: Shape) -> Numbers:
    """Which weights of a convolution a gradient at one place is multiplied into: padding takes no part. Of a transposed
    convolution, an input at one place."""
    first, second = (np.ones_like(inputs[0]), np.zeros(shape, np.float32))
    if case.name == "TransposedConv":
        first, second = np.zeros_like(inputs[0]), np.ones(shape, np.float32)
    (second if case.name == "Conv" else first).reshape(-1)[place] = 1
    return computed(case, "reference", [first], None, second)["weights"] != 0


def by_winograd(case: Case) -> bool:
    """Whether the fast kernels compute a convolution by Winograd's transforms."""
    if not isinstance(case.kernel, Conv):
        return False
    library, (shape,) = library_of("cpu", FLOAT32), case.shapes
    x, y = (Tensor(s, FLOAT32, library.layout(s)) for s in (shape, case.kernel.output_shape(shape)))
    weights = Variable(case.kernel.variables(shape)[0].shape, FLOAT32)
    return "winograd" in library.prepare(ConvolutionForward(x, weights, None, y, case.kernel.geometry(shape))).name


@fast
@pairwise
@pytest.mark.parametrize("threads", [1, 2], ids=["one thread", "two threads"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("name", sorted(ROWS))
def test_what_is_not_finite_is_as_in_the_reference(name: str, value: float, threads: int) -> None:
    with threads_of_onednn(threads):
        check_as_in_the_reference(name, value)


def check_as_in_the_reference(name: str, value: float) -> None:
    generator = np.random.default_rng(5)
    for case in ROWS[name]:
        inputs, labels = check_inputs(case.kernel, case.inputs(), FLOAT32)
        shape = case.kernel.output_shape(*case.shapes)
        dy, spreads = generator.standard_normal(shape).astype(np.float32), by_winograd(case)
        variables = initial_variables(case, inputs, labels)
        targets = {"dy": dy, **variables}
        if name in (
            "Conv",
            "TransposedConv",
        ):  # some of whose weights are multiplied by padding: by the reference, not by all kernels
            del targets["weights"]
        if not case.kernel.takes_indices:
            targets |= {f"x{number}": x for number, x in enumerate(inputs)}
        if case.labels in ("value", "values"):  # fractions are checked before
            assert labels is not None
            targets["labels"] = labels
        for changed, target in targets.items():
            place = int(generator.integers(target.size))
            if name in ("MatFact", "MatFactPrediction"):  # of the first example
                named = {"users": inputs[0][0, 0], "items": inputs[0][0, 1]}
                place = int(named.get(changed, 0)) * (target.size // len(target))
            elif name == "Embedding" and changed == "weights":  # of the first index
                place = int(inputs[0][0, 0]) * target.shape[1]
            before, target.reshape(-1)[place] = target.reshape(-1)[place].copy(), value
            ours, theirs = (computed(case, device, inputs, labels, dy, variables) for device in ("cpu", "reference"))
            assert name != "MatFact" or changed == "dy" or not np.isfinite(theirs["output"]), changed
            for role, reference in theirs.items():
                least = most = ~np.isfinite(reference)
                if role == "weights" and (name, changed) in (("Conv", "dy"), ("TransposedConv", "x0")):
                    # The reference multiplies padding, too; of oneDNN's kernels only some do.
                    least = expected_of_padding(case, inputs, place, shape)
                received, where = ~np.isfinite(ours[role]), f"{case}, {value} in {changed}: {role}"
                assert not (least & ~received).any(), f"{where}: hidden"
                assert spreads or not (received & ~most).any(), f"{where}: spread"
            target.reshape(-1)[place] = before


@pairwise
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize(
    "middle",
    [
        (Conv(number_of_outputs=8, kernel_size=5), ReLU(), Pool()),  # as outsiders tried it
        (
            Conv(number_of_outputs=20, kernel_size=3),
            Conv(number_of_outputs=20, kernel_size=3),
            ReLU(),
            Pool(kernel_size=3),
        ),
        (Conv(number_of_outputs=32, kernel_size=3), Conv(number_of_outputs=32, kernel_size=3), ReLU()),
        (Conv(number_of_outputs=16, kernel_size=3), BatchNorm(), ReLU(), Pool(method="average")),
        (InnerProduct(number_of_outputs=8), ReLU()),
        (InnerProduct(number_of_outputs=8), BatchNorm(), ReLU()),
        (InnerProduct(number_of_outputs=8), ReLU(mode="clipped")),
        (InnerProduct(number_of_outputs=8), ElementWiseOp(coefficients=(1.0,)), ReLU()),
    ],
    ids=lambda middle: " ".join(type(kernel).__name__ for kernel in middle),
)
@pytest.mark.parametrize("threads_per_learner", [1, 2])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@fast
def test_one_in_an_image_is_in_its_prediction(
    middle: tuple[Kernel, ...], value: float, threads_per_learner: int
) -> None:
    """With every kernel that takes the ReLU behind it in. `ExecutionContext.predict` refuses such images."""
    images = pictures().train.images[:6] / np.float32(255)
    data = Dataset((images, np.arange(6) % 3))
    images = images.copy()
    images[2, 0, 4, 3] = value
    predicted = []
    for kernels in ("reference", "onednn"):
        network = training(*middle, InnerProduct(number_of_outputs=3))
        with context(network, data=data, kernels=kernels, learners=1, threads=threads_per_learner) as running:
            predicted.append(running.engine.predict(images))
    reference, ours = predicted
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(reference))
    assert np.isfinite(ours[[0, 1, 3, 4, 5]]).all()
    if np.isnan(value):
        assert np.isnan(ours[2]).all()
