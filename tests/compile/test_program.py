"""A program is data: it prints itself, and is bound to memory."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import Dataflow, DataflowNode, Phase, SubGraph
from crossbow.compile import BatchSource, Memory, compile_graph
from crossbow.compile.program import ArenaPlace, NamedPlace, VectorPlace
from crossbow.host_memory import aligned_zeros
from crossbow.kernels.interface import State
from crossbow.kernels.reference import Reference
from crossbow.ops import BatchNorm, EuclideanLoss, ReLU, SoftMax, SoftMaxLoss
from crossbow.types import Layout, Tensor
from tests.compile.execution import Execution, compile_network, draw, draw_labels
from tests.dataflow.networks import branched, chain, inner_product, node, perceptron
from tests.support import NEEDS_ONEDNN, blobs, context, engine_of
from tests.support import perceptron as small_network

# What is written where, worked out by hand, batch 4 of 5 features in float32: the batch takes 80 bytes (128 rounded to
# cache lines), ip1 and relu share 64, ip2 and softmax share 48 (64), the logits' gradient 64, labels and loss a line
# each. The gradients of ip2's and of relu's inputs take the place of the softmax, which has been read.
PERCEPTRON = """\
0   batch          load_batch reference                      \
slots=slots slot_labels=slot_labels input=arena+0 labels=arena+192
1   ip1            inner_product_forward reference           \
input0=arena+0 weights=weights[ip1.weights] bias=weights[ip1.bias] output=arena+128
2   relu           activation_forward relu reference         \
input0=arena+128 output=arena+128
3   ip2            inner_product_forward reference           \
input0=arena+128 weights=weights[ip2.weights] bias=weights[ip2.bias] output=arena+320
4   softmax        softmax_forward reference                 \
input0=arena+320 output=arena+384
5   loss           softmax_loss_forward of logits reference  \
logits=arena+320 labels=arena+192 output=arena+256
6   loss.gradient  softmax_loss_backward reference           \
input0=arena+384 labels=arena+192 input_gradient=arena+320
7   ip2.gradient   inner_product_backward_weights reference  \
input0=arena+128 output_gradient=arena+320 weights_gradient=gradient[ip2.weights] bias_gradient=gradient[ip2.bias]
8   ip2.gradient   inner_product_backward_data reference     \
output_gradient=arena+320 weights=weights[ip2.weights] input_gradient=arena+192
9   relu.gradient  activation_backward relu reference        \
output=arena+128 output_gradient=arena+192 input_gradient=arena+192
10  ip1.gradient   inner_product_backward_weights reference  \
input0=arena+0 output_gradient=arena+192 weights_gradient=gradient[ip1.weights] bias_gradient=gradient[ip1.bias]
arena 448 bytes; lower bound 448; without reuse 576; model 39 parameters in a vector of 80"""


def test_the_program_of_a_small_network() -> None:
    assert compile_network(perceptron(), (4, 5), dtype=np.float32).describe() == PERCEPTRON


def test_a_shared_operators_second_gradient_is_added_to_the_first() -> None:
    ip = inner_product(outputs=3, bias=False)
    head = chain(
        ip, node("tanh", ReLU(mode="tanh")), ip.shallow_copy(), node("softmax", SoftMax()), node("loss", SoftMaxLoss())
    )
    lines = compile_network(head, (4, 3), dtype=np.float32).describe().splitlines()
    written = [line.split() for line in lines if "ip.weights" in line]
    assert [line[2] for line in written] == [
        *["inner_product_forward"] * 2,
        "inner_product_backward_weights",
        "inner_product_backward_data",
        "weighted_sum",
    ]
    assert written[2][-1] == "weights_gradient=gradient[ip.weights]"
    assert written[4][4] == "input0=gradient[ip.weights]"
    extra = written[4][5].removeprefix("input1=")
    assert f"weights_gradient={extra}" in lines[-3]


def test_steps_are_data() -> None:
    program = compile_network(perceptron(), (4, 5), dtype=np.float32)
    assert program.batch == (4, 5)
    assert [step.operator for step in program.steps if step.backward] == [
        *("loss.gradient", "ip2.gradient", "ip2.gradient", "relu.gradient", "ip1.gradient")
    ]
    assert [step.operator for step in program.steps[:6]] == ["batch", "ip1", "relu", "ip2", "softmax", "loss"]
    kinds = {type(place) for step in program.steps for place in step.places.values()}
    assert kinds == {ArenaPlace, VectorPlace, NamedPlace}
    assert program.outputs[0].tensor == Tensor((4, 4), np.dtype(np.float32))
    assert program.memory_of(0) == (64, "arena+128")
    assert program.memory_of(9) == (0, "")  # the optimiser has no buffer


def test_it_is_compiled_the_same_way_every_time() -> None:
    head = branched()
    first, second = (compile_network(head, (2, 2, 6, 6)) for _ in range(2))
    assert first.describe() == second.describe()
    assert first.plan == second.plan


def test_what_nothing_trains_has_no_gradient_buffer() -> None:
    """The first operator's input gradient is not computed."""
    program = compile_network(perceptron(), (4, 5))
    (last,) = [step for step in program.steps if step.operator == "ip1.gradient"]
    assert "input_gradient" not in last.places
    assert program.memory_of(8) == (0, "")


