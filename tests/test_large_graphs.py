"""What is done with a graph takes time in proportion to its nodes, however it is wired, and graphs may be deep.

Time is not measured: the lines that run are counted, function by function, for a network and one of twice its size.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import crossbow
from crossbow import Dataflow, DataflowNode, ExecutionContext, ModelConf, Operator, Phase, SubGraph, SystemConf
from crossbow.compile import Lifetime, memory, plan_memory
from crossbow.data import synthetic
from crossbow.ops import BatchNorm, Concat, Conv, ElementWiseOp, InnerProduct, Kernel, Noop, Pool, ReLU, SoftMax
from crossbow.ops import SoftMaxLoss as Loss
from crossbow.types import Shape, TrainingUnit
from tests.combinations import one_in
from tests.compile.execution import compile_network

NODES = 60
RATIO = 2.6
"""Of the lines with twice the nodes: 2, with something for logarithms; steps over all nodes for each would be 4."""

VECTOR, IMAGE = (8,), (1, 4, 4)


def node(name: str, kernel: Kernel) -> DataflowNode:
    return DataflowNode(Operator(name, kernel))


def classified(x: DataflowNode) -> None:
    """Append what makes a network of it that can be trained."""
    last = x.connect_to(node("out", InnerProduct(number_of_outputs=3)))
    last.connect_to(node("softmax", SoftMax())).connect_to(node("loss", Loss()))


def chain(count: int) -> DataflowNode:
    head = x = node("in", InnerProduct(number_of_outputs=8))
    for number in range(count):
        kernel = ReLU(mode="tanh") if number % 2 else InnerProduct(number_of_outputs=8)
        x = x.connect_to(node(f"layer{number}", kernel))
    classified(x)
    return head


def residual(count: int) -> DataflowNode:
    head = x = node("in", Conv(number_of_outputs=2, kernel_size=3, padding=1))
    for number in range(count // 6):
        branch = x.connect_to(node(f"conv{number}", Conv(number_of_outputs=2, kernel_size=3, padding=1)))
        branch = branch.connect_to(node(f"norm{number}", BatchNorm())).connect_to(node(f"relu{number}", ReLU()))
        branch = branch.connect_to(node(f"pool{number}", Pool(method="max", kernel_size=3, stride=1, padding=1)))
        total = node(f"sum{number}", ElementWiseOp())
        x.connect_to(total)
        x = branch.connect_to(total).connect_to(node(f"out{number}", ReLU()))
    classified(x)
    return head


def wide(count: int) -> DataflowNode:
    head, joined = node("in", InnerProduct(number_of_outputs=8)), node("concat", Concat())
    for number in range(count):
        branch = head.connect_to(node(f"branch{number}", InnerProduct(number_of_outputs=2)))
        branch.connect_to(joined)
    classified(joined)
    return head


def tree(count: int) -> DataflowNode:
    """One node read by many, which are summed two by two."""
    head = node("in", InnerProduct(number_of_outputs=8))
    level = [head.connect_to(node(f"leaf{number}", ReLU(mode="tanh"))) for number in range(count // 2)]
    while len(level) > 1:
        sums = [node("sum", ElementWiseOp()) for _ in range(len(level) // 2)]
        for number, x in enumerate(level):
            x.connect_to(sums[min(number // 2, len(sums) - 1)])
        level = sums
    classified(level[0])
    return head


def one_name(count: int) -> DataflowNode:
    """All nodes are named alike, and hand on what they get."""
    head = x = node("in", InnerProduct(number_of_outputs=8))
    for _ in range(count):
        x = x.connect_to(node("same", Noop()))
    classified(x)
    return head


def one_operator(count: int) -> DataflowNode:
    """All nodes share one operator's variables."""
    head = x = node("in", InnerProduct(number_of_outputs=8))
    for _ in range(count):
        x = x.connect_to(x.shallow_copy())
    classified(x)
    return head


def unlike_rates(count: int) -> DataflowNode:
    """The learning rate's multiplier changes from variable to variable."""
    head = x = node("in", InnerProduct(number_of_outputs=8))
    for number in range(count):
        x = x.connect_to(node(f"ip{number}", InnerProduct(number_of_outputs=8, bias_learning_rate_multiplier=2.0)))
    classified(x)
    return head


def lines(work: Callable[[], object]) -> Counter[CodeType]:
    """How many lines of each of Crossbow's functions are run, those of a loop each time, on this thread and on those
    that are started meanwhile."""
    found: Counter[CodeType] = Counter()
    package = str(Path(crossbow.__file__).parent)

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call":
            return count if frame.f_code.co_filename.startswith(package) else None
        if event == "line":
            found[frame.f_code] += 1
        return count

    before = sys.gettrace()
    threading.settrace(count)
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
        threading.settrace(before)  # type: ignore[arg-type]
    return found


