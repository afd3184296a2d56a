"""Rounding errors: the kernels compared with float64, on activations of briefly trained networks.

    python -m benchmarks.numerics

The operators of LeNet and ResNet-20 that add up many numbers are run, forward and backward, on the inputs and gradients
that they receive in a task: with the fast CPU kernels with and without Winograd convolutions, with the reference
kernels in float32 and, if it is installed, with PyTorch in float32. An error is the largest deviation from the
reference kernels in float64 on the same numbers, relative to the largest magnitude of the result.

Then ResNet-20 makes one step in each of these ways and in float64, from weights and a batch that depend on a seed. If a
rounding error changes the sign of a ReLU's input, its gradient changes between 0 and its full value; the smaller the
errors are, the fewer seeds have such a change.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine, has_torch
from benchmarks.networks import CLASSES, NETWORKS, torch_resnet
from benchmarks.networks import dataset as pictures
from benchmarks.report import markdown
from crossbow import SSGD, Dataflow, Dataset, ExecutionContext, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.console import run_command
from crossbow.dataflow.graph import BATCH, Graph, Vertex
from crossbow.ops import BatchNorm, Conv, GradientDescentOptimiser, InnerProduct, Kernel, Pool
from crossbow.ops.kernel import Gradient
from crossbow.scripts.data_sources import DataSource
from crossbow.testing import run_operator
from models.lenet import lenet
from models.resnet import resnet

Numbers = NDArray[Any]
Results = dict[str, Numbers]

FAST, DIRECT, REFERENCE, TORCH = "fast", "fast, no Winograd", "reference", "PyTorch"
KINDS: tuple[type[Kernel], ...] = (Conv, BatchNorm, InnerProduct, Pool)
"""Operators that add up many numbers."""


@dataclass(frozen=True)
class Sample:
    """An operator with its inputs and gradients in a task."""

    network: str
    kernel: Kernel
    inputs: tuple[Numbers, ...]
    output_gradient: Numbers
    variables: Mapping[str, Numbers]


@dataclass(frozen=True)
class Row:
    """Errors of one result over all operators of a kind, by implementation."""

    network: str
    operator: str
    result: str
    errors: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Deviation:
    """The largest deviation of a variable from float64, after one step from the same weights."""

    seed: int
    way: str
    of_all: float
    """Largest deviation of all variables, each relative to its own largest magnitude. After one step, a variable that
    starts at 0 equals its scaled gradient."""
    of_weights: float
    """The same, without the variables that start at 0."""


def error(received: Numbers, exact: Numbers) -> float:
    """The largest deviation, relative to the largest magnitude."""
    scale = float(np.max(np.abs(exact), initial=0)) or 1.0
    return float(np.max(np.abs(received.astype(np.float64) - exact), initial=0)) / scale


# Operators


def samples(network: str, dataflow: Dataflow, data: Dataset, *, batch: int, tasks: int) -> list[Sample]:
    """Inputs and gradients of a network's operators after the given number of tasks, computed in float64."""
    system = SystemConf(learners_per_device=1, threads_per_learner=1)
    solver, model = SolverConf(learning_rate=0.01, momentum=0.9), ModelConf(batch_size=batch, rule=SSGD())
    with ExecutionContext([dataflow], monitors=(), data=data, model=model, solver=solver, system=system) as context:
        context.train(tasks, TrainingUnit.TASKS)
        graph, variables = context.engine.program.graph, _variables(context)
    images, labels = (np.asarray(part[:batch]) for part in (data.train.images, data.train.labels))
    return _samples(network, graph, variables, images.astype(np.float64) * data.scale, labels)


def _variables(context: ExecutionContext) -> dict[tuple[int, str], Numbers]:
    """The base model by the operator's id and name."""
    weights, segments = context.engine.weights, context.engine.program.model.segments
    return {key: np.array(weights[segment.name], np.float64) for key, segment in segments.items()}


def _samples(
    network: str, graph: Graph, variables: Mapping[tuple[int, str], Numbers], images: Numbers, labels: Numbers
) -> list[Sample]:
    """Evaluate a training graph, operator by operator."""
    values: dict[int, Numbers] = {BATCH: images}
    found = []

    def run(vertex: Vertex, gradient: Numbers | None) -> Any:
        kernel = vertex.forward
        assert kernel is not None
        inputs = [values[source] for source in vertex.inputs] + ([labels] if kernel.takes_labels else [])
        own = {name: value for (operator, name), value in variables.items() if operator == id(vertex.operator)}
        given = None if kernel.is_loss else gradient
        done = run_operator(kernel, inputs, output_gradient=given, variables=own, dtype=np.float64)
        if gradient is not None and isinstance(kernel, KINDS):
            found.append(Sample(network, kernel, tuple(inputs), gradient, own))
        return done

    for vertex in graph:
        if isinstance(vertex.kernel, Gradient):
            assert vertex.peer is not None
            gradients = run(graph[vertex.peer], values[vertex.inputs[0]]).input_gradients
            values[vertex.order] = gradients[vertex.kernel.input]
        elif not isinstance(vertex.kernel, GradientDescentOptimiser):
            values[vertex.order] = run(vertex, None).outputs[0]
    return found


