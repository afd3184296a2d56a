"""All faults of a graph at once, each with the node's name, what was expected and what was received."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from crossbow import (
    Dataflow,
    DataflowNode,
    Dataset,
    ExecutionContext,
    GraphError,
    ModelConf,
    Sequential,
    SubGraph,
    SystemConf,
)
from crossbow.conf import configuration
from crossbow.dataflow.derive import derive_training
from crossbow.dataflow.graph import build
from crossbow.dataflow.validate import _check_code, infer_shapes, variables_of
from crossbow.ops import (
    Accuracy,
    Conv,
    ConvGradient,
    ElementWiseOp,
    ElementWiseOpGradient,
    EuclideanLoss,
    EuclideanLossGradient,
    Flatten,
    GradientDescentOptimiser,
    InnerProduct,
    InnerProductGradient,
    Pool,
    ReLU,
    ReLUGradient,
    SoftMax,
    SoftMaxGradient,
    SoftMaxLoss,
    SoftMaxLossGradient,
)
from crossbow.ops.kernel import Kernel
from crossbow.types import LabelRange, Phase, Shape
from tests.dataflow.networks import branched, chain, convolution, inner_product, node, perceptron

BATCH = (4, 2, 6, 6)


def classes(batch: int = 4, minimum: float = 0, maximum: float = 2) -> LabelRange:
    return LabelRange((batch,), True, minimum, maximum)


def values(*shape: int) -> LabelRange:
    return LabelRange(shape, False, -1.5, 1.5)


def faults(
    head: DataflowNode, batch: Shape = BATCH, labels: LabelRange | None = None, phase: Phase = Phase.CHECK
) -> Sequence[str]:
    """Of the wired graph, nothing derived."""
    with pytest.raises(GraphError) as error:
        infer_shapes(build(SubGraph(head).nodes), batch, labels, phase)
    return error.value.faults


# What is right.


def test_shapes_of_a_whole_training_graph() -> None:
    graph = derive_training(build(SubGraph(branched()).nodes))
    shapes = infer_shapes(graph, BATCH, classes(), Phase.TRAIN)
    named = {vertex.name: shapes[vertex.order] for vertex in graph}
    images = (4, 3, 6, 6)
    assert {name for name, shape in named.items() if shape == images} == {
        *("conv1", "tanh", "conv2", "relu", "conv3", "max", "average", "sum", "dropout"),
        *("ip.gradient", "dropout.gradient", *(f"sum.gradient{i}" for i in range(3)), "tanh.gradient_sum"),
        *("average.gradient", "max.gradient", "conv3.gradient", "relu.gradient", "conv2.gradient", "tanh.gradient"),
    }
    assert {name for name, shape in named.items() if shape == (4, 3)} == {"ip", "softmax", "loss.gradient"}
    assert {name for name, shape in named.items() if shape == (1,)} == {"loss", "accuracy", "optimiser"}
    assert named["conv1.gradient"] == BATCH
    assert all(isinstance(shape, tuple) for shape in shapes)


def test_variables_by_position() -> None:
    graph = build(SubGraph(branched()).nodes)
    found = variables_of(graph, BATCH, infer_shapes(graph, BATCH))
    shapes = {graph[order].name: [(spec.name, spec.shape) for spec in specs] for order, specs in found.items()}
    assert shapes == {
        "conv1": [("weights", (3, 2, 3, 3)), ("bias", (3,))],
        "conv2": [("weights", (3, 3, 3, 3)), ("bias", (3,))],
        "conv3": [("weights", (3, 3, 1, 1)), ("bias", (3,))],
        "ip": [("weights", (3, 108)), ("bias", (3,))],
    }


def test_without_labels_their_fit_is_not_checked() -> None:
    graph = build(SubGraph(perceptron()).nodes)
    assert infer_shapes(graph, (4, 5))[-1] == (1,)


# One fault at a time.


@pytest.mark.parametrize(
    ("head", "batch", "labels", "expected"),
    [
        (
            convolution("conv", 2, 3),
            (4, 10),
            None,
            "node 'conv' (Conv): expected an input of shape (N, C, W), (N, C, H, W) or (N, C, D, H, W). "
            "Received: (4, 10)",
        ),
        (
            convolution("conv", 2, 7),
            BATCH,
            None,
            "node 'conv' (Conv): expected an input at least as large as the kernel. Received: input 6×6, "
            "kernel_size=7, padding=0, dilation=1",
        ),
        (
            node("conv", Conv(number_of_outputs=4, groups=4)),
            BATCH,
            None,
            "node 'conv' (Conv): expected channels that groups=4 divides. Received: 2 channels",
        ),
        (
            node("pool", Pool(kernel_size=7, rounding="floor")),
            BATCH,
            None,
            "node 'pool' (Pool): expected an input at least as large as the window. Received: input 6×6, "
            "kernel_size=7, padding=0, dilation=1",
        ),
        (
            chain(node("softmax", SoftMax()), node("accuracy", Accuracy(top_k=4))),
            (4, 3),
            None,
            "node 'accuracy' (Accuracy): expected at least top_k=4 classes. Received: 3",
        ),
        (
            chain(node("softmax", SoftMax()), node("loss", SoftMaxLoss())),
            (4, 3),
            classes(maximum=3),
            "node 'loss' (SoftMaxLoss): expected class labels of shape (4,), from 0 to 2. "
            "Received: classes of shape (4,) in [0, 3]",
        ),
        (
            chain(node("softmax", SoftMax()), node("loss", SoftMaxLoss())),
            (4, 3),
            classes(minimum=-1),
            "node 'loss' (SoftMaxLoss): expected class labels of shape (4,), from 0 to 2. "
            "Received: classes of shape (4,) in [-1, 2]",
        ),
        (
            chain(node("softmax", SoftMax()), node("loss", SoftMaxLoss(ignored_label=255))),
            (4, 3),
            classes(maximum=256),
            "node 'loss' (SoftMaxLoss): expected class labels of shape (4,), from 0 to 2 or 255 (ignored). "
            "Received: classes of shape (4,) in [0, 256]",
        ),
        (
            chain(node("softmax", SoftMax()), node("loss", SoftMaxLoss())),
            (4, 3),
            values(4),
            "node 'loss' (SoftMaxLoss): expected class labels of shape (4,), from 0 to 2. "
            "Received: values of shape (4,) in [-1.5, 1.5]",
        ),
        (
            node("loss", EuclideanLoss()),
            (4, 3),
            classes(),
            "node 'loss' (EuclideanLoss): expected floating-point labels of shape (4, 3). "
            "Received: classes of shape (4,) in [0, 2]",
        ),
        (
            node("loss", EuclideanLoss()),
            (4, 3),
            values(4, 2),
            "node 'loss' (EuclideanLoss): expected floating-point labels of shape (4, 3). "
            "Received: values of shape (4, 2) in [-1.5, 1.5]",
        ),
        (
            chain(inner_product(outputs=3), node("loss", SoftMaxLoss())),
            (4, 5),
            None,
            "node 'loss' (SoftMaxLoss): expected the output of a SoftMax as input. Received: 'ip' (InnerProduct)",
        ),
        (
            chain(node("softmax", SoftMax(axis=2)), node("loss", SoftMaxLoss())),
            (4, 3, 5),
            None,
            "node 'loss' (SoftMaxLoss): expected probabilities of a SoftMax over axis 1. Received: axis=2",
        ),
        (
            node("loss", SoftMaxLoss()),
            (4, 3),
            None,
            "node 'loss' (SoftMaxLoss): expected the output of a SoftMax as input. Received: the batch",
        ),
        (
            chain(node("total", ElementWiseOp(coefficients=(1, 2))), node("relu", ReLU())),
            (4, 3),
            None,
            "node 'total' (ElementWiseOp): expected one input for each of (1.0, 2.0). Received: 1 inputs",
        ),
    ],
)
def test_a_fault_names_the_node_and_says_what_came(
    head: DataflowNode, batch: Shape, labels: LabelRange | None, expected: str
) -> None:
    assert faults(head, batch, labels) == (expected,)


@pytest.mark.parametrize(
    ("head", "batch", "huge"),
    [
        (node("huge", InnerProduct(number_of_outputs=2**31)), (4, 5), "integers below 2**31. Received: number_of"),
        (node("huge", Pool(kernel_size=2, stride=(1, 2**31))), BATCH, "integers below 2**31. Received: stride"),
        (node("huge", Flatten()), (1, 2**16, 2**15), "dimensions below 2**31. Received: an output of shape (1, "),
    ],
)  # fmt: skip
def test_the_smallest_size_that_is_too_large(head: DataflowNode, batch: Shape, huge: str) -> None:
    (fault,) = faults(head, batch)
    assert f"expected {huge}" in fault


def test_the_largest_size() -> None:
    for kernel, batch in ((InnerProduct(number_of_outputs=2**31 - 1), (4, 5)), (Flatten(), (4, 2**31 - 1, 1))):
        shapes = infer_shapes(build(SubGraph(node("largest", kernel)).nodes), batch)
        assert shapes == ((4, 2**31 - 1),)


class Total(Kernel):
    """An operator whose output is one number."""

    def output_shape(self, x: Shape) -> Shape:
        return ()


def test_an_output_without_dimensions() -> None:
    assert infer_shapes(build(SubGraph(node("total", Total())).nodes), (4, 5)) == ((),)


def test_a_wrong_number_of_inputs() -> None:
    first, second, third = (node(name, ReLU()) for name in "abc")
    chain(first, second, third)
    chain(first, third)
    assert faults(first) == ("node 'c' (ReLU): expected 1 input. Received: 2",)


def test_the_shapes_of_a_sum_differ() -> None:
    relu, ip, total = node("relu", ReLU()), inner_product(outputs=3), node("sum", ElementWiseOp())
    chain(relu, ip, total)
    chain(relu, total)
    assert faults(relu, (4, 5)) == (
        "node 'sum' (ElementWiseOp): expected inputs of one shape. Received: (4, 3), (4, 5)",
    )


def test_a_shared_operator_with_inputs_that_differ() -> None:
    ip = inner_product(outputs=3)
    head = chain(ip, node("relu", ReLU()), ip.shallow_copy())
    assert faults(head, (4, 5)) == (
        "node 'ip' (InnerProduct): expected inputs for which the shared operator has the same variables at every node: "
        "[(3, 5), (3,)]. Received: [(3, 3), (3,)]",
    )


def test_what_reads_a_faulty_output_is_not_blamed() -> None:
    head = chain(convolution("conv", 2, 7), node("relu", ReLU()), inner_product(), node("loss", SoftMaxLoss()))
    assert len(faults(head)) == 1


def test_an_ignored_label_may_lie_outside_the_classes() -> None:
    head = chain(node("softmax", SoftMax()), node("loss", SoftMaxLoss(ignored_label=-1)))
    assert infer_shapes(build(SubGraph(head).nodes), (4, 3), classes(minimum=-1)) == ((4, 3), (1,))


def misplaced_loss() -> DataflowNode:
    return chain(inner_product(outputs=3), node("loss", SoftMaxLoss()))


def loss_of_two() -> DataflowNode:
    ip, softmax, loss = inner_product(outputs=3), node("softmax", SoftMax()), node("loss", SoftMaxLoss())
    chain(ip, softmax, loss)
    chain(softmax, loss)
    return ip


def large_window() -> DataflowNode:
    head = chain(convolution("conv", 2, 3), node("pool", Pool(kernel_size=9, rounding="floor")), inner_product())
    chain(head.next[0].next[0], node("softmax", SoftMax()), node("loss", SoftMaxLoss()))
    return head


def unequal_sum() -> DataflowNode:
    one, other, total = inner_product("one", 3), inner_product("other", 4), node("sum", ElementWiseOp())
    chain(one, other, total)
    chain(one, total, node("softmax", SoftMax()), node("loss", SoftMaxLoss()))
    return one


@pytest.mark.parametrize("make", [misplaced_loss, loss_of_two, large_window, unequal_sum])
def test_derived_gradients_do_not_echo_a_fault(make: Callable[[], DataflowNode]) -> None:
    """What is wrong is said once, of the node that the user made."""
    expected = faults(make(), BATCH, classes())
    graph = Dataflow(SubGraph(make())).graph
    with pytest.raises(GraphError) as error:
        infer_shapes(graph, BATCH, classes(), Phase.TRAIN)
    assert error.value.faults == expected
    assert len(expected) == 1


# All at once.


def test_all_faults_are_reported_together() -> None:
    conv, relu, total = convolution("conv", 2, 3), node("relu", ReLU()), node("sum", ElementWiseOp())
    chain(conv, relu, node("pool", Pool(kernel_size=9, rounding="floor")))
    ip = inner_product("ip", 3)
    chain(relu, ip, total)
    chain(relu, total)
    chain(ip, node("loss", SoftMaxLoss()))
    softmax = node("softmax", SoftMax())
    chain(ip, softmax, node("second", SoftMaxLoss()))
    chain(softmax, node("top7", Accuracy(top_k=7)))
    chain(softmax, node("twice", ReLU()))
    softmax.connect_to(softmax.next[-1])
    found = faults(conv, BATCH, classes(batch=4, maximum=9))
    named = {
        "pool": "at least as large as the window. Received: input 4×4",
        "sum": "expected inputs of one shape. Received: (4, 3), (4, 2, 4, 4)",
        "loss": "expected the output of a SoftMax as input. Received: 'ip' (InnerProduct)",
        "second": "from 0 to 2. Received: classes of shape (4,) in [0, 9]",
        "top7": "expected at least top_k=7 classes. Received: 3",
        "twice": "expected 1 input. Received: 2",
    }
    for name, text in named.items():
        assert any(fault.startswith(f"node {name!r} ") and text in fault for fault in found), (name, found)
    assert any(
        fault == "expected at most one loss that is not auxiliary. Received: 'loss', 'second'" for fault in found
    )
    # The loss that is not behind a SoftMax also has labels that do not fit.
    assert len(found) == len(named) + 2


def test_the_message_counts_and_lists_them() -> None:
    conv = convolution("conv", 2, 7)
    with pytest.raises(GraphError) as error:
        infer_shapes(build(SubGraph(conv).nodes), BATCH, None, Phase.TRAIN)
    lines = str(error.value).splitlines()
    assert lines[0] == f"{len(lines) - 1} faults in the graph:"
    assert tuple(lines[1:]) == error.value.faults


def test_the_context_reports_them_before_anything_runs() -> None:
    conv = convolution("conv", 2, 3)
    ip, softmax = inner_product("ip", 3), node("softmax", SoftMax())
    chain(conv, node("pool", Pool(kernel_size=9, rounding="floor")))
    chain(conv, ip, softmax, node("loss", SoftMaxLoss()))
    images = np.zeros((8, 2, 6, 6), np.float32)
    data = Dataset((images, np.arange(8) % 5))
    with pytest.raises(GraphError) as error:
        ExecutionContext(
            [Dataflow(SubGraph(conv)), None],
            data=data,
            model=ModelConf(batch_size=4),
            system=SystemConf(kernels="reference", learners_per_device=1),
        )
    assert [fault.split(":")[0] for fault in error.value.faults] == ["node 'pool' (Pool)", "node 'loss' (SoftMaxLoss)"]


# Gradients wired by hand.


class HandWired:
    """batch → ip1 → relu → ip2 → softmax → loss → lossGradient → ip2Gradient → reluGradient → ip1Gradient → end."""

    def __init__(self, **loss: Any) -> None:
        self.ip1, self.relu, self.ip2 = inner_product("ip1", 4), node("relu", ReLU()), inner_product("ip2", 3)
        self.softmax, self.loss = node("softmax", SoftMax()), node("loss", SoftMaxLoss(**loss))
        self.loss_gradient = node("lossGradient", SoftMaxLossGradient(), self.loss)
        self.ip2_gradient = node("ip2Gradient", InnerProductGradient(), self.ip2)
        self.relu_gradient = node("reluGradient", ReLUGradient(), self.relu)
        self.ip1_gradient = node("ip1Gradient", InnerProductGradient(), self.ip1)
        self.end = node("end", GradientDescentOptimiser())
        chain(self.ip1, self.relu, self.ip2, self.softmax, self.loss, self.loss_gradient)

    def faults(self, batch: Shape = (4, 5)) -> Sequence[str]:
        return faults(self.ip1, batch, classes(), Phase.TRAIN)


def test_complete_hand_wired_gradients_are_right() -> None:
    net = HandWired()
    chain(net.loss_gradient, net.ip2_gradient, net.relu_gradient, net.ip1_gradient, net.end)
    chain(net.ip2_gradient, net.end)
    shapes = infer_shapes(build(SubGraph(net.ip1).nodes), (4, 5), classes(), Phase.TRAIN)
    assert shapes == ((4, 4), (4, 4), (4, 3), (4, 3), (1,), (4, 3), (4, 4), (4, 4), (4, 5), (1,))


def test_a_variable_without_gradient_is_a_fault() -> None:
    net = HandWired()
    chain(net.loss_gradient, net.ip2_gradient, net.end)
    (fault,) = net.faults()
    assert fault.startswith("node 'ip1' (InnerProduct): it has variables but no gradient operator. ")
    assert "set_peer" in fault


def test_without_an_optimiser_nothing_would_step() -> None:
    net = HandWired()
    chain(net.loss_gradient, net.ip2_gradient, net.relu_gradient, net.ip1_gradient)
    assert net.faults() == (
        "expected one GradientDescentOptimiser after the gradient operators that the user connects. Received: 0",
    )


def test_a_gradient_without_peer_in_the_graph() -> None:
    net = HandWired()
    stranger = node("stranger", ReLUGradient(), node("another", ReLU()))
    chain(net.loss_gradient, net.ip2_gradient, stranger, net.ip1_gradient, net.end)
    text = "expected a peer that occurs once in this graph. Call set_peer with the forward operator"
    assert f"node 'stranger' (ReLUGradient): {text}" in net.faults()
    net = HandWired()
    chain(net.loss_gradient, net.ip2_gradient, node("orphan", ReLUGradient()), net.ip1_gradient, net.end)
    assert f"node 'orphan' (ReLUGradient): {text}" in net.faults()


def test_a_gradient_of_an_operator_that_stands_twice() -> None:
    """It could be of either place, and would be wrong for the other. Derived gradients know their place."""
    relu = node("relu", ReLU())
    ip, loss = inner_product(), node("loss", EuclideanLoss())
    chain(ip, relu, relu.shallow_copy(), loss, gradient := node("lossGradient", EuclideanLossGradient(), loss))
    chain(gradient, node("second", ReLUGradient(), relu), node("first", ReLUGradient(), relu))
    found = faults(ip, (4, 5), values(4, 3), Phase.TRAIN)
    text = "(ReLUGradient): expected a peer that occurs once in this graph. Call set_peer with the forward operator"
    assert [fault for fault in found if "occurs once" in fault] == [f"node 'second' {text}", f"node 'first' {text}"]


def test_a_gradient_before_its_peer() -> None:
    """It could not have anything to differentiate."""
    relu, ip, softmax, loss = (
        node("relu", ReLU()),
        inner_product(),
        node("softmax", SoftMax()),
        node("loss", SoftMaxLoss()),
    )
    chain(relu, node("early", InnerProductGradient(), ip), node("end", GradientDescentOptimiser()))
    chain(relu, ip, softmax, loss)
    found = faults(relu, (4, 5), classes(), Phase.TRAIN)
    assert any(
        fault.startswith("node 'early' (InnerProductGradient): expected a position after its peer 'ip'.")
        for fault in found
    )


def test_a_gradient_of_the_wrong_shape() -> None:
    net = HandWired()
    chain(net.loss_gradient, net.relu_gradient, net.ip2_gradient, net.ip1_gradient, net.end)
    chain(net.ip2_gradient, net.end)
    assert net.faults() == (
        "node 'reluGradient' (ReLUGradient): expected a gradient of the shape of 'relu', (4, 4). Received: (4, 3)",
        "node 'ip2Gradient' (InnerProductGradient): expected a gradient of the shape of 'ip2', (4, 3). "
        "Received: (4, 4)",
    )


def test_a_gradient_operator_with_two_inputs() -> None:
    net = HandWired()
    chain(net.loss_gradient, net.ip2_gradient, net.relu_gradient, net.ip1_gradient, net.end)
    chain(net.ip2_gradient, net.end)
    chain(net.ip2_gradient, net.relu_gradient)
    assert net.faults() == (
        "node 'reluGradient' (ReLUGradient): a gradient operator has one input; sum several with "
        "ElementWiseOp(type='sum'). Received: 2",
    )


def test_a_gradient_of_an_input_that_the_peer_does_not_have() -> None:
    relu, total, loss = inner_product(), node("sum", ElementWiseOp()), node("loss", EuclideanLoss())
    head = chain(relu, total, loss)
    gradients = [node(f"sumGradient{input}", ElementWiseOpGradient(input=input), total) for input in (1, 2)]
    for gradient in gradients:
        chain(loss, gradient, node("end", GradientDescentOptimiser()))
    received = [fault for fault in faults(head, (4, 5), values(4, 3), Phase.TRAIN) if "sumGradient" in fault]
    assert received == [
        f"node 'sumGradient{input}' (ElementWiseOpGradient): its peer has 1 inputs. Received: input={input}"
        for input in (1, 2)
    ]


def test_the_softmax_is_not_differentiated_twice() -> None:
    """SoftMaxLossGradient is already with respect to the logits."""
    net = HandWired()
    again = node("softmaxGradient", SoftMaxGradient(), net.softmax)
    chain(net.loss_gradient, again, net.ip2_gradient, net.relu_gradient, net.ip1_gradient, net.end)
    chain(net.ip2_gradient, net.end)
    assert net.faults() == (
        "node 'softmaxGradient' (SoftMaxGradient): the gradient of SoftMaxLoss is already with respect to the input of "
        "'softmax'; connect it to the gradient of the preceding operator",
    )


def test_a_softmax_too_many() -> None:
    flow = Dataflow(Sequential(InnerProduct(3), SoftMax(), SoftMax(), SoftMaxLoss()))
    with pytest.raises(GraphError) as error:
        infer_shapes(flow.graph, (4, 6), None, Phase.TRAIN)
    assert error.value.faults == (
        "node 'softmax1' (SoftMax): one SoftMax too many before the SoftMaxLoss: expected the scores as input of "
        "'softmax2'. Received: probabilities; leave one out",
    )


@configuration
class OwnLoss(Kernel):
    """A loss without labels: the mean of the squares."""

    is_loss: ClassVar[bool] = True

    shape: Shape = (1,)

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.shape

    def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
        return xp.mean(inputs[0] ** 2)


@configuration
class OwnMetric(OwnLoss):
    is_loss: ClassVar[bool] = False
    is_measure: ClassVar[bool] = True


@pytest.mark.parametrize("shape", [(), (4,), (1, 1)])
def test_a_loss_is_a_single_number(shape: Shape) -> None:
    for kernel, what in ((OwnLoss(shape=shape), "a loss"), (OwnMetric(shape=shape), "a metric")):
        expected = f"expected output_shape to return (1,), because it is {what}. Received: {shape}"
        assert faults(node("own", kernel)) == (f"node 'own' ({type(kernel).__name__}): {expected}",)
    infer_shapes(build(SubGraph(node("own", OwnLoss())).nodes), BATCH)


@pytest.mark.parametrize(
    ("options", "received"),
    [({"weight": 0.5}, "'loss' of weight 0.5"), ({"auxiliary": True}, "'loss' of weight 1")],
)
def test_hand_wired_gradients_have_no_weights(options: dict[str, Any], received: str) -> None:
    net = HandWired(**options)
    expected = "expected one loss, of weight 1, in a graph with gradient operators that the user connects"
    chain(net.loss_gradient, net.ip2_gradient, net.relu_gradient, net.ip1_gradient, net.end)
    chain(net.ip2_gradient, net.end)
    assert f"{expected}. Received: {received}" in net.faults()


def test_hand_wired_gradients_need_a_loss() -> None:
    ip = inner_product()
    chain(ip, node("gradient", InnerProductGradient(), ip), node("end", GradientDescentOptimiser()))
    assert "a training dataflow has exactly one loss, as SoftMaxLoss. Received: none" in faults(
        ip, (4, 5), None, Phase.TRAIN
    )


def test_a_convolution_has_its_own_gradient_shape() -> None:
    conv, loss = convolution("conv", 2, 3), node("loss", EuclideanLoss())
    chain(conv, loss, node("lossGradient", loss.operator.kernel.gradient(), loss))  # type: ignore[union-attr, arg-type]
    chain(loss.next[0], node("convGradient", ConvGradient(), conv), node("end", GradientDescentOptimiser()))
    shapes = infer_shapes(build(SubGraph(conv).nodes), BATCH, values(4, 2, 4, 4), Phase.TRAIN)
    assert shapes == ((4, 2, 4, 4), (1,), (4, 2, 4, 4), BATCH, (1,))


def test_variables_that_the_loss_does_not_depend_on_are_a_fault() -> None:
    """They would never be trained."""
    ip, softmax = inner_product("ip", 3), node("softmax", SoftMax())
    chain(ip, softmax, node("loss", SoftMaxLoss()))
    chain(ip, node("probe", InnerProduct(number_of_outputs=3)), node("accuracy", Accuracy()))
    graph = derive_training(build(SubGraph(ip).nodes))
    with pytest.raises(
        GraphError, match=r"node 'probe' \(InnerProduct\): it has variables but no gradient operator\. "
    ):
        infer_shapes(graph, (4, 5), classes(), Phase.TRAIN)


def test_variables_that_nobody_uses_are_no_fault() -> None:
    """What ends without a consumer is measured or looked at, if anything; the loss is wired beside it."""
    ip, softmax = inner_product("ip", 3), node("softmax", SoftMax())
    chain(ip, softmax, node("loss", SoftMaxLoss()))
    chain(ip, node("probe", InnerProduct(number_of_outputs=3)))
    assert len(infer_shapes(derive_training(build(SubGraph(ip).nodes)), (4, 5), classes(), Phase.TRAIN)) > 4


def test_an_operator_computes_by_one_of_two_methods() -> None:
    class Prepares(Kernel):
        def prepare(self, site: Any) -> Any: ...

    class Computes(Kernel):
        def forward(self, *inputs: Any, **named: Any) -> Any: ...

    for kernel in (Prepares, Computes):
        _check_code(object.__new__(kernel))
    with pytest.raises(ValueError, match="Received: one with neither"):
        _check_code(object.__new__(type("Neither", (Kernel,), {})))
