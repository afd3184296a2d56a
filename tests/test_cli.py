from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys

import pytest

import crossbow
from crossbow import cli
from crossbow.kernels import why_not_onednn
from crossbow.kernels.cuda.shared_library import CUDNN, Found, Library
from crossbow.scripts import ModelDescription
from crossbow.types import ConfigurationError
from tests.kernels.cuda.fake import fake_cuda


def out(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(arguments) == 0
    return capsys.readouterr().out


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "info")
    assert re.search(rf"^crossbow +{re.escape(crossbow.__version__)}$", text, re.MULTILINE)
    assert re.search(rf"^python +{re.escape(sys.version.split()[0])} ", text, re.MULTILINE)
    assert re.search(r"^  cpu +\d+ × .+ \(cores? \d", text, re.MULTILINE)
    assert re.search(r"learners 'auto': \d+, with 1 thread each", text)
    assert re.search(r"^  cuda(:0 +\S|  +not in use: expected )", text, re.MULTILINE)
    assert re.search(r"^  reference +in use with .*float64", text, re.MULTILINE)
    assert re.search(r"^  numpy +\d", text, re.MULTILINE)


@pytest.mark.skipif(why_not_onednn() is not None, reason=f"no fast kernels: {why_not_onednn()}")
def test_info_where_the_fast_kernels_work(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "info")
    assert re.search(r"^  onednn +in use with float32; oneDNN 3\.\d+\.\d+$", text, re.MULTILINE)
    assert re.search(r"^  reference +in use with float64; NumPy ", text, re.MULTILINE)


def test_info_names_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_cuda(2):
        assert re.search(r"^  cuda:0 +no GPU\n  cuda:1 +no GPU$", out(capsys, "info"), re.MULTILINE)


def test_info_says_why_a_library_is_not_in_use(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "the system library libgomp.so.1 (package libgomp1), which oneDNN needs, is missing"
    monkeypatch.setattr("crossbow.cli.why_not_onednn", lambda: reason)
    monkeypatch.setattr("crossbow.kernels.why_not_onednn", lambda: reason)
    text = out(capsys, "info")
    assert re.search(rf"^  onednn +not in use: {re.escape(reason)}$", text, re.MULTILINE)
    assert re.search(r"^  compiled +in use with float32; vectors of \d+ numbers$", text, re.MULTILINE)
    assert re.search(r"^  reference +in use with float64; NumPy ", text, re.MULTILINE)


def test_info_names_the_extra_of_a_missing_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.EXTRAS, "zoo", {"no-such-package-as-this": "nothing"})
    assert "not installed (nothing): pip install 'crossbow[zoo]'" in out(capsys, "info")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--version"], 0, f"crossbow {crossbow.__version__}"),
        (["--help"], 0, "info"),
        (["info", "--help"], 0, "usage: crossbow info"),
        ([], 2, "required: COMMAND"),
        (["train"], 2, "invalid choice: 'train'"),
        (["info", "--all"], 2, "unrecognized arguments: --all"),
    ],
)
def test_exits(arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == status
    printed = capsys.readouterr()
    assert message in (printed.err if status else printed.out)
    assert "usage: crossbow" in printed.out + printed.err or arguments == ["--version"]


@pytest.mark.slow
def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "crossbow", "--version"], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stdout.strip()) == (0, f"crossbow {crossbow.__version__}")


def test_info_says_where_the_libraries_of_gpus_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(library: Library) -> Found:
        if library is CUDNN:
            return Found(ctypes.CDLL(None), "/lib/libcudnn.so.9", "the package nvidia-cudnn-cu13")
        raise ConfigurationError("expected cuBLAS. Received: none")

    monkeypatch.setattr(cli, "find", find)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    text = out(capsys, "info")
    assert re.search(r"^  cuDNN +/lib/libcudnn\.so\.9 \(found by the package nvidia-cudnn-cu13\)$", text, re.MULTILINE)
    assert re.search(r"^  cuBLAS +not in use: expected cuBLAS\. Received: none$", text, re.MULTILINE)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "cuDNN" not in out(capsys, "info")


def test_models(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [ModelDescription("net", "python -m models.net", 1234, (3, 32, 32), "arXiv:0000.00000")]
    monkeypatch.setattr("models.listing.descriptions", lambda: found)
    assert "net        1,234  3×32×32  arXiv:0000.00000  python -m models.net" in out(capsys, "models")
    assert json.loads(out(capsys, "models", "--json")) == [
        {
            "name": "net",
            "command": "python -m models.net",
            "parameters": 1234,
            "input_shape": [3, 32, 32],
            "paper": "arXiv:0000.00000",
        }
    ]
