"""Memory and calls on the CPU and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.testing import run_operator
from tests.kernels.cuda.fake import fake_cuda
from tests.testing.user_operators import (
    Copied,
    X,
)


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


def test_a_gpu_is_given_a_stream_once() -> None:
    with fake_cuda() as cuda:
        for _ in range(3):
            run_operator(Copied(), [X], device="cuda:0")
        assert [call.name for call in cuda.calls].count("cudnnCreate") == 1
