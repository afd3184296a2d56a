"""What a data set takes, what it makes of it, and what it says about bad arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.data import Dataset
from crossbow.data.dataset import check_data_fits, checked_like
from crossbow.types import DataError, Phase

RANDOM = np.random.default_rng(0)


def images(count: int = 6, *shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return RANDOM.integers(0, 256, (count, *(shape or (1, 8, 8)))).astype(dtype)


def labels(count: int = 6) -> np.ndarray:
    return np.arange(count) % 3


def test_pixels_stay_bytes_and_labels_become_int32() -> None:
    data = Dataset((images(), labels()), (images(4), labels(4)))
    assert data.train.images.dtype == np.uint8
    assert data.train.labels.dtype == np.int32
    assert data.scale == 1 / 255
    assert data.number_of_classes == 3
    assert data.image_shape == (1, 8, 8)
    assert data.label_shape == ()
    assert len(data.train) == 6
    assert data.check is not None
    assert len(data.check) == 4
    assert data.examples(Phase.TRAIN) is data.train
    assert data.examples(Phase.CHECK) is data.check
    assert "6 training and 4 check examples" in repr(data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_are_kept_as_they_are(dtype: Any) -> None:
    x = RANDOM.normal(size=(6, 5)).astype(dtype)
    data = Dataset((x, labels()))
    assert np.shares_memory(data.train.images, x)
    assert data.train.images.dtype == dtype
    assert data.scale == 1.0
    assert data.image_shape == (5,)


def test_half_precision_becomes_float32_and_foreign_byte_order_native() -> None:
    assert Dataset((np.ones((6, 5), np.float16), labels())).train.images.dtype == np.float32
    data = Dataset((np.ones((6, 5), ">f8"), labels().astype(">i8")))
    assert data.train.images.dtype == np.dtype("=f8")
    assert data.train.images[0, 0] == 1
    assert data.train.labels.tolist() == labels().tolist()


@pytest.mark.parametrize("shape", [(1, 8, 8), (64,)])
def test_good_arrays_are_not_copied(shape: tuple[int, ...]) -> None:
    x, y = images(6, *shape), labels().astype(np.int32)
    data = Dataset((x, y))
    assert np.shares_memory(data.train.images, x)
    assert np.shares_memory(data.train.labels, y)


def test_strided_arrays_are_made_contiguous() -> None:
    x = images(6, 8, 8, 3).transpose(0, 3, 1, 2)
    data = Dataset((x, labels()[::-1]))
    assert data.train.images.flags.c_contiguous
    assert data.train.labels.flags.c_contiguous
    np.testing.assert_array_equal(data.train.images, x)


@pytest.mark.parametrize("shape", [(3, 20), (7, 8, 9), (2, 5, 6, 7), (1, 2, 3, 4, 5)])
def test_floating_point_examples_may_have_any_shape(shape: tuple[int, ...]) -> None:
    x = RANDOM.normal(size=(6, *shape)).astype(np.float32)
    data = Dataset((x, labels()))
    assert data.image_shape == shape
    assert np.shares_memory(data.train.images, x)


@pytest.mark.parametrize("x", [images(6, 8, 8), images(6, 3, 8), images(6, 8, 8, dtype=np.float32)])
def test_what_may_be_gray_images_is_a_sequence_only_if_it_is_said(x: np.ndarray) -> None:
    message = (
        r"x_train: .*grayscale images, so add the channel, x_train\[:, None\], or pass sequences=True\. Received: "
    )
    with pytest.raises(DataError, match=message):
        Dataset((x, labels()))
    assert Dataset((x, labels()), sequences=True).image_shape == x.shape[1:]
    assert Dataset((x[:, None], labels())).image_shape == (1, *x.shape[1:])


@pytest.mark.parametrize(
    ("largest", "dtype"),
    [(2**24, np.float32), (2**24 + 1, np.float64), (-(2**24) - 1, np.float64), (2**53, np.float64)],
)
@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 4, 5)])
def test_integers_become_numbers_of_the_same_value(shape: tuple[int, ...], largest: int, dtype: Any) -> None:
    x = RANDOM.integers(-100, 100, (6, *shape))
    x[3].flat[1] = largest
    data = Dataset((x, labels()))
    assert data.train.images.dtype == dtype
    assert data.scale == 1
    np.testing.assert_array_equal(data.train.images, x)
    with pytest.raises(DataError, match=r"x_train: expected integers up to 2\*\*53\. Received: 9007199254740993"):
        Dataset((np.where(x == largest, 2**53 + 1, x), labels()))


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_floating_point_labels_are_targets(shape: tuple[int, ...]) -> None:
    y = RANDOM.normal(size=(6, *shape)).astype(np.float32)
    data = Dataset((images(), y), (images(), y))
    assert data.number_of_classes is None
    assert data.label_shape == shape
    assert np.shares_memory(data.train.labels, y)


@pytest.mark.parametrize("shape", [(2,), (4,), (8, 8), (2, 3, 4)])
def test_integer_labels_of_any_shape_are_classes(shape: tuple[int, ...]) -> None:
    y = RANDOM.integers(0, 4, (6, *shape))
    y[0].flat[0] = 3
    y[1].flat[0] = -1
    data = Dataset((images(), y), (images(), y), ignored_label=-1)
    assert data.number_of_classes == 4
    assert data.label_shape == shape
    assert data.train.labels.dtype == np.int32
    np.testing.assert_array_equal(data.train.labels, y)


@pytest.mark.parametrize("other", [[0, 0, 0], [1, 1, 0], [0, 2, 0]])
def test_rows_of_zeros_and_ones_are_maps_unless_each_has_a_single_one(other: list[int]) -> None:
    y = np.eye(3, dtype=np.int64)[[0, 1, 2, 0, 1, 2]]
    y[4] = other
    assert Dataset((images(), y)).label_shape == (3,)


def test_one_column_and_ignored_labels_are_not_one_hot() -> None:
    assert Dataset((images(), np.ones((6, 1), int))).label_shape == (1,)
    y = np.eye(3, dtype=int)[[0, 1, 2, 0, 1, 2]]
    y[4] *= -1
    assert Dataset((images(), y), ignored_label=-1).number_of_classes == 2


def test_whole_floating_point_labels_are_targets_too() -> None:
    assert Dataset((images(), labels().astype(np.float64))).number_of_classes is None


def test_the_number_of_classes_comes_from_both_phases_unless_given() -> None:
    assert Dataset((images(), labels()), (images(1), np.array([7]))).number_of_classes == 8
    assert Dataset((images(), labels()), number_of_classes=10).number_of_classes == 10
    assert Dataset((images(), np.zeros_like(labels()))).number_of_classes == 1


@pytest.mark.parametrize("ignored", [-1, 255])
@pytest.mark.parametrize("dtype", [np.int64, np.int16])
def test_an_ignored_label_is_no_class(ignored: int, dtype: Any) -> None:
    y = np.array([0, 1, ignored, 2, ignored, 0], dtype)
    data = Dataset((images(), y), ignored_label=ignored)
    assert data.number_of_classes == 3
    assert data.train.labels.tolist() == y.tolist()


@pytest.mark.parametrize("ignored", [-(2**31), 2**31 - 1])
def test_an_ignored_label_is_any_that_int32_holds(ignored: int) -> None:
    assert Dataset((images(), labels()), ignored_label=ignored).number_of_classes is not None


def test_the_bounds_of_numbers_of_classes() -> None:
    for number in (3, 2**31 - 1):
        assert Dataset((images(), labels()), number_of_classes=number).number_of_classes == number
    assert Dataset((images(), np.zeros(6, int)), number_of_classes=1).number_of_classes == 1


def test_lists_and_booleans_are_understood() -> None:
    data = Dataset(([[0.5, 1.0], [0.0, 2.0]], [True, False]))  # type: ignore[arg-type]
    assert data.image_shape == (2,)
    assert data.train.labels.tolist() == [1, 0]
    assert data.number_of_classes == 2


def spoiled(*values: float) -> np.ndarray:
    x = np.zeros((6, 5), np.float32)
    x[3, 2 : 2 + len(values)] = values
    return x


GOOD = (images(), labels())
BAD: dict[str, tuple[Any, Any, dict[str, Any], list[str]]] = {
    # case: train, check, options, what the message says
    "not a pair": (images(), None, {}, ["train", "pair (x_train, y_train)", "ndarray"]),
    "a number": (3, None, {}, ["train", "pair (x_train, y_train)", "Received: int"]),
    "three arrays": ((*GOOD, labels()), None, {}, ["train", "tuple of 3"]),
    "check not a pair": (GOOD, (images(),), {}, ["check", "(x_check, y_check)", "tuple of 1"]),
    "masked": (
        (np.ma.masked_equal(np.arange(30.0).reshape(6, 5), 7), labels()),
        None,
        {},
        ["x_train: expected an array without masked values", ".filled(value)", "1 masked of 30"],
    ),
    "masked labels": ((images(), np.ma.masked_equal(labels(), 2)), None, {}, ["y_train", "Received: 2 masked of 6"]),
    "different lengths": ((images(6), labels(5)), None, {}, ["y_train", "6 labels", "Received: 5"]),
    "different lengths in check": (GOOD, (images(4), labels(6)), {}, ["y_check", "4 labels", "Received: 6"]),
    "no examples": ((images(0), labels(0)), None, {}, ["x_train", "at least one", "(0, 1, 8, 8)"]),
    "empty examples": ((images(6, 1, 0, 8), labels()), None, {}, ["x_train", "(6, 1, 0, 8)"]),
    "scalar": ((np.float32(3), labels()), None, {}, ["x_train", "scalar"]),
    "one dimension": ((images()[:, 0, 0, 0], labels()), None, {}, ["x_train", "(N, C, H, W)", "(6,)"]),
    "ambiguous grayscale images": ((images(6, 3, 8), labels()), None, {}, ["x_train[:, None]", "(6, 3, 8)"]),
    "channels last": ((images(6, 8, 8, 3), labels()), None, {}, ["x_train.transpose(0, 3, 1, 2)", "(6, 8, 8, 3)"]),
    "objects": ((np.array([object()] * 6), labels()), None, {}, ["x_train", "numbers", "object"]),
    "ragged": (([[1.0], [1.0, 2.0]], [0, 1]), None, {}, ["x_train", "NumPy array", "list"]),
    "strings": ((images(), np.array(list("abcdef"))), None, {}, ["y_train", "numbers", "<U1"]),
    "complex": ((np.ones((6, 5), complex), labels()), None, {}, ["x_train", "complex128"]),
    "wide integers": ((images(dtype=np.int64), labels()), None, {}, ["x_train", "uint8", ".astype()", "int64"]),
    "NaN": ((spoiled(np.nan), labels()), None, {}, ["x_train", "finite", "nan in example 3"]),
    "infinity": ((spoiled(np.inf), labels()), None, {}, ["x_train", "finite", "inf in example 3"]),
    "several": ((spoiled(-np.inf, np.nan), labels()), None, {}, ["x_train", "-inf in example 3"]),  # the first
    "minus infinity": ((spoiled(-np.inf), labels()), None, {}, ["x_train", "-inf in example 3"]),
    "NaN target": ((images(), spoiled(np.nan)), None, {}, ["y_train", "nan in example 3"]),
    "one-hot labels": ((images(), np.eye(6, dtype=int)), None, {}, ["y_train", "argmax", "(6, 6)"]),
    "two one-hot columns": ((images(), np.eye(2, dtype=int)[[0, 1] * 3]), None, {}, ["y_train", "argmax", "(6, 2)"]),
    "one-hot booleans": ((images(), np.eye(6, dtype=bool)), None, {}, ["y_train", "argmax", "(6, 6)"]),
    "negative label in a map": (
        (images(), np.array([[[0, 1], [2, 3 - 5 * (n == 4)]] for n in range(6)])),
        None,
        {},
        ["y_train", "0 ≤ label", "-2 (example 4)"],
    ),
    "other map shape": (
        (images(), np.zeros((6, 2), int)),
        (images(), np.zeros((6, 3), int)),
        {},
        ["y_check", "(2,)", "(3,)"],
    ),
    "negative label": (
        (images(), labels() - 1),
        None,
        {},
        ["y_train", "label. Received: -1 (example 0). For labels to ignore: Dataset(…, ignored_label=-1)"],
    ),
    "negative, another ignored": (
        (images(), labels() - 2),
        None,
        {"ignored_label": -1},
        ["y_train", "or ignored_label=-1", "-2 (example 0)"],
    ),
    "label too large for any number": (
        (images(), labels() + (2**31 - 3)),
        None,
        {},
        ["y_train", "expected 0 ≤ label < 2147483647. Received: 2147483647 (example 2)"],
    ),
    "label too large": (GOOD, None, {"number_of_classes": 2}, ["y_train", "0 ≤ label < 2", "2 (example 2)"]),
    "label too large in check": (
        GOOD,
        (images(), labels() + 8),
        {"number_of_classes": 10},
        ["y_check", "< 10", "10 (example 2)"],
    ),
    "label beyond int32": ((images(), labels() + 2**31), None, {}, ["y_train", "2147483650"]),
    "huge unsigned label": ((images(), np.full(6, 2**64 - 1, np.uint64)), None, {}, ["y_train", str(2**64 - 1)]),
    "all labels ignored": ((images(), np.full(6, -1)), None, {"ignored_label": -1}, ["y_train", "other than", "none"]),
    "classes of targets": ((images(), np.zeros(6)), None, {"number_of_classes": 3}, ["y_train", "float64"]),
    "number of classes": (GOOD, None, {"number_of_classes": 0}, ["number_of_classes", "Received: 0"]),
    "classes as float": (GOOD, None, {"number_of_classes": 3.0}, ["number_of_classes", "Received: 3.0"]),
    "too many classes": (GOOD, None, {"number_of_classes": 2**31}, ["number_of_classes", "from 1 to 2147483647"]),
    "ignored label": (GOOD, None, {"ignored_label": "none"}, ["ignored_label", "'none'"]),
    "large ignored label": (GOOD, None, {"ignored_label": 2**31}, ["ignored_label", "to 2147483647"]),
    "small ignored label": (GOOD, None, {"ignored_label": -(2**31) - 1}, ["ignored_label", "from -2147483648"]),
    "long doubles": ((np.ones((6, 5), np.longdouble), labels()), None, {}, ["x_train", "numbers", "float128"]),
    "other image shape": (GOOD, (images(6, 1, 8, 9), labels()), {}, ["x_check", "(1, 8, 8)", "(1, 8, 9)"]),
    "other image type": (GOOD, (images(dtype=np.float32), labels()), {}, ["x_check", "uint8", "float32"]),
    "other label kind": (GOOD, (images(), np.zeros(6)), {}, ["y_check", "float64"]),
    "other target shape": (
        (images(), np.zeros((6, 2))),
        (images(), np.zeros((6, 3))),
        {},
        ["y_check", "(2,)", "(3,)"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_refused_with_name_expected_and_received(case: str) -> None:
    train, check, options, says = BAD[case]
    with pytest.raises(DataError) as caught:
        Dataset(train, check, **options)
    message = str(caught.value)
    for words in ["expected", "Received", *says]:
        assert words in message, message


def test_a_masked_array_without_masked_values_is_an_array() -> None:
    assert Dataset((np.ma.asarray(np.ones((6, 5))), labels())).image_shape == (5,)


@pytest.mark.parametrize("where", ["x_train", "y_train", "x_check", "y_check"])
@pytest.mark.parametrize("number", [1e300, -1e39])
def test_numbers_that_the_computation_cannot_hold(where: str, number: float) -> None:
    arrays = {name: np.ones((6, 2)) for name in ("x_train", "y_train", "x_check", "y_check")}
    arrays[where][4, 1] = number
    data = Dataset((arrays["x_train"], arrays["y_train"]), (arrays["x_check"], arrays["y_check"]))
    check_data_fits(data, FLOAT64)
    with pytest.raises(DataError) as caught:
        check_data_fits(data, FLOAT32)
    assert str(caught.value) == f"{where}: expected numbers that float32 can hold. Received: {abs(number):g}"


def test_largest_numbers_that_float32_holds() -> None:
    most = float(np.finfo(np.float32).max)
    check_data_fits(Dataset((np.array([[most, -most]]), np.array([0]))), FLOAT32)


@pytest.mark.parametrize("names", [["a", "b", "c"], ("a", "b", "c"), np.array(["a", "b", "c"])])
def test_names_of_classes_are_a_tuple(names: Any) -> None:
    data = Dataset(GOOD, GOOD)
    assert data.class_names is None
    data.class_names = names
    assert data.class_names == ("a", "b", "c")
    assert all(type(name) is str for name in data.class_names)
    assert data.split(0.5).class_names == data.shard(fraction=(0, 0.5)).class_names == ("a", "b", "c")
    data.class_names = None
    assert data.class_names is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b"], "expected 3 names, one for each class. Received: 2"),
        (["a", "b", "c", "d"], "expected 3 names, one for each class. Received: 4"),
        ([], "expected 3 names, one for each class. Received: 0"),
        ("abc", "expected a sequence of str, one for each class. Received: 'abc'"),
        (b"abc", "expected a sequence of str, one for each class. Received: b'abc'"),
        (["a", "b", 3], "expected a sequence of str, one for each class. Received: ['a', 'b', 3]"),
        ({"a"}, "expected a sequence of str, one for each class. Received: {'a'}"),
        (3, "expected a sequence of str, one for each class. Received: 3"),
    ],
)
def test_what_are_no_names_of_the_classes(names: Any, message: str) -> None:
    data = Dataset(GOOD)
    data.class_names = "x", "y", "z"
    with pytest.raises(DataError) as caught:
        data.class_names = names
    assert str(caught.value) == f"class_names: {message}"
    assert data.class_names == ("x", "y", "z")


def test_targets_have_no_names() -> None:
    data = Dataset((images(), np.zeros(6)))
    data.class_names = None
    with pytest.raises(
        DataError, match=r"^class_names: expected None, because the labels are targets\. Received: \['a'\]"
    ):
        data.class_names = ["a"]


def test_sequences_of_one_number() -> None:
    assert Dataset((np.ones((6, 1, 1)), labels())).image_shape == (1, 1)


FLOAT32, FLOAT64, UINT8 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint8)


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize(
    ("shape", "given", "dtype", "expected"),
    [
        ((2, 3, 3), UINT8, UINT8, UINT8),
        ((2, 3, 3), FLOAT64, FLOAT32, FLOAT64),
        ((5,), FLOAT32, FLOAT32, FLOAT32),
        ((5,), np.int64, FLOAT32, FLOAT32),
        ((2, 5), bool, FLOAT64, None),
    ],
)
def test_images_for_a_prediction(
    number: int, shape: tuple[int, ...], given: Any, dtype: np.dtype[Any], expected: Any
) -> None:
    value = np.ones((number, *shape), given)
    found = checked_like(value, shape, dtype, FLOAT32)
    assert found.shape == value.shape
    assert found.dtype.kind == dtype.kind
    assert expected is None or found.dtype == expected
    np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(
    ("value", "shape", "dtype", "received"),
    [
        (3.0, (5,), FLOAT32, r"shape \(N, 5\)\. Received: \(\)"),
        (np.ones((2, 4)), (5,), FLOAT32, r"shape \(N, 5\)\. Received: \(2, 4\)"),
        ([[1.0], [1.0, 2.0]], (1,), FLOAT32, "an array of images"),
        (np.ones((2, 5), int), (5,), UINT8, "of type uint8. Received: int64"),
        (np.ones((2, 5), np.uint8), (5,), FLOAT32, "of type float32. Received: uint8"),
        (np.ones((2, 1, 2, 2), int), (1, 2, 2), FLOAT32, "of type float32. Received: int64"),
        (np.ones((2, 5)), (5,), UINT8, "of type uint8. Received: float64"),
        (np.array([[1.0, np.inf]]), (2,), FLOAT32, "finite numbers"),
        (np.ma.masked_less([[1.0, -9.0]], 0), (2,), FLOAT32, "without masked values; .*Received: 1 masked of 2$"),
        (np.array([[1.0, -1e39]]), (2,), FLOAT64, r"that float32 can hold. Received: 1e\+39"),
    ],
)
def test_images_that_cannot_be_predicted(value: Any, shape: tuple[int, ...], dtype: Any, received: str) -> None:
    with pytest.raises(DataError, match=f"^predict: expected .*{received}"):
        checked_like(value, shape, dtype, FLOAT32)
    if "hold" in received:
        assert checked_like(value, shape, dtype, FLOAT64) is value


def test_check_examples_that_are_not_there() -> None:
    with pytest.raises(DataError, match="expected check examples"):
        Dataset(GOOD).examples(Phase.CHECK)
