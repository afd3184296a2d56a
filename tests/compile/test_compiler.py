"""What the compiler refuses, and what graphs that share a model share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from crossbow import DataflowNode, GraphError, Phase
from crossbow.compile import Program, compiler
from crossbow.dataflow.derive import derive_check, derive_prediction
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.mixed import Mixed, narrow_type
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops import Accuracy, BatchNorm, Dropout, EuclideanLoss, ReLU, SoftMax, SoftMaxLoss
from crossbow.types import LabelRange
from tests.compile.execution import Execution, compile_network, draw, draw_labels
from tests.compile.test_precision import Wide
from tests.dataflow.networks import branched, chain, inner_product, node, perceptron


def test_all_faults_of_a_graph_are_reported() -> None:
    ip, softmax = inner_product(), node("softmax", SoftMax())
    chain(ip, softmax, node("loss", SoftMaxLoss()))
    chain(softmax, node("top9", Accuracy(top_k=9)))
    with pytest.raises(GraphError) as error:
        compile_network(ip, (4, 5), label_range=LabelRange((4,), True, 0, 7))
    assert [fault.split(":")[0] for fault in error.value.faults] == [
        "node 'loss' (SoftMaxLoss)",
        "node 'top9' (Accuracy)",
    ]


def test_a_tensor_may_be_as_large_as_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> None:
        compile_network(chain(inner_product("ip", 100), node("loss", EuclideanLoss())), (4, 5), (4, 100), classes=False)

    monkeypatch.setattr(compiler, "physical_memory", lambda: 5 * 100 * 8)
    compiled()
    monkeypatch.setattr(compiler, "physical_memory", lambda: 5 * 100 * 8 - 1)
    with pytest.raises(GraphError, match=r"'ip' .*Received: 'weights' of shape \(100, 5\)"):
        compiled()


def test_a_check_graph_uses_the_training_graphs_variables() -> None:
    head = perceptron()
    training = compile_network(head, (4, 5))
    check = compile_network(head, (9, 5), phase=Phase.CHECK, model=training.model)
    assert check.model is training.model
    weights = training.model.new_vector()
    training.model.initialise(weights, 0)
    images, labels = draw(9, 5), draw_labels(9, 3)
    made = Execution(check, weights=weights)
    made.load(images, labels)
    made.forward()
    variables = training.model.export(weights)
    hidden = np.maximum(images @ variables["ip1.weights"].T + variables["ip1.bias"], 0)
    logits = hidden @ variables["ip2.weights"].T + variables["ip2.bias"]
    assert made.measure() == (logits.argmax(1) == labels).mean()


def test_the_prediction_is_that_of_the_check_graph() -> None:
    head = branched()
    training = compile_network(head, (2, 2, 6, 6))
    check = derive_check(training.graph)
    programs = [
        compile_network(graph, (2, 2, 6, 6), phase=Phase.CHECK, model=training.model)
        for graph in (check, derive_prediction(check))
    ]
    images = draw(2, 2, 6, 6)
    outputs = []
    for program in programs:
        made = Execution(program)
        program.model.initialise(made.weights, 5)
        made.load(images, np.zeros(2, np.int32))
        made.forward()
        outputs.append(made.output("softmax").copy())
    np.testing.assert_array_equal(*outputs)
    assert programs[1].graph[-1].name == "softmax"
    assert programs[1].plan.arena <= programs[0].plan.arena


def test_the_padding_of_the_vectors_is_never_written() -> None:
    made = Execution(compile_network(branched(), (2, 2, 6, 6)))
    made.program.model.initialise(made.weights, 0)
    made.load(draw(2, 2, 6, 6), draw_labels(2, 3))
    made.forward()
    made.backward()
    used = np.zeros(made.program.model.elements, bool)
    for segment in made.program.model:
        used[segment.offset : segment.offset + segment.storage.elements] = True
    assert np.isfinite(made.gradient[used]).all()
    assert np.isnan(made.gradient[~used]).all()
    assert not made.weights[~used].any()


def test_dropouts_draw_independent_masks_for_each_place() -> None:
    """Also where one operator stands in two places, and the same for one seed and task."""
    dropout = node("dropout", Dropout(ratio=0.5))
    ip, relu = inner_product(outputs=40), node("relu", ReLU())
    chain(ip, dropout, relu, dropout.shallow_copy(), node("loss", EuclideanLoss()))
    zeros = []
    for seed in (9, 9, 10):
        program = compile_network(ip, (4, 5), (4, 40), classes=False, seed=seed)
        made = Execution(program)
        made.weights[...] = 1
        made.load(np.ones((4, 5)), np.zeros((4, 40)), task=2)
        steps = made.forward_steps
        masks = []
        for step in steps:
            step.call()
            if step.operator == "dropout":
                masks.append(program.output(len(masks) * 2 + 1, made.memory) == 0)
        zeros.append([mask.copy() for mask in masks])
    first, second = zeros[0]
    assert 0.3 < first.mean() < 0.7
    assert 0.55 < second.mean() < 0.95  # dropped by the first or by the second
    np.testing.assert_array_equal(zeros[0], zeros[1])
    assert not np.array_equal(zeros[0][0], zeros[2][0])


# Tensors and variables of 16 bits


class NotingMixed(Mixed):
    """Notes the parts of the gradient that are converted."""

    parts: Sequence[tuple[slice, str]] = ()

    def widen_gradient(self, parts: Sequence[tuple[slice, str]]) -> PreparedKernel:
        self.parts = parts
        return super().widen_gradient(parts)


def gpu(narrow: str) -> tuple[Cuda, NotingMixed]:
    """The library for GPUs, which prepares kernels without one."""
    library = Cuda(np.float32, narrow=narrow)
    library.mixed = mixed = NotingMixed(narrow_type(narrow))
    return library, mixed


def conversions(program: Program) -> list[str]:
    """The operators in order; conversions by their kernels, with what they read of the vectors."""
    found = []
    for step in (each for each in program.steps if not each.elided):
        vectors = [role for role in step.places if role not in ("input0", "output")]
        found.append(" ".join((step.shown, *vectors)) if step.operator == "precision" else step.operator)
    return found


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_numbers_are_converted_where_their_types_change(narrow: str) -> None:
    """The scale of float16's gradients is read where they begin and end, and changes with the weights."""
    library, _ = gpu(narrow)
    head, more = perceptron(), ["scaling"] if narrow == "float16" else []
    program = compile_network(head, (4, 5), dtype=np.float32, library=library)
    assert conversions(program) == [
        " ".join((f"narrow_weights {narrow}", "weights", *more, "narrow_weights")), "batch", "ip1", "ip2",
        f"widen {narrow}", "softmax", "loss", "loss.gradient", " ".join((f"narrow {narrow}", *more)),
        *["ip2.gradient"] * 2, "relu.gradient", "ip1.gradient",
        " ".join((f"widen_gradient {narrow}", "narrow_gradient", "gradient", *more)),
    ]  # fmt: skip
    backward = [step.backward for step in program.steps if step.operator == "precision"]
    assert backward == [False, False, True, True]
    check = compile_network(head, (4, 5), phase=Phase.CHECK, dtype=np.float32, library=library, model=program.model)
    assert conversions(check) == [
        f"narrow_weights {narrow} weights narrow_weights", "batch", "ip1", "ip2", f"widen {narrow}", "softmax", "loss",
        "accuracy",
    ]  # fmt: skip


