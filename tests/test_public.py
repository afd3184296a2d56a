"""What users import, and what importing costs them."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from importlib import metadata

import pytest

import crossbow

OPTIONAL = ("sklearn", "scipy", "matplotlib", "pooch", "simplejpeg", "PIL", "torch", "cupy", "onnx", "mpi4py")
"""Packages of the extras, and of comparisons."""

NAMES = {
    "crossbow": (
        "Constant DataError Dataflow DataflowNode Dataset DurationUnit ExecutionContext Gaussian GraphError History "
        "ConfigurationError CrossbowError MSRA ModelConf NonFiniteLossError Operator Phase Predictor SMA SSGD "
        "RunSummary SolverConf SubGraph SystemConf TaskError TestResult TrainingUnit Uniform Xavier __version__ "
        "Sequential chain Monitor ConsoleMonitor CsvMonitor EarlyStopping JsonLinesMonitor StatusMonitor "
        "TensorBoardMonitor WandbMonitor"
    ),
    "crossbow.ops": (
        "Accuracy Concat ConcatGradient Conv ConvGradient DataTransform Dropout DropoutGradient ElementWiseOp "
        "ElementWiseOpGradient "
        "EuclideanLoss LRN LRNGradient Scale ScaleGradient "
        "EuclideanLossGradient Gradient GradientDescentOptimiser InnerProduct InnerProductGradient Kernel Pool "
        "PoolGradient ReLU ReLUGradient SoftMax SoftMaxGradient SoftMaxLoss SoftMaxLossGradient VariableSpec "
        "Classify Flatten FlattenGradient MatFact MatFactGradient MatFactPrediction MatMul MatMulGradient Noop "
        "NoopGradient"
    ),
    "crossbow.data": (
        "BatchFiles Dataset Record RecordFile cifar10 cifar100 decode_image digits fashion_mnist mnist read_idx "
        "batch_files image_folder records sequence synthetic write_records"
    ),
    "crossbow.synch": "SMA SSGD Collective HostCollective Rule rule_class",
    "crossbow.testing": "run_operator check_gradients FakeCollective Failure Stall WrongSize",
    "crossbow.onnx": "load save",
    "crossbow.foreign": "BSP DataClass EASGD ForeignModels GOSGD IterationRecorder ModelClass check_model",
}


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("module", "names"), NAMES.items())
def test_public_names_can_be_imported(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []
    assert [name for name in names.split() if name not in found.__all__] == []


@pytest.mark.parametrize("module", NAMES)
def test_all_names_exist_and_none_is_there_twice(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in found.__all__ if not hasattr(found, name)] == []
    assert len(set(found.__all__)) == len(found.__all__)


def test_every_public_thing_has_a_docstring() -> None:
    without = [
        f"{module}.{name}"
        for module in NAMES
        for name in importlib.import_module(module).__all__
        if callable(thing := getattr(importlib.import_module(module), name)) and not (thing.__doc__ or "").strip()
    ]
    assert without == []


def test_the_version_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", crossbow.__version__)
    try:
        installed = metadata.version("crossbow")
    except metadata.PackageNotFoundError:
        pytest.skip("crossbow is not installed, only on the path")
    assert installed == crossbow.__version__


def test_importing_crossbow_imports_no_optional_package() -> None:
    code = (
        "import sys, crossbow, crossbow.ops, crossbow.data, crossbow.synch, crossbow.testing\n"
        f"print(*(name for name in {OPTIONAL!r} if name in sys.modules))"
    )
    assert python(code) == ""


def test_crossbow_works_where_no_optional_package_is() -> None:
    """They cannot even be found; a small network trains nevertheless, on the reference kernels."""
    code = f"""
import importlib.abc, sys

class Nowhere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Nowhere())
import numpy as np
from crossbow import Dataflow, DataflowNode, Dataset, ExecutionContext, ModelConf, Operator, SubGraph, SystemConf
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss

ip = DataflowNode(Operator("ip", InnerProduct(number_of_outputs=2)))
ip.connect_to(DataflowNode(Operator("p", SoftMax()))).connect_to(DataflowNode(Operator("loss", SoftMaxLoss())))
x = np.arange(12, dtype=np.float32).reshape(6, 2)
with ExecutionContext([Dataflow(SubGraph(ip)), None], data=Dataset((x, np.arange(6) % 2)),
                      model=ModelConf(batch_size=2), system=SystemConf(kernels="reference")) as context:
    context.train(1, verbose=0)
print("trained")
"""
    assert python(code) == "trained"


@pytest.mark.slow
def test_every_module_can_be_imported_without_a_warning() -> None:
    packages = pkgutil.walk_packages(crossbow.__path__, "crossbow.")
    modules = [info.name for info in packages if not info.name.endswith("__main__")]
    assert {"crossbow.compile.compiler", "crossbow.kernels.cpu.library"} <= set(modules)
    code = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\nprint('imported')"
    assert python(code) == "imported"
