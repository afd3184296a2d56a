"""Small kernels as one: which are joined, and that no bit changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda.launch import BLOCK, CudaKernel, Launch, Structure
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.series import MOST_BYTES, SMALL, in_series, series_source
from crossbow.kernels.interface import Buffers, State
from crossbow.kernels.requests import (
    ActivationBackward,
    ActivationForward,
    LabelAccuracy,
    Request,
    SoftmaxForward,
    SoftmaxLossBackward,
    SoftmaxLossForward,
    WeightedSum,
)
from crossbow.types import Array, Tensor
from tests.kernels.cuda.fake import FakeCuda, fake_cuda

FLOAT32 = np.dtype(np.float32)
RELU = ("relu", 0.0, 0.0)


@pytest.fixture(autouse=True)
def cuda() -> Iterator[FakeCuda]:
    with fake_cuda() as fake:
        yield fake


def calls(request: Request, buffers: Buffers) -> list[Any]:
    return list(Cuda(np.float32).prepare(request).bind(buffers))


def classifier(examples: int, classes: int) -> tuple[list[Any], dict[str, Any]]:
    """The calls of a softmax, its loss with its gradient, and an accuracy; and all buffers."""
    x, labels = Tensor((examples, classes), FLOAT32), Tensor((examples,), np.dtype(np.int32))
    generator = np.random.default_rng(0)
    state = np.zeros(State.SIZE, np.int64)
    state[State.EXAMPLES] = examples - 1
    made: dict[str, Any] = {
        "logits": generator.standard_normal(x.shape).astype(np.float32),
        "labels": generator.integers(0, classes, examples).astype(np.int32),
        "state": state,
        **{name: np.full(x.shape, np.nan, np.float32) for name in ("p", "gradient")},
        **{name: np.full(1, np.nan, np.float32) for name in ("loss", "accuracy")},
        "workspace": np.zeros(4096, np.uint8),
    }
    common = {name: made[name] for name in ("labels", "state", "workspace")}
    found = [
        *calls(SoftmaxForward(x, x, 1), {"input0": made["logits"], "output": made["p"]}),
        *calls(
            SoftmaxLossForward(x, labels, None, "batch", logits=x),
            {**common, "input0": made["p"], "logits": made["logits"], "output": made["loss"]},
        ),
        *calls(LabelAccuracy(x, labels, 1, None), {**common, "input0": made["p"], "output": made["accuracy"]}),
        *calls(
            SoftmaxLossBackward(x, labels, x, None, "batch"),
            {**common, "input0": made["p"], "input_gradient": made["gradient"]},
        ),
    ]
    return found, made


def run(made: Sequence[Any]) -> None:
    for call in made:
        call()


def test_the_end_of_a_classifier_is_one_kernel_with_the_same_bits() -> None:
    apart, expected = classifier(40, 7)
    assert len(apart) == 4
    run(apart)
    together, received = classifier(40, 7)
    ((call, count),) = in_series(together)
    assert (call.name, call.blocks, call.threads, count) == ("series", 1, BLOCK, 4)  # type: ignore[attr-defined]
    call()
    for name, value in expected.items():
        np.testing.assert_array_equal(received[name], value, err_msg=name)
    assert np.isfinite(received["gradient"]).all()


def test_kernels_of_many_elements_stay_apart() -> None:
    """But for a loss and an accuracy, which are computed in one block anyway."""
    apart, _ = classifier(SMALL // 4 + 1, 4)
    assert [count for _, count in in_series(apart)] == [3, 1]
    work, _ = classifier(BLOCK + 1, 63)  # few lines, but long ones
    assert [count for _, count in in_series(work)] == [3, 1]


def pointwise(elements: int, *, other: int = 0, shift: int = 0) -> tuple[list[Any], dict[str, Array]]:
    """z = max(x + y, 0), and the gradient of a ReLU with output z and gradient y. other: elements of the second
    tensor, if they differ. shift: the first element of x over which the gradient is written, if they overlap."""
    memory = aligned_zeros(4 * 4 * (elements + 64)).view(np.float32)
    n = other or elements
    x, y, z = (memory[start : start + elements] for start in (0, elements + 16, 2 * (elements + 16)))
    place = shift or 3 * (elements + 16)
    dx = memory[place : place + n]
    one, two = Tensor((elements,), FLOAT32), Tensor((n,), FLOAT32)
    made = [
        *calls(WeightedSum((one, one), one, (1.0, 1.0), relu=True), {"input0": x, "input1": y, "output": z}),
        *calls(
            ActivationBackward(two, two, two, *RELU), {"output": z[:n], "output_gradient": y[:n], "input_gradient": dx}
        ),
    ]
    return made, {"x": x, "y": y, "z": z, "dx": dx}


@pytest.mark.parametrize("elements", [4, SMALL + 4, 300 * BLOCK])
def test_pointwise_kernels_are_one_with_the_same_bits(elements: int) -> None:
    results = []
    for joined in (False, True):
        made, arrays = pointwise(elements)
        generator = np.random.default_rng(0)
        for name in "xy":
            arrays[name][:] = generator.standard_normal(elements).astype(np.float32)
        if joined:
            ((call, count),) = in_series(made)
            assert count == 2
            assert elements <= SMALL or call.blocks == made[0].blocks  # type: ignore[attr-defined]
            made = [call]
        run(made)
        results.append(arrays)
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value, err_msg=name)


@pytest.mark.parametrize(
    ("options", "count"), [({}, 1), ({"other": SMALL + 96}, 2), ({"shift": 8}, 2)], ids=["joined", "fewer", "shifted"]
)
def test_threads_take_several_kernels_only_element_by_element(options: dict[str, int], count: int) -> None:
    """A shifted array would be written by one thread while another one reads it."""
    made, _ = pointwise(SMALL + 100, **options)
    assert len(in_series(made)) == count


def test_calls_of_libraries_and_of_other_types_end_a_series() -> None:
    first, _ = classifier(8, 3)
    wide = Tensor((4,), np.dtype(np.float64))
    x = np.zeros(4)
    other = list(Cuda(np.float64).prepare(ActivationForward(wide, wide, *RELU)).bind({"input0": x, "output": x}))

    def library() -> None: ...

    found = in_series([*first[:2], library, *first[2:], *other, *other])
    assert [count for _, count in found] == [2, 1, 2, 2]
    assert found[1][0] is library


def test_no_kernel_gets_more_arguments_than_cuda_allows() -> None:
    x = np.zeros(8, np.float32)
    tensor = Tensor((8,), FLOAT32)
    one = calls(ActivationForward(tensor, tensor, *RELU), {"input0": x, "output": x})
    found = in_series(one * 200)
    assert len(found) > 1
    assert sum(count for _, count in found) == 200
    assert all(isinstance(call, Launch) and 8 * len(call.arguments) <= MOST_BYTES for call, _ in found)


def test_structures_count_with_all_their_bytes() -> None:
    made, _ = classifier(8, 3)
    joined = [call.arguments for call, _ in in_series(made * 40) if isinstance(call, Launch)]
    sizes = [sum(a.values.nbytes if isinstance(a, Structure) else 8 for a in arguments) for arguments in joined]
    assert len(joined) > 1
    assert max(sizes) <= MOST_BYTES
    assert max(8 * len(arguments) for arguments in joined) < max(sizes)


def test_parts_keep_their_own_types() -> None:
    source = series_source([CudaKernel("loss", "accuracy", FLOAT32)] * 2, barrier=True)
    assert source.count("namespace part0 {") == 1
    assert "const real *a0_0, const int *a0_1" in source
    assert "part0::Rows a1_3" in source
    assert "__syncthreads();\n    part0::accuracy(a1_0" in source
    assert "__syncthreads();\n    part0::accuracy(a1_0" not in series_source(
        [CudaKernel("loss", "accuracy", FLOAT32)] * 2, barrier=False
    )


@pytest.mark.parametrize("make", [list, lambda: [lambda: None]])
def test_what_is_no_launch_stays(make: Callable[[], list[Any]]) -> None:
    made = make()
    assert in_series(made) == [(call, 1) for call in made]