@pytest.mark.parametrize("phase", [Phase.CHECK])
def test_checking_has_no_backward_part(phase: Phase) -> None:
    program = compile_network(branched(), (2, 2, 6, 6), phase=phase)
    assert not any(step.backward for step in program.steps)
    assert {step.operator for step in program.steps} == {
        *("batch", "conv1", "tanh", "conv2", "relu", "conv3", "max", "average", "sum", "ip"),
        *("softmax", "loss", "accuracy"),
    }


# Binding.


def test_a_bound_step_knows_its_operator() -> None:
    made = Execution(compile_network(perceptron(), (4, 5)))
    assert [step.operator for step in made.forward_steps] == ["batch", "ip1", "relu", "ip2", "softmax", "loss"]
    expected = ["loss.gradient", "ip2.gradient", "ip2.gradient", "relu.gradient", "ip1.gradient"]
    assert [step.operator for step in made.backward_steps] == expected


def test_the_batch_comes_from_the_slot_of_the_state_scaled() -> None:
    """uint8 pixels become numbers between 0 and 1."""
    images = Tensor((3, 2, 1, 2, 2), np.dtype(np.uint8))
    labels = Tensor((3, 2), np.dtype(np.int32))
    head = chain(node("relu", ReLU()), inner_product(), node("softmax", SoftMax()), node("loss", SoftMaxLoss()))
    program = compile_graph(
        Dataflow(SubGraph(head)).set_phase(Phase.CHECK).graph,
        BatchSource(images, labels, scale=1 / 255),
        Reference(np.float32),
        np.dtype(np.float32),
        phase=Phase.CHECK,
    )
    slots = np.arange(24, dtype=np.uint8).reshape(3, 2, 1, 2, 2) * 10
    state = np.zeros(State.SIZE, np.int64)
    vectors = {"weights": program.model.new_vector(), "gradient": program.model.new_vector()}
    arena = aligned_zeros(program.plan.arena)
    slot_labels = np.array([[0, 1], [2, 0], [1, 1]], np.int32)
    named = {"state": state, "slots": slots, "slot_labels": slot_labels}
    memory = Memory(arena, program.model, vectors, named, program.statistics)
    parts = program.bind(memory)
    assert (parts.backward, parts.blocks) == ([], [])
    for slot in (2, 0, 1):
        state[State.SLOT], state[State.EXAMPLES] = slot, 2
        for step in parts.forward[:2]:
            step.call()
        np.testing.assert_allclose(program.output(0, memory), slots[slot] / np.float32(255), rtol=1e-6)


def test_two_bindings_of_one_program_do_not_disturb_each_other() -> None:
    program = compile_network(perceptron(), (4, 5))
    images, labels = draw(2, 4, 5), draw_labels(4, 3)
    both = [Execution(program), Execution(program)]
    alone = []
    for number, made in enumerate(both):
        program.model.initialise(made.weights, number)
        made.load(images[number], labels)
        alone.append((made.forward(), made.backward()))
    for made in both:
        made.forward()
    for made, (loss, gradients) in zip(both, alone, strict=True):
        assert made.output("loss")[0] == loss
        for name, gradient in made.backward().items():
            np.testing.assert_array_equal(gradient, gradients[name])


