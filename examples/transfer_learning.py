"""Transfer learning: the features of a ResNet-18 from PyTorch, and a new head for CIFAR-10.

`python -m examples.transfer_learning --onnx resnet18.onnx` reads a network that was exported from PyTorch::

    network = torchvision.models.resnet18(weights="DEFAULT").eval()
    torch.onnx.export(network, (torch.zeros(1, 3, 224, 224),), "resnet18.onnx", dynamo=False,
                      training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)

Without --onnx, the example exports the network itself, which needs PyTorch and torchvision: with trained weights, or
with random ones if those cannot be downloaded. It trains the head alone, and then all layers at a smaller learning
rate.
"""

from __future__ import annotations

import argparse
import io
import warnings
from typing import Any

import onnx

import crossbow.onnx
from crossbow import Dataflow, Dataset, ExecutionContext, ModelConf, Sequential, SolverConf, SubGraph
from crossbow.data import cifar10, synthetic
from crossbow.ops import DataTransform, InnerProduct, SoftMax, SoftMaxLoss

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation, by channel, of the images that torchvision's networks were trained with, in [0, 1]."""
FEATURES = "/Flatten"
"""The node whose output is the features (N, 512). `print(Dataflow(network).summary((3, 32, 32)))` shows the names of
all nodes."""


def exported() -> onnx.ModelProto:
    """torchvision's ResNet-18 as ONNX."""
    import torch
    from torchvision.models import ResNet18_Weights, resnet18  # type: ignore[import-untyped]

    try:
        network = resnet18(weights=ResNet18_Weights.DEFAULT)
    except OSError as error:
        print(f"random weights, because the trained ones cannot be downloaded: {error}")
        network = resnet18()
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch recommends its newer exporter
        torch.onnx.export(
            network.eval(),
            (torch.zeros(1, 3, 224, 224),),
            file,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
        )
    return onnx.load_from_string(file.getvalue())


def with_new_head(imported: SubGraph, classes: int) -> Sequential:
    """The imported network up to its features, between a normalisation of the images and a new classifier."""
    transform = DataTransform(mean=MEAN, scale=tuple(1 / each for each in DEVIATION))
    return Sequential(transform, imported.until(FEATURES), ("head", InnerProduct(classes)), SoftMax(), SoftMaxLoss())


def train(imported: SubGraph, data: Dataset, *, epochs: int, batch_size: int) -> float:
    """Train the head for `epochs` epochs, and then all layers for as many. Returns the test accuracy."""
    classes, model = data.number_of_classes or 1, ModelConf(batch_size=batch_size)
    network = with_new_head(imported, classes).freeze("/*")
    print(Dataflow(network).summary(data.image_shape))
    with ExecutionContext(network, data=data, model=model, solver=SolverConf(learning_rate=0.05)) as context:
        context.train_and_test(epochs)
        trained = context.variables
    network = with_new_head(imported, classes)  # it is not frozen, because freeze returns a copy
    with ExecutionContext(network, data=data, model=model, solver=SolverConf(learning_rate=0.005)) as context:
        context.set_variables(trained)
        context.train_and_test(epochs)
        return context.test().accuracy or 0.0


def main(arguments: list[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Trains a new head of an imported ResNet-18 on CIFAR-10.")
    parser.add_argument("--onnx", metavar="FILE", help="the exported network (default: it is exported by PyTorch)")
    parser.add_argument("--data-directory", metavar="DIR", help="files of CIFAR-10 (default: they are downloaded)")
    parser.add_argument("--synthetic", action="store_true", help="few random images, without CIFAR-10")
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="of each stage (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    data = synthetic((3, 32, 32), training=320, check=100) if options.synthetic else cifar10(options.data_directory)
    imported = crossbow.onnx.load(exported() if options.onnx is None else options.onnx)
    accuracy = train(imported, data, epochs=options.epochs, batch_size=options.batch_size)
    print(f"test accuracy {accuracy:.2%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
