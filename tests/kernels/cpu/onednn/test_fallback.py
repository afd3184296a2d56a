"""What oneDNN refuses, the next kernel computes, under a name that says so."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from crossbow import SolverConf, TrainingUnit
from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.requests import (
    LRNBackward,
    LRNForward,
    PoolingBackward,
    PoolingForward,
    PoolingGeometry,
    ResponseGeometry,
    SoftmaxForward,
)
from crossbow.ops import BatchNorm, Conv, InnerProduct, Pool, ReLU
from crossbow.testing import run_operator
from crossbow.types import Phase
from tests.combinations import one_in
from tests.kernels.cpu.own_convolutions import use_threads
from tests.kernels.cpu.running import ONEDNN, tensor
from tests.operators.table import CASES, Case
from tests.operators.test_table import assert_close, float32_variables, run, tensors
from tests.support import context, pictures, training

DESCRIPTORS = sorted(
    name for name in dnnl.PROTOTYPES if re.fullmatch(r"dnnl_(?!reorder)\w+_primitive_desc_create", name)
)
"""The functions with which oneDNN accepts or refuses."""


def refuse(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Let these functions refuse; the names of those called."""
    called: list[str] = []
    create = dnnl.create

    def refusing(name: str, *arguments: object) -> dnnl.Handle:
        if name not in names:
            return create(name, *arguments)
        called.append(name)
        raise dnnl.OneDNNError(name, dnnl.STATUSES.index("unimplemented"))

    monkeypatch.setattr(dnnl, "create", refusing)
    return called


def _sample() -> list[Case]:
    """Two rows of every operator and number of dimensions."""
    found: dict[tuple[object, ...], list[Case]] = {}
    for case in CASES:
        kind = (case.name, getattr(case.kernel, "method", None), getattr(case.kernel, "mode", None))
        found.setdefault((*kind, len(case.shapes[0])), []).append(case)
    return [case for cases in found.values() for case in cases[:2]]


@pytest.fixture(scope="module")
def asking() -> dict[str, list[Case]]:
    """For each of the functions the rows in which it is called, with two threads: with one, most convolutions are our
    own."""
    found: dict[str, list[Case]] = {name: [] for name in DESCRIPTORS}
    with pytest.MonkeyPatch.context() as patch:
        use_threads(patch, 2)
        called = _note_calls(patch)
        for case in _sample():
            called.clear()
            run(case, device="cpu")
            for name in called:
                found[name].append(case)
    return found


def _note_calls(patch: pytest.MonkeyPatch) -> set[str]:
    """The names of the functions called from now on."""
    called: set[str] = set()
    create = dnnl.create

    def noting(name: str, *arguments: object) -> dnnl.Handle:
        if name in DESCRIPTORS:
            called.add(name)
        return create(name, *arguments)

    patch.setattr(dnnl, "create", noting)
    return called


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize("name", DESCRIPTORS)
def test_any_refusal(name: str, asking: dict[str, list[Case]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient's kernels still understand what the forward kernels chose and kept."""
    use_threads(monkeypatch, 2)
    called = refuse(monkeypatch, name)
    for case in asking[name]:
        called.clear()
        variables = float32_variables(case)
        received = run(case, device="cpu", variables=variables)
        assert called
        assert_close(tensors(received), tensors(run(case, dtype=np.float64, variables=variables)), case.tolerance)
    assert asking[name], f"no operator calls {name}"


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize("case", _sample(), ids=str)
def test_every_operator_without_onednns_primitives(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, *DESCRIPTORS)
    exact = run(case, dtype=np.float64, variables=float32_variables(case))
    received = run(case, device="cpu", variables=float32_variables(case))
    assert_close(tensors(received), tensors(exact), case.tolerance)


def test_an_average_that_onednn_refuses() -> None:
    """Found from outside: the dilation is larger than the input."""
    kernel = Pool(method="average", kernel_size=1, stride=1, dilation=2, count_padding=False)
    x = np.array([[[[3.0, -1.0]]]])
    for device in ("reference", "cpu"):
        computed = run_operator(kernel, [x], device=device)
        np.testing.assert_array_equal(computed.outputs[0], x)
        np.testing.assert_array_equal(computed.input_gradients[0], np.ones_like(x))
    g = PoolingGeometry((1, 1), (1, 1), dilation=(2, 2), method="average", count_padding=False)
    x, y = tensor((1, 1, 1, 2)), tensor((1, 1, 1, 2))
    refused = "returned 2 (invalid_arguments))"
    for kernel in (ONEDNN.prepare(PoolingForward(x, y, g, Phase.TRAIN)), ONEDNN.prepare(PoolingBackward(y, x, g))):
        assert " average numba (fallback: dnnl_pooling_forward_primitive_desc_create " in kernel.name
        assert kernel.name.endswith(refused)


@pytest.mark.parametrize("count_padding", [True, False])
@pytest.mark.parametrize("case", [c for c in CASES if getattr(c.kernel, "method", "") == "average"], ids=str)
def test_averages_by_our_own_pass(case: Case, count_padding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(case.kernel, Pool) and case.kernel.count_padding is count_padding:
        refuse(monkeypatch, *DESCRIPTORS)
        assert_close(tensors(run(case, device="cpu")), tensors(run(case, dtype=np.float64)), case.tolerance)


def test_the_pass_comes_before_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, *DESCRIPTORS)
    x, g = tensor((2, 16, 5, 5)), ResponseGeometry((1,), 5, 0.2, 0.75, 1.0)
    for kernel in (ONEDNN.prepare(LRNForward(x, x, g, Phase.TRAIN)), ONEDNN.prepare(LRNBackward(x, x, x, g))):
        assert re.fullmatch(r"lrn_\w+ numba \(fallback: dnnl_lrn_\w+ returned 3 \(unimplemented\)\)", kernel.name)
    kernel = ONEDNN.prepare(SoftmaxForward(x, x, 1))
    assert kernel.name.startswith("softmax_forward numba (fallback: dnnl_softmax_forward_")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "operator", "kernel"),
    [
        ("dnnl_convolution_backward_data_primitive_desc_create", "Conv2.gradient", "reference"),
        ("dnnl_inner_product_backward_weights_primitive_desc_create", "InnerProduct6.gradient", "reference"),
        ("dnnl_eltwise_backward_primitive_desc_create", "ReLU5.gradient", "numba"),
    ],
)
def test_a_network_trains_on_and_its_description_says_why(
    name: str, operator: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads, with which the convolutions are oneDNN's, whose blocked weights the reference does not know."""
    convolution = Conv(number_of_outputs=32, kernel_size=3, padding=1)
    network = (convolution, ReLU(), convolution, BatchNorm(), Pool(), ReLU(), InnerProduct(number_of_outputs=3))

    def trained() -> tuple[str, Any]:
        options: dict[str, Any] = {"data": pictures(), "kernels": "onednn", "learners": 1, "threads": 2}
        with context(training(*network), solver=SolverConf(learning_rate=0.01), **options) as running:
            running.train(3, TrainingUnit.TASKS)
            return running.describe(), running.variables

    expected, variables = trained()
    assert "fallback" not in expected
    refuse(monkeypatch, name)
    text, received = trained()
    lines = [line for line in text.splitlines() if operator in line.split()]
    assert any(f"{kernel} (fallback: {name} returned 3 (unimplemented))" in line for line in lines), text
    for key, value in variables.items():
        np.testing.assert_allclose(received[key], value, rtol=1e-3, atol=1e-4, err_msg=key)
