"""Buffers share memory, and no value is overwritten while it is needed: checked by `checker`, and by numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from crossbow import DataflowNode, Phase, SubGraph
from crossbow.compile import Program
from crossbow.compile.program import ArenaPlace, NamedPlace
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import build
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import Request
from crossbow.ops import (
    ElementWiseOp,
    ElementWiseOpGradient,
    EuclideanLoss,
    EuclideanLossGradient,
    GradientDescentOptimiser,
    InnerProductGradient,
    ReLU,
    ReLUGradient,
)
from tests.compile.checker import check_memory
from tests.compile.execution import Execution, Numbers, compile_network, draw, draw_labels, run_without_sharing
from tests.compile.random_graphs import BATCH, CLASSES, networks
from tests.dataflow.networks import branched, chain, inner_product, node, perceptron
from tests.support import FAST


class Hungry(Reference):
    """The reference kernels, each with a workspace that it fills with rubbish before and after its work."""

    def prepare(self, request: Request) -> PreparedKernel:
        return hungry(super().prepare(request))


def hungry(kernel: PreparedKernel) -> PreparedKernel:
    nbytes = 40 + len(kernel.name) * 7 % 300  # some size that differs between kernels

    def bind(buffers: Buffers) -> list[Call]:
        workspace = buffers["workspace"]

        def scribble() -> None:
            workspace[...] = 0xFF

        return [scribble, *kernel.bind(buffers), scribble]

    return replace(kernel, workspace=nbytes, bind=bind)


def hungry_library(dtype: type = np.float64) -> KernelLibrary:
    library: KernelLibrary = Hungry(dtype)
    return library


quick = settings(max_examples=40)


@pytest.mark.slow
@quick
@given(networks())
def test_no_value_is_overwritten_while_it_is_needed(head: DataflowNode) -> None:
    graph = build(SubGraph(head).nodes)
    for library in (Reference(np.float64), hungry_library()):
        check_memory(compile_network(head, BATCH, phase=Phase.TRAIN, library=library))
        check_memory(compile_network(head, BATCH, phase=Phase.CHECK, library=library))
        check_memory(compile_network(derive_prediction(graph), BATCH, phase=Phase.CHECK, library=library))


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [FAST])
@settings(max_examples=8)
@given(head=networks())
def test_no_value_of_the_fast_kernels_is_overwritten(kernels: str, head: DataflowNode) -> None:
    """They have workspaces, layouts and storages of their own."""
    from crossbow.kernels.cpu.library import Cpu

    for phase in Phase:
        check_memory(compile_network(head, BATCH, phase=phase, library=Cpu(), dtype=np.float32))


@pytest.mark.slow
@quick
@given(networks())
def test_sharing_memory_changes_no_bit(head: DataflowNode) -> None:
    """The same calls on buffers of their own, none of them ever used twice, give the same numbers."""
    check_sharing(compile_network(head, BATCH, library=hungry_library()))


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [FAST])
@settings(max_examples=12)
@given(head=networks())
def test_sharing_memory_changes_no_bit_of_the_fast_kernels(kernels: str, head: DataflowNode) -> None:
    """Here operators are taken in by others."""
    from crossbow.kernels.cpu.library import Cpu

    check_sharing(compile_network(head, BATCH, library=Cpu(), dtype=np.float32))


def check_sharing(program: Program) -> None:
    images, labels = draw(*BATCH), draw_labels(BATCH[0], CLASSES)
    execution = Execution(program)
    program.model.initialise(execution.weights, 7)
    execution.load(images, labels, task=3)
    loss = execution.forward()
    gradients = execution.backward()
    expected, outputs = run_without_sharing(execution)
    assert np.isfinite(loss)
    assert loss == expected["loss"][0]
    for segment in program.model:
        gradient, alone = gradients[segment.name], np.empty(segment.spec.shape, program.model.dtype)
        segment.storage.unpack(outputs[segment.name].reshape(-1), alone)
        assert np.isfinite(gradient).all(), segment.name
        np.testing.assert_array_equal(gradient, alone, err_msg=segment.name)


def test_the_branched_network_writes_in_place_where_it_may() -> None:
    """relu, max and dropout over their inputs, softmax, and the gradients of dropout, relu and tanh, and sums."""
    program = compile_network(branched(), (2, 2, 6, 6))
    assert check_memory(program) >= 7
    assert program.plan.arena < program.plan.without_reuse


def test_a_program_needs_little_more_than_its_fullest_step() -> None:
    relus = [node(f"tanh{i}", ReLU(mode="tanh")) for i in range(30)]
    head = chain(inner_product(outputs=16), *relus, node("loss", EuclideanLoss()))
    check = compile_network(head, (4, 16), (4, 16), phase=Phase.CHECK, classes=False)
    train = compile_network(head, (4, 16), (4, 16), classes=False)
    assert check_memory(check) == 30  # all in place: memory for the batch, labels and one activation
    assert check.plan.arena == 3 * 4 * 16 * 8
    assert check_memory(train) == 1 + 30  # the first tanh over the inner product; and all the way back
    # Training keeps every tanh for its gradient: batch, labels, 30 activations, one gradient, and the loss.
    assert train.plan.arena == train.plan.lower_bound == 33 * 4 * 16 * 8 + 64


# Cases in which sharing would be wrong.


def numbers(program: Program, images: Numbers, labels: Numbers, task: int = 0) -> tuple[Execution, float]:
    execution = Execution(program)
    program.model.initialise(execution.weights, 1)
    execution.load(images, labels, task=task)
    return execution, execution.forward()


def test_a_sum_is_not_written_over_an_input_that_it_reads_twice() -> None:
    """½ x + 2 x: over x, the second term would see ½ x."""
    ip, total = inner_product(outputs=3), node("sum", ElementWiseOp(coefficients=(0.5, 2.0)))
    ip.connect_to(total)
    ip.connect_to(total).connect_to(node("loss", EuclideanLoss()))
    program = compile_network(ip, (4, 5), (4, 3), phase=Phase.CHECK, classes=False)
    check_memory(program)
    images, labels = draw(4, 5), np.zeros((4, 3))
    execution, loss = numbers(program, images, labels)
    variables = program.model.export(execution.weights)
    x = images @ variables["ip.weights"].T + variables["ip.bias"]
    assert loss == pytest.approx(np.square(2.5 * x).sum() / 8, rel=1e-12)


def test_an_output_that_a_branch_still_needs_is_kept() -> None:
    """tanh is the last reader of ip's output in one order of branches, and not in the other."""
    for first in (True, False):
        ip, tanh, total = inner_product(outputs=3), node("tanh", ReLU(mode="tanh")), node("sum", ElementWiseOp())
        for step in (tanh, total) if first else (total, tanh):
            ip.connect_to(step)
        tanh.connect_to(total).connect_to(node("loss", EuclideanLoss()))
        program = compile_network(ip, (4, 5), (4, 3), classes=False)
        check_memory(program)
        images, labels = draw(4, 5), draw(4, 3, seed=1)
        execution, loss = numbers(program, images, labels)
        variables = program.model.export(execution.weights)
        x = images @ variables["ip.weights"].T + variables["ip.bias"]
        assert loss == pytest.approx(np.square(x + np.tanh(x) - labels).sum() / 8, rel=1e-12)


