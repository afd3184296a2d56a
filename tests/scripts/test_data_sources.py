"""Data sets by name, and the options of the synthetic one."""

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crossbow import ConfigurationError, DataError, Dataset, cli
from crossbow.data import Record, synthetic, write_records
from crossbow.data.batch_metadata import Metadata, write_metadata
from crossbow.data.encoding import ENCODINGS, encode
from crossbow.data.folder_records import convert_image_folder
from crossbow.scripts.data_sources import KNOWN, DataSource, Known
from crossbow.scripts.parser import new_parser
from models import logistic_regression
from tests.combinations import one_in
from tests.data.picture_files import picture, write_folder
from tests.data.test_cifar import COUNT
from tests.data.test_cifar100 import binaries as binaries_100
from tests.data.test_mnist import small_files, write
from tests.scripts.options import PICTURES, confs

SHARED = Path(__file__).parents[3] / "shared" / "data"


def test_the_first_data_set_is_the_default() -> None:
    assert confs(defaults=PICTURES).data == DataSource("cifar10", None, (3, 32, 32), 10, 2048, 512)
    assert confs().data.name == "digits"
    assert confs("--dataset mnist").data.image_shape == (1, 28, 28)
    found = confs("--data-directory there", PICTURES).data
    assert found.directory == Path("there")
    text = " ".join(new_parser("example", "Trains an example.", PICTURES)[0].format_help().split())
    for part in (
        "Trains an example. Without options: CIFAR-10, SMA, one learner per core.",
        "--dataset {cifar10,mnist,synthetic,batch_files,image_folder,records,sequence}",
        "cifar10: 60,000 colour images, downloaded once; mnist: 70,000, downloaded once; synthetic: random images",
        "files lie: CIFAR-10: its binaries, its Python archive, or an .npz of JPEG files; or MNIST's four IDX files",
        "image_folder, records: height and width to which images are resized (default: 32)",
        "synthetic: channels, height and width of an image (default: 3,32,32)",
        "synthetic: number of training examples (default: 2,048)",
        "(default: 7 with cifar10, 5 with mnist, 2 with synthetic)",
    ):
        assert part in text


