"""Networks of the zoo predict what torchvision's predict with the same weights."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.torchvision_import import import_torchvision
from crossbow import Dataflow, ExecutionContext, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.data import synthetic
from models.alexnet import alexnet
from models.densenet import densenet
from models.inception_v3 import inception_v3
from models.mobilenet import mobilenet
from models.resnext import resnext
from tests.support import Array

MISSING = [name for name in ("torch", "torchvision") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed, of torch and torchvision: {', '.join(MISSING)}"),
]
CLASSES = 5

PARTS = {"weights": "weight", "bias": "bias", "running_mean": "running_mean", "running_variance": "running_var"}
"""Variables of theirs by ours."""


def of_alexnet(name: str) -> str:
    convolutions = {1: 0, 2: 3, 3: 6, 4: 8, 5: 10}
    if name.startswith("conv"):
        return f"features.{convolutions[int(name[4:])]}"
    return f"classifier.{ {6: 1, 7: 4, 8: 6}[int(name[2:])] }"


def of_resnext(name: str) -> str:
    if unit := re.fullmatch(r"unit(\d)-(\d+)-(conv(\d)|shortcut)(-norm)?", name):
        stage, number, layer, index, norm = unit.groups()
        where = f"layer{stage}.{int(number) - 1}."
        if layer == "shortcut":
            return f"{where}downsample.{1 if norm else 0}"
        return where + (f"bn{index}" if norm else layer)
    return {"conv": "conv1", "conv-norm": "bn1", "ip": "fc"}[name]


MODULES = {
    **{f"A{number}": f"Mixed_5{letter}" for number, letter in enumerate("bcd", start=1)},
    "B": "Mixed_6a",
    **{f"C{number}": f"Mixed_6{letter}" for number, letter in enumerate("bcde", start=1)},
    "D": "Mixed_7a",
    **{f"E{number}": f"Mixed_7{letter}" for number, letter in enumerate("bc", start=1)},
}
STEM = ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3")
SEVENS = {"7x7-reduce": "branch7x7_1", "7x7-1": "branch7x7_2", "7x7-2": "branch7x7_3"}
DOUBLE = {"double-reduce": "branch3x3dbl_1", "double-1": "branch3x3dbl_2", "double-2": "branch3x3dbl_3"}
BRANCHES: dict[str, dict[str, str]] = {
    "A": {"5x5-reduce": "branch5x5_1", "5x5": "branch5x5_2", **DOUBLE},
    "B": {"3x3": "branch3x3", **DOUBLE},
    "C": {
        **SEVENS,
        "double-reduce": "branch7x7dbl_1",
        **{f"double-{number}": f"branch7x7dbl_{number + 1}" for number in (1, 2, 3, 4)},
    },
    "D": {
        "3x3-reduce": "branch3x3_1",
        "3x3": "branch3x3_2",
        "7x7-reduce": "branch7x7x3_1",
        **{f"7x7-{number}": f"branch7x7x3_{number + 1}" for number in (1, 2, 3)},
    },
    "E": {
        "3x3-reduce": "branch3x3_1",
        "3x3-1x3": "branch3x3_2a",
        "3x3-3x1": "branch3x3_2b",
        **DOUBLE,
        "double-1x3": "branch3x3dbl_3a",
        "double-3x1": "branch3x3dbl_3b",
    },
}


def of_inception(name: str) -> str:
    name, norm = name.removesuffix("-norm"), name.endswith("-norm")
    end = ".bn" if norm else ".conv"
    if name == "ip":
        return "fc"
    if name.startswith("auxiliary"):
        return {"conv1": f"AuxLogits.conv0{end}", "conv2": f"AuxLogits.conv1{end}", "ip": "AuxLogits.fc"}[name[10:]]
    if name.startswith("conv"):
        return STEM[int(name[4:]) - 1] + end
    module, _, branch = name.removeprefix("module").partition("-")
    branches = {"1x1": "branch1x1", "projection": "branch_pool", **BRANCHES[module[0]]}
    return f"{MODULES[module]}.{branches[branch]}{end}"


def in_order(theirs: Any, variables: Mapping[str, Array]) -> dict[str, str]:
    """Names of their modules with weights by ours, where both are chains."""
    modules = [name for name, module in theirs.named_modules() if getattr(module, "weight", None) is not None]
    ours = list(dict.fromkeys(name.rpartition(".")[0] for name in variables))
    return dict(zip(ours, modules, strict=True))


@pytest.mark.parametrize(
    ("build", "architecture", "names", "size"),
    [
        (lambda: alexnet(number_of_outputs=CLASSES), "alexnet", of_alexnet, 224),
        (lambda: resnext(number_of_outputs=CLASSES), "resnext50_32x4d", of_resnext, 64),
        (lambda: mobilenet(number_of_outputs=CLASSES), "mobilenet_v2", None, 64),
        (lambda: densenet(121, number_of_outputs=CLASSES), "densenet121", None, 64),
        (lambda: inception_v3(number_of_outputs=CLASSES), "inception_v3", of_inception, 96),
    ],
    ids=["alexnet", "resnext", "mobilenet", "densenet", "inception_v3"],
)
def test_the_same_weights_predict_the_same(
    build: Callable[[], Dataflow], architecture: str, names: Callable[[str], str] | None, size: int
) -> None:
    import torch

    weights, images, predicted = trained(build(), size)
    options = {"aux_logits": False, "init_weights": False} if architecture == "inception_v3" else {}
    theirs = getattr(import_torchvision("models"), architecture)(num_classes=CLASSES, **options)
    order = in_order(theirs, weights) if names is None else {}
    load(theirs, weights, names or (lambda operator: order[operator]))
    with torch.no_grad():
        expected = torch.softmax(theirs.eval()(torch.from_numpy(images)), dim=1).numpy()
    assert np.ptp(expected, axis=0).max() > 1e-5, "the images are told apart"
    np.testing.assert_allclose(predicted, expected, rtol=2e-3, atol=1e-5)


def test_the_loss_of_inception_with_its_auxiliary_classifier() -> None:
    """The first task's, with the initial weights, whose batch is the whole training set."""
    import torch

    data = synthetic((3, 299, 299), CLASSES, training=4, check=4)
    with ExecutionContext(
        [inception_v3(auxiliary=True, number_of_outputs=CLASSES), None],
        data=data,
        model=ModelConf(batch_size=4),
        system=SystemConf(learners_per_device=1),
    ) as context:
        weights = context.variables
        loss = context.train(1, TrainingUnit.TASKS).loss
    theirs = import_torchvision("models").inception_v3(num_classes=CLASSES, aux_logits=True, init_weights=False)
    load(theirs, weights, of_inception)
    theirs.dropout.p = 0.0  # ours has none
    labels = torch.from_numpy(np.asarray(data.train.labels)).long()
    with torch.no_grad():
        found = theirs.train()(torch.from_numpy(np.asarray(data.train.images).astype(np.float32) / 255))
    main, auxiliary = (torch.nn.functional.cross_entropy(logits, labels).item() for logits in found)
    assert loss == pytest.approx(main + 0.3 * auxiliary, rel=1e-3)
    assert abs(auxiliary - main) > 0.01 * main, "the two are told apart"


def load(theirs: Any, weights: Mapping[str, Array], names: Callable[[str], str]) -> None:
    """Give their network our variables."""
    import torch

    state = {}
    for name, value in weights.items():
        operator, _, variable = name.rpartition(".")
        state[f"{names(operator)}.{PARTS[variable]}"] = torch.from_numpy(value)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert unexpected == []
    assert all(name.endswith("num_batches_tracked") for name in missing)


def trained(dataflow: Dataflow, size: int) -> tuple[Mapping[str, Array], Array, Array]:
    """After enough tasks for running statistics with which the activations stay small."""
    data = synthetic((3, size, size), CLASSES, training=16, check=4)
    assert data.check is not None
    images = np.asarray(data.check.images)
    with ExecutionContext(
        [dataflow, None],
        data=data,
        model=ModelConf(batch_size=4),
        solver=SolverConf(learning_rate=0.0001, momentum=0.9),
        system=SystemConf(learners_per_device=1),
    ) as context:
        context.train(30 if size < 128 else 8, TrainingUnit.TASKS)
        return context.variables, images.astype(np.float32) / np.float32(255), context.predict(images)
