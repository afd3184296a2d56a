"""Fast kernels in random configurations against PyTorch in float64: each operator within an error bound of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crossbow.kernels import why_not_onednn
from crossbow.ops import (
    GELU,
    Constant,
    Conv,
    Dropout,
    Embedding,
    EuclideanLoss,
    Gaussian,
    HardSwish,
    LayerNorm,
    LogSoftMax,
    MatFact,
    MatFactPrediction,
    MatMul,
    PReLU,
    ReLU,
    SelfAttention,
    SigmoidLoss,
    SiLU,
    SoftMax,
    SoftMaxLoss,
    Upsample,
)
from crossbow.testing import run_operator
from tests.operators import test_random_combinations as combinations
from tests.operators import test_random_operators as operators
from tests.operators import test_random_shapes as windows
from tests.operators.table import Case
from tests.operators.test_table import gradient_for, tensors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not_onednn() is not None, reason=f"no oneDNN: {why_not_onednn()}"),
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch, only for comparisons, is not installed"),
]
Array = NDArray[Any]
Cases = st.SearchStrategy[Case]

ROUNDING = 2.0**-24
"""The largest relative error of one operation in float32."""


@dataclass(frozen=True)
class Bound:
    """The largest error of an element, in roundings of a magnitude.

    absolute: the magnitude is that of the element's own terms, what the operator computes from the absolute values of
    all that it reads; else the largest of the tensor.
    """

    roundings: float
    absolute: bool = False


@st.composite
def wide_convolutions(draw: st.DrawFn) -> Case:
    """Those that Winograd's filtering may compute: 16 channels or more, kernels of 3×3 and 5×5, stride 1."""
    kernel, padding = draw(st.sampled_from([3, 3, 5])), draw(st.integers(0, 2))
    bias = draw(st.booleans())
    operator = Conv(
        number_of_outputs=draw(st.integers(16, 48)),
        kernel_size=kernel,
        padding=padding,
        bias=bias,
        bias_initialiser=Gaussian(std=0.5) if bias else Constant(),
    )
    size = [max(1, kernel - 2 * padding) + draw(st.integers(0, 12)) for _ in range(2)]
    return Case(operator, ((draw(st.integers(1, 4)), draw(st.integers(16, 48)), *size),))


@st.composite
def long_products(draw: st.DrawFn) -> Case:
    """Matrices and vectors with long sums."""
    rows, columns = draw(st.sampled_from([(1, 1), (7, 1), (1, 7), (5, 6)]))
    inner, turned = draw(st.integers(10, 3000)), draw(st.tuples(st.booleans(), st.booleans()))
    shapes = [
        matrix[::-1] if turn else matrix for matrix, turn in zip(((rows, inner), (inner, columns)), turned, strict=True)
    ]
    return Case(MatMul(transpose_a=turned[0], transpose_b=turned[1]), (shapes[0], shapes[1]))


def one_input(drawn: st.SearchStrategy[Any]) -> Cases:
    return drawn.map(lambda pair: Case(pair[0], pair[1:]))


