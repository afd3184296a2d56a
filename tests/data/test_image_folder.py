"""Data sets of image files in folders: classes, phases, and what is no image."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crossbow import Dataset, ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.data import image_folder
from crossbow.data.decoded import DecodedExamples
from crossbow.data.examples import BadExample, Examples, Selection
from crossbow.data.image_folder import _checked, _Listing, images_below
from crossbow.types import DataError
from models.logistic_regression import logistic_regression
from tests.data.picture_files import picture, write_folder
from tests.data.small_sets import read

SIZE = 8


def small(directory: Path, **options: Any) -> Dataset:
    return image_folder(directory, **{"image_size": SIZE, "check_fraction": 0, **options})


def names(examples: Examples | None) -> list[str]:
    assert isinstance(examples, DecodedExamples)
    return [Path(examples.source(index)).name for index in range(len(examples))]


def test_classes_are_the_sorted_folders(tmp_path: Path) -> None:
    files = {"zebra/2.jpg": picture(0), "zebra/1.jpg": picture(1), "Ant/x.jpg": picture(2), "bee/1.jpg": picture(3)}
    data = small(write_folder(tmp_path, files))
    assert data.class_names == ("Ant", "bee", "zebra")
    assert data.number_of_classes == 3
    assert data.train.labels.tolist() == [0, 1, 2, 2]
    assert names(data.train) == ["x.jpg", "1.jpg", "1.jpg", "2.jpg"]
    assert (data.image_shape, data.train.image_dtype.name, data.scale) == ((3, SIZE, SIZE), "uint8", 1 / 255)
    assert data.train.groups is None
    assert image_folder(tmp_path, check_fraction=0).image_shape == (3, 224, 224)


def test_files_are_known_by_their_content(tmp_path: Path) -> None:
    """Also in folders of folders, by links, and not in hidden folders. A name alone makes a bad example."""
    files = {
        "a/0.png": picture(0),
        "a/1": picture(1, format="PNG"),
        "a/2.txt": picture(2, format="GIF"),
        "a/3.jpg": picture(3, format="BMP"),
        "a/deeper/still/4.jpg": picture(4, format="WEBP"),
        "a/notes.txt": b"BMW, and other notes",
        "a/sound.wav": b"RIFF\x24\x00\x00\x00WAVEfmt ",
        "a/empty": b"",
        "a/.DS_Store": b"\x00\x00\x00\x01Bud1",
        "a/._0.png": b"\x00\x05\x16\x07",
        "a/Thumbs.db": b"\xd0\xcf\x11\xe0",
        "a/.hidden/5.jpg": picture(5),
        ".git/6.jpg": picture(6),
        "loose.jpg": picture(7),
        "elsewhere.txt": b"no image",
    }
    write_folder(tmp_path / "data", files)
    os.symlink(write_folder(tmp_path / "other", {"8.jpg": picture(8)}), tmp_path / "data" / "b")
    os.symlink(tmp_path / "other" / "8.jpg", tmp_path / "data" / "a" / "link")
    os.mkfifo(tmp_path / "data" / "a" / "pipe")
    data = small(tmp_path / "data")
    assert data.class_names == ("a", "b")
    assert names(data.train) == ["0.png", "1", "2.txt", "3.jpg", "4.jpg", "link", "8.jpg"]


NO_IMAGES = {"empty.jpg": b"", "page.JPEG": b"<!DOCTYPE html>", "notes.png": b"BMW, and other notes", "a.Gif": b"none"}
"""Files with the names of images."""


def test_files_with_the_names_of_images_are_bad_examples(tmp_path: Path) -> None:
    write_folder(tmp_path, {f"a/{name}": content for name, content in NO_IMAGES.items()})
    os.symlink(tmp_path / "nowhere.jpg", tmp_path / "a" / "link.jpg")
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    examples = small(tmp_path).train
    assert names(examples) == sorted([*NO_IMAGES, "link.jpg"])
    reasons: list[str] = []
    for index in range(len(examples)):
        with pytest.raises(BadExample) as caught:
            examples.write_images(Selection.of(np.array([index])), np.empty((1, 3, SIZE, SIZE), np.uint8))
        assert caught.value.source == examples.source(index)
        reasons.append(caught.value.reason)
    expected = "expected an image file, JPEG, PNG, GIF, BMP or WebP. Received:"
    assert reasons[:2] == [f"{expected} 4 bytes beginning with 6e 6f 6e 65", f"{expected} 0 bytes beginning with none"]
    assert reasons[2] == "expected a readable image file. Received: No such file or directory"


def test_files_with_the_names_of_images_are_skipped_and_listed(tmp_path: Path) -> None:
    good = {f"{name}/{n}.jpg": picture(n) for n in range(4) for name in "ab"}
    data = small(write_folder(tmp_path, {**good, "b/empty.jpg": b"", "b/page.jpg": b"<!DOCTYPE html>"}))
    bad = [f"{tmp_path}/b/empty.jpg", f"{tmp_path}/b/page.jpg"]
    for how in ("skip", "error"):
        with ExecutionContext(
            [logistic_regression(number_of_outputs=2), None],
            data=data,
            model=ModelConf(batch_size=5),
            solver=SolverConf(learning_rate=0.1),
            system=SystemConf(devices="cpu", learners_per_device=1, threads_per_learner=1, on_bad_record=how),
        ) as context:
            if how == "error":
                with pytest.raises(BadExample, match=r"/b/(empty|page)\.jpg: expected an image file, JPEG, PNG, GIF"):
                    context.train(2)
                continue
            context.train(2)
            assert sorted(example.source for example in context.bad_examples()) == bad


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    """But not in circles."""
    write_folder(tmp_path / "data", {"a/1.jpg": picture(1), "a/deep/2.jpg": picture(2), "b/3.jpg": picture(3)})
    more = write_folder(tmp_path / "more", {"4.jpg": picture(4), "deeper/5.jpg": picture(5)})
    os.symlink(more, tmp_path / "data" / "a" / "more")
    for circle, target in (("a/deep/up", "a"), ("a/deep/self", "a/deep"), ("a/root", "."), ("b/whole", "../..")):
        os.symlink(tmp_path / "data" / target, tmp_path / "data" / circle)
    os.symlink(tmp_path / "data" / "a", more / "back")
    os.symlink(more, more / "deeper" / "back")
    os.symlink(tmp_path / "data" / "b", tmp_path / "data" / "a" / "others")
    found = sorted(images_below(tmp_path / "data" / "a"))
    assert found == ["1.jpg", "deep/2.jpg", "more/4.jpg", "more/deeper/5.jpg", "others/3.jpg"]
    assert list(images_below(tmp_path / "data" / "b")) == ["3.jpg"]
    os.symlink("a", tmp_path / "data" / "c")
    assert sorted(images_below(tmp_path / "data" / "c")) == found


def test_train_and_val(tmp_path: Path) -> None:
    files = {f"{phase}/{name}/1.jpg": picture(0) for phase in ("train", "val") for name in "ab"}
    data = small(write_folder(tmp_path, {**files, "train/c/1.jpg": picture(1), "test/d/1.jpg": picture(2)}))
    assert data.class_names == ("a", "b", "c")
    assert data.check is not None
    assert (data.train.labels.tolist(), data.check.labels.tolist()) == ([0, 1, 2], [0, 1])
    write_folder(tmp_path, {"val/e/1.jpg": picture(0)})
    with pytest.raises(DataError, match=r"val: expected the classes of the training set\. Received: 'e' too"):
        small(tmp_path)


@pytest.mark.parametrize("name", ["valid", "validation", "test"])
def test_other_names_of_the_check_folder(tmp_path: Path, name: str) -> None:
    files = {f"{phase}/{label}/1.jpg": picture(0) for phase in ("train", name) for label in "ab"}
    data = small(write_folder(tmp_path, files))
    assert data.check is not None
    assert (len(data.train), len(data.check)) == (2, 2)


def test_images_that_are_split_off_for_tests_are_centres(tmp_path: Path) -> None:
    data = small(write_folder(tmp_path, {f"{name}/{n}.jpg": picture(n) for name in "ab" for n in range(4)}))
    centres = small(tmp_path, check_fraction=0.5).check
    parts = data.split(0.5)
    assert centres is not None
    assert parts.check is not None
    known = {image.tobytes() for image in read(small(tmp_path, check_fraction=0).train.for_tests())}
    assert {image.tobytes() for image in read(centres)} < known
    assert all(image.tobytes() in known for image in read(parts.check))
    assert not any(image.tobytes() in known for image in read(parts.train))


def test_train_alone_is_divided(tmp_path: Path) -> None:
    data = small(write_folder(tmp_path, {f"train/a/{n}.jpg": picture(n) for n in range(4)}), check_fraction=0.25)
    assert data.class_names == ("a",)
    assert (names(data.train), names(data.check)) == (["0.jpg", "1.jpg", "2.jpg"], ["3.jpg"])


def test_classes_may_be_called_train_and_val(tmp_path: Path) -> None:
    data = small(write_folder(tmp_path, {"car/1.jpg": picture(0), "train/1.jpg": picture(1), "val/1.jpg": picture(2)}))
    assert data.class_names == ("car", "train", "val")
    assert data.check is None


def test_train_and_val_without_classes(tmp_path: Path) -> None:
    write_folder(tmp_path, {"train/1.jpg": picture(1), "val/2.jpg": picture(2)})
    with pytest.raises(DataError, match=r"train: expected a folder with images for each class\. Received: no folders$"):
        small(tmp_path)


@pytest.mark.parametrize(
    ("fraction", "check"), [(0.1, [9, 19]), (0.25, [3, 7, 11, 15, 19]), (0.5, list(range(1, 20, 2))), (0.05, [19])]
)
def test_a_fraction_is_for_checks(tmp_path: Path, fraction: float, check: list[int]) -> None:
    write_folder(tmp_path, {f"{'ab'[n // 10]}/{n:02}.jpg": picture(0) for n in range(20)})
    data = small(tmp_path, check_fraction=fraction)
    assert data.check is not None
    assert names(data.check) == [f"{n:02}.jpg" for n in check]
    assert sorted(names(data.train) + names(data.check)) == [f"{n:02}.jpg" for n in range(20)]
    assert data.check.labels.tolist() == [n // 10 for n in check]


@settings(max_examples=50)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_each_class_keeps_its_share_and_a_training_image(sizes: list[int], fraction: float) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    listing = _Listing(Path("root"), (), [str(n) for n in range(len(labels))], labels)
    assume(int(len(labels) * fraction + 1e-9) > 0 and max(sizes) > 1)
    checked = _checked(listing, fraction)
    counts = np.bincount(labels[checked], minlength=len(sizes))
    assert checked.any()
    for size, count in zip(sizes, counts.tolist(), strict=True):
        assert count < size or count == 0
        assert abs(count - size * fraction) < 1 + 1e-9 or count == size - 1
    assert (_checked(listing, fraction) == checked).all()


def test_the_only_image_of_a_class_is_for_training(tmp_path: Path) -> None:
    write_folder(tmp_path, {f"{name}/{n}.jpg": picture(n) for n, name in enumerate("aaabcdefgh")})
    data = small(tmp_path, check_fraction=0.1)
    assert data.check is not None
    assert sorted(set(data.train.labels.tolist())) == list(range(8))
    assert (names(data.check), data.check.labels.tolist()) == (["2.jpg"], [0])
    write_folder(tmp_path / "other", {f"{n}/{n}.jpg": picture(n) for n in range(10)})
    with pytest.raises(DataError) as caught:
        small(tmp_path / "other", check_fraction=0.1)
    assert str(caught.value) == (
        f"{tmp_path}/other: expected a class of at least two images, one of them for checks, or check_fraction=0. "
        "Received: 10 classes of one image"
    )


def test_it_trains_and_predicts(tmp_path: Path) -> None:
    """Dark and bright images are told apart."""
    image = pytest.importorskip("PIL.Image", reason="Pillow, of the extra zoo, is not installed")
    for n in range(60):
        folder = tmp_path / ("dark", "light")[n % 2]
        folder.mkdir(exist_ok=True)
        pixels = np.random.default_rng(n).integers(0, 60, (20, 25, 3)) + n % 2 * 190
        image.fromarray(pixels.astype(np.uint8)).save(folder / f"{n}.jpg")
    data = small(tmp_path, check_fraction=0.2)
    with ExecutionContext(
        [logistic_regression(number_of_outputs=2), None],
        data=data,
        model=ModelConf(batch_size=6),
        solver=SolverConf(learning_rate=0.1),
        system=SystemConf(devices="cpu", learners_per_device=2, threads_per_learner=1),
    ) as context:
        context.train(40)
        assert context.test().accuracy == 1


# Bad input


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "expected a folder with images for each class. Received: no folders"),
        ({"1.jpg": b"\xff\xd8\xff"}, "expected a folder with images for each class. Received: no folders"),
        (
            {"a/1.jpg": b"\xff\xd8\xff", "b/1.txt": b"text"},
            "/b: expected at least one image file, JPEG, PNG, GIF, BMP or WebP, in the folder of a class. "
            "Received: 1 file .txt",
        ),
        (
            {
                **{f"a/{n}.TIF": b"II*" for n in range(3)},
                **{f"a/more/{n}.tif": b"II*" for n in range(2)},
                **dict.fromkeys(["a/1.b", "a/2.b", "a/c", "a/d", "a/1.e", "a/.f", "a/.g/h"], b""),
            },
            "WebP, in the folder of a class. Received: 5 files .tif, 2 files .b, 2 files without a suffix, 1 more",
        ),
        (
            {"val/a/1.jpg": b"\xff\xd8\xff"},
            "expected a folder for each class, or the folders train and val. Received: only val",
        ),
        ({"a/.hidden": b""}, "in the folder of a class. Received: none"),
        (
            {"a/1.jpg": b"\xff\xd8\xff"},
            "expected at least 10 images, for a check example with check_fraction=0.1. Received: 1",
        ),
    ],
    ids=["empty", "no folder", "no images", "images in another format", "no train", "an empty class", "too few"],
)
def test_directories_that_are_no_data_sets(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        small(write_folder(tmp_path, files), check_fraction=0.1)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: expected a directory with a folder for each class\. Received: No"):
        small(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"file: expected a directory with a folder for each class\. Received: Not a"):
        small(tmp_path / "file")


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan"), "a", None])
def test_fractions_that_are_none(fraction: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^check_fraction: expected a number with 0 ≤ check_fraction < 1\. Received: "):
        small(tmp_path, check_fraction=fraction)


def test_a_folder_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: expected a readable folder of images\. Received: No such file"):
        list(images_below(tmp_path / "nowhere"))
