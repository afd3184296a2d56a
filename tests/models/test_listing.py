from __future__ import annotations

import doctest
import importlib
import json
from pathlib import Path

import pytest

import models
from crossbow.scripts import ModelDescription
from models.listing import as_json, as_table, descriptions, scripts

EXPECTED = {
    "mlp (2048-4096-1024)": 14_205_962,
    "mlp (512-512)": 669_706,
    "logistic_regression": 7_850,
    "lenet (original)": 1_111_946,
    "lenet (batch-norm)": 1_112_138,
    "lenet (caffe)": 431_080,
    "convnet (quick)": 145_578,
    "convnet (full)": 89_578,
    "alexnet (one-tower)": 61_100_840,
    "alexnet (caffe)": 60_965_224,
    "alexnet (v2)": 62_378_344,
    "overfeat": 145_920_872,
    "vgg (cifar)": 14_991_946,
    "vgg (cifar, cifar100)": 15_038_116,
    "vgg (imagenet)": 138_357_544,
    "vgg (a)": 132_863_336,
    "vgg (19)": 143_667_240,
    "googlenet": 6_998_552,
    "googlenet (auxiliary classifiers)": 13_378_280,
    "inception_bn (imagenet)": 11_295_240,
    "inception_bn (small)": 1_652_826,
    "inception_v3": 23_834_568,
    "inception_v3 (auxiliary classifier)": 27_161_264,
    "resnet (18, version 1)": 11_689_512,
    "resnet (20, version 1)": 269_722,
    "resnet (32, version 1)": 464_154,
    "resnet (34, version 1)": 21_797_672,
    "resnet (44, version 1)": 658_586,
    "resnet (50, version 1)": 25_557_032,
    "resnet (56, version 1)": 853_018,
    "resnet (101, version 1)": 44_549_160,
    "resnet (110, version 1)": 1_727_962,
    "resnet (152, version 1)": 60_192_808,
    "resnet (164, version 1)": 1_704_154,
    "resnet (164, version 2)": 1_703_258,
    "wide_resnet (16-4)": 2_748_890,
    "wide_resnet (28-10)": 36_479_194,
    "wide_resnet (28-10, cifar100)": 36_536_884,
    "matrix_factorisation (5,000×5,000, rank 10)": 100_000,
    "densenet (100, growth 12)": 769_162,
    "densenet (121, growth 32)": 7_978_856,
    "mobilenet": 3_504_872,
    "transformer (2 layers, width 128)": 437_856,
    "vit (patch 4, 4 layers, width 128)": 817_290,
    "resnext": 25_028_904,
}


def test_all_models() -> None:
    """With the options of their commands; every script is listed."""
    found = descriptions()
    assert {model.name: model.parameters for model in found} == EXPECTED
    assert len({model.command for model in found}) == len(found) == len(EXPECTED)
    listed = {model.command.split()[2] for model in found}
    assert listed == {f"models.{script.name}" for script in scripts()}
    shapes = {model.name: model.input_shape for model in found}
    assert shapes["inception_v3"] == (3, 299, 299)
    assert shapes["alexnet (caffe)"] == (3, 227, 227)
    assert shapes["vgg (cifar)"] == (3, 32, 32)
    assert shapes["matrix_factorisation (5,000×5,000, rank 10)"] == (2,)
    commands = {model.name: model.command for model in found}
    assert commands["googlenet (auxiliary classifiers)"] == "python -m models.googlenet --auxiliary"


TWO = [
    ModelDescription("mlp (8)", "python -m models.mlp --hidden 8", 6370, (1, 28, 28), "arXiv:1608.07249"),
    ModelDescription("ratings", "python -m models.ratings", 1_000_000, (2,), ""),
]


def test_the_table() -> None:
    assert as_table(TWO).splitlines() == [
        "name     parameters  input    paper             command",
        "mlp (8)       6,370  1×28×28  arXiv:1608.07249  python -m models.mlp --hidden 8",
        "ratings   1,000,000  2                          python -m models.ratings",
    ]


def test_json() -> None:
    first, second = json.loads(as_json(TWO))
    assert first == {
        "name": "mlp (8)",
        "command": "python -m models.mlp --hidden 8",
        "parameters": 6370,
        "input_shape": [1, 28, 28],
        "paper": "arXiv:1608.07249",
    }
    assert second["paper"] == ""


def test_the_readme_lists_the_same() -> None:
    readme = (Path(models.__file__).parents[1] / "README.md").read_text("utf-8")
    found = descriptions()
    assert [model.name for model in found if f"{model.parameters:,}" not in readme] == []
    assert [model.command for model in found if f"`{' '.join(model.command.split()[:3])}`" not in readme] == []


@pytest.mark.parametrize("name", [script.name for script in scripts()])
def test_examples_in_the_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"models.{name}"))
    assert result.failed == 0
    assert result.attempted > 0 or name == "logistic_regression"