def results(sample: Sample, device: str, dtype: Any, **settings: Any) -> Results:
    """All results of an operator, by name."""
    done = run_operator(
        sample.kernel,
        sample.inputs,
        output_gradient=sample.output_gradient,
        variables=sample.variables,
        device=device,
        dtype=dtype,
        **settings,
    )
    gradients = {f"{name} gradient": value for name, value in done.variable_gradients.items()}
    return {"output": done.outputs[0], "input gradient": done.input_gradients[0], **gradients, **_observed(done)}


def _observed(done: Any) -> Results:
    return {name.replace("_", " "): value for name, value in done.statistics.items() if name == "running_variance"}


def torch_results(sample: Sample) -> Results | None:
    """The results of PyTorch in float32; None for an operator that it does not support."""
    import torch
    from torch.nn import functional

    x = torch.tensor(sample.inputs[0], dtype=torch.float32, requires_grad=True)
    given = {n: torch.tensor(v, dtype=torch.float32, requires_grad=True) for n, v in sample.variables.items()}
    weights, bias, kernel, observed = given.get("weights"), given.get("bias"), sample.kernel, {}
    if isinstance(kernel, Conv):
        geometry = kernel.geometry(sample.inputs[0].shape)
        (top, _), (left, _) = geometry.padding
        y = functional.conv2d(x, weights, bias, geometry.stride, (top, left), geometry.dilation, geometry.groups)
    elif isinstance(kernel, InnerProduct):
        y = functional.linear(x.flatten(1), weights, bias)
    elif isinstance(kernel, BatchNorm):
        mean, variance = torch.zeros(x.shape[1]), torch.ones(x.shape[1])
        share = 1 - kernel.moving_average_fraction
        y = functional.batch_norm(x, mean, variance, weights, bias, True, share, kernel.epsilon)
        observed = {"running variance": variance.numpy()}
    elif isinstance(kernel, Pool) and kernel.method == "average" and sample.output_gradient.shape[2:] == (1, 1):
        y = functional.adaptive_avg_pool2d(x, 1)
    else:
        return None
    y.backward(torch.tensor(sample.output_gradient, dtype=torch.float32).reshape(y.shape))
    gradients = {f"{name} gradient": value.grad.numpy() for name, value in given.items()}
    return {"output": y.detach().numpy(), "input gradient": x.grad.numpy(), **gradients, **observed}


def _single(sample: Sample) -> Sample:
    """The sample rounded to float32."""

    def rounded(values: Numbers) -> Numbers:
        return values.astype(np.float32).astype(np.float64)

    variables = {name: rounded(value) for name, value in sample.variables.items()}
    inputs = tuple(rounded(value) for value in sample.inputs)
    return Sample(sample.network, sample.kernel, inputs, rounded(sample.output_gradient), variables)


def table(found: Sequence[Sample], *, torch: bool) -> list[Row]:
    """The errors of all samples, by network, kind of operator and result."""
    errors: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    ways: dict[str, Callable[[Sample], Results | None]] = {
        FAST: lambda sample: results(sample, "cpu", np.float32),
        DIRECT: lambda sample: results(sample, "cpu", np.float32, winograd=False),
        REFERENCE: lambda sample: results(sample, "reference", np.float32),
    }
    if torch:
        ways[TORCH] = torch_results
    for sample in map(_single, found):
        exact = results(sample, "reference", np.float64)
        for way, compute in ways.items():
            for name, value in (compute(sample) or {}).items():
                place = errors[sample.network, type(sample.kernel).__name__, name]
                place[way].append(error(value.reshape(exact[name].shape), exact[name]))
    return [Row(*key, {way: tuple(values) for way, values in by_way.items()}) for key, by_way in errors.items()]


# One step


def one_step(seed: int, batch: int, rate: float, *, torch: bool) -> list[Deviation]:
    """ResNet-20 after one step of plain SGD, from weights and a batch that depend on the seed."""
    data = noisy_pictures(seed, batch)
    start = _step(data, batch, rate, seed=seed, kernels="reference", steps=0)
    exact = _step(data, batch, rate, start, kernels="reference", precision="float64")
    ways = {
        f"{FAST}, 1 thread": {"threads_per_learner": 1},
        f"{DIRECT}, 1 thread": {"threads_per_learner": 1, "winograd": False},
        f"{DIRECT}, 2 threads": {"threads_per_learner": 2, "winograd": False},
        REFERENCE: {"kernels": "reference"},
    }
    after = {way: _step(data, batch, rate, start, **settings) for way, settings in ways.items()}
    if torch:
        after[TORCH] = dict(zip(start, _torch_step(data, batch, rate, list(start.values())), strict=True))
    made = []
    for way, values in after.items():
        deviations = {name: error(values[name], value) for name, value in exact.items()}
        weights = [deviation for name, deviation in deviations.items() if np.any(start[name])]
        made.append(Deviation(seed, way, max(deviations.values()), max(weights)))
    return made


