"""The compiler knows operators by what they say of themselves, not by their classes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import crossbow.compile
import crossbow.ops
from crossbow.conf import configuration
from crossbow.kernels.requests import ConvolutionForward, WeightedSum
from crossbow.ops import BatchNorm, Conv, ElementWiseOp, GradientDescentOptimiser, Kernel, Pool, ReLU
from crossbow.ops.kernel import Precision

MODULES = sorted(Path(crossbow.compile.__file__).parent.glob("*.py"))
BASE = {"crossbow.ops.kernel", "crossbow.ops.initialiser"}
"""What is no operator: the base class, and what fills variables."""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_the_compiler_imports_no_operator(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    assert [name for name in imported if name.startswith("crossbow.ops") and name not in BASE] == []


@configuration
class Doubled(ReLU):
    """Another function than the class that it is derived from."""


def test_what_an_operator_says_holds_for_its_class_alone() -> None:
    assert (ReLU().is_relu, ReLU().derivative_from_output) == (True, True)
    assert (Doubled().is_relu, Doubled().derivative_from_output) == (False, False)
    assert (ReLU.precision, Doubled.precision) == (Precision.FOLLOWING, Precision.WIDE)


def test_what_an_operator_says_may_follow_from_its_configuration() -> None:
    assert [ReLU(mode="tanh").is_relu, ReLU(negative_slope=0.1).is_relu] == [False, False]
    assert [Pool(method=method).picks_largest for method in ("max", "average")] == [True, False]
    assert [ElementWiseOp(type=kind).takes_relu for kind in ("sum", "max")] == [WeightedSum, None]
    assert Conv(number_of_outputs=1).takes_relu is ConvolutionForward
    assert [BatchNorm.gradient_takes_relu, Conv.gradient_takes_relu] == [True, False]


def test_only_the_optimiser_is_the_step() -> None:
    found = [getattr(crossbow.ops, name) for name in crossbow.ops.__all__]
    operators = [item for item in found if isinstance(item, type) and issubclass(item, Kernel)]
    assert [operator for operator in operators if operator.is_step] == [GradientDescentOptimiser]
