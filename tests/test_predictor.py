"""Prediction with a network as it is."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import (
    ConfigurationError,
    CrossbowError,
    DataError,
    Dataset,
    GraphError,
    Predictor,
    SubGraph,
    SystemConf,
    TaskError,
)
from crossbow.conf import configuration
from crossbow.ops import (
    LRN,
    BatchNorm,
    Conv,
    DataTransform,
    Dropout,
    InnerProduct,
    Kernel,
    Pool,
    ReLU,
    SoftMax,
    SoftMaxLoss,
    Values,
)
from crossbow.runtime.device import available_cores
from crossbow.runtime.prediction import PARTS, divide
from tests.data.picture_files import picture, write_folder
from tests.kernels.cuda.fake import fake_cuda
from tests.onnx.models import draw, run_crossbow
from tests.support import KERNELS, SECONDS, blobs, chain, context, perceptron, pictures, training


def network(*more: Any) -> SubGraph:
    convolution = Conv(number_of_outputs=4, kernel_size=3, weight_initialiser=Values(draw(4, 2, 3, 3)))
    normalisation = BatchNorm(mean_initialiser=Values(draw(4)), variance_initialiser=Values(np.abs(draw(4)) + 0.5))
    weights = InnerProduct(number_of_outputs=3, weight_initialiser=Values(draw(3, 4)))
    return SubGraph(chain(convolution, normalisation, ReLU(), Pool(global_pooling=True), weights, *more)[0])


X = draw(70, 2, 8, 8)


@KERNELS
def test_it_predicts_without_a_loss(kernels: str) -> None:
    with Predictor(network(), batch_size=32, system=SystemConf(kernels=kernels)) as predictor:
        for count in (1, 32, 70, 5):
            received = predictor.predict(X[:count])
            np.testing.assert_allclose(received, run_crossbow(network(), X[:count]), rtol=1e-5, atol=1e-5)


def test_examples_of_a_data_set() -> None:
    data = Dataset((X, np.arange(len(X))))
    with Predictor(network()) as predictor:
        np.testing.assert_array_equal(predictor(data.train), predictor(X))
        np.testing.assert_allclose(predictor(data.train[5:8]), predictor(X[5:8]), rtol=1e-5, atol=1e-6)


def test_a_loss_is_left_out() -> None:
    with Predictor(network(SoftMax(), SoftMaxLoss())) as predictor:
        probabilities = predictor.predict(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(probabilities, run_crossbow(network(SoftMax()), X), rtol=1e-5, atol=1e-6)


def test_images_of_other_sizes_and_types() -> None:
    with Predictor(network()) as predictor:
        for images in (X, X[:, :, :5], X.astype(np.float64), (X > 0).astype(np.uint8)):
            scaled = images / 255 if images.dtype == np.uint8 else images
            np.testing.assert_allclose(predictor.predict(images), run_crossbow(network(), scaled), rtol=1e-4, atol=1e-5)


def test_on_a_gpu() -> None:
    with fake_cuda(), Predictor(network(), system=SystemConf(devices="cuda:0")) as predictor:
        np.testing.assert_allclose(predictor.predict(X), run_crossbow(network(), X), rtol=1e-5, atol=1e-5)


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    predictor = Predictor(network())
    predictor.predict(X)
    assert threading.active_count() > before
    predictor.close()
    assert threading.active_count() == before
    with pytest.raises(CrossbowError, match="the predictor is closed"):
        predictor.predict(X)


FORKS = """
import os
import numpy as np
from crossbow import CrossbowError, Predictor, SubGraph
from crossbow.ops import InnerProduct
from tests.support import chain

def attempt(what, work):
    try:
        work()
        print(what, "done", flush=True)
    except CrossbowError as error:
        assert str(os.getpid()) in str(error) and "Make a predictor in every process" in str(error), error
        print(what, "refused", flush=True)

used, new = (Predictor(SubGraph(chain(InnerProduct(number_of_outputs=2))[0])) for _ in range(2))
x = np.ones((4, 3), np.float32)
used.predict(x[:2])
process = os.fork()
if process == 0:
    attempt("predict", lambda: used.predict(x[:2]))
    attempt("more images", lambda: used.predict(x))
    attempt("close", used.close)
    attempt("a new one", lambda: new.predict(x))
    new.close()
    raise SystemExit(3)
