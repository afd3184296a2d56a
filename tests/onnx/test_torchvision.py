"""Networks of torchvision, exported by PyTorch: Crossbow computes the same, and trains on."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from benchmarks.torchvision_import import import_torchvision
from crossbow import Dataflow, DataflowNode, Dataset, ExecutionContext, ModelConf, Operator, SubGraph, SystemConf
from crossbow.onnx import load
from crossbow.ops import SoftMax, SoftMaxLoss
from tests.onnx.test_torch import exported
from tests.support import FAST

MISSING = [name for name in ("torch", "torchvision") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed, of torch and torchvision: {', '.join(MISSING)}"),
]
CLASSES = 10


@pytest.fixture(scope="module")
def models() -> Any:
    """The architectures."""
    return import_torchvision("models")


@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(
    ("name", "options"),
    [("squeezenet1_1", {}), ("resnet18", {}), ("mobilenet_v2", {"width_mult": 0.35})],
)
def test_it_predicts_the_same_and_trains_on(name: str, options: dict[str, Any], kernels: str, models: Any) -> None:
    import torch

    torch.manual_seed(0)
    theirs = getattr(models, name)(num_classes=CLASSES, **options)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, 3, 64, 64)).astype(np.float32)
    norms = [module for module in theirs.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for momentum in (1.0, 0.1):  # running statistics of these images, so that they are told apart
        for norm in norms:
            norm.momentum = momentum
        with torch.no_grad():
            theirs.train()(torch.from_numpy(x))
    theirs.eval()
    network = load(exported(theirs, shape=(2, 3, 64, 64)))
    softmax, loss = DataflowNode(Operator("softmax", SoftMax())), DataflowNode(Operator("loss", SoftMaxLoss()))
    network.tail.connect_to(softmax).connect_to(loss)
    with ExecutionContext(
        [Dataflow(SubGraph(network.head)), None],
        data=Dataset((x, np.arange(8) % CLASSES), number_of_classes=CLASSES),
        model=ModelConf(batch_size=4),
        system=SystemConf(learners_per_device=1, kernels=kernels),
    ) as context:
        with torch.no_grad():
            expected = torch.softmax(theirs(torch.from_numpy(x)), 1).numpy()
        assert np.ptp(expected, axis=0).max() > 1e-3, "the images are told apart"
        np.testing.assert_allclose(context.predict(x), expected, rtol=1e-4, atol=1e-6)
        history = context.train(6)
        assert all(np.isfinite(record.loss) for record in history.records)
        # Not the second: a rounding error in the images changes it by several percent, up or down.
        assert history.records[-1].loss < history.records[0].loss