def noisy_pictures(seed: int, examples: int) -> Dataset:
    """Random images: each is the image of its class plus noise of the same magnitude."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, examples)
    noise = generator.standard_normal((examples, 3, 32, 32))
    images = (generator.standard_normal((CLASSES, 3, 32, 32))[labels] + noise).astype(np.float32)
    return Dataset((images, labels), number_of_classes=CLASSES)


def _step(
    data: Dataset, batch: int, rate: float, start: Results | None = None, *, steps: int = 1, **system: Any
) -> Results:
    """The variables after the given number of steps, in order."""
    model, solver = ModelConf(batch_size=batch, rule=SSGD()), SolverConf(learning_rate=rate)
    settings = SystemConf(learners_per_device=1, **system)
    with ExecutionContext([resnet(20)], monitors=(), data=data, model=model, solver=solver, system=settings) as context:
        if start is not None:
            context.engine.load({**_values(context), **start}, "the weights of the seed")
        if steps:
            context.train(steps, TrainingUnit.TASKS)
        names = [segment.name for segment in context.engine.program.model.segments.values()]
        return {name: np.array(context.engine.weights[name]) for name in names}


def _values(context: ExecutionContext) -> Results:
    return {name: np.array(value) for name, value in context.engine.weights.items()}


def _torch_step(data: Dataset, batch: int, rate: float, start: Sequence[Numbers]) -> list[Numbers]:
    """The variables after a step in PyTorch, whose parameters are in the same order."""
    import torch

    network = torch_resnet(20, projection=False)
    images, labels = (torch.tensor(np.asarray(part[:batch])) for part in (data.train.images, data.train.labels))
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), start, strict=True):
            parameter.copy_(torch.tensor(value))
    optimiser = torch.optim.SGD(network.parameters(), lr=rate)
    torch.nn.functional.cross_entropy(network(images), labels.long()).backward()
    optimiser.step()
    return [parameter.detach().numpy() for parameter in network.parameters()]


# The report


def table_text(rows: Sequence[Row]) -> str:
    """Median and largest error of each result, in Markdown."""
    ways = list(dict.fromkeys(way for row in rows for way in row.errors))
    lines = []
    for row in rows:
        cells = [f"{median(values):.1e} ({max(values):.1e})" if (values := row.errors.get(way)) else "" for way in ways]
        lines.append((row.network, row.operator, row.result, *cells))
    return markdown(("network", "operator", "result", *ways), lines)


def deviations_text(deviations: Sequence[Deviation]) -> str:
    """A table with a row for each implementation and a column for each seed. A cell has the deviation of the weights
    and, in parentheses, that of all variables."""
    seeds = sorted({deviation.seed for deviation in deviations})
    lines = []
    for way in dict.fromkeys(deviation.way for deviation in deviations):
        of_way = {deviation.seed: deviation for deviation in deviations if deviation.way == way}
        lines.append((way, *(f"{of_way[seed].of_weights:.1e} ({of_way[seed].of_all:.1e})" for seed in seeds)))
    return markdown(("computed by", *(f"seed {seed}" for seed in seeds)), lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.numerics", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--mnist", type=Path, metavar="DIRECTORY", help="MNIST's files, for LeNet (default: synthetic pictures)")
    add("--batch", type=int, default=16, metavar="N", help="images in a batch of the table (default: %(default)s)")
    add("--tasks", type=int, default=5, metavar="N", help="tasks of training before (default: %(default)s)")
    add("--seeds", type=int, default=6, metavar="N", help="of the single steps (default: %(default)s)")
    add("--step-batch", type=int, default=8, metavar="N", help="images in a batch of these (default: %(default)s)")
    add("--rate", type=float, default=0.1, metavar="γ", help="their learning rate (default: %(default)s)")
    add("--json", type=Path, metavar="PATH", help="also write every number to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    from crossbow.kernels.cpu.onednn import shared_library

    shared_library.omp_set_num_threads(1)
    torch, found = has_torch(), []
    mnist = DataSource("mnist", options.mnist, (1, 28, 28), CLASSES, 0, 0).load() if options.mnist else None
    for network, dataflow, data in (
        ("LeNet", lenet("original"), mnist or pictures(NETWORKS["lenet-original"])),
        ("ResNet-20", resnet(20), pictures(NETWORKS["resnet-32"])),
    ):
        print(f"{network} …", file=sys.stderr, flush=True)
        found += samples(network, dataflow, data, batch=options.batch, tasks=options.tasks)
    rows = table(found, torch=torch)
    print("\n".join(f"- {name}: {value}" for name, value in describe_machine().items()))
    print(f"\nErrors on one thread, median (largest) of a network's operators:\n\n{table_text(rows)}", flush=True)
    deviations = []
    for seed in range(options.seeds):
        print(f"seed {seed} …", file=sys.stderr, flush=True)
        deviations += one_step(seed, options.step_batch, options.rate, torch=torch)
    print("\nDeviations after one step, of the variables that do not start at 0 (of all):\n")
    print(deviations_text(deviations))
    if options.json is not None:
        content = {"table": [asdict(row) for row in rows], "steps": [asdict(deviation) for deviation in deviations]}
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.numerics", main))