print("fork", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
attempt("the parent", lambda: used.predict(x[:2]))
used.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork processes")
def test_a_forked_process_has_no_thread_to_predict_on() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, encoding="utf-8", timeout=60)
    assert done.stderr == ""
    child = ["predict refused", "more images refused", "close done", "a new one done"]
    assert done.stdout.splitlines() == [*child, "fork 3", "the parent done"]


def test_three_dimensions_are_not_taken_for_images() -> None:
    """A network for signals (N, channels, length) normalises across the channels."""
    signals = draw(2, 8, 8)
    with Predictor(SubGraph(chain(LRN(size=3))[0])) as predictor:
        of_images = predictor.predict(signals[..., None])[..., 0]
        np.testing.assert_allclose(predictor.predict(signals), of_images, rtol=1e-5)


def test_errors_in_the_graph_show_the_users_frames_only() -> None:
    with Predictor(network()) as predictor, pytest.raises(GraphError) as raised:
        predictor.predict(X[:, :1])
    assert {str(entry.path) for entry in raised.traceback} == {__file__}


def test_what_does_not_fit() -> None:
    before = threading.active_count()
    with Predictor(network()) as predictor:
        for images in (np.full((2, 2, 8, 8), np.nan), np.zeros((2, 2), object), np.zeros((0, 2, 8, 8))):
            with pytest.raises(DataError, match=r"^images: expected"):
                predictor.predict(images)
        with pytest.raises(GraphError, match="Conv0"):
            predictor.predict(X[:, :1])
        with pytest.raises(GraphError, match="Conv0"):
            predictor.predict(X[:, :, :2, :2])
        assert threading.active_count() == before
        assert predictor.predict(X).shape == (70, 3)


@pytest.mark.parametrize("values", [{"batch_size": 0}, {"batch_size": 1.5}, {"system": "cpu"}])
def test_arguments(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"^Predictor: {next(iter(values))} must be"):
        Predictor(network(), **values)


def test_a_network_is_a_subgraph() -> None:
    with pytest.raises(TypeError, match=r"^Predictor: expected a SubGraph\. Received: "):
        Predictor(5)  # type: ignore[arg-type]


# Models from files


def saved(path: Path, *, kernels: str = "reference", threads: int = 1, **more: Any) -> Path:
    with context(perceptron(BatchNorm()), kernels=kernels, threads=threads, **more) as running:
        running.train(2)
        running.save(path)
    return path


@KERNELS
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [None, 5])
def test_a_saved_model_predicts_what_its_context_does(
    threads: int, batch: int | None, kernels: str, tmp_path: Path
) -> None:
    """Bit for bit, for every number of images."""
    if threads > len(available_cores()) or (kernels == "reference" and threads > 1):
        pytest.skip("it would be one thread")
    network = training(
        DataTransform(mean=0.5, scale=2.0),
        Conv(number_of_outputs=20, kernel_size=3, padding=1),
        BatchNorm(),
        ReLU(),
        Dropout(),
        InnerProduct(number_of_outputs=3),
    )
    with context(network, data=pictures(), kernels=kernels, threads=threads, check_batch_size=batch) as running:
        running.train(2)
        running.save(tmp_path / "model.safetensors")
        images = np.resize(running.data.train.images, (150, 1, 8, 8))
        with Predictor.load(tmp_path) as predictor:
            for count in (0, 1, 2, 3, 7, 33, 64, 150):
                received = predictor(images[:count])
                assert received.tobytes() == running.predict(images[:count]).tobytes()
        running.train(1)
        assert received.tobytes() != running.predict(images).tobytes()


