"""The checks of `benchmarks.gpu_check`, part by part: operators, gradients, and whole training runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_rows import Clock, Row, Rows
from crossbow import SMA, SSGD, Dataflow, Dataset, ExecutionContext, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.cluster.process import join
from crossbow.data import cifar10, digits, mnist, synthetic
from crossbow.kernels.cuda.api import api, gpus
from crossbow.kernels.cuda.launch import on
from crossbow.kernels.cuda.transfer import to_device, to_host
from crossbow.ops import Conv, DataTransform, InnerProduct, MatMul
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.runtime.cuda.synchroniser import NcclCollective
from crossbow.testing import check_gradients, run_operator
from crossbow.types import Phase, bytes_text
from models.lenet import lenet
from models.resnet import resnet

Variables = Mapping[str, NDArray[Any]]

FLOAT64_TOLERANCE = 1e-12
"""Tolerance in float64, like TOLERANCES of tests/operators/table.py for float32: largest difference over magnitude."""
TF32_TOLERANCE = 2e-3
"""Tolerance of operators that multiply rounded factors (10 mantissa bits: 5e-4 for each); others are as in float32."""
GRADIENT_TOLERANCE = 1e-6
"""Tolerance of gradients compared with finite differences, both in float64."""
ROUNDED = (Conv, InnerProduct, MatMul)
TIMED = ("float32", "tf32", "bfloat16", "float16")
"""Precisions of the additional checks of convolutions with the fastest algorithms, which training uses by default."""
TIMED_TOLERANCE = {"float32": 1e-4, "tf32": 1e-2}
"""Tolerances of these checks. FFT and Winograd transforms lose digits, depending on the shape."""
TIMED_FACTOR = 4.0
"""Factor of the tolerance of 16-bit tensors in these checks."""
WEIGHTS_TOLERANCE = {"float32": 1e-3, "float64": 1e-9}
"""Tolerance of weights after a few ticks on GPU and CPU, relative to the largest value of a variable."""
TIMED_WEIGHTS_TOLERANCE = {"float32": 1e-2, "float64": 1e-8}
"""Tolerance of weights like `WEIGHTS_TOLERANCE`, with the fastest algorithms."""
MIXTURE = ((SMA(), "float32"), (SMA(), "bfloat16"), (SSGD(), "tf32"), (SSGD(), "float16"))
"""Rules and precisions of runs that are compared bit for bit."""
GRANULE = 2 << 20
"""Granularity in bytes of CUDA's allocations, and so of visible leaks."""
STRETCHES = 8
"""Number of groups of tasks, after each of which the leak check reads the free memory."""
SHOWN = 5
"""Maximum number of faults of a part in the table; the JSON has all."""


@dataclass(frozen=True)
class Settings:
    """Extent and data of the checks."""

    device: str = "cuda:0"
    every: int = 1
    """Step width through the rows of the operator table."""
    tasks: int = 64
    """Number of tasks of runs that are compared with each other."""
    leak_tasks: int = 4000
    learners: int = 4
    batch_size: int = 16
    depth: int = 32
    """Depth of the residual network."""
    examples: int = 2048
    """Number of examples of synthetic data sets."""
    lenet_epochs: int = 12
    resnet_epochs: int = 5
    mnist: Path | None = None
    cifar10: Path | None = None
    precision: str = "float32"
    """Precision in which the networks learn."""


# Operators


