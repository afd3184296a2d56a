"""Images that are decoded and transformed when they are needed: the same bytes whatever threads do, no new memory."""

from __future__ import annotations

import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from crossbow import Dataset
from crossbow.data import decode_image, image_folder, records
from crossbow.data.cropping import RandomWindows
from crossbow.data.examples import BadExample, Examples, Selection
from tests.data.loader_digest import digest
from tests.data.picture_files import picture, record, write_folder, write_record_set
from tests.data.test_preprocessor import file_by_pillow

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the extra zoo, is not installed")

SHARED = Path(__file__).parents[3] / "shared" / "data" / "jpeg"
REAL = pytest.mark.skipif(not SHARED.is_dir(), reason="no real JPEG files beside the repository (../shared/data/jpeg)")
TRUNCATED = {"truncated_jpeg.jpg", "ultrahdr.jpg"}
ROOT = Path(__file__).parents[2]
COUNT, SIZE = 24, 16


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes in two classes."""
    files = {f"{'ab'[n % 2]}/{n:02}.jpg": picture(n, 20 + n, 60 - n) for n in range(COUNT)}
    return write_folder(tmp_path_factory.mktemp("images"), files)


def folder(directory: Path, **options: object) -> Dataset:
    return image_folder(directory, image_size=SIZE, check_fraction=0, **options)  # type: ignore[arg-type]


def written(examples: Examples, indices: list[int], epoch: int = 0, seed: int = 0) -> np.ndarray:
    images = np.zeros((len(indices), *examples.image_shape), np.uint8)
    examples.write_images(Selection(np.array(indices), np.full(len(indices), epoch), seed), images)
    return images


def test_training_images_equal_pillow_within_one_level(directory: Path) -> None:
    examples = folder(directory).train
    paths = sorted(directory.glob("*/*.jpg"))
    found = written(examples, list(range(COUNT)), epoch=3, seed=5).astype(int)
    for index, path in enumerate(paths):
        content = path.read_bytes()
        _, height, width = decode_image(content).shape
        window = RandomWindows(SIZE).choose(height, width, None, 5, 3, index)
        assert np.abs(found[index] - file_by_pillow(content, window, SIZE)).max() <= 1


def test_boxes_restrict_the_areas_of_records(tmp_path: Path) -> None:
    box = np.array([[0.9, 0.9, 1, 1]], np.float32)
    path = write_record_set(tmp_path, "boxes", [[record(1, boxes=box), record(1)]])
    examples = records(path, image_size=SIZE).train
    content = picture(1)
    for epoch in range(5):
        found = written(examples, [0, 1], epoch).astype(int)
        for index, boxes in ((0, box), (1, None)):
            window = RandomWindows(SIZE).choose(30, 40, boxes, 0, epoch, index)
            assert np.abs(found[index] - file_by_pillow(content, window, SIZE)).max() <= 1


# Random choices


@pytest.mark.parametrize("distortion", [False, True], ids=["colours", "distorted colours"])
def test_choices_depend_on_seed_epoch_and_index_alone(directory: Path, distortion: bool) -> None:
    """Not on the batch, on the order, on what was written before, or on the object."""
    examples = folder(directory, colour_distortion=distortion).train
    whole = written(examples, list(range(COUNT)), epoch=2, seed=9)
    order = np.random.default_rng(0).permutation(COUNT).tolist()
    again = folder(directory, colour_distortion=distortion).train
    for index in order:
        np.testing.assert_array_equal(written(again, [index], 2, 9)[0], whole[index])
    for epoch, seed in ((1, 9), (2, 8)):
        other = written(examples, list(range(COUNT)), epoch, seed)
        assert all((one != two).any() for one, two in zip(whole, other, strict=True))
    part = folder(directory, colour_distortion=distortion).shard(stride=(1, 3)).train
    np.testing.assert_array_equal(written(part, [4, 0], 2, 9), whole[[13, 1]])


def test_colours_are_distorted_in_training_only(directory: Path) -> None:
    plain, distorted = (
        image_folder(directory, image_size=SIZE, check_fraction=0.25, colour_distortion=distortion)
        for distortion in (False, True)
    )
    assert plain.check is not None
    assert distorted.check is not None
    assert (written(plain.train, [0, 1]) != written(distorted.train, [0, 1])).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(written(plain.check, [0, 1]), written(distorted.check, [0, 1]))
    np.testing.assert_array_equal(written(plain.check, [0, 1], 0, 0), written(plain.check, [0, 1], 7, 8))


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_another_process_loads_the_same_bytes(directory: Path, processes: int) -> None:
    """Two epochs of a loader, with 1 and 2 threads, in this process and in others."""
    here = [digest(directory, threads) for threads in (1, 2)]
    elsewhere = []
    for threads in range(1, processes + 1):
        command = [sys.executable, "-m", "tests.data.loader_digest", str(directory), str(threads)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        elsewhere.append(done.stdout.strip())
    assert set(here + elsewhere) == {here[0]}
    assert len(here + elsewhere) == 2 + processes


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_write_the_same_bytes(directory: Path, threads: int) -> None:
    examples = folder(directory, colour_distortion=True).train
    epochs = range(2)
    expected = [written(examples, list(range(COUNT)), epoch, 1) for epoch in epochs]
    found = [np.zeros_like(images) for images in expected]

    def work(number: int) -> None:
        for epoch in epochs:
            for index in range(number, COUNT, threads):
                selection = Selection(np.array([index]), np.array([epoch]), 1)
                examples.write_images(selection, found[epoch][index : index + 1])

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("stored", ["folders", "records"])
def test_memory_is_used_again(directory: Path, tmp_path: Path, stored: str) -> None:
    """After the first epoch, an epoch leaves nothing, and at no time has more than small objects."""
    pytest.importorskip("simplejpeg", reason="Pillow allocates its images")
    if stored == "folders":
        examples = folder(directory).train
    else:
        contents = [path.read_bytes() for path in sorted(directory.glob("*/*.jpg"))]
        path = write_record_set(tmp_path, "same", [[record(0, content=content) for content in contents]])
        examples = records(path, image_size=SIZE).train
    images = np.zeros((COUNT, *examples.image_shape), np.uint8)
    selection = Selection.of(np.arange(COUNT))
    examples.write_images(selection, images)
    tracemalloc.start()
    try:
        examples.write_images(selection, images)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(3):
            examples.write_images(selection, images)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1000
    assert peak - before < 6000  # the smallest decoded image has 3,600 bytes, all together 99,000


# Bad examples


def test_a_bad_example_is_named_and_those_before_it_are_written(tmp_path: Path) -> None:
    files = {f"a/{n}.jpg": picture(n) for n in range(6)}
    files["a/3.jpg"] = picture(3)[:-200]
    examples = folder(write_folder(tmp_path, files)).train
    images = np.zeros((4, 3, SIZE, SIZE), np.uint8)
    with pytest.raises(BadExample, match=r"3\.jpg: expected an intact JPEG file\. Received: .*truncated") as caught:
        examples.write_images(Selection.of(np.array([5, 0, 3, 1])), images)
    assert (caught.value.index, caught.value.source) == (3, str(tmp_path / "a" / "3.jpg"))
    assert str(caught.value).count("3.jpg") == 1
    np.testing.assert_array_equal(images[:2], written(examples, [5, 0]))
    assert not images[2:].any()


def test_a_file_that_disappears_is_a_bad_example(tmp_path: Path) -> None:
    examples = folder(write_folder(tmp_path, {f"a/{n}.jpg": picture(n) for n in range(3)})).train
    (tmp_path / "a" / "1.jpg").unlink()
    with pytest.raises(BadExample, match=r"a/1\.jpg: expected a readable image file\. Received: ") as caught:
        written(examples, [0, 1, 2])
    assert caught.value.index == 1
    (tmp_path / "a" / "2.jpg").write_bytes(b"")
    with pytest.raises(BadExample, match=r"2\.jpg: expected an image file, .*Received: 0 bytes"):
        written(examples, [2])
    np.testing.assert_array_equal(written(examples, [0]).shape, (1, 3, SIZE, SIZE))


def test_bad_records_are_named(tmp_path: Path) -> None:
    files = [[record(0), record(1)], [record(2), record(3, content=b"GIF89a"), record(4)]]
    examples = records(write_record_set(tmp_path, "some", files), image_size=SIZE).train
    where = str(tmp_path / "some.records.2")
    with pytest.raises(BadExample, match=r"some\.records\.2: record 1: expected an intact GIF file") as caught:
        written(examples, [4, 3])
    assert (caught.value.index, caught.value.source) == (3, f"{where}: record 1")
    with open(where, "r+b") as file:  # the label of record 0
        file.seek(8)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(BadExample, match=r"record 0: expected a label from 0 to 2147483647\. Received: -1$"):
        written(examples, [2])
    Path(where).unlink()
    with pytest.raises(BadExample, match=r"records\.2: record 2: expected a record file\. Received: "):
        written(examples, [4])