def test_one_image_by_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large network, whichever has the threads: a context or a predictor. No thread is left."""
    monkeypatch.setattr("crossbow.runtime.prediction.LARGE", 9 * 4 * 6 * 6 + 4 * 6 * 6 * 3)
    network = training(Conv(number_of_outputs=4, kernel_size=3), InnerProduct(number_of_outputs=3))
    before = threading.active_count()
    with context(network, data=pictures(), kernels="onednn", threads=1) as running:
        running.train(1)
        running.save(tmp_path / "m")
        images, own = running.data.train.images, threading.active_count()
        expected = [running.predict(images[:count]) for count in (1, 3, 9)]
        wide = len(available_cores()) > 1
        assert threading.active_count() == own + wide
    assert threading.active_count() == before
    with Predictor.load(tmp_path / "m") as predictor:
        for result in expected:
            assert predictor(images[: len(result)]).tobytes() == result.tobytes()
    assert threading.active_count() == before


def test_predictions_follow_the_base_model(tmp_path: Path) -> None:
    """After training and loading, they are not those of the values that the prediction had before."""
    images = blobs().train.images
    with context() as running:
        first = running.predict(images)
        running.save(tmp_path / "first")
        running.train(1)
        with Predictor.load(tmp_path / "first") as predictor:
            assert predictor(images).tobytes() == first.tobytes() != running.predict(images).tobytes()
        running.load(tmp_path / "first")
        assert running.predict(images).tobytes() == first.tobytes()


@KERNELS
def test_several_threads_at_once(kernels: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "m", kernels=kernels)
    images = np.random.default_rng(0).normal(size=(300, 6))
    with Predictor.load(path) as predictor:
        expected = [predictor(images[start:]) for start in range(12)]
        received: dict[int, list[Any]] = {}

        def work(start: int) -> None:
            received[start] = [predictor(images[start:]) for _ in range(5)]

        threads = [threading.Thread(target=work, args=(start,)) for start in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert len(received) == 12
        for start, results in received.items():
            assert all(result.tobytes() == expected[start].tobytes() for result in results)


def test_several_threads_with_images_of_two_shapes() -> None:
    """The network is compiled for one shape at a time. Threads with the other shape wait until it is free."""
    images = [X, X[:, :, :5]]
    received: list[tuple[int, Any]] = []
    with Predictor(network()) as predictor:
        expected = [predictor(each) for each in images]

        def work(which: int) -> None:
            received.extend((which, predictor(images[which])) for _ in range(3))

        threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    assert len(received) == 12
    assert all(result.tobytes() == expected[which].tobytes() for which, result in received)


def test_it_is_neither_copied_nor_pickled(tmp_path: Path) -> None:
    with Predictor.load(saved(tmp_path / "m")) as predictor:
        for copying in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="a Predictor owns threads, so it can be neither copied nor sent"):
                copying(predictor)


def test_images_that_do_not_fit_are_named() -> None:
    with Predictor(network()) as predictor, pytest.raises(GraphError) as failed:
        predictor(X[0, :, None])
    assert failed.value.__notes__ == [
        "the images were given as (N, 1, 8, 8). A single image needs a first axis: image[None]"
    ]


def test_closing_while_others_predict(tmp_path: Path) -> None:
    """They get their results, or an error; none waits for ever."""
    predictor = Predictor.load(saved(tmp_path / "m"))
    images = np.zeros((1000, 6))
    outcomes: list[str] = []

    def work() -> None:
        try:
            while True:
                predictor(images)
        except CrossbowError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    predictor(images)
    predictor.close()
    for thread in threads:
        thread.join(SECONDS)
    assert outcomes == ["the predictor is closed"] * 4


def test_an_error_in_one_part(tmp_path: Path) -> None:
    """It is raised, and the predictor stays usable."""
    with context(training(Fragile(), InnerProduct(number_of_outputs=3))) as running:
        running.save(tmp_path / "m")
        images = np.zeros((100, 6))
        images[40] = 7
        with Predictor.load(tmp_path / "m", operators=[Fragile]) as predictor:
            expected = running.predict(images[:40])
            for _ in range(2 * len(available_cores())):
                with pytest.raises(
                    TaskError, match="failed in operator 'Fragile0' while predicting: ValueError: seven"
                ):
                    predictor(images)
                assert predictor(images[:40]).tobytes() == expected.tobytes()


@configuration
class Fragile(Kernel):
    """The identity, except for 7."""

    def output_shape(self, *inputs: Any) -> Any:
        return inputs[0]

    def forward(self, xp: Any, inputs: Any, variables: Any) -> Any:
        if (inputs[0] == 7).any():
            raise ValueError("seven")
        return inputs[0]

    def backward(self, xp: Any, inputs: Any, output: Any, variables: Any, output_gradient: Any) -> Any:
        return [output_gradient], {}


def test_own_operators(tmp_path: Path) -> None:
    with context(training(Fragile(), InnerProduct(number_of_outputs=3))) as running:
        running.save(tmp_path / "m")
    with pytest.raises(DataError, match=r"operator 'Fragile0': expected the class Fragile, .*operators=\[Fragile\]"):
        Predictor.load(tmp_path / "m")


def test_the_most_probable_classes(tmp_path: Path) -> None:
    data = blobs()
    data.class_names = ("red", "green", "blue")
    image = data.train.images[0]
    with Predictor.load(saved(tmp_path / "named", data=data)) as predictor:
        (probabilities,) = predictor(image[None])
        order = np.argsort(-probabilities)
        assert predictor.top(image, 2) == [(data.class_names[at], float(probabilities[at])) for at in order[:2]]
        assert len(predictor.top(image)) == 3
        for number in (0, -1, 1.5):
            with pytest.raises(ConfigurationError, match=r"^top: number must be an integer ≥ 1\. Received: number="):
                predictor.top(image, number)  # type: ignore[arg-type]
    with Predictor.load(saved(tmp_path / "numbered")) as predictor:
        assert [kind for kind, _ in predictor.top(image)] == np.argsort(-predictor(image[None])[0]).tolist()


def test_images_are_read_from_files(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow, of the extra zoo, is not installed")
    folder = tmp_path / "images"
    write_folder(folder, {f"{name}.jpg": picture(seed) for seed, name in enumerate("abc")})
    data = pictures()
    with context(training(InnerProduct(number_of_outputs=3)), data=data) as running:
        running.save(tmp_path / "m")
    with Predictor.load(tmp_path / "m") as predictor:
        images = predictor.read_images(folder, str(folder / "a.jpg"))
        assert (images.shape, images.dtype) == ((4, 1, 8, 8), np.uint8)
        np.testing.assert_array_equal(images[0], images[3])
        assert predictor.top(folder / "b.jpg", 2) == predictor.top(images[1], 2)
        with pytest.raises(DataError, match=r"images: expected one image\. Received: 3"):
            predictor.top(folder)
        with pytest.raises(DataError, match=r"expected the paths of images\. Received: none"):
            predictor.read_images()
        with pytest.raises(DataError, match=r"nowhere\.png: .*Received: "):
            predictor.top("nowhere.png")
    with Predictor(network()) as other, pytest.raises(CrossbowError, match="expected a model from a file"):
        other.read_images(folder)


def test_no_probabilities(tmp_path: Path) -> None:
    with Predictor(network()) as predictor, pytest.raises(CrossbowError, match=r"^top: .* Received: InnerProduct, of"):
        predictor.top(X[0])


def test_whether_the_output_is_probabilities() -> None:
    with Predictor(network()) as numbers, Predictor(network(SoftMax())) as probabilities:
        assert (numbers.gives_probabilities, probabilities.gives_probabilities) == (False, True)


def test_images_of_a_saved_model(tmp_path: Path) -> None:
    """They have the shape and the type of the training images."""
    with Predictor.load(saved(tmp_path / "m")) as predictor:
        for images, text in (
            (np.zeros((2, 5)), r"expected images of shape \(N, 6\)\. Received: \(2, 5\)"),
            (np.zeros(6), r"expected images of shape \(N, 6\)\. Received: \(6,\)"),
            (np.zeros((2, 6), np.uint8), "expected images of type float64. Received: uint8"),
            (np.full((2, 6), np.inf), "expected finite numbers. Received: inf in example 0"),
            (np.full((2, 6), 1e300), "expected numbers that float32 can hold"),
        ):
            with pytest.raises(DataError, match=text):
                predictor(images)
        with pytest.raises(DataError, match="expected images of shape"):
            predictor.top(np.zeros((1, 6)))


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    path = saved(tmp_path / "m")
    for device, text in (
        ("tpu", "a device is 'cpu'"),
        (3, r"^Predictor: device must be a str"),
        ("cpu:3/2", "a device"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            Predictor.load(path, device)  # type: ignore[arg-type]


def test_a_saved_model_on_a_gpu(tmp_path: Path) -> None:
    path, images = saved(tmp_path / "m"), np.random.default_rng(0).normal(size=(9, 6))
    with Predictor.load(path) as predictor:
        expected = predictor(images)
    with fake_cuda(), Predictor.load(path, "cuda:0") as predictor:
        np.testing.assert_allclose(predictor(images), expected, rtol=1e-5, atol=1e-5)


def test_parts_depend_on_the_number_of_images_only() -> None:
    for images in range(300):
        parts = divide(images)
        assert [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]
        assert (parts[-1].stop if parts else 0) == images
        sizes = [part.stop - part.start for part in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert set(sizes) <= set(PARTS)
        assert len(parts) > 1 or images < 2
    assert {part.stop - part.start for part in divide(1000, 20)} == {16, 8}
