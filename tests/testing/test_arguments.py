"""Arguments of the test tools are refused with one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels import why_not_compiled
from crossbow.ops import (
    ElementWiseOp,
    InnerProduct,
    Kernel,
    Pool,
    ReLU,
    SoftMaxLoss,
)
from crossbow.testing import run_operator
from crossbow.types import ConfigurationError
from tests.kernels.cuda.fake import fake_cuda
from tests.testing.user_operators import (
    X,
)

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


def test_a_gpu_that_is_not_there() -> None:
    with fake_cuda(2), pytest.raises(ConfigurationError, match=r"cuda:0 to cuda:1\. Received: 'cuda:2'"):
        run_operator(ReLU(), [X], device="cuda:2")


def test_the_fast_library_has_no_float64() -> None:
    message = "dtype: expected float32 on device 'cpu'" if why_not_compiled() is None else "fast CPU kernels do not run"
    with pytest.raises(ConfigurationError, match=message):
        run_operator(ReLU(), [X], device="cpu", dtype=np.float64)
