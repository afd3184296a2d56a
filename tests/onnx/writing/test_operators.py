"""Writers of Crossbow's operators: onnxruntime computes the same, and what is read again is the same."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import (
    DataflowNode,
    GraphError,
    Operator,
    Phase,
    SubGraph,
)
from crossbow.onnx import save
from crossbow.onnx.writing.table import WRITERS
from crossbow.ops import (
    Pool,
    Upsample,
)
from crossbow.testing import run_operator
from tests.combinations import one_in
from tests.onnx.models import draw, run_onnx
from tests.onnx.written_models import check, written
from tests.operators.table import CASES, Case

REFUSED = {
    "Pool(method=stochastic)": lambda kernel: isinstance(kernel, Pool) and kernel.method == "stochastic",
}


ROWS = [
    case
    for case in CASES
    if type(case.kernel) in WRITERS and not any(refuses(case.kernel) for refuses in REFUSED.values())
]


@one_in(2)
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_every_row_of_the_operator_table(case: Case) -> None:
    """onnxruntime's output, ours, and that of what is read again."""
    kernel, inputs = case.kernel, [np.asarray(x, np.float64) for x in case.inputs()]
    specs = [*kernel.variables(*case.shapes), *kernel.running_statistics(*case.shapes)]
    values = {spec.name: np.abs(draw(*spec.shape)) + 0.5 for spec in specs}
    own = [spec.name for spec in kernel.variables(*case.shapes)]
    expected = run_operator(
        kernel,
        inputs,
        variables={name: values[name] for name in own},
        statistics={name: value for name, value in values.items() if name not in own},
        phase=Phase.CHECK,
        dtype=np.float64,
    ).outputs[0]
    check(kernel, case, inputs, values, expected)


def test_every_operator_that_predicts_can_be_written() -> None:
    """Those without a writer take labels, or are for training only."""
    kinds = {type(case.kernel) for case in CASES if not case.kernel.takes_labels and not case.kernel.train_only}
    assert {kind.__name__ for kind in kinds - WRITERS.keys()} == set()


@pytest.mark.parametrize("case", [c for c in CASES if any(refuses(c.kernel) for refuses in REFUSED.values())], ids=str)
def test_what_onnx_does_not_have_is_refused(case: Case) -> None:
    node = DataflowNode(Operator("it", case.kernel))
    with pytest.raises(GraphError, match=r"^node 'it' \(.*\): ONNX has no "):
        save(SubGraph(node), "/nowhere", input_shape=case.shapes[0][1:])


def test_windows_that_onnx_counts_in_another_way_are_refused() -> None:
    """A last window would begin behind the input along one axis, and hangs over along the other."""
    node = DataflowNode(Operator("pool", Pool(kernel_size=2, stride=3)))
    with pytest.raises(GraphError, match=r"'pool' \(Pool\): ONNX counts windows other than \(2, 3\)"):
        save(SubGraph(node), "/nowhere", input_shape=(1, 6, 7))
    proto = written(Pool(kernel_size=2, stride=3), ((1, 1, 6, 6),), {})
    assert run_onnx(proto, x0=draw(1, 1, 6, 6)).shape == (1, 1, 2, 2)


@pytest.mark.parametrize("method", ["nearest", "linear"])
def test_sizes_that_onnx_rounds_in_another_way_are_refused(method: str) -> None:
    """In float32, 4.2 is rounded down. 15 times it is below 63; 10 times it is below 42, but float32 rounds that up."""
    kernel = Upsample((4.2, 2), method=method)
    for height, size in ((15, 63), (10, 42)):
        message = rf"'it' \(Upsample\): ONNX computes sizes other than \({size}, 8\) here; give size instead of scale"
        with pytest.raises(GraphError, match=message):
            save(SubGraph(DataflowNode(Operator("it", kernel))), "/nowhere", input_shape=(1, height, 4))
        proto = written(Upsample(size=(size, 8), method=method), ((1, 1, height, 4),), {})
        assert run_onnx(proto, x0=draw(1, 1, height, 4)).shape == (1, 1, size, 8)
    assert run_onnx(written(kernel, ((1, 1, 11, 4),), {}), x0=draw(1, 1, 11, 4)).shape == (1, 1, 46, 8)