ROWS: dict[str, tuple[Cases, Bound]] = {
    # A sum of n products is off by at most n roundings of the sum of their absolute values, and by about √n where their
    # signs are random (Higham, Accuracy and Stability of Numerical Algorithms, sections 3.1 and 2.8). The sums here
    # have up to 10³ terms, in as many partial sums as a vector has lanes or more. Observed: 3.5.
    "Conv": (one_input(windows.convolutions()), Bound(12, absolute=True)),
    "InnerProduct": (one_input(windows.inner_products()), Bound(12, absolute=True)),
    "MatMul": (one_input(windows.matrix_products()) | long_products(), Bound(12, absolute=True)),
    # The sums are Winograd's: of what its transforms make of the tile, whose largest numbers are up to 10 times the
    # input's for 6 points in a row in each of two dimensions, and are subtracted from each other. Observed: 112.
    "TransposedConv": (one_input(windows.transposed()), Bound(12, absolute=True)),
    "Conv, wide": (wide_convolutions(), Bound(400)),
    # At most 64 terms of one sign, or one that is handed on; a division. Observed: 3.0.
    "Pool": (one_input(windows.poolings().filter(lambda pair: pair[0].method != "stochastic")), Bound(6)),
    # Sums that are exact to about a rounding (kernels/cpu/passes/rows.py). Inputs are up to 30 away from 0, with
    # deviation 1: subtracting the mean, rounded to float32, is off by up to 30 roundings; a gradient may be a
    # difference of terms a few times its size.
    "BatchNorm": (combinations.normalisations(), Bound(100)),
    # A sum of squares, a power, and in the gradient a difference of two such terms. Observed: 5.5.
    "LRN": (combinations.responses(), Bound(20)),
    # A product and a sum; sums over a batch as in rows.py. Observed: 1.4.
    "Scale": (combinations.scales(), Bound(6, absolute=True)),
    # Up to 6 terms, or 5 products one after the other. Observed: 2.7.
    "ElementWiseOp": (combinations.combinations(), Bound(10)),
    # Moved, not computed.
    "Concat": (combinations.concatenations(), Bound(0)),
    # oneDNN approximates tanh by polynomials; 1 − y² cancels. Observed: 9.2.
    "ReLU": (operators.DRAWN[ReLU], Bound(30)),
    # One product. Observed: 1.5, with the factor's rounding.
    "PReLU": (operators.DRAWN[PReLU], Bound(6)),  # a product, and its sums in float64
    "Upsample": (operators.DRAWN[Upsample], Bound(60)),  # up to three interpolations, one after the other
    "Dropout": (operators.DRAWN[Dropout], Bound(3)),
    # The exponential function of a difference; the gradient y · (dy − Σ dy · y) cancels. Observed: 23.
    "SoftMax": (operators.DRAWN[SoftMax], Bound(80)),
    # oneDNN approximates the error function, tanh and exponentials by polynomials. Observed: 10.2 and 1.3.
    "GELU": (operators.DRAWN[GELU], Bound(30)),
    "SiLU": (operators.DRAWN[SiLU], Bound(6)),
    "HardSwish": (operators.DRAWN[HardSwish], Bound(6)),  # two sums, a quotient and two products; observed: 1.9
    "LayerNorm": (operators.DRAWN[LayerNorm], Bound(3)),  # in float64 inside; observed: 0.9
    "LogSoftMax": (operators.DRAWN[LogSoftMax], Bound(8)),  # in float64 inside; observed: 1.6
    # Logarithms of float32's probabilities, added up in float64. Observed: 2.6.
    "SoftMaxLoss": (operators.DRAWN[SoftMaxLoss], Bound(10)),
    # A difference, and its squares in float64. Observed: 1.8.
    "EuclideanLoss": (operators.DRAWN[EuclideanLoss], Bound(6)),
    # An exponential and a logarithm in float64. Observed: 0.9.
    "SigmoidLoss": (operators.DRAWN[SigmoidLoss], Bound(6)),
    # Moved; in the gradient sums of up to 200 terms.
    "Embedding": (operators.DRAWN[Embedding], Bound(10)),
    # Products of up to 20 terms, and a softmax between them.
    "SelfAttention": (operators.DRAWN[SelfAttention], Bound(80)),
    # Sums of up to 40 products and of 60 examples. Observed: 3.1.
    "MatFact": (operators.DRAWN[MatFact], Bound(10)),
    # Sums of up to 40 products. Observed: 3.1 (with AVX2).
    "MatFactPrediction": (operators.DRAWN[MatFactPrediction], Bound(10)),
}
"""By operator: random configurations, and the bound with where it comes from. Observed means the largest of 100
configurations on an AMD EPYC with AVX-512; about three times that is allowed for other processors, which add in other
orders."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Winograd's filtering and the kernels for narrow convolutions have one."""
    from crossbow.kernels.cpu.onednn.shared_library import omp_get_max_threads, omp_set_num_threads

    before = omp_get_max_threads()
    omp_set_num_threads(1)
    yield
    omp_set_num_threads(before)


def of_pytorch(case: Case, inputs: list[Array], variables: dict[str, Array], dy: Array | None) -> dict[str, Array]:
    """What PyTorch computes in float64, named as `tensors` names ours."""
    from tests.operators.oracles import run_oracle

    if isinstance(case.kernel, SoftMaxLoss):  # PyTorch's takes logits
        inputs = [np.log(inputs[0].astype(np.float64)), *inputs[1:]]
    output, gradients, of_variables = run_oracle(case.kernel, inputs, variables, dy, case.examples)
    named = {"output": output, **{f"gradient of input {i}": value for i, value in enumerate(gradients)}}
    return named | {f"gradient of {name}": value for name, value in of_variables.items()}


def largest_error(case: Case, bound: Bound) -> float:
    """Of all elements of all results, in roundings."""
    inputs, dy = case.inputs(seed=2), gradient_for(case)  # drawn with other seeds
    run = run_operator(case.kernel, inputs, output_gradient=dy, examples=case.examples, device="cpu")
    exact, worst = of_pytorch(case, inputs, run.variables, dy), 0.0
    magnitudes = exact
    if bound.absolute:
        assert dy is not None
        variables = {name: np.abs(value) for name, value in run.variables.items()}
        magnitudes = of_pytorch(case, [np.abs(x) for x in inputs], variables, np.abs(dy))
    for name, right in exact.items():
        received = tensors(run)[name]
        assert received.shape == right.shape, name
        of = magnitudes[name] if bound.absolute else np.max(np.abs(magnitudes[name]), initial=0)
        worst = max(worst, float(np.max(np.abs(received - right) / np.maximum(of, 1e-30), initial=0)) / ROUNDING)
    return worst


few = settings(max_examples=25, deadline=None, derandomize=True)


@pytest.mark.parametrize("name", ROWS)
@few
@given(data=st.data())
def test_errors_are_within_the_bound_of_the_operator(name: str, data: st.DataObject) -> None:
    cases, bound = ROWS[name]
    case = data.draw(cases)
    assert largest_error(case, bound) <= bound.roundings, case
