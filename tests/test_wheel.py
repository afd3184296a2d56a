"""The wheel holds all that an installation needs: what is trained here comes from it, not from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[1]


def run(*command: object, cwd: Path, **environment: str) -> str:
    """What a command prints, without the caller's paths."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel. It sees the other packages that are installed here, but
    not this checkout: a path in a `.pth` file is added without the `.pth` files that lie there."""
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=ROOT)
    (wheel,) = directory.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", directory / "fresh", cwd=directory)
    fresh = directory / "fresh" / ("Scripts" if os.name == "nt" else "bin") / "python"
    (packages,) = (directory / "fresh").rglob("site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    options = ("--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check", "--quiet")
    run(sys.executable, "-m", "pip", "--python", fresh, "install", *options, wheel, cwd=directory)
    return fresh


@pytest.mark.slow
def test_the_zoo_is_installed(python: Path, tmp_path: Path) -> None:
    """One tick of LeNet, outside the checkout."""
    where = run(python, "-c", "import crossbow, models; print(crossbow.__file__, models.__file__)", cwd=tmp_path)
    assert all(Path(file).is_relative_to(python.parents[1]) for file in where.split())
    options = (
        "--dataset synthetic --training-examples 16 --test-examples 8 --batch-size 8 --learners 2 --epochs 1 "
        "--kernels reference"
    )
    printed = run(python, "-m", "models.lenet", *options.split(), cwd=tmp_path)
    assert "trained 1 epoch (2 tasks)" in printed
    assert (tmp_path / "output" / "lenet" / "log.jsonl").is_file()


@pytest.mark.slow
def test_the_command_is_installed(python: Path, tmp_path: Path) -> None:
    assert "crossbow" in run(python.parent / "crossbow", "--version", cwd=tmp_path)