def check_linear(work: Callable[[int], object]) -> None:
    work(12)  # what is made once, as compiled passes
    small, large = (lines(lambda count=count: work(count)) for count in (NODES, 2 * NODES))  # type: ignore[misc]
    steep = {
        f"{code.co_filename}:{code.co_firstlineno} {code.co_name}": (small[code], times)
        for code, times in large.items()
        if times > max(RATIO * small[code], 8 * NODES)
    }
    assert not steep
    assert sum(large.values()) > 100 * NODES


@pytest.mark.slow
@one_in(5)
@pytest.mark.parametrize(
    ("build", "example"),
    [(chain, VECTOR), (residual, IMAGE), (tree, VECTOR), (one_name, VECTOR), (one_operator, VECTOR)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_deriving_compiling_and_showing_a_graph(
    build: Callable[[int], DataflowNode], example: Shape, tmp_path: Path
) -> None:
    def work(count: int) -> None:
        dataflow = Dataflow(SubGraph(build(count)))
        program = compile_network(dataflow.graph, (4, *example), dtype=np.float32)
        check = Dataflow(dataflow.subgraph).set_phase(Phase.CHECK).graph
        compile_network(check, (4, *example), dtype=np.float32, phase=Phase.CHECK, model=program.model)
        program.describe()
        assert all(program.kernels_of(vertex.order) is not None for vertex in dataflow.graph)
        dataflow.describe((4, *example))
        dataflow.export_dot(tmp_path / "graph.dot")

    check_linear(work)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "model", "system"),
    [
        (wide, {}, {}),
        (unlike_rates, {}, {"check_numerics": True}),
        (unlike_rates, {"local_variables": ("*.bias",)}, {}),
    ],
    ids=["wide", "rates", "local"],
)
def test_making_a_context_and_running_a_task(
    build: Callable[[int], DataflowNode], model: dict[str, Any], system: dict[str, Any]
) -> None:
    data = synthetic(VECTOR, 3, training=8, check=4)

    def work(count: int) -> None:
        with ExecutionContext(
            [Dataflow(SubGraph(build(count))), None],
            data=data,
            model=ModelConf(batch_size=4, **model),
            system=SystemConf(learners_per_device=1, threads_per_learner=1, kernels="reference", **system),
        ) as context:
            context.train(1, TrainingUnit.TASKS)
            context.describe()

    check_linear(work)


def test_reading_and_writing_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    import crossbow.onnx

    weights = onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "weights")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 8]) for name in ("x", "y"))

    def work(count: int) -> None:
        names = ["x", *(f"x{number}" for number in range(1, count)), "y"]
        nodes = [  # without names of their own
            onnx.helper.make_node(*(("Gemm", [source, "weights"]) if number % 2 else ("Tanh", [source])), [target])
            for number, (source, target) in enumerate(itertools.pairwise(names))
        ]
        graph = onnx.helper.make_graph(nodes, "network", [x], [y], [weights])
        network = crossbow.onnx.load(onnx.helper.make_model(graph))
        crossbow.onnx.save(network, tmp_path / "saved.onnx", input_shape=VECTOR)

    check_linear(work)


def test_a_graph_may_be_deeper_than_python_s_stack(tmp_path: Path) -> None:
    depth = 2 * sys.getrecursionlimit()
    dataflow = Dataflow(SubGraph(chain(depth)))
    program = compile_network(dataflow.graph, (4, *VECTOR), dtype=np.float32)
    assert len(program.steps) > 2 * depth
    assert len(program.describe().splitlines()) == len(program.steps) + 1
    dataflow.export_dot(tmp_path / "graph.dot")


def test_an_order_that_takes_too_much_effort_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first, which makes a plan whatever it takes."""
    buffers = [Lifetime(0, 256, 3, 6), Lifetime(1, 192, 1, 2), Lifetime(2, 128, 2, 2), Lifetime(3, 256, 2, 4)]
    patient = plan_memory(buffers)
    for effort, order in ((0, 0), (memory.EFFORT, 1)):
        monkeypatch.setattr(memory, "EFFORT", effort)
        monkeypatch.setattr(memory, "ORDERS", (memory.ORDERS[1], memory.ORDERS[0]))
        plan = plan_memory(buffers)
        monkeypatch.setattr(memory, "ORDERS", memory.ORDERS[order : order + 1])
        assert plan == plan_memory(buffers)
        monkeypatch.undo()
    assert patient.arena == patient.lower_bound