def test_hand_wired_gradients_before_a_forward_branch() -> None:
    """The optimiser's branch comes first in the graph, the accuracy last; yet the accuracy runs in the forward part."""
    ip, tanh = inner_product("ip", 3), node("tanh", ReLU(mode="tanh"))
    loss = node("loss", EuclideanLoss())
    loss_gradient = node("lossGradient", EuclideanLossGradient(), loss)
    tanh_gradient = node("tanhGradient", ReLUGradient(), tanh)
    ip_gradient = node("ipGradient", InnerProductGradient(), ip)
    chain(ip, tanh, loss, loss_gradient, tanh_gradient, ip_gradient, node("end", GradientDescentOptimiser()))
    late = [node(f"late{i}", ReLU()) for i in range(4)]
    chain(tanh, *late)
    program = compile_network(ip, (4, 5), (4, 3), classes=False)
    names = [vertex.name for vertex in program.graph]
    assert names.index("end") < names.index("late0")
    assert [step.backward for step in program.steps] == sorted(step.backward for step in program.steps)
    check_memory(program)
    images, labels = draw(4, 5), draw(4, 3, seed=1)
    execution, _ = numbers(program, images, labels)
    expected = np.maximum(execution.output("tanh"), 0).copy()
    execution.backward()
    np.testing.assert_array_equal(execution.output("late3"), expected)