def of_both_types() -> DataflowNode:
    """Products of 16 bits; a normalisation of 16 bits with variables of 32; an operator of 32 bits."""
    wide = node("wide", Wide(number_of_outputs=3))
    return chain(
        inner_product("ip", 6), node("norm", BatchNorm()), wide, node("softmax", SoftMax()), node("loss", SoftMaxLoss())
    )


@pytest.mark.parametrize(
    ("narrow", "kinds"),
    [("bfloat16", ["narrow"] * 2), ("float16", ["narrow"] * 2 + ["scaled"] * 2 + ["ready"] * 2)],
)
def test_gradients_are_converted_by_the_types_of_variable_and_operator(narrow: str, kinds: list[str]) -> None:
    library, mixed = gpu(narrow)
    program = compile_network(of_both_types(), (4, 5), dtype=np.float32, library=library)
    segments = list(program.model)[: len(kinds)]
    ends = [(segment.offset, segment.offset + segment.storage.elements) for segment in segments]
    assert [(part.start, part.stop) for part, _ in mixed.parts] == ends
    assert [kind for _, kind in mixed.parts] == kinds


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_without_tensors_of_16_bits_nothing_is_converted(narrow: str) -> None:
    library, mixed = gpu(narrow)
    head = chain(node("wide", Wide(number_of_outputs=3)), node("softmax", SoftMax()), node("loss", SoftMaxLoss()))
    program = compile_network(head, (4, 5), dtype=np.float32, library=library)
    assert conversions(program) == ["batch", "wide", "softmax", "loss", "loss.gradient", "wide.gradient"]
    assert mixed.parts == ()


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_scaled_gradients_may_overflow(narrow: str) -> None:
    """They are checked as a whole, at their end."""
    library, _ = gpu(narrow)
    program = compile_network(perceptron(), (4, 5), dtype=np.float32, library=library, check_numerics=True)
    checked = [step.operator for step in program.steps if step.backward and "value" in step.places]
    every = ["loss.gradient", "precision", *["ip2.gradient"] * 3, "relu.gradient", *["ip1.gradient"] * 2]
    assert checked == [*([] if narrow == "float16" else every), "precision"]
