"""The words that every floor shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.host_memory import aligned_zeros
from crossbow.types import (
    ConfigurationError,
    CrossbowError,
    DataError,
    DurationUnit,
    GraphError,
    LabelRange,
    Layout,
    NonFiniteError,
    NonFiniteLossError,
    Phase,
    Shape,
    TaskError,
    Tensor,
    TrainingUnit,
    address,
)

FLOAT = np.dtype(np.float32)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


# Tensors.


@pytest.mark.parametrize(
    ("shape", "elements"), [((), 1), ((0,), 0), ((3,), 3), ((2, 3), 6), ((2, 3, 4, 5), 120), ((2, 0, 4), 0)]
)
def test_a_tensor_knows_its_size(shape: Shape, elements: int) -> None:
    assert Tensor(shape, FLOAT).elements == elements
    assert Tensor(shape, FLOAT).nbytes == 4 * elements
    assert Tensor(shape, np.dtype(np.uint8)).nbytes == elements


@given(shapes, st.sampled_from([np.uint8, np.int32, np.float32, np.float64]))
def test_a_plain_view_is_row_major(shape: Shape, dtype: type) -> None:
    tensor = Tensor(shape, np.dtype(dtype))
    memory = aligned_zeros(tensor.nbytes + 8)
    view = tensor.view(memory)
    view[...] = np.arange(tensor.elements).reshape(shape).astype(dtype)
    assert view.shape == shape
    assert view.flags.c_contiguous
    np.testing.assert_array_equal(memory[: tensor.nbytes].view(dtype), np.arange(tensor.elements).astype(dtype))
    assert not memory[tensor.nbytes :].any()


def test_a_channels_last_view_has_its_logical_shape() -> None:
    tensor = Tensor((2, 3, 4, 5), FLOAT, Layout.CHANNELS_LAST)
    memory = aligned_zeros(tensor.nbytes)
    tensor.view(memory)[...] = np.arange(120).reshape(2, 3, 4, 5)
    inside = memory.view(np.float32).reshape(2, 4, 5, 3)
    np.testing.assert_array_equal(inside, np.arange(120).reshape(2, 3, 4, 5).transpose(0, 2, 3, 1))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 5, 6)])
def test_channels_last_is_for_four_dimensions(shape: Shape) -> None:
    with pytest.raises(ValueError, match=r"a channels-last tensor has four dimensions\. Received: shape="):
        Tensor(shape, FLOAT, Layout.CHANNELS_LAST)


def test_equal_tensors_are_equal_and_can_be_keys() -> None:
    assert {Tensor((2, 3), FLOAT), Tensor((2, 3), FLOAT), Tensor((3, 2), FLOAT)} == {
        Tensor((2, 3), FLOAT),
        Tensor((3, 2), FLOAT),
    }


# Addresses.


def test_the_address_is_that_of_the_first_element() -> None:
    array = np.zeros(10, np.float32)
    assert address(array[3:]) == address(array) + 12
    assert address(array) == array.ctypes.data


# Units and labels.


def test_units() -> None:
    assert [unit.value for unit in DurationUnit] == [1, 60, 3600]
    assert [unit.value for unit in TrainingUnit] == ["epochs", "tasks"]
    assert [phase.value for phase in Phase] == ["train", "check"]


def test_a_label_range_says_what_it_is() -> None:
    assert str(LabelRange((32,), True, 0, 9)) == "classes of shape (32,) in [0, 9]"
    assert str(LabelRange((32, 2), False, -1.5, 2.25)) == "values of shape (32, 2) in [-1.5, 2.25]"


# Errors.


def test_one_fault_is_the_message_itself() -> None:
    error = GraphError(["node 'conv1': too small"])
    assert str(error) == "node 'conv1': too small"
    assert error.faults == ("node 'conv1': too small",)


def test_several_faults_are_counted_and_listed() -> None:
    error = GraphError(["first", "second"])
    assert str(error) == "2 faults in the graph:\nfirst\nsecond"
    assert error.faults == ("first", "second")


def test_a_task_error_knows_task_and_operator() -> None:
    error = TaskError("task 7 failed", task=7, operator="conv1")
    assert (str(error), error.task, error.operator) == ("task 7 failed", 7, "conv1")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (ConfigurationError, ValueError),
        (GraphError, ValueError),
        (DataError, ValueError),
        (NonFiniteLossError, ArithmeticError),
        (NonFiniteError, ArithmeticError),
        (TaskError, RuntimeError),
    ],
)
def test_every_error_is_a_crossbow_error_and_a_usual_one(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, CrossbowError)
    assert issubclass(kind, builtin)