def operators(settings: Settings, clock: Clock, rows: Rows, precision: str) -> None:
    """Every row compared with the reference in float64: training, checking, and shared memory; in every layout."""
    from tests.operators.table import CASES
    from tests.operators.test_table import float32_variables, gradient_for, tensors

    cases = [case for case in CASES[:: settings.every] if precision != "tf32" or isinstance(case.kernel, ROUNDED)]
    rows.title(f"{len(cases)} rows, runs")
    for number, case in enumerate(cases):
        clock.check(number, len(cases))
        variables, tolerance = float32_variables(case), tolerance_of(case, precision)
        common = {"examples": case.examples, "variables": variables}
        training = {**common, "output_gradient": gradient_for(case)}
        on_gpu: dict[str, Any] = {"device": settings.device, "tf32": precision == "tf32"}
        on_gpu["dtype"] = np.float64 if precision == "float64" else np.float32
        for phase, options in ((Phase.TRAIN, training), (Phase.CHECK, common)):
            exact = tensors(run_operator(case.kernel, case.inputs(), dtype=np.float64, phase=phase, **options))
            for last in (False, True):
                where = f"{case}, {phase.value}, {_layout(last)}"
                how: dict[str, Any] = {**on_gpu, **options, "phase": phase, "channels_last": last}
                rows.measure(where, functools.partial(_error, case, exact, how), tolerance, case.name)
                if phase is Phase.TRAIN:
                    how = {**how, "in_place": True}
                    shared = functools.partial(_error, case, exact, how)
                    rows.measure(f"{where}, in place", shared, tolerance, case.name)


def narrow_operators(settings: Settings, clock: Clock, rows: Rows, precision: str) -> None:
    """Every row whose operator supports 16-bit tensors, in every layout."""
    from tests.operators.narrow import NARROW_CASES, tolerance

    cases = NARROW_CASES[:: settings.every]
    rows.title(f"{len(cases)} rows, runs")
    for number, case in enumerate(cases):
        clock.check(number, len(cases))
        for last in (False, True):
            options = {"device": settings.device, "channels_last": last}
            measured = functools.partial(_narrow_error, case, precision, options)
            rows.measure(f"{case}, {_layout(last)}", measured, tolerance(case, precision), case.name)


def timed_operators(settings: Settings, clock: Clock, rows: Rows) -> None:
    """Convolutions with the algorithms that cuDNN's timing selects, in every precision and layout."""
    from tests.operators.narrow import NARROW_CASES, tolerance
    from tests.operators.table import CASES
    from tests.operators.test_table import float32_variables, gradient_for, tensors

    cases = [case for case in CASES if isinstance(case.kernel, Conv)][:: settings.every]
    rows.title(f"{len(cases)} rows in {len(TIMED)} precisions, runs")
    for number, case in enumerate(cases):
        clock.check(number, len(cases))
        options: dict[str, Any] = {"examples": case.examples, "variables": float32_variables(case)}
        options["output_gradient"] = gradient_for(case)
        exact = tensors(run_operator(case.kernel, case.inputs(), dtype=np.float64, **options))
        for precision in TIMED:
            for last in (False, True):
                on_gpu = {"device": settings.device, "channels_last": last, "deterministic": False}
                if precision in TIMED_TOLERANCE:
                    how = {**options, **on_gpu, "tf32": precision == "tf32"}
                    measured = functools.partial(_error, case, exact, how)
                    allowed = TIMED_TOLERANCE[precision]
                elif case in NARROW_CASES:
                    measured = functools.partial(_narrow_error, case, precision, on_gpu)
                    allowed = TIMED_FACTOR * tolerance(case, precision)
                else:
                    continue
                rows.measure(f"{case}, {precision}, {_layout(last)}", measured, allowed, f"{case.name}, {precision}")


def _layout(last: bool) -> str:
    return "channels-last" if last else "plain"


def _narrow_error(case: Any, precision: str, options: Mapping[str, Any]) -> float:
    """Error of a row in 16 bits, run with these options."""
    from tests.operators.narrow import compare

    return largest_error(*compare(case, precision, **options))


def _error(case: Any, exact: Variables, options: Mapping[str, Any]) -> float:
    """Error of a row, run with these options."""
    from tests.operators.test_table import tensors

    return largest_error(tensors(run_operator(case.kernel, case.inputs(), **options)), exact)


def tolerance_of(case: Any, precision: str) -> float:
    """The published tolerance of a row of the table."""
    if precision == "float64":
        return float(min(case.tolerance, FLOAT64_TOLERANCE * (1 + abs(case.offset))))
    if precision == "tf32" and isinstance(case.kernel, ROUNDED):
        return TF32_TOLERANCE
    return float(case.tolerance)