def normalised() -> DataflowNode:
    return chain(inner_product("ip1", 4), node("norm", BatchNorm()), node("relu", ReLU()), inner_product("ip2", 3),
                 node("softmax", SoftMax()), node("loss", SoftMaxLoss()))  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "bound_anew"),
    [
        ("statistics", {"norm"}),
        ("statistics_next", {"norm"}),
        ("weights", {"ip1", "norm", "ip2", "ip2.gradient", "norm.gradient"}),
        ("gradient", {"ip1.gradient", "norm.gradient", "ip2.gradient"}),
        ("slots", {"batch"}),
        ("arena", None),
    ],
)
def test_calls_whose_buffers_are_the_same_are_used_again(changed: str, bound_anew: set[str] | None) -> None:
    program = compile_network(normalised(), (4, 5))
    first = Execution(program)
    memory = first.memory
    vectors, named, arena = dict(memory.vectors), dict(memory.named), memory.arena
    if changed == "arena":
        arena = arena.copy()
    else:
        place = named if changed in named else vectors
        place[changed] = place[changed].copy()
    bound = program.bind(memory)
    again = program.bind(Memory(arena, program.model, vectors, named, program.statistics), like=bound)
    pairs = [*zip(bound.forward, again.forward, strict=True), *zip(bound.backward, again.backward, strict=True)]
    assert len(pairs) == len(first.forward_steps) + len(first.backward_steps)
    every = {step.operator for step, _ in pairs}
    assert {new.operator for old, new in pairs if new is not old} == (every if bound_anew is None else bound_anew)
    assert all(old.operator == new.operator for old, new in pairs)


@NEEDS_ONEDNN
def test_a_large_weight_gradient_comes_in_blocks_outside_the_vector() -> None:
    from crossbow.kernels.cpu.library import Cpu

    network = chain(
        inner_product("wide", 512), inner_product("ip", 3), node("softmax", SoftMax()), node("loss", SoftMaxLoss())
    )
    program = compile_network(network, (4, 600), dtype=np.float32, library=Cpu())
    whole, parts = Execution(program), Execution(program)
    parts.weights[...] = whole.weights[...] = draw(program.model.elements)
    for execution in (whole, parts):
        execution.load(draw(4, 600), draw_labels(4, 3))
    whole.forward()
    whole.backward()
    bound = program.bind(parts.memory, in_blocks=True)
    for step in (*bound.forward, *bound.backward):
        step.call()
    wide = next(iter(program.model))
    assert np.isnan(wide.flat(parts.gradient)).all()
    for block in bound.blocks:
        assert block.operator == "wide.gradient"
        for call in block.calls:
            call()
        parts.gradient[block.place] = block.gradient
    assert len(bound.blocks) > 1
    np.testing.assert_allclose(parts.gradient, whole.gradient, rtol=0, atol=1e-5)


def test_an_arena_place_is_a_view_in_its_layout() -> None:
    tensor = Tensor((2, 3, 4, 5), np.dtype(np.float32), Layout.CHANNELS_LAST)
    program = compile_network(perceptron(), (4, 5))
    memory = Memory(aligned_zeros(64 + tensor.nbytes), program.model, {}, {}, program.statistics)
    view = ArenaPlace(64, tensor).array(memory)
    view[...] = np.arange(120).reshape(2, 3, 4, 5)
    flat = memory.arena[64:].view(np.float32).reshape(2, 4, 5, 3)
    np.testing.assert_array_equal(flat, np.arange(120).reshape(2, 3, 4, 5).transpose(0, 2, 3, 1))


def test_a_variable_is_a_view_of_its_vector() -> None:
    program = compile_network(perceptron(), (4, 5), dtype=np.float32)
    vector = program.model.new_vector()
    memory = Memory(aligned_zeros(64), program.model, {"weights": vector, "gradient": vector}, {}, program.statistics)
    (step,) = [step for step in program.steps if step.operator == "ip2"]
    weights = step.places["weights"].array(memory)
    weights[...] = np.arange(12).reshape(3, 4)
    assert str(step.places["weights"]) == "weights[ip2.weights]"
    np.testing.assert_array_equal(program.model.export(vector)["ip2.weights"], np.arange(12).reshape(3, 4))


def test_a_regression_reads_values_as_labels() -> None:
    head = chain(inner_product(outputs=2), node("loss", EuclideanLoss()))
    made = Execution(compile_network(head, (4, 5), (4, 2), classes=False))
    images, labels = draw(4, 5), draw(4, 2, seed=3)
    made.program.model.initialise(made.weights, 1)
    made.load(images, labels)
    variables = made.program.model.export(made.weights)
    y = images @ variables["ip.weights"].T + variables["ip.bias"]
    assert made.forward() == pytest.approx(np.square(y - labels).sum() / 8, rel=1e-12)


def test_operations_of_products() -> None:
    """A gradient with respect to the batch is not computed, so the first layer has half of the others' operations."""
    with context(small_network(hidden=8, classes=3), data=blobs(features=6), batch_size=4) as running:
        program = engine_of(running).program
    first, second = (vertex.name for vertex in program.graph if type(vertex.kernel).__name__ == "InnerProduct")
    assert program.operations() == {
        first: 2 * 4 * 6 * 8,
        second: 2 * 4 * 8 * 3,
        f"{second}.gradient": 2 * (2 * 4 * 8 * 3),
        f"{first}.gradient": 2 * 4 * 6 * 8,
    }
