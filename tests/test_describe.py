"""`ExecutionContext.describe`: the compiled programs, as users see them."""

from __future__ import annotations

import pytest

from crossbow import Dataset
from crossbow.ops import Conv, Flatten, InnerProduct, Pool, ReLU
from tests.support import FAST, KERNELS, context, pictures, training

NETWORK = (
    Conv(number_of_outputs=20, kernel_size=3),
    ReLU(),
    Pool(kernel_size=2),
    Flatten(),
    InnerProduct(number_of_outputs=3),
)


def programs(text: str) -> dict[str, dict[str, list[str]]]:
    """By purpose and operator what its kernels are; and what is said of the memory."""
    found: dict[str, dict[str, list[str]]] = {}
    for part in text.split("\n\n"):
        heading, *steps, memory = part.splitlines()
        kernels = found[heading] = {"memory": [memory]}
        for number, step in enumerate(steps):
            index, operator, kernel = step.split(maxsplit=2)
            assert int(index) == number
            kernels.setdefault(operator, []).append(kernel)
    return found


@pytest.mark.parametrize("kernels", [FAST])
def test_a_relu_is_in_the_kernel_of_the_convolution(kernels: str) -> None:
    with context(training(*NETWORK), data=pictures(), kernels=kernels) as running:
        found = programs(running.describe())
        assert list(found) == ["training, batches of 4×1×8×8", "testing, batches of 10×1×8×8"]
        for program in found.values():
            (convolution,) = program["Conv0"]
            assert convolution.startswith("convolution_forward relu ")
            assert program["ReLU1"] == ["(in that of 'Conv0')"]
        (memory,) = found["training, batches of 4×1×8×8"]["memory"]
        plan = running.engine.program.plan
        assert memory.startswith(f"arena {plan.arena:,} bytes; lower bound {plan.lower_bound:,}; without reuse ")


@pytest.mark.parametrize("kernels", [FAST])
def test_the_table_of_the_dataflow_shows_it_too(kernels: str) -> None:
    dataflow = training(*NETWORK)
    with context(dataflow, data=pictures(), kernels=kernels) as running:
        training_table = running.describe_dataflows().split("\n\n")[0]
    rows = {line.split()[1]: line for line in training_table.splitlines()[2:]}
    assert "  convolution_forward relu " in rows["Conv0"]
    assert rows["ReLU1"].endswith("  (in that of 'Conv0')")


@KERNELS
def test_where_numbers_are_checked_nothing_is_fused(kernels: str) -> None:
    with context(training(*NETWORK), data=pictures(), kernels=kernels, check_numerics=True) as running:
        for program in programs(running.describe()).values():
            activation, check = program["ReLU1"]
            assert activation.startswith("activation_forward relu ")
            assert check.startswith("check_finite ")


@KERNELS
def test_the_gradient_of_a_relu_before_a_maximum(kernels: str) -> None:
    """It is taken behind the pooling; and a Flatten needs no kernel, as its output is its input."""
    with context(training(*NETWORK), data=pictures(), kernels=kernels) as running:
        program = programs(running.describe())["training, batches of 4×1×8×8"]
        masking, nothing = program["ReLU1.gradient"]
        assert masking.startswith("activation_backward relu ")
        assert nothing == "(in that of 'Pool2.gradient')"


def test_a_program_is_that_of_the_context() -> None:
    """Without a check set there is none to test with; and what is said does not change when training is over."""
    data = pictures()
    with context(training(*NETWORK), data=Dataset((data.train.images, data.train.labels))) as running:
        text = running.describe()
        assert text == f"training, batches of 4×1×8×8\n{running.engine.program.describe()}"
        running.train(1)
    assert running.describe() == text