def largest_error(received: Variables, expected: Variables) -> float:
    """Largest difference over largest magnitude, over all tensors; infinite if a number is not finite."""
    if received.keys() != expected.keys():
        raise AssertionError(f"expected {', '.join(expected)}. Received: {', '.join(received)}")
    worst = 0.0
    for name, value in expected.items():
        if received[name].shape != value.shape:
            raise AssertionError(f"{name}: expected shape {value.shape}. Received: {received[name].shape}")
        difference = np.abs(received[name].astype(np.float64) - value)
        error = float(np.max(difference, initial=0.0))
        scale = max(float(np.max(np.abs(value), initial=0.0)), 1e-30)
        worst = max(worst, error / scale) if math.isfinite(error) else math.inf
    return worst


def gradients(settings: Settings, clock: Clock, rows: Rows) -> None:
    """Gradients of every differentiable row compared with finite differences, in float64, in both layouts."""
    from tests.operators.table import CASES

    cases = [case for case in CASES[:: settings.every] if case.kernel.gradient() is not None]
    rows.title(f"{len(cases)} rows, checks")
    for number, case in enumerate(cases):
        clock.check(number, len(cases))
        labels = case.label_array(np.random.default_rng(0))
        shapes = case.shapes if labels is None else (*case.shapes, labels.shape)
        # Only images have several layouts.
        for last in (False, True) if any(len(shape) == 4 for shape in shapes) else (False,):
            options: dict[str, Any] = {
                "labels": labels,
                "draw": case.draw,
                "directions": 1,
                "tolerance": GRADIENT_TOLERANCE,
            }
            check = functools.partial(
                check_gradients, case.kernel, shapes, device=settings.device, channels_last=last, **options
            )
            rows.measure(f"{case}, {_layout(last)}", check, GRADIENT_TOLERANCE, case.name)


# Comparisons of training runs


def _context(
    settings: Settings,
    dataflow: Dataflow,
    data: Dataset,
    *,
    rule: Any = None,
    learners: int | None = None,
    check: bool = True,
    **system: Any,
) -> ExecutionContext:
    options: dict[str, Any] = {"devices": settings.device, "learners_per_device": learners or settings.learners}
    return ExecutionContext(
        [dataflow, None],
        monitors=(),
        data=data if check else Dataset((data.train.images, data.train.labels), number_of_classes=10),
        model=ModelConf(batch_size=settings.batch_size, rule=rule),
        solver=SolverConf(learning_rate=0.01, momentum=0.9, weight_decay=1e-4),
        system=SystemConf(**{**options, **system}),
    )