def test_a_synthetic_data_set_of_any_shape() -> None:
    wanted = dataclasses.replace(PICTURES, image_shape=(1, 4, 4), number_of_classes=7)
    assert confs("--dataset synthetic", wanted).data == DataSource("synthetic", None, (1, 4, 4), 7, 2048, 512)
    options = "--dataset synthetic --image-shape 3,9,8 --classes 20 --training-examples 60 --test-examples 40"
    source = confs(options, wanted).data
    assert source == DataSource("synthetic", None, (3, 9, 8), 20, 60, 40)
    data = source.load()
    assert data.image_shape == (3, 9, 8)
    assert data.number_of_classes == 20
    assert data.check is not None
    assert (len(data.train), len(data.check)) == (60, 40)


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize(("name", "known"), KNOWN.items())
def test_what_is_known_of_a_data_set_is_so(
    name: str, known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For those that are there; a directory has them all."""
    if name == "mnist" and not (SHARED / "mnist").is_dir():
        pytest.skip(f"MNIST's files are not in {SHARED}")
    if name == "cifar10" and not (SHARED / "cifar10-jpeg.npz").is_file():
        pytest.skip(f"CIFAR-10's images are not in {SHARED}")
    if name == "fashion_mnist":
        write(tmp_path, small_files())
    if name.startswith("cifar100"):
        monkeypatch.setattr("crossbow.data.cifar.IMAGES", COUNT)
        write(tmp_path, binaries_100())
    if name == "batch_files":
        encode(synthetic((2, 5, 5), training=30, check=20), ENCODINGS["digits"], tmp_path, 7)
    if name == "text":
        (tmp_path / "book.txt").write_text("to be or not to be " * 20, "utf-8")
    if name == "sequence":
        (tmp_path / "dataset.py").write_text(SEQUENCES)
    if name in ("image_folder", "records"):
        {"image_folder": folders, "records": record_set}[name](tmp_path)
    directories = {"mnist": SHARED / "mnist", "cifar10": SHARED}
    directory = directories.get(name, tmp_path if known.files else None)
    shape = known.image_shape or ((3, 9, 9) if name in ("image_folder", "records") else (2, 5, 5))
    data = DataSource(name, directory, shape, known.number_of_classes, 30, 20, image_size=9).load()
    assert data.image_shape == shape
    assert data.number_of_classes == (2 if name in ("image_folder", "records") else known.number_of_classes)


SEQUENCES = """
import numpy as np

train = [(np.full((2, 5, 5), n / 30, np.float32), n % 10) for n in range(30)]
check = train[:20]
"""
"""A `dataset.py`."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--classes 7", "--classes does nothing with --dataset cifar10. Received: --classes 7"),
        ("--dataset mnist --image-shape 1,28,28", "--image-shape does nothing with --dataset mnist"),
        ("--training-examples 10", "--training-examples does nothing"),
        ("--image-size 32", "--image-size does nothing with --dataset cifar10. Received: --image-size 32"),
        ("--dataset mnist --colour-distortion", "--colour-distortion does nothing with --dataset mnist"),
        ("--dataset records --check-fraction 0.5", "--check-fraction does nothing with --dataset records"),
        ("--image-shape 3,4,4", "--image-shape does nothing with --dataset cifar10. Received: --image-shape 3,4,4"),
        (
            "--dataset synthetic --data-directory x",
            "--data-directory needs --dataset cifar10 or mnist or batch_files or image_folder or records or sequence",
        ),
    ],
)
def test_options_of_another_data_set(arguments: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        confs(arguments, PICTURES)


@pytest.mark.parametrize("shape", ["3", "3,32", "3,32,0", "3,-1,4", "3,a,4", "1,2,3,4", "", "3,²,4"])
def test_a_bad_image_shape(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        confs(f"--image-shape={shape}", PICTURES)
    assert f"expected three integers ≥ 1, as 3,224,224. Received: {shape!r}" in capsys.readouterr().err


def test_the_shape_and_the_classes_of_batch_files_are_read(tmp_path: Path) -> None:
    encode(synthetic((3, 8, 9), 7, training=30, check=20), ENCODINGS["digits"], tmp_path, 7)
    source = confs(f"--dataset batch_files --data-directory {tmp_path}", PICTURES).data
    assert (source.image_shape, source.number_of_classes) == ((3, 8, 9), 7)
    data = source.load()
    assert data.check is not None
    assert (len(data.train), len(data.check), data.scale) == (30, 20, 1.0)
    stated = confs(f"--dataset batch_files --data-directory {tmp_path} --classes 9", PICTURES).data
    assert stated.number_of_classes == stated.load().number_of_classes == 9
    with pytest.raises(DataError, match=r"expected 0 ≤ label < 5\. Received: 6 \(.*train\.metadata: example \d+\)$"):
        confs(f"--dataset batch_files --data-directory {tmp_path} --classes 5", PICTURES)
    assert PICTURES.epochs_with("batch_files") == PICTURES.epochs_with("cifar10") == 7


def test_epochs_with_files() -> None:
    longer = dataclasses.replace(PICTURES, epochs_with_files=90)
    assert (longer.epochs_with("batch_files"), longer.epochs_with("cifar10")) == (90, 7)
    text = " ".join(new_parser("example", "Trains an example.", longer)[0].format_help().split())
    assert "2 with synthetic, 90 with batch_files, image_folder, records, sequence)" in text


def test_examples_that_are_no_images() -> None:
    """They have no option of a shape; without classes, none of these."""
    ratings = dataclasses.replace(
        PICTURES, epochs={"synthetic": 3}, image_shape=(2,), number_of_classes=None, examples="ratings", training=99
    )
    text = " ".join(new_parser("example", "Trains an example.", ratings)[0].format_help().split())
    assert "Without options: synthetic ratings, SMA" in text
    assert "synthetic: random ratings; batch_files: " in text
    assert "(default: 99)" in text
    for option in ("--image-shape", "--classes", "--image-size", "image_folder"):
        assert option not in text
    found = confs("--test-examples 7", ratings).data
    assert (found.image_shape, found.number_of_classes, found.training, found.check) == ((2,), None, 99, 7)


def test_directories_without_one_set_of_batch_files(tmp_path: Path) -> None:
    def refused(arguments: str, message: str) -> None:
        with pytest.raises(DataError, match=re.escape(message)):
            confs(f"--dataset batch_files {arguments}", PICTURES)

    directory = f"--data-directory {tmp_path}"
    refused("", "--dataset batch_files: expected --data-directory. Received: none")
    refused(directory, f"{tmp_path}: expected one NAME-train.metadata. Received: none")
    refused(f"{directory}/nowhere", "nowhere: expected a directory with NAME-train.metadata")
    numbers = np.zeros((2, 3)), np.ones(2, np.float32)
    encode(Dataset(numbers), ENCODINGS["digits"], tmp_path, 2)
    refused(directory, f"{tmp_path}: expected digits-test.metadata beside digits-train.metadata. Received: none")
    encode(Dataset(numbers, numbers), ENCODINGS["digits"], tmp_path, 2)
    refused(directory, "digits-train.metadata: expected labels of type int, which are classes. Received: float")
    (tmp_path / "other-train.metadata").write_bytes(b"")
    refused(directory, "expected one NAME-train.metadata. Received: digits-train.metadata, other-train.metadata")


def test_a_label_that_no_data_set_of_this_size_has(tmp_path: Path) -> None:
    """As that of a damaged file. The network would have as many outputs."""
    images = np.zeros((4, 1, 5, 5), np.float32)
    encode(Dataset((images, np.array([0, 1, 10**9, 1])), (images, np.arange(4))), ENCODINGS["digits"], tmp_path, 2)
    with pytest.raises(DataError) as caught:
        confs(f"--dataset batch_files --data-directory {tmp_path}", PICTURES)
    assert str(caught.value) == (
        f"{tmp_path}/digits-train.metadata: example 2: expected a label below the number of training examples, 4, "
        "unless --classes gives the number of classes. Received: 1000000000"
    )


def test_names_of_classes_may_outnumber_the_examples(tmp_path: Path) -> None:
    files = {f"{name}/{number}.jpg": picture(number) for name in "abc" for number in range(2)}
    train, _ = convert_image_folder(write_folder(tmp_path / "images", files), tmp_path / "out", check_fraction=0.5)
    train.with_suffix(".classes").write_text("".join(f"{number}\n" for number in range(1000)))
    given = confs(f"--dataset records --data-directory {tmp_path / 'out'} --image-size 8", PICTURES)
    assert given.data.number_of_classes == 1000


@pytest.mark.slow
def test_a_script_trains_on_batch_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encode(synthetic((1, 28, 28), training=64, check=20), ENCODINGS["digits"], tmp_path, 7)
    arguments = f"--dataset batch_files --data-directory {tmp_path} --epochs 2 --output-directory {tmp_path / 'out'}"
    assert logistic_regression.main(arguments.split()) == 0
    assert "batch_files, 64 training and 20 test images 1×28×28" in capsys.readouterr().out


# Images in folders and records


def images(count: int) -> list[bytes]:
    """Small JPEG files, dark or bright in turns."""
    from tests.data.test_images import encoded

    noise = np.random.default_rng(0).integers(0, 100, (count, 14, 17, 3))
    return [encoded((pixels + n % 2 * 150).astype(np.uint8)) for n, pixels in enumerate(noise)]


def folders(directory: Path, count: int = 40) -> None:
    for n, content in enumerate(images(count)):
        folder = directory / ("dark", "light")[n % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{n}.jpg").write_bytes(content)


def record_set(directory: Path, count: int = 40) -> None:
    directory.mkdir(exist_ok=True)
    boxes = np.zeros((0, 4), np.float32)
    made = [Record(n % 2, boxes, 14, 17, content) for n, content in enumerate(images(count))]
    for phase, part in (("train", made[4:]), ("test", made[:4])):
        write_records(directory / f"small-{phase}.records.1", part)
        prefix = f"small-{phase}.records"
        shapes = ((3, 224, 224), (1,))
        write_metadata(
            directory / f"small-{phase}.metadata", Metadata(prefix, prefix, 1, len(part), 1, *shapes, "float", "int")
        )


@pytest.mark.parametrize(("dataset", "write_files"), [("image_folder", folders), ("records", record_set)])
def test_a_script_trains_on_image_files(
    dataset: str, write_files: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow, of the extra zoo, is not installed")
    write_files(tmp_path / "data")
    arguments = (
        f"--dataset {dataset} --data-directory {tmp_path / 'data'} --image-size 12 --colour-distortion --epochs 2"
    )
    assert logistic_regression.main(f"{arguments} --output-directory {tmp_path / 'out'}".split()) == 0
    assert f"{dataset}, 36 training and 4 test images 3×12×12" in capsys.readouterr().out


def test_the_fraction_for_tests_is_that_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A test of the run later has the same test images."""
    pytest.importorskip("PIL.Image", reason="Pillow, of the extra zoo, is not installed")
    write_folder(tmp_path / "data", {f"{name}/{n}.png": picture(n, format="PNG") for name in "ab" for n in range(8)})
    arguments = f"--dataset image_folder --data-directory {tmp_path / 'data'} --image-size 12 --check-fraction 0.25"
    output = tmp_path / "out"
    assert logistic_regression.main(f"{arguments} --epochs 1 --output-directory {output}".split()) == 0
    assert "image_folder, 12 training and 4 test images" in capsys.readouterr().out
    for given in ([], ["--dataset", "image_folder", "--data-directory", str(tmp_path / "data")]):
        assert cli.main(["test", str(output), "--json", *given]) == 0
        assert json.loads(capsys.readouterr().out)["examples"] == 4


def test_image_files_are_read_once_for_a_script(tmp_path: Path) -> None:
    folders(tmp_path)
    source = confs(f"--dataset image_folder --data-directory {tmp_path} --image-size 12", PICTURES).data
    assert (source.image_shape, source.number_of_classes) == ((3, 12, 12), 2)
    assert source.load() is source.load()
    for dataset in ("image_folder", "records"):
        with pytest.raises(DataError, match=f"^--dataset {dataset}: expected --data-directory. Received: none$"):
            confs(f"--dataset {dataset}", PICTURES)


# Python sequences


@pytest.fixture
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores what importing a `dataset.py` changes."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})


@pytest.mark.slow
@pytest.mark.usefixtures("own_modules")
def test_a_script_trains_on_python_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`dataset.py` may define data classes, and import what lies beside it."""
    (tmp_path / "brightness.py").write_text("LEVELS = 10\n")
    (tmp_path / "dataset.py").write_text(
        """
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from brightness import LEVELS


@dataclass
class Squares:
    count: int

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.full((1, 5, 5), index % LEVELS * 25, np.uint8), index % LEVELS


train, check = Squares(64), Squares(20)
"""
    )
    arguments = f"--dataset sequence --data-directory {tmp_path} --epochs 2 --output-directory {tmp_path / 'out'}"
    assert logistic_regression.main(arguments.split()) == 0
    assert "sequence, 64 training and 20 test images 1×5×5" in capsys.readouterr().out
    capsys.readouterr()
    assert cli.main(["test", str(tmp_path / "out")]) == 2  # it runs no code that only run.json names
    assert "expected --dataset sequence --data-directory DIR, " in capsys.readouterr().err
    assert cli.main(["test", str(tmp_path / "out"), "--dataset", "sequence", "--data-directory", str(tmp_path)]) == 0


@pytest.mark.usefixtures("own_modules")
def test_python_code_that_has_changed_is_read_again(tmp_path: Path) -> None:
    """Also within a second, and with as many bytes."""
    for classes in (2, 3):
        (tmp_path / "dataset.py").write_text(f"train = check = [([0.5], n) for n in range({classes})]")
        data = confs(f"--dataset sequence --data-directory {tmp_path}", PICTURES).data
        assert data.number_of_classes == classes


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, "dataset.py: expected Python code that defines the sequences train and check of --dataset sequence"),
        ("train = []", "dataset.py: expected the sequences train and check. Received: no check"),
        ("train, check = [([1.0], 0)], None", "dataset.py: expected the sequences train and check. Received: no check"),
        ("train = check = []", "dataset.py: train: expected at least one example. Received: none"),
        ("train = check = [([1.0], 0.5)]", "dataset.py: expected labels of type int, which are classes. Received: fl"),
        ("train = check = [([1.0], 7)]", "dataset.py: train, example 0: expected a label below the number of training"),
    ],
)
def test_python_code_that_defines_no_sequences(code: str | None, message: str, tmp_path: Path) -> None:
    if code is not None:
        (tmp_path / "dataset.py").write_text(code)
    with pytest.raises(DataError, match=re.escape(message)):
        confs(f"--dataset sequence --data-directory {tmp_path}", PICTURES)


@pytest.mark.usefixtures("own_modules")
def test_an_exception_of_python_code_that_defines_sequences(tmp_path: Path) -> None:
    (tmp_path / "dataset.py").write_text("train = open('nowhere-at-all')")
    with pytest.raises(FileNotFoundError, match="nowhere-at-all"):
        confs(f"--dataset sequence --data-directory {tmp_path}", PICTURES)
