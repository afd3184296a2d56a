"""Time until a deep or wide network has run its first task, and until an ONNX model is loaded.

Each line is measured in its own process. Seconds are CPU time on one thread, so that other programs matter less.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.parts import run_part
from benchmarks.report import markdown
from crossbow import (
    Dataflow,
    DataflowNode,
    ExecutionContext,
    ModelConf,
    Operator,
    SubGraph,
    SystemConf,
    TrainingUnit,
)
from crossbow.console import run_command
from crossbow.data import synthetic
from crossbow.ops import BatchNorm, Concat, Conv, ElementWiseOp, InnerProduct, Kernel, ReLU, SoftMax, SoftMaxLoss
from crossbow.scripts.values import integer
from crossbow.types import Shape

VECTOR, IMAGE = (8,), (1, 4, 4)
LAYERS = (1000, 2000, 4000, 10000)


def _node(name: str, kernel: Kernel) -> DataflowNode:
    return DataflowNode(Operator(name, kernel))


def _classified(head: DataflowNode, last: DataflowNode) -> Dataflow:
    out = last.connect_to(_node("out", InnerProduct(number_of_outputs=3)))
    out.connect_to(_node("softmax", SoftMax())).connect_to(_node("loss", SoftMaxLoss()))
    return Dataflow(SubGraph(head))


def chain(layers: int) -> Dataflow:
    """A sequence of inner products."""
    head = x = _node("in", InnerProduct(number_of_outputs=8))
    for number in range(layers):
        x = x.connect_to(_node(f"ip{number}", InnerProduct(number_of_outputs=8)))
    return _classified(head, x)


def residual(layers: int) -> Dataflow:
    """Units of two convolutions with BatchNorm, ReLU and a sum: seven layers each."""
    head = x = _node("in", Conv(number_of_outputs=4, kernel_size=3, padding=1))
    for unit in range(layers // 7):
        branch = x
        for part in range(2):
            branch = branch.connect_to(_node(f"conv{unit}.{part}", Conv(number_of_outputs=4, kernel_size=3, padding=1)))
            branch = branch.connect_to(_node(f"norm{unit}.{part}", BatchNorm()))
            branch = branch.connect_to(_node(f"relu{unit}.{part}", ReLU())) if part == 0 else branch
        total = _node(f"sum{unit}", ElementWiseOp())
        x.connect_to(total)
        x = branch.connect_to(total).connect_to(_node(f"relu{unit}", ReLU()))
    return _classified(head, x)


def wide(layers: int) -> Dataflow:
    """Parallel branches of one inner product each, and a Concat of them."""
    head, joined = _node("in", InnerProduct(number_of_outputs=8)), _node("concat", Concat())
    for number in range(layers):
        head.connect_to(_node(f"ip{number}", InnerProduct(number_of_outputs=2))).connect_to(joined)
    return _classified(head, joined)


def seconds_to_compile(build: Callable[[int], Dataflow], example: Shape, layers: int) -> float:
    """CPU time to build and derive the graph, create the context, and run one task."""
    data, began = synthetic(example, 3, training=8, check=4), time.process_time()
    with ExecutionContext(
        [build(layers), None],
        monitors=(),
        data=data,
        model=ModelConf(batch_size=4),
        system=SystemConf(learners_per_device=1, threads_per_learner=1),
    ) as context:
        context.train(1, TrainingUnit.TASKS)
        return time.process_time() - began


def seconds_to_load(layers: int) -> float:
    """CPU time to load an ONNX model of alternating matrix products and Tanh from memory."""
    import onnx

    import crossbow.onnx

    weights = onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "weights")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 8]) for name in ("x", "y"))
    names = ["x", *(f"x{number}" for number in range(1, layers)), "y"]
    nodes = [
        onnx.helper.make_node("Gemm", [source, "weights"], [target])
        if number % 2
        else onnx.helper.make_node("Tanh", [source], [target])
        for number, (source, target) in enumerate(itertools.pairwise(names))
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "network", [x], [y], [weights]))
    began = time.process_time()
    crossbow.onnx.load(model)
    return time.process_time() - began


WORK: Mapping[str, Callable[[int], float]] = {
    "chain": lambda layers: seconds_to_compile(chain, VECTOR, layers),
    "residual": lambda layers: seconds_to_compile(residual, IMAGE, layers),
    "wide": lambda layers: seconds_to_compile(wide, VECTOR, layers),
    "onnx": seconds_to_load,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_time", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--layers", nargs="+", type=integer(1), metavar="N", default=list(LAYERS), help="to measure")
    parser.add_argument("--networks", nargs="+", choices=list(WORK), default=list(WORK), help="(default: all)")
    parser.add_argument("--one", action="store_true", help="measure here, and print the seconds only")
    options = parser.parse_args(arguments)
    if options.one:
        work = WORK[options.networks[0]]
        work(4)  # loads and compiles everything that is needed only once
        print(f"{work(options.layers[0]):.2f}")
        return 0
    rows = []
    for name in options.networks:
        for layers in options.layers:
            one = ["--one", "--networks", name, "--layers", str(layers)]
            seconds = float(run_part("benchmarks.compile_time", f"{name}, {layers} layers", one, captured=True))
            rows.append([name, f"{layers:,}", f"{seconds:.1f} s", f"{1e3 * seconds / layers:.2f} ms"])
            print(", ".join(rows[-1]), file=sys.stderr)
    print("\n".join(f"- {name}: {value}" for name, value in describe_machine().items()))
    print()
    print(markdown(["network", "layers", "seconds", "a layer"], rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.compile_time", main))
