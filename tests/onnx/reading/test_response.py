"""Powers, and local response normalisation as PyTorch exports it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from crossbow import GraphError
from crossbow.onnx import load
from crossbow.ops import LRN, ElementWiseOp
from tests.onnx.models import X, draw, kernel_of, model, node, operators, run_crossbow, run_onnx, same

SIZES = ["N", 5, 3, 4]


def pytorch_response(
    before: int, after: int, *, alpha: float | None = 0.5, kappa: float = 2.0, padding: bool = True
) -> onnx.ModelProto:
    """As torch.onnx exports LocalResponseNorm: x / (κ + α · (the mean of the squares of neighbours))^0.75."""
    size = before + after + 1
    nodes = [
        node("Mul", "x x", "squares"),
        node("Unsqueeze", "squares axis", "apart"),
        node("Pad", "apart pads", "padded"),
        node("AveragePool", "padded" if padding else "apart", "m", kernel_shape=[size, 1, 1], count_include_pad=1),
        node("Squeeze", "m axis", "mean"),
        node("Mul", "mean alpha", "scaled"),
        node("Add", "mean kappa" if alpha is None else "scaled kappa", "strength"),
        node("Pow", "strength beta", "power"),
        node("Div", "x power", "y", "divide"),
    ]
    given = {
        "axis": np.array([1]),
        "pads": np.array([0, 0, before, 0, 0, 0, 0, after, 0, 0]),
        "alpha": np.array(0.0 if alpha is None else alpha, np.float32),
        "kappa": np.array(kappa, np.float32),
        "beta": np.array(0.75, np.float32),
    }
    return model(nodes, SIZES, **given)


def response(x: np.ndarray, before: int, after: int, alpha: float = 0.5, kappa: float = 2.0) -> np.ndarray:
    """The definition in torch.nn.LocalResponseNorm's documentation, channel by channel."""
    out, size = np.empty_like(x), before + after + 1
    for channel in range(x.shape[1]):
        window = x[:, max(0, channel - before) : channel + after + 1]
        out[:, channel] = x[:, channel] / (kappa + alpha / size * (window**2).sum(axis=1)) ** 0.75
    return out


@pytest.mark.parametrize(
    ("before", "after", "padding"),
    [(0, 0, False), (0, 0, True), (1, 0, True), (1, 1, True), (2, 1, True), (2, 2, True)],
)
def test_the_normalisation_of_pytorch_is_one_operator(before: int, after: int, padding: bool) -> None:
    """Also over one channel, with a padding of nothing or none."""
    x = draw(2, 5, 3, 4)
    proto = pytorch_response(before, after, padding=padding)
    network = load(proto)
    ((_, kind),) = operators(network)
    assert kind == "LRN"
    kernel = network.head.operator.kernel
    assert isinstance(kernel, LRN)
    assert (kernel.size, kernel.alpha, kernel.beta, kernel.kappa) == (before + after + 1, 0.5, 0.75, 2)
    np.testing.assert_allclose(run_crossbow(network, x), response(x, before, after), rtol=1e-6)
    np.testing.assert_allclose(run_onnx(proto, x=x), response(x, before, after), rtol=1e-5)


def test_a_factor_of_one_may_be_left_out() -> None:
    x = draw(2, 5, 3, 4)
    network = load(pytorch_response(1, 1, alpha=None))
    np.testing.assert_allclose(run_crossbow(network, x), response(x, 1, 1, alpha=1.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("before", "after"), [(0, 1), (0, 2), (3, 0)], ids=["longer after", "after alone", "before alone"]
)
def test_other_windows_are_refused(before: int, after: int) -> None:
    with pytest.raises(GraphError, match=r"the denominator of a LocalResponseNorm\. Received: 0\.75"):
        load(pytorch_response(before, after))


def test_a_pooling_of_other_squares_is_refused() -> None:
    proto = pytorch_response(1, 1)
    proto.graph.node[0].input[1] = "other"
    proto.graph.node.insert(0, node("Relu", "x", "other"))
    with pytest.raises(GraphError, match=r"the denominator of a LocalResponseNorm\. Received: 0\.75"):
        load(proto)


@pytest.mark.parametrize("exponent", [1, 2, 3, 8])
def test_small_powers_are_products(exponent: int) -> None:
    nodes = [node("Relu", "x", "r", "relu"), node("Pow", "r e", "y", "power")]
    network = same(model(nodes, ["N", 2, 6, 6], e=np.array(exponent, np.float32)), X / 4)
    if exponent == 1:
        assert operators(network) == [("relu", "ReLU")]
    else:
        assert kernel_of(network, "power") == ElementWiseOp(type="product")


@pytest.mark.parametrize(("exponent", "received"), [(0.0, "0"), (9.0, "9"), (-1.0, "-1"), (0.5, "0.5")])
def test_other_powers_are_refused(exponent: float, received: str) -> None:
    proto = model([node("Pow", "x e", "y", "power")], ["N", 4], e=np.array(exponent, np.float32))
    with pytest.raises(
        GraphError, match=rf"'power' \(Pow\): expected an exponent from 1 to 8, .*Received: {received}$"
    ):
        load(proto)


def test_exponents_that_differ_are_refused() -> None:
    proto = model([node("Pow", "x e", "y", "power")], ["N", 2], e=np.array([1, 2], np.float32))
    with pytest.raises(GraphError, match=r"expected one exponent\. Received: \(2,\)"):
        load(proto)
