"""The ONNX project's own test cases: the generated ones of single operators, and those that came from PyTorch."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]
SUITES = ("node", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True, eq=False)
class OnnxCase:
    """A model with inputs and the outputs that it must give."""

    suite: str
    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    """Pairs of inputs and outputs: arrays, or lists of arrays."""

    def __str__(self) -> str:
        return self.name

    @property
    def operators(self) -> frozenset[str]:
        """Of the nodes; "domain.Op" where the domain is not ONNX's."""
        return frozenset(
            node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
            for node in self.model.graph.node
        )


@functools.cache
def node_cases() -> Sequence[OnnxCase]:
    """The generated cases of single operators. Takes some seconds."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators' own overflows and divisions by zero
        found = collect_testcases(None)
    return [
        OnnxCase("node", case.name, case.model, [(_arrays(x), _arrays(y)) for x, y in case.data_sets or ()])
        for case in found
    ]


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Types that NumPy does not have come as tensors of the package."""
    return [onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value for value in values]


def pytorch_cases(suite: str) -> Iterator[OnnxCase]:
    """The cases of one of the folders that the package onnx brings along."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / suite
    for case in sorted(folder.iterdir()):
        data = []
        for data_set in sorted(case.glob("test_data_set_*")):
            data.append((_tensors(data_set, "input"), _tensors(data_set, "output")))
        yield OnnxCase(suite, case.name, onnx.load(case / "model.onnx"), data)


def _tensors(folder: Path, kind: str) -> list[Array]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    tensors = [onnx.load_tensor(folder / f"{kind}_{number}.pb") for number in range(count)]
    return [np.asarray(onnx.numpy_helper.to_array(tensor)) for tensor in tensors]
