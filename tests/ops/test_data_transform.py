"""What is done to images: hand-worked windows, what is random and what is not, and the same through real contexts."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crossbow import DataflowNode, Dataset, ExecutionContext, GraphError, Operator, SubGraph, TrainingUnit
from crossbow.conf import configuration
from crossbow.dataflow import Dataflow
from crossbow.kernels.random import image_words
from crossbow.ops import Conv, DataTransform, InnerProduct, Kernel, ReLU, SoftMax, SoftMaxLoss, Values
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, Phase, Shape
from tests.support import KERNELS, WHY_NOT_FAST, context, same_weights, training

Array = NDArray[Any]

fast = pytest.mark.skipif(WHY_NOT_FAST is not None, reason=f"no fast kernels: {WHY_NOT_FAST}")
devices = pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])


def transformed(kernel: DataTransform, x: Any, **options: Any) -> Array:
    return run_operator(kernel, [x], **options).outputs[0]


def numbered(count: int, height: int, width: int, channels: int = 1) -> Array:
    """Images whose pixels are their places: 1, 2, 3, … along the rows; the same in every image and channel."""
    places = np.arange(1.0, height * width + 1).reshape(height, width)
    return np.broadcast_to(places, (count, channels, height, width)).astype(np.float32)


def windows(count: int, size: int, crop: int, **options: Any) -> tuple[Array, Array, Array]:
    """The top, the left and whether it is mirrored, of a random window of each image, read from its pixels."""
    y = transformed(DataTransform(crop_size=crop, mirror=True), numbered(count, size, size), **options)[:, 0]
    first = y.reshape(count, -1).min(axis=1).astype(int) - 1
    mirrored = y[:, 0, 0] > y[:, 0, -1]
    plain = np.where(mirrored[:, None, None], y[:, :, ::-1], y)
    np.testing.assert_array_equal(plain, plain[:, :1, :1] + (np.arange(crop)[:, None] * size + np.arange(crop)))
    return first // size, first % size, mirrored


# Configurations and shapes.


def test_defaults() -> None:
    kernel = DataTransform()
    assert (kernel.crop_size, kernel.padding, kernel.mirror, kernel.mean, kernel.mean_image, kernel.scale) == (
        None, 0, False, None, None, 1.0,
    )  # fmt: skip
    assert kernel.gradient() is None
    assert not kernel.train_only
    assert DataTransform.reads_batch


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop_size": 0}, r"crop_size must be an integer ≥ 1 or a pair \(height, width\) of such"),
        ({"crop_size": (3, 0)}, "crop_size must be"),
        ({"crop_size": (1, 2, 3)}, "crop_size must be"),
        ({"padding": -1}, "padding must be an integer ≥ 0. Received: padding=-1"),
        ({"padding": (1, 2)}, "padding must be an integer ≥ 0"),
        ({"mirror": 1}, "mirror must be True or False"),
        ({"mean": "0.5"}, "mean must be a finite number, or one for each channel. Received: mean='0.5'"),
        ({"mean": ()}, "mean must be"),
        ({"mean": (0.5, float("nan"))}, "mean must be"),
        ({"scale": float("inf")}, "scale must be a finite number, or one for each channel"),
        ({"scale": None}, "scale must be"),
        ({"mean": 1e300}, "mean must be a number that float32 can represent.* Received: mean=1e\\+300"),
        ({"scale": (1, -1e39)}, "scale must be a number that float32 can represent, or one for each channel"),
        ({"mean": 10**400}, "mean must be a finite number, or one for each channel"),
        ({"mean": np.zeros((2, 2))}, r"mean must be .*Received: mean=an array of shape \(2, 2\), float64"),
        (
            {"mean_image": np.full((1, 1, 1), -1e300)},
            "mean_image must be of numbers that float32 can represent.*1e\\+300",
        ),
        ({"scale": 0}, "scale must be a number that is not 0, or one for each channel"),
        ({"scale": (1.0, 0.0)}, "scale must be a number that is not 0"),
        ({"mean": 0.5, "mean_image": np.zeros((1, 2, 2))}, "mean_image must be None if mean is given"),
        ({"mean_image": np.zeros((2, 2))}, r"mean_image must be an array of numbers \(C, H, W\).*float64 \(2, 2\)"),
        ({"mean_image": np.zeros((1, 2, 0))}, r"float64 \(1, 2, 0\)"),
        ({"mean_image": np.array([[["a"]]])}, "<U1"),
        ({"mean_image": 3}, "mean_image='int'"),
        ({"mean_image": np.full((1, 1, 1), np.inf)}, "finite"),
        ({"mean_image": "nowhere.npy"}, "or the name of an .npy file of one .*No such file"),
        ({"crop": 3}, "DataTransform has no 'crop'. Did you mean 'crop_size'?"),
    ],
)
def test_bad_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DataTransform(**values)


@pytest.mark.parametrize(("size", "expected"), [(3, (3, 3)), ((2, 5), (2, 5)), ([4, 1], (4, 1)), (np.int64(2), (2, 2))])
def test_a_size_is_one_number_or_two(size: Any, expected: tuple[int, int]) -> None:
    assert DataTransform(crop_size=size).crop_size == expected


@pytest.mark.parametrize("size", [0, (0, 1), (1,), (1, 2, 3), 1.5, "3", True, (1, True), -2])
def test_a_bad_size_is_refused(size: Any) -> None:
    expected = "DataTransform: crop_size must be an integer ≥ 1 or a pair (height, width) of such."
    with pytest.raises(ConfigurationError, match=f"^{re.escape(f'{expected} Received: crop_size={size!r}')}$"):
        DataTransform(crop_size=size)


def test_a_mean_image_from_a_file(tmp_path: Path) -> None:
    mean = np.random.default_rng(0).random((3, 4, 5), np.float32)
    np.save(tmp_path / "mean.npy", mean)
    for given_as in (mean, tmp_path / "mean.npy", str(tmp_path / "mean.npy"), Values(mean)):
        kernel = DataTransform(mean_image=given_as)
        assert kernel.mean_image == Values(mean)
        assert kernel == DataTransform(mean_image=mean)
        assert hash(kernel) == hash(DataTransform(mean_image=mean))
        assert kernel.mean_image.array.dtype == mean.dtype
    assert DataTransform(mean_image=np.full((1, 1, 2), 128, np.uint8)).mean_image == Values(np.full((1, 1, 2), 128.0))
    (tmp_path / "mean.npy").write_bytes(b"nothing")
    with pytest.raises(ConfigurationError, match=r"mean_image must be .* Received: mean_image='.*mean.npy'"):
        DataTransform(mean_image=tmp_path / "mean.npy")
    np.save(tmp_path / "objects.npy", np.array([[["a"]]], object), allow_pickle=True)
    with pytest.raises(ConfigurationError, match=r"objects\.npy"):
        DataTransform(mean_image=tmp_path / "objects.npy")


@pytest.mark.parametrize("damage", ["torn", "an archive", "a torn archive", "header", "too large"])
def test_a_damaged_mean_image(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "mean.npy"
    with path.open("wb") as file:
        (np.savez if "archive" in damage else np.save)(file, np.zeros((3, 4, 5)))
    content = path.read_bytes()
    changed = {
        "an archive": content,
        "header": content.replace(b"(3, 4, 5)", b"((((((, 5"),
        "too large": content.replace(b"(3, 4, 5), }       ", b"(3, 4, 999999999999)"),
    }
    path.write_bytes(changed.get(damage, content[: len(content) // 2]))
    with pytest.raises(ConfigurationError, match=r"mean_image must be .* Received: mean_image='") as caught:
        DataTransform(mean_image=path)
    assert "\n" not in str(caught.value)


def test_numbers_for_channels_may_be_an_array() -> None:
    assert DataTransform(mean=np.array([1, 2]), scale=[0.5, 2]) == DataTransform(mean=(1.0, 2.0), scale=(0.5, 2.0))


@pytest.mark.parametrize(
    ("values", "shape", "expected"),
    [
        ({}, (2, 3, 5, 6), (2, 3, 5, 6)),
        ({"padding": 4}, (2, 3, 5, 6), (2, 3, 5, 6)),
        ({"crop_size": 3}, (2, 3, 5, 6), (2, 3, 3, 3)),
        ({"crop_size": (7, 2), "padding": 1}, (2, 3, 5, 6), (2, 3, 7, 2)),
    ],
)
def test_output_shape(values: dict[str, Any], shape: Shape, expected: Shape) -> None:
    assert DataTransform(**values).output_shape(shape) == expected


@pytest.mark.parametrize(
    ("values", "shape", "message"),
    [
        ({}, (2, 3), r"expected images \(N, C, H, W\). Received: \(2, 3\)"),
        ({"crop_size": 6}, (2, 3, 5, 6), "expected images of at least 6×6, .* with 0 of padding on each side"),
        ({"crop_size": (7, 9), "padding": 1}, (2, 3, 5, 6), r"at least 7×9, .* with 1 of .* Received: \(2, 3, 5, 6\)"),
        ({"mean": (1, 2)}, (2, 3, 5, 6), r"expected images with 2 channels, for mean=\(1.0, 2.0\)"),
        ({"scale": (1, 2)}, (2, 3, 5, 6), "expected images with 2 channels, for scale="),
        (
            {"mean_image": np.zeros((3, 5, 5))},
            (2, 3, 5, 6),
            r"expected images of the shape of the mean image, \(3, 5, 5\). Received: \(3, 5, 6\)",
        ),
    ],
)
def test_shapes_that_do_not_fit(values: dict[str, Any], shape: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataTransform(**values).output_shape(shape)


def test_it_has_no_gradient() -> None:
    with pytest.raises(ConfigurationError, match="expected one with a gradient"):
        check_gradients(DataTransform(), [(2, 3, 4, 4)])


# Values, worked out by hand.


@pytest.mark.slow
@devices
def test_the_window_in_the_middle(device: str) -> None:
    def middle(x: Array, **values: Any) -> list[Any]:
        return transformed(DataTransform(mirror=True, **values), x, phase=Phase.CHECK, device=device)[0, 0].tolist()

    assert middle(numbered(1, 3, 3), crop_size=1) == [[5]]
    assert middle(numbered(1, 4, 3), crop_size=(2, 3)) == [[4, 5, 6], [7, 8, 9]]
    assert middle(numbered(1, 4, 4), crop_size=1) == [[6]]  # of two middles the first
    assert middle(numbered(1, 2, 2), padding=3) == [[1, 2], [3, 4]]  # the image itself
    assert middle(numbered(1, 1, 2), crop_size=(3, 4), padding=1) == [[0, 0, 0, 0], [0, 1, 2, 0], [0, 0, 0, 0]]
    assert middle(numbered(1, 1, 2), crop_size=(2, 3), padding=1) == [[0, 0, 0], [0, 1, 2]]


@devices
def test_every_channel_has_its_own_mean_and_scale(device: str) -> None:
    x = np.array([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
    kernel = DataTransform(mean=(0.5, 1.0, 5.0), scale=(2.0, 10.0, -1.0))
    for phase in Phase:
        assert transformed(kernel, x, phase=phase, device=device).ravel().tolist() == [1.0, 10.0, 2.0]


@devices
def test_padding_is_of_pixels_that_are_zero(device: str) -> None:
    """They are (0 − mean) · scale afterwards."""
    x = np.full((1, 2, 1, 1), 7.0)
    kernel = DataTransform(crop_size=3, padding=1, mean=(1.0, 2.0), scale=(3.0, 5.0))
    y = transformed(kernel, x, device=device)
    assert y[0, 0].tolist() == [[-3, -3, -3], [-3, 18, -3], [-3, -3, -3]]
    assert y[0, 1].tolist() == [[-10, -10, -10], [-10, 25, -10], [-10, -10, -10]]


@devices
def test_the_mean_image_is_subtracted_before_the_window_is_cut_out(device: str) -> None:
    x = numbered(20, 4, 5)
    kernel = DataTransform(crop_size=2, mirror=True, mean_image=x[0], scale=3.0)
    np.testing.assert_array_equal(transformed(kernel, x, device=device), 0)
    # The mean of padding is the average of the mean image.
    kernel = DataTransform(crop_size=(6, 7), padding=1, mean_image=x[0], scale=2.0)
    y = transformed(kernel, x, device=device, phase=Phase.CHECK)
    np.testing.assert_array_equal(y[:, :, 1:-1, 1:-1], 0)
    assert set(y[:, :, [0, -1]].ravel()) == set(y[:, :, :, [0, -1]].ravel()) == {-21.0}


@devices
def test_an_even_mean_image_is_a_mean(device: str) -> None:
    x = np.random.default_rng(0).random((9, 3, 6, 5)).astype(np.float32)
    mean = np.array([0.5, 0.25, 0.75])
    image = np.broadcast_to(mean[:, None, None], (3, 6, 5)).copy()
    for values in ({"padding": 2, "mirror": True}, {"crop_size": 3}):
        first = transformed(DataTransform(mean=mean, **values), x, device=device)  # type: ignore[arg-type]
        np.testing.assert_array_equal(
            first, transformed(DataTransform(mean_image=image, **values), x, device=device)  # type: ignore[arg-type]
        )  # fmt: skip


@devices
def test_a_window_is_what_the_words_say(device: str) -> None:
    positions = np.array([[0, 0], [0, 1], [5, 0], [5, 123456], [2**20, 2**33 + 1]])
    words = image_words(positions, seed=2**40 + 3, key=0).tolist()
    options: dict[str, Any] = {"positions": positions, "seed": 2**40 + 3, "device": device}
    tops, lefts, mirrored = windows(5, 9, 4, **options)
    assert tops.tolist() == [word[0] * 6 // 2**32 for word in words]
    assert lefts.tolist() == [word[1] * 6 // 2**32 for word in words]
    assert mirrored.tolist() == [word[2] >= 2**31 for word in words]
    assert len(set(map(tuple, words))) == 5


# What is random.


@devices
def test_every_window_and_its_mirror_are_equally_likely(device: str) -> None:
    count, places = 10_000, 5
    tops, lefts, mirrored = windows(count, places + 2, 3, device=device, seed=3)
    cells = np.bincount((tops * places + lefts) * 2 + mirrored, minlength=2 * places**2)
    expected = count / len(cells)
    assert len(cells) == 50
    freedom = len(cells) - 1
    assert ((cells - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


@devices
def test_images_are_mirrored_one_by_one_and_only_if_told(device: str) -> None:
    x = numbered(64, 1, 3)
    y = transformed(DataTransform(mirror=True), x, device=device)[:, 0, 0]
    assert {tuple(row) for row in y.tolist()} == {(1, 2, 3), (3, 2, 1)}
    np.testing.assert_array_equal(transformed(DataTransform(mirror=True), x, phase=Phase.CHECK, device=device), x)
    np.testing.assert_array_equal(transformed(DataTransform(), x, device=device), x)


def test_seed_epoch_and_index_matter_and_nothing_else() -> None:
    def drawn(seed: int = 0, epoch: int = 0, first: int = 0, task: int = 0) -> list[tuple[int, int, bool]]:
        positions = np.stack([np.full(40, epoch), first + np.arange(40)], axis=1)
        found = windows(40, 9, 2, seed=seed, positions=positions, task=task)
        return list(zip(*(part.tolist() for part in found), strict=True))

    base = drawn()
    assert drawn(task=5) == base
    assert drawn(first=10)[:30] == base[10:]
    for other in (drawn(seed=1), drawn(seed=2**32), drawn(epoch=1), drawn(first=40), drawn(first=2**32)):
        assert sum(one == two for one, two in zip(base, other, strict=True)) < 5


@fast
@given(
    st.tuples(*[st.integers(1, 7)] * 4),
    st.integers(0, 4),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.booleans(),
    st.sampled_from(["none", "one", "each", "image"]),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=60, deadline=None)
def test_both_libraries_do_the_same_bit_for_bit(
    shape: tuple[int, int, int, int], padding: int, part: tuple[float, float], mirror: bool, mean: str, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    _, channels, height, width = shape
    crop = tuple(max(1, round(f * (s + 2 * padding))) for f, s in zip(part, (height, width), strict=True))
    values: dict[str, Any] = {
        "crop_size": crop,
        "padding": padding,
        "mirror": mirror,
        "scale": generator.normal(size=channels),
    }
    if mean == "image":
        values["mean_image"] = generator.normal(size=shape[1:])
    elif mean != "none":
        values["mean"] = generator.normal() if mean == "one" else generator.normal(size=channels)
    kernel, x = DataTransform(**values), generator.random(shape).astype(np.float32)
    for phase in Phase:
        both = [transformed(kernel, x, phase=phase, seed=seed, device=device) for device in ("reference", "cpu")]
        np.testing.assert_array_equal(*both)


@devices
def test_positions_of_another_shape_are_refused(device: str) -> None:
    with pytest.raises(ConfigurationError, match=r"positions: expected shape \(3, 2\). Received: \(2, 2\)"):
        transformed(DataTransform(padding=1), np.zeros((3, 1, 2, 2)), positions=np.zeros((2, 2)), device=device)


# In a graph.


def test_nothing_may_stand_before_it() -> None:
    data = Dataset((np.zeros((8, 1, 4, 4), np.uint8), np.arange(8) % 3))
    flow = training(ReLU(), DataTransform(), InnerProduct(number_of_outputs=3))
    with pytest.raises(GraphError) as caught:
        context(flow, data=data)
    assert str(caught.value) == (
        "node 'DataTransform1' (DataTransform): expected the batch as input: it is the first operator of a graph. "
        "Received: 'ReLU0' (ReLU)"
    )


def test_images_that_are_too_small_are_a_fault_of_the_node() -> None:
    data = Dataset((np.zeros((8, 1, 4, 4), np.uint8), np.arange(8) % 3))
    with pytest.raises(GraphError, match=r"node 'DataTransform0' .*: expected images of at least 5×5"):
        context(training(DataTransform(crop_size=5), InnerProduct(number_of_outputs=3)), data=data)


@fast
def test_it_costs_nothing_where_it_does_nothing() -> None:
    images, labels = np.zeros((8, 1, 4, 4), np.uint8), np.arange(8) % 3
    data = Dataset((images, labels), (images, labels))
    kernel = DataTransform(padding=1, mirror=True)
    with context(training(kernel, InnerProduct(number_of_outputs=3)), data=data, kernels="onednn") as made:
        steps = {step.operator: step for step in made.engine.parts.program.steps}
        assert steps["DataTransform0"].kernel.name == "data_transform numba"
        check = made.engine.parts.check_program
        assert check is not None
        assert {step.operator: step.elided for step in check.steps}["DataTransform0"]


# In a context: which windows are seen does not depend on who sees them.


@configuration
class Recorder(Kernel):
    """The identity, which keeps a copy of every batch that it sees."""

    batches: list[Array] = dataclasses.field(compare=False)

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        self.batches.append(inputs[0].copy())
        return inputs[0]


IMAGES = np.random.default_rng(1).integers(0, 256, (24, 3, 6, 6)).astype(np.uint8)
IMAGE_DATA = Dataset((IMAGES, np.arange(24) % 3), (IMAGES[:5], np.arange(5) % 3))
TRANSFORM = DataTransform(padding=2, mirror=True, mean=(0.5, 0.25, 0.125), scale=(2.0, 3.0, 4.0))


def network(*middle: Kernel) -> Dataflow:
    nodes = [
        DataflowNode(Operator(type(kernel).__name__, kernel))
        for kernel in (TRANSFORM, *middle, Conv(number_of_outputs=4, kernel_size=3), InnerProduct(number_of_outputs=3))
    ]
    node = nodes[0]
    for following in (
        *nodes[1:],
        DataflowNode(Operator("softmax", SoftMax())),
        DataflowNode(Operator("l", SoftMaxLoss())),
    ):
        node = node.connect_to(following)
    return Dataflow(SubGraph(nodes[0])).set_phase(Phase.TRAIN)


def seen(tasks: int, **options: Any) -> Counter[bytes]:
    """The transformed images of so many training tasks."""
    recorder = Recorder(batches=[])
    with context(network(recorder), data=IMAGE_DATA, **options) as running:
        running.train(tasks, TrainingUnit.TASKS)
    return Counter(np.ascontiguousarray(image).tobytes() for batch in recorder.batches for image in batch)


def expected(epoch: int, seed: int = 0) -> Counter[bytes]:
    """The transformed images of an epoch, from the operator itself."""
    positions = np.stack([np.full(24, epoch), np.arange(24)], axis=1)
    images = IMAGES.astype(np.float32) * np.float32(1 / 255)
    return Counter(image.tobytes() for image in transformed(TRANSFORM, images, positions=positions, seed=seed))


@KERNELS
@pytest.mark.parametrize(("batch", "learners"), [(4, 1), (8, 1), (4, 2), (3, 4), (12, 2)])
def test_an_epoch_s_windows_do_not_depend_on_batch_size_and_learners(kernels: str, batch: int, learners: int) -> None:
    two = seen(2 * 24 // batch, batch_size=batch, learners=learners, kernels=kernels, seed=3)
    assert two == expected(0, seed=3) + expected(1, seed=3)
    # An image has the same of its 50 windows in both by chance only.
    assert (expected(0, seed=3) & expected(1, seed=3)).total() < 6


@KERNELS
def test_a_batch_may_hold_the_end_of_an_epoch_and_the_beginning_of_the_next(kernels: str) -> None:
    drawn = seen(10, batch_size=5, learners=2, kernels=kernels)
    assert drawn.total() == 50
    assert not (expected(0) + expected(1)) - drawn
    rest = drawn - (expected(0) + expected(1))
    assert rest.total() == 2
    assert not rest - expected(2)


@pytest.mark.slow
@KERNELS
@pytest.mark.parametrize("learners", [1, 3])
def test_the_same_seed_gives_the_same_weights(kernels: str, learners: int) -> None:
    def trained(seed: int) -> dict[str, Array]:
        with context(network(), data=IMAGE_DATA, learners=learners, kernels=kernels, seed=seed) as running:
            running.train(9, TrainingUnit.TASKS)
            return running.variables

    assert same_weights(trained(5), trained(5))
    assert not same_weights(trained(5), trained(6))


@fast
def test_both_libraries_train_alike() -> None:
    def trained(kernels: str) -> dict[str, Array]:
        with context(network(), data=IMAGE_DATA, kernels=kernels) as running:
            running.train(8, TrainingUnit.TASKS)
            return running.variables

    first, second = trained("reference"), trained("onednn")
    for name, value in first.items():
        np.testing.assert_allclose(second[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@KERNELS
def test_testing_and_predicting_take_the_image_itself(kernels: str) -> None:
    recorder = Recorder(batches=[])
    with context(network(recorder), data=IMAGE_DATA, kernels=kernels) as running:
        running.train(4, TrainingUnit.TASKS)
        recorder.batches.clear()
        assert isinstance(running, ExecutionContext)
        running.test()
        running.predict(IMAGES[:5])
    mean, scale = (np.array(v, np.float32).reshape(3, 1, 1) for v in (TRANSFORM.mean, TRANSFORM.scale))
    image = (IMAGES[:5].astype(np.float32) * np.float32(1 / 255) - mean) * scale
    tested, *predicted = recorder.batches
    np.testing.assert_array_equal(tested[:5], image)
    np.testing.assert_array_equal(np.concatenate(predicted), image)
