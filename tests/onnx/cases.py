"""The ONNX project's own test cases: the generated ones of single operators, and those that came from PyTorch."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

Array = NDArray[Any]
Data = Sequence[tuple[Sequence[Any], Sequence[Any]]]
"""Pairs of inputs and outputs: arrays, or lists of arrays."""
LARGE = 10_000
"""Minimum number of elements in the windows of a channel for an output that is computed when it is used."""
SUITES = ("node", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True, eq=False)
class OnnxCase:
    """A model with inputs and the outputs that it must give."""

    suite: str
    name: str
    model: onnx.ModelProto
    read: Callable[[], Data]

    def __str__(self) -> str:
        return self.name

    @functools.cached_property
    def data(self) -> Data:
        return self.read()

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
    from onnx.backend.test.case import base
    from onnx.reference.ops import op_pool_common

    later: dict[int, tuple[Array, Callable[[], Array]]] = {}
    pool = op_pool_common.pool

    def pool_later(
        padded: Array, shape: Sequence[int], kernel: Any, strides: Any, out: Any, *rest: Any, **options: Any
    ) -> Array:
        """Postpone a few large outputs, which would take four fifths of the time, until they are used."""
        compute = functools.cache(functools.partial(pool, padded, shape, kernel, strides, out, *rest, **options))
        if np.prod(out) * np.prod(kernel) < LARGE:
            return compute()
        made = np.zeros((*shape[:2], *out), padded.dtype)
        later[id(made)] = made, compute  # while the array exists, no other one has its number
        return made

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # the generators' own overflows and divisions by zero
        patch.setattr(op_pool_common, "pool", pool_later)
        patch.setattr(base, "process_snippet", lambda *arguments: ("", ""))  # sources, for ONNX's documentation
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    outputs = {id(each) for case in found for _, made in case.data_sets or () for each in made}
    assert later.keys() <= outputs  # else a case has what was made of zeros

    def computed(output: Any) -> Any:
        return later[id(output)][1]() if id(output) in later else output

    def read(case: Any) -> Data:
        return [(_arrays(x), _arrays([computed(each) for each in y])) for x, y in case.data_sets or ()]

    return [OnnxCase("node", case.name, case.model, functools.partial(read, case)) for case in found]


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Types that NumPy does not have come as tensors of the package."""
    return [onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value for value in values]


def pytorch_cases(suite: str) -> Iterator[OnnxCase]:
    """The cases of one of the folders that the package onnx brings along."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / suite
    for case in sorted(folder.iterdir()):
        yield OnnxCase(suite, case.name, onnx.load(case / "model.onnx"), functools.partial(_data, case))


def _data(case: Path) -> Data:
    folders = sorted(case.glob("test_data_set_*"))
    return [(_tensors(folder, "input"), _tensors(folder, "output")) for folder in folders]


def _tensors(folder: Path, kind: str) -> list[Array]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    tensors = [onnx.load_tensor(folder / f"{kind}_{number}.pb") for number in range(count)]
    return [np.asarray(onnx.numpy_helper.to_array(tensor)) for tensor in tensors]