def test_sums_of_sums_of_hand_wired_gradients_are_backward_too() -> None:
    """x + x + x, whose three gradients are added two by two."""
    ip, total, loss = inner_product("ip", 3), node("sum", ElementWiseOp()), node("loss", EuclideanLoss())
    for _ in range(3):
        ip.connect_to(total)
    chain(total, loss, gradient := node("lossGradient", EuclideanLossGradient(), loss))
    parts = [node(f"part{i}", ElementWiseOpGradient(input=i), total) for i in range(3)]
    first, second = node("first", ElementWiseOp()), node("second", ElementWiseOp())
    for part in parts:
        gradient.connect_to(part)
    chain(
        parts[0], first, second, node("ipGradient", InnerProductGradient(), ip), node("end", GradientDescentOptimiser())
    )
    chain(parts[1], first)
    chain(parts[2], second)
    program = compile_network(ip, (4, 5), (4, 3), classes=False)
    check_memory(program)
    assert {step.operator for step in program.steps if step.backward} == {
        *("lossGradient", "part0", "part1", "part2", "first", "second", "ipGradient")
    }
    images, labels = draw(4, 5), draw(4, 3, seed=1)
    execution, _ = numbers(program, images, labels)
    derived, _ = numbers(compile_network(_tripled(), (4, 5), (4, 3), classes=False), images, labels)
    for (name, gradient_), other in zip(execution.backward().items(), derived.backward().values(), strict=True):
        np.testing.assert_allclose(gradient_, other, rtol=1e-12, err_msg=name)


def _tripled() -> DataflowNode:
    ip, total = inner_product("ip", 3), node("sum", ElementWiseOp())
    for _ in range(3):
        ip.connect_to(total)
    total.connect_to(node("loss", EuclideanLoss()))
    return ip


def test_a_loose_end_is_there_when_the_task_has_ended() -> None:
    ip = inner_product("ip", 3)
    chain(ip, node("loose", ReLU(mode="tanh")))
    chain(ip, node("relu", ReLU()), node("loss", EuclideanLoss()))
    program = compile_network(ip, (4, 5), (4, 3), classes=False)
    check_memory(program)
    execution, _ = numbers(program, draw(4, 5), draw(4, 3, seed=1))
    before = execution.output("loose").copy()
    execution.backward()
    np.testing.assert_array_equal(execution.output("loose"), before)


# The checker itself: it must find what is wrong.


def moved(program: Program, order: int, offset: int) -> Program:
    """The program with the output of one vertex moved to another offset."""
    old = program.outputs[order]
    new = ArenaPlace(offset, old.tensor)

    def place(value: Any) -> Any:
        return new if value == old and value.tensor == old.tensor else value

    steps: Sequence[Any] = [
        replace(step, places={role: place(value) for role, value in step.places.items()}) for step in program.steps
    ]
    return replace(program, steps=tuple(steps), outputs={**program.outputs, order: new})


def test_the_checker_finds_a_buffer_over_another() -> None:
    program = compile_network(branched(), (2, 2, 6, 6))
    check_memory(program)
    by_name = {vertex.name: vertex.order for vertex in program.graph}
    victim = program.outputs[by_name["tanh"]].offset
    for name in ("loss", "average", "accuracy", "dropout.gradient"):
        with pytest.raises(AssertionError):
            check_memory(moved(program, by_name[name], victim))


def test_the_checker_finds_a_buffer_outside_and_one_that_is_not_aligned() -> None:
    program = compile_network(perceptron(), (4, 5))
    for offset in (program.plan.arena, program.outputs[0].offset + 8):
        with pytest.raises(AssertionError):
            check_memory(moved(program, 0, offset))


def test_only_runtime_arrays_lie_outside_arena_and_vectors() -> None:
    program = compile_network(branched(), (2, 2, 6, 6))
    named = {place.name for step in program.steps for place in step.places.values() if isinstance(place, NamedPlace)}
    assert named == {"slots", "slot_labels", "state"}