def _networks(settings: Settings) -> Iterator[tuple[str, Callable[[], Dataflow], Dataset]]:
    """Name, training dataflow and data."""
    sizes: dict[str, Any] = {"training": settings.examples, "check": max(10, settings.examples // 8)}
    yield "LeNet", lenet, synthetic((1, 28, 28), **sizes)
    transform = DataTransform(padding=4, mirror=True, mean=0.5, scale=2.0)
    residual = synthetic((3, 32, 32), **sizes)
    yield f"ResNet-{settings.depth}", lambda: resnet(settings.depth, transform=transform), residual


def _weights(context: ExecutionContext, tasks: int) -> dict[str, NDArray[Any]]:
    with context:
        context.train(tasks, TrainingUnit.TASKS)
        return dict(context.variables)


def _differing(first: Variables, second: Variables) -> list[str]:
    return [name for name in first if first[name].tobytes() != second[name].tobytes()]


def _identical(settings: Settings, clock: Clock, rows: Rows, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Two runs of each network, rule and precision that should produce the same weights bit for bit."""
    runs = [
        (name, build, data, rule, precision) for name, build, data in _networks(settings) for rule, precision in MIXTURE
    ]
    rows.title(f"of {len(runs)} pairs of runs of {settings.tasks} tasks, compared bit for bit")
    for number, (name, build, data, rule, precision) in enumerate(runs):
        clock.check(number, len(runs))
        common: dict[str, Any] = {"rule": rule, "precision": precision, "deterministic": True, "check": False}
        one, two = (
            _weights(_context(settings, build(), data, **common, **more), settings.tasks) for more in (first, second)
        )
        different, fault = _differing(one, two), ""
        if different:
            fault = f"{len(different)} of {len(one)} variables differ: {', '.join(different[:SHOWN])}"
        rows.add(Row(f"{name}, {type(rule).__name__}, {precision}", name, None, fault=fault))


def graphs(settings: Settings, clock: Clock, rows: Rows) -> None:
    """Runs with CUDA graphs compared with runs call by call."""
    _identical(settings, clock, rows, {"graphs": True}, {"graphs": False})


def determinism(settings: Settings, clock: Clock, rows: Rows) -> None:
    """Repeated runs."""
    _identical(settings, clock, rows, {}, {})


def weights(settings: Settings, clock: Clock, rows: Rows) -> None:
    """Weights after a few ticks compared with those of the CPU's reference kernels; for the residual network also with
    the fastest algorithms."""
    few = replace(settings, batch_size=4, learners=2, examples=min(settings.examples, 64), depth=20)
    runs = [
        (*network, rule, precision)
        for network in _networks(few)
        for rule in (SMA(), SSGD())
        for precision in WEIGHTS_TOLERANCE
    ]
    tasks = min(settings.tasks, 8)
    rows.title(f"runs of {tasks} tasks, of {len(runs)} and those with the fastest algorithms")
    for number, (name, build, data, rule, precision) in enumerate(runs):
        clock.check(number, len(runs))
        common: dict[str, Any] = {"rule": rule, "precision": precision, "check": False}
        on_cpu: dict[str, Any] = {"devices": "cpu", "kernels": "reference", "threads_per_learner": 1}
        expected = _weights(_context(few, build(), data, **common, **on_cpu), tasks)
        row = f"{name}, {type(rule).__name__}, {precision}"

        def compare(
            deterministic: bool, build: Any = build, data: Any = data, common: Any = common, expected: Any = expected
        ) -> float:
            context = _context(few, build(), data, **common, deterministic=deterministic)
            return largest_error(_weights(context, tasks), expected)

        tolerance = WEIGHTS_TOLERANCE[precision]
        rows.measure(row, functools.partial(compare, True), tolerance, f"{name}, {precision}")
        if isinstance(rule, SMA) and name.startswith("ResNet"):
            timed = functools.partial(compare, False)
            tolerance = TIMED_WEIGHTS_TOLERANCE[precision]
            rows.measure(f"{row}, fastest algorithms", timed, tolerance, f"{name}, {precision}, fastest algorithms")


def nccl(settings: Settings, clock: Clock, rows: Rows) -> None:
    """The sum of one vector per GPU, over one rank and over all GPUs."""
    size = 1 << 20
    rows.title(f"sums of {size:,} numbers")
    for count in sorted({1, len(gpus())}):
        streams = [CudaStream(f"sum-{number}", number) for number in range(count)]
        collective = NcclCollective(streams, join())
        own = [np.full(size, 1 + number, np.float32) for number in range(count)]
        vectors = []
        for stream, values in zip(streams, own, strict=True):
            with on(stream.place):
                vectors.append(to_device(values))
        collective.all_reduce(vectors)
        for number, (stream, vector) in enumerate(zip(streams, vectors, strict=True)):
            with on(stream.place):
                same = np.array_equal(to_host(vector), np.sum(own, axis=0))
            fault = "" if same else "it has another sum"
            rows.add(Row(f"{count} ranks, GPU {number}", "all-reduce", None, fault=fault))
        collective.close()
        for stream in streams:
            stream.close()


def leak(settings: Settings, clock: Clock, rows: Rows) -> None:
    """Free memory of the GPU during many tasks and tests, after everything has been used once."""
    name, build, data = next(iter(_networks(settings)))
    each = max(settings.learners, settings.leak_tasks // STRETCHES)
    free: list[int] = []
    with _context(settings, build(), data) as context:
        for stretch in range(STRETCHES + 1):
            clock.check(stretch * each, STRETCHES * each)
            context.train(each, TrainingUnit.TASKS)
            context.test()
            free.append(int(api().runtime.memGetInfo()[0]))
            rows.note("free bytes", free)
            if stretch:
                lost = free[0] - free[-1]
                fault = "" if lost < GRANULE else f"{bytes_text(lost)} fewer are free than after the first {each} tasks"
                rows.add(Row(f"{name}, {stretch * each:,} tasks more", name, None, fault=fault))
                text = f"{name}, {stretch * each:,} tasks after {each:,}: {bytes_text(max(lost, 0))} lost"
                rows.title("stretches", text)


# Networks that learn


def learn_lenet(settings: Settings, clock: Clock, rows: Rows) -> None:
    """LeNet on MNIST, or on the digits that come with scikit-learn."""
    if settings.mnist is not None:
        name, data, bar, epochs = "MNIST", mnist(settings.mnist), 0.99, settings.lenet_epochs
    else:
        name, data, bar, epochs = "digits (no MNIST: --mnist DIR)", digits(), 0.95, 2 * settings.lenet_epochs
    solver = SolverConf(learning_rate=0.02, policy="inv", gamma=3e-4, power=0.75, momentum=0.9, weight_decay=5e-4)
    _learn(settings, clock, rows, f"LeNet on {name}", lenet(), data, solver, 16, bar, epochs)


def learn_resnet(settings: Settings, clock: Clock, rows: Rows) -> None:
    """A residual network on CIFAR-10, or on synthetic images."""
    if settings.cifar10 is not None:
        name, data, bar = "CIFAR-10", cifar10(settings.cifar10), 0.5
    else:
        check = max(10, settings.examples // 8)
        data = synthetic((3, 32, 32), training=4 * settings.examples, check=check)
        name, bar = "synthetic images (no CIFAR-10: --cifar10 DIR)", 0.8
    transform = DataTransform(padding=4, mirror=settings.cifar10 is not None, mean=0.5, scale=2.0)
    dataflow = resnet(settings.depth, transform=transform)
    solver = SolverConf(learning_rate=0.1, momentum=0.9, weight_decay=1e-4)
    title = f"ResNet-{settings.depth} on {name}"
    _learn(settings, clock, rows, title, dataflow, data, solver, 32, bar, settings.resnet_epochs, stop=False)


def _learn(
    settings: Settings,
    clock: Clock,
    rows: Rows,
    title: str,
    dataflow: Dataflow,
    data: Dataset,
    solver: SolverConf,
    batch: int,
    bar: float,
    epochs: int,
    *,
    stop: bool = True,
) -> None:
    """Train until the accuracy target is reached (or, without `stop`, for all epochs)."""
    system = SystemConf(devices=settings.device, learners_per_device=settings.learners, precision=settings.precision)
    model = ModelConf(batch_size=min(batch, len(data.train) // settings.learners))
    with ExecutionContext(
        [dataflow, None], monitors=(), data=data, model=model, solver=solver, system=system
    ) as context:
        history = context.train_and_test(epochs, target_accuracy=bar if stop else None, duration=max(clock.left, 0.001))
    accuracies = [record.test.accuracy or 0.0 for record in history.records if record.test is not None]
    best = max(accuracies, default=0.0)
    epoch, rate = next(((r.epoch, r.images_per_second) for r in reversed(history.records)), (0.0, 0.0))
    number = (
        f"{title}: {best:.2%} after {epoch:.3g} epochs, {history.time:.1f} s; {rate:,.0f} images/s "
        f"({settings.learners} learners × {model.batch_size}, {settings.precision})"
    )
    rows.title("networks", number)
    rows.note("accuracy by epoch", accuracies)
    rows.note("stopped", history.stopped)
    fault = "" if best >= bar else f"expected an accuracy of {bar:.0%} after at most {epochs} epochs"
    rows.add(Row(title, title, None, fault=fault))
