"""Training, check and prediction graphs, derived from what the user wired. Numbers are checked in tests/compile."""

from __future__ import annotations

from typing import Any

import pytest

from crossbow import Dataflow, DataflowNode, GraphError, Phase, SubGraph
from crossbow.dataflow.derive import derive_check, derive_prediction, derive_training
from crossbow.dataflow.graph import BATCH, Graph, build, reported_loss, reported_measure
from crossbow.dataflow.validate import infer_shapes
from crossbow.ops import (
    Accuracy,
    ArrayGradient,
    Classify,
    ConvGradient,
    Dropout,
    ElementWiseOp,
    ElementWiseOpGradient,
    EuclideanLoss,
    GradientDescentOptimiser,
    InnerProduct,
    InnerProductGradient,
    MatFact,
    MatFactPrediction,
    Noop,
    ReLU,
    ReLUGradient,
    SoftMax,
    SoftMaxGradient,
    SoftMaxLoss,
    SoftMaxLossGradient,
    TotalLoss,
)
from crossbow.ops.kernel import Kernel
from crossbow.types import Shape
from tests.dataflow.networks import (
    Gate,
    PenalisedLoss,
    Square,
    branched,
    chain,
    inner_product,
    node,
    peers,
    perceptron,
    wiring,
)


def wired(head: DataflowNode) -> Graph:
    return build(SubGraph(head).nodes)


def training(head: DataflowNode) -> Graph:
    return derive_training(wired(head))


def softmax_loss() -> tuple[DataflowNode, DataflowNode]:
    return node("softmax", SoftMax()), node("loss", SoftMaxLoss())


# Training.


def test_a_chain_is_differentiated_in_reverse() -> None:
    graph = training(perceptron())
    assert wiring(graph) == {
        "ip1": ("batch",),
        "relu": ("ip1",),
        "ip2": ("relu",),
        "softmax": ("ip2",),
        "loss": ("softmax",),
        "loss.gradient": ("loss",),
        "ip2.gradient": ("loss.gradient",),
        "relu.gradient": ("ip2.gradient",),
        "ip1.gradient": ("relu.gradient",),
        "optimiser": ("ip2.gradient", "ip1.gradient"),
    }
    assert peers(graph) == {f"{name}.gradient": name for name in ("loss", "ip2", "relu", "ip1")}
    kinds = [type(vertex.kernel) for vertex in graph[5:]]
    assert kinds == [
        SoftMaxLossGradient,
        InnerProductGradient,
        ReLUGradient,
        InnerProductGradient,
        GradientDescentOptimiser,
    ]
    assert [vertex.operator.peer for vertex in graph[5:9]] == [graph[i].operator for i in (4, 2, 1, 0)]


def test_the_forward_part_is_the_wired_graph() -> None:
    graph = wired(branched())
    assert derive_training(graph)[: len(graph)] == graph


def test_the_gradients_of_a_fan_out_are_summed() -> None:
    """And a sum with several inputs has a gradient operator for each."""
    graph = training(branched())
    forward = len(wired(branched()))
    assert dict(list(wiring(graph).items())[forward:]) == {
        "loss.gradient": ("loss",),
        "ip.gradient": ("loss.gradient",),
        "dropout.gradient": ("ip.gradient",),
        "sum.gradient0": ("dropout.gradient",),
        "sum.gradient1": ("dropout.gradient",),
        "sum.gradient2": ("dropout.gradient",),
        "average.gradient": ("sum.gradient2",),
        "max.gradient": ("sum.gradient1",),
        "conv3.gradient": ("max.gradient",),
        "relu.gradient": ("sum.gradient0",),
        "conv2.gradient": ("relu.gradient",),
        "tanh.gradient_sum": ("average.gradient", "conv3.gradient", "conv2.gradient"),
        "tanh.gradient": ("tanh.gradient_sum",),
        "conv1.gradient": ("tanh.gradient",),
        "optimiser": ("ip.gradient", "conv3.gradient", "conv2.gradient", "conv1.gradient"),
    }
    assert [v.kernel.input for v in graph if isinstance(v.kernel, ElementWiseOpGradient)] == [0, 1, 2]
    (total,) = (v for v in graph if v.name == "tanh.gradient_sum")
    assert isinstance(total.kernel, ElementWiseOp)
    assert total.kernel.coefficients is None
    assert {v.name for v in graph if isinstance(v.kernel, ConvGradient)} == {f"conv{i}.gradient" for i in (1, 2, 3)}


def test_an_input_taken_twice_has_two_gradients() -> None:
    ip, total, loss = inner_product(), node("sum", ElementWiseOp()), node("loss", EuclideanLoss())
    ip.connect_to(total)
    ip.connect_to(total).connect_to(loss)
    assert dict(list(wiring(training(ip)).items())[3:]) == {
        "loss.gradient": ("loss",),
        "sum.gradient0": ("loss.gradient",),
        "sum.gradient1": ("loss.gradient",),
        "ip.gradient_sum": ("sum.gradient0", "sum.gradient1"),
        "ip.gradient": ("ip.gradient_sum",),
        "optimiser": ("ip.gradient",),
    }


def test_nothing_is_differentiated_for_what_does_not_train() -> None:
    """Neither the batch, nor a branch of it without variables, nor a branch that does not reach the loss."""
    relu, ip, total = node("relu", ReLU()), inner_product(), node("sum", ElementWiseOp())
    softmax, loss = softmax_loss()
    chain(relu, ip, total, softmax, loss)
    chain(relu, node("square", Square(differentiable=False)), total)
    chain(ip, node("unused", Square(differentiable=False)))
    derived = dict(list(wiring(training(relu)).items())[7:])
    assert derived == {
        "loss.gradient": ("loss",),
        "sum.gradient0": ("loss.gradient",),
        "ip.gradient": ("sum.gradient0",),
        "optimiser": ("ip.gradient",),
    }


def test_a_first_input_that_does_not_train_has_no_gradient() -> None:
    relu, ip, total = node("relu", ReLU()), inner_product(), node("sum", ElementWiseOp())
    chain(relu, node("square", Square(differentiable=False)), total, *softmax_loss())
    chain(relu, ip, total)
    found = wiring(training(relu))
    assert found["sum"] == ("square", "ip")
    assert [name for name in found if "gradient" in name] == ["loss.gradient", "sum.gradient1", "ip.gradient"]


def test_the_first_operator_needs_no_input_gradient_but_has_a_gradient_operator() -> None:
    graph = training(chain(inner_product(), node("loss", EuclideanLoss())))
    assert list(wiring(graph).items())[2:] == [
        ("loss.gradient", ("loss",)),
        ("ip.gradient", ("loss.gradient",)),
        ("optimiser", ("ip.gradient",)),
    ]


def test_an_operator_with_variables_and_two_inputs_has_one_gradient_of_them() -> None:
    """That of its first input, which is also that of its variables; its second is the batch, whose nobody wants."""
    first, gated = inner_product("ip", 5), node("gate", Gate())
    chain(first, gated, node("loss", EuclideanLoss()))
    head = node("noop", Noop())
    chain(head, first)
    head.connect_to(gated)
    found = wiring(training(head))
    assert [name for name in found if "gradient" in name] == ["loss.gradient", "gate.gradient0", "ip.gradient"]
    assert found["optimiser"] == ("gate.gradient0", "ip.gradient")
    both = node("both", Gate())
    chain(head := inner_product("ip", 5), both, node("loss", EuclideanLoss()))
    head.connect_to(both)
    found = wiring(training(head))
    assert found["optimiser"] == ("both.gradient0", "ip.gradient")


def test_a_loss_without_softmax_has_its_gradient_at_its_input() -> None:
    graph = training(chain(inner_product(), node("softmax", SoftMax()), node("loss", EuclideanLoss())))
    assert wiring(graph)["softmax.gradient"] == ("loss.gradient",)
    assert wiring(graph)["ip.gradient"] == ("softmax.gradient",)


def test_a_softmax_that_is_not_the_losss_has_its_own_gradient() -> None:
    """The first SoftMax feeds an operator; only the second is passed by."""
    softmax, loss = softmax_loss()
    head = chain(inner_product("ip1"), node("attention", SoftMax()), inner_product("ip2"), softmax, loss)
    derived = dict(list(wiring(training(head)).items())[5:])
    assert derived == {
        "loss.gradient": ("loss",),
        "ip2.gradient": ("loss.gradient",),
        "attention.gradient": ("ip2.gradient",),
        "ip1.gradient": ("attention.gradient",),
        "optimiser": ("ip2.gradient", "ip1.gradient"),
    }


def test_a_softmax_with_another_differentiable_consumer_has_both_gradients() -> None:
    """The loss's goes past it to the logits, the other one through it; they meet at what made the logits."""
    ip, softmax, loss = inner_product("ip1"), node("softmax", SoftMax()), node("loss", PenalisedLoss())
    chain(ip, softmax, loss)
    chain(softmax, inner_product("ip2"), loss)
    graph = training(ip)
    assert dict(list(wiring(graph).items())[4:]) == {
        "loss.gradient0": ("loss",),
        "loss.gradient1": ("loss",),
        "ip2.gradient": ("loss.gradient1",),
        "softmax.gradient": ("ip2.gradient",),
        "ip1.gradient_sum": ("loss.gradient0", "softmax.gradient"),
        "ip1.gradient": ("ip1.gradient_sum",),
        "optimiser": ("ip2.gradient", "ip1.gradient"),
    }
    (through,) = (v for v in graph if v.name == "softmax.gradient")
    assert isinstance(through.kernel, SoftMaxGradient)


def test_consumers_without_gradient_beside_the_loss_do_not_count() -> None:
    head = branched()
    assert not any("accuracy" in name for name in wiring(training(head)) if name != "accuracy")
    assert "softmax.gradient" not in wiring(training(head))


def test_an_operator_from_outside_brings_its_gradient() -> None:
    softmax, loss = softmax_loss()
    graph = training(chain(inner_product(), node("square", Square()), softmax, loss))
    assert peers(graph)["square.gradient"] == "square"
    assert isinstance(next(v.kernel for v in graph if v.name == "square.gradient"), ArrayGradient)


def test_a_shared_operator_has_a_gradient_for_each_of_its_nodes() -> None:
    ip, relu = inner_product(outputs=3), node("relu", ReLU())
    copy = ip.shallow_copy()
    softmax, loss = softmax_loss()
    graph = training(chain(ip, relu, copy, softmax, loss))
    gradients = [vertex for vertex in graph if isinstance(vertex.kernel, InnerProductGradient)]
    assert [vertex.peer for vertex in gradients] == [2, 0]  # each knows its own node, so its own input
    assert {vertex.operator.peer for vertex in gradients} == {ip.operator}
    assert graph[-1].inputs == tuple(vertex.order for vertex in gradients)


@pytest.mark.parametrize("depth", [3000])
def test_a_very_deep_graph_is_derived(depth: int) -> None:
    relus = [node(f"relu{i}", ReLU()) for i in range(depth)]
    graph = training(chain(inner_product(), *relus, node("loss", EuclideanLoss())))
    assert len(graph) == 2 * (depth + 2) + 1


# What cannot be trained.


def test_operators_without_gradient_on_the_way_are_all_named() -> None:
    square, half = node("square", Square(differentiable=False)), node("half", Square(differentiable=False))
    total = node("sum", ElementWiseOp())
    ip = inner_product()
    chain(ip, square, total)
    chain(ip, half, total, node("loss", EuclideanLoss()))
    with pytest.raises(GraphError) as error:
        training(ip)
    text = "expected a gradient, because it lies between variables and the loss. Received: none"
    assert set(error.value.faults) >= {f"node {name!r} (Square): {text}" for name in ("square", "half")}


@pytest.mark.parametrize(
    "head",
    [
        chain(node("relu", ReLU()), node("loss", EuclideanLoss())),
        node("loss", EuclideanLoss()),
    ],
)
def test_nothing_to_train_is_a_fault(head: DataflowNode) -> None:
    with pytest.raises(GraphError, match="nothing to train: no operator upstream of the loss 'loss' has variables"):
        training(head)


def test_no_loss_is_a_fault() -> None:
    with pytest.raises(GraphError, match=r"a training dataflow has exactly one loss, as SoftMaxLoss\. Received: none$"):
        training(chain(inner_product(), node("softmax", SoftMax())))


def test_a_loss_of_ones_own_is_marked_as_one() -> None:
    class Own(Kernel):
        def output_shape(self, *inputs: Shape) -> Shape:
            return (1,)

    expected = r"Received: none\. An operator of your own is a loss with is_loss = True; takes_labels = True gives"
    with pytest.raises(GraphError, match=expected):
        training(chain(inner_product(), node("own", Own())))


def test_two_losses_are_a_fault_that_names_them() -> None:
    ip, softmax = inner_product(), node("softmax", SoftMax())
    chain(ip, softmax, node("first", SoftMaxLoss()))
    chain(softmax, node("second", SoftMaxLoss()))
    expected = r"exactly one loss, as SoftMaxLoss, and others that are auxiliary=True\. Received: 'first', 'second'\. "
    with pytest.raises(GraphError, match=expected + r".* for another one, create its nodes anew$"):
        training(ip)


# Several losses.


def two_losses(weight: float = 0.3, main: float = 1.0) -> DataflowNode:
    """A trunk, an auxiliary classifier with dropout and an accuracy of its own, and the main one."""
    trunk = inner_product("trunk", 4)
    softmax = node("aux-softmax", SoftMax())
    chain(trunk, inner_product("aux-ip", 3), node("aux-dropout", Dropout()), softmax)
    chain(softmax, node("aux-loss", SoftMaxLoss(weight=weight, auxiliary=True)))
    chain(softmax, node("aux-accuracy", Accuracy()))
    chain(trunk, inner_product("ip", 3), last := node("softmax", SoftMax()), node("loss", SoftMaxLoss(weight=main)))
    chain(last, node("accuracy", Accuracy()))
    return trunk


def test_the_gradients_of_losses_are_weighted() -> None:
    graph = training(two_losses())
    derived = dict(list(wiring(graph).items())[len(wired(two_losses())) :])
    assert derived == {
        "total_loss": ("aux-loss", "loss"),
        "loss.gradient": ("loss",),
        "ip.gradient": ("loss.gradient",),
        "aux-loss.gradient": ("aux-loss",),
        "aux-loss.gradient.weighted": ("aux-loss.gradient",),
        "aux-dropout.gradient": ("aux-loss.gradient.weighted",),
        "aux-ip.gradient": ("aux-dropout.gradient",),
        "trunk.gradient_sum": ("ip.gradient", "aux-ip.gradient"),
        "trunk.gradient": ("trunk.gradient_sum",),
        "optimiser": ("ip.gradient", "aux-ip.gradient", "trunk.gradient"),
    }
    kernels = {vertex.name: vertex.kernel for vertex in graph}
    assert kernels["total_loss"] == TotalLoss(weights=(0.3, 1.0))
    assert kernels["aux-loss.gradient.weighted"] == ElementWiseOp(type="sum", coefficients=(0.3,))


def test_a_loss_of_weight_1_needs_no_sum() -> None:
    assert "total_loss" not in wiring(training(perceptron()))
    assert "total_loss" in wiring(
        training(chain(inner_product(), node("softmax", SoftMax()), node("loss", SoftMaxLoss(weight=0.5))))
    )


def test_auxiliary_losses_are_for_training_only() -> None:
    """With all that only they need, their accuracies included."""
    check = wiring(derive_check(wired(two_losses())))
    assert list(check) == ["trunk", "ip", "softmax", "loss", "accuracy"]
    assert list(wiring(derive_check(training(two_losses())))) == list(check)
    assert list(wiring(derive_prediction(wired(two_losses())))) == ["trunk", "ip", "softmax"]
    weighted = wiring(derive_check(wired(two_losses(main=0.5))))
    assert weighted["total_loss"] == ("loss",)


def test_what_is_reported() -> None:
    """The sum of all losses, and the accuracy of what the main one reads."""
    graph = training(two_losses())
    loss, measure = reported_loss(graph), reported_measure(graph)
    assert loss is not None
    assert measure is not None
    assert (loss.name, measure.name) == ("total_loss", "accuracy")
    alone = training(perceptron())
    loss = reported_loss(alone)
    assert loss is not None
    assert loss.name == "loss"
    only_auxiliary = tuple(vertex for vertex in wired(two_losses()) if vertex.name != "accuracy")
    assert reported_measure(only_auxiliary) is None


def test_an_auxiliary_loss_alone_is_a_fault() -> None:
    head = chain(inner_product(), node("softmax", SoftMax()), node("loss", SoftMaxLoss(auxiliary=True)))
    expected = r"exactly one loss, as SoftMaxLoss, and others that are auxiliary=True\. Received: none"
    with pytest.raises(GraphError, match=expected):
        training(head)


def test_a_loss_with_variables_has_no_weight() -> None:
    class Half(MatFact):
        @property
        def loss_weight(self) -> float:
            return 0.5

    with pytest.raises(GraphError, match="expected a weight of 1, because the loss has variables of its own"):
        training(node("loss", Half(rows=3, columns=3, latents=2)))


# Gradients wired by hand.


def hand_wired() -> tuple[DataflowNode, dict[str, DataflowNode]]:
    """The perceptron with its gradients and optimiser wired as in the original."""
    nodes = {"ip1": inner_product("ip1", 4), "relu": node("relu", ReLU()), "ip2": inner_product("ip2", 3)}
    nodes["softmax"], nodes["loss"] = softmax_loss()
    nodes["lossGradient"] = node("lossGradient", SoftMaxLossGradient(), nodes["loss"])
    nodes["ip2Gradient"] = node("ip2Gradient", InnerProductGradient(), nodes["ip2"])
    nodes["reluGradient"] = node("reluGradient", ReLUGradient(), nodes["relu"])
    nodes["ip1Gradient"] = node("ip1Gradient", InnerProductGradient(), nodes["ip1"])
    nodes["end"] = node("end", GradientDescentOptimiser())
    head = chain(*nodes.values())
    nodes["ip2Gradient"].connect_to(nodes["end"])
    return head, nodes


def test_hand_wired_gradients_are_left_as_they_are() -> None:
    head, nodes = hand_wired()
    graph = wired(head)
    assert derive_training(graph) is graph
    assert [vertex.name for vertex in graph] == list(nodes)
    assert peers(graph) == {"lossGradient": "loss", "ip2Gradient": "ip2", "reluGradient": "relu", "ip1Gradient": "ip1"}


def test_a_peer_outside_the_graph_is_no_peer() -> None:
    head, nodes = hand_wired()
    nodes["reluGradient"].operator.set_peer(node("another", ReLU()).operator)
    assert "reluGradient" not in peers(wired(head))


# Checking.


def test_checking_leaves_out_dropout() -> None:
    graph = derive_check(wired(branched()))
    assert "dropout" not in wiring(graph)
    assert wiring(graph)["ip"] == ("sum",)
    assert wiring(graph)["sum"] == ("relu", "max", "average")


def test_dropout_at_the_head_and_twice_in_a_row_is_passed_by() -> None:
    softmax, loss = softmax_loss()
    first, second = (node(f"dropout{i}", Dropout()) for i in (1, 2))
    graph = derive_check(wired(chain(first, second, inner_product(), softmax, loss)))
    assert wiring(graph) == {"ip": ("batch",), "softmax": ("ip",), "loss": ("softmax",), "accuracy": ("softmax",)}


def test_checking_keeps_the_operators_themselves() -> None:
    """So the check dataflow tests the variables that were trained."""
    graph = wired(branched())
    operators = {vertex.name: vertex.operator for vertex in graph}
    assert all(vertex.operator is operators[vertex.name] for vertex in derive_check(graph))


def test_an_accuracy_is_of_the_first_input_of_a_loss() -> None:
    softmax, loss = node("softmax", SoftMax()), node("loss", PenalisedLoss())
    chain(head := inner_product("ip1"), softmax, loss)
    chain(softmax, inner_product("ip2"), loss)
    assert wiring(derive_check(wired(head)))["accuracy"] == ("softmax",)


def test_an_accuracy_is_attached_beside_the_loss() -> None:
    graph = derive_check(wired(perceptron()))
    assert list(wiring(graph).items())[-2:] == [("loss", ("softmax",)), ("accuracy", ("softmax",))]
    assert isinstance(graph[-1].kernel, Accuracy)
    assert graph[-1].kernel.top_k == 1


def test_an_accuracy_of_the_users_own_stays_the_only_one() -> None:
    head = branched()
    assert [v.name for v in derive_check(wired(head)) if isinstance(v.kernel, Accuracy)] == ["accuracy"]


def test_a_regression_has_no_accuracy() -> None:
    graph = derive_check(wired(chain(inner_product(), node("loss", EuclideanLoss()))))
    assert wiring(graph) == {"ip": ("batch",), "loss": ("ip",)}


def test_hand_wired_gradients_are_removed() -> None:
    """And with them the sums of gradients, which are ordinary operators."""
    head, nodes = hand_wired()
    total = node("gradientSum", ElementWiseOp())
    chain(nodes["reluGradient"], total, node("more", ReLU()))
    nodes["ip1Gradient"].connect_to(total)
    graph = derive_check(wired(head))
    assert list(wiring(graph)) == ["ip1", "relu", "ip2", "softmax", "loss", "accuracy"]
    assert not any(vertex.operator.is_gradient for vertex in graph)


def test_what_reads_a_gradient_and_something_else_is_removed_with_it() -> None:
    """As a penalty that is added to a gradient."""
    head, nodes = hand_wired()
    total = node("penalised", ElementWiseOp())
    chain(nodes["relu"], total)
    nodes["ip2Gradient"].connect_to(total)
    assert list(wiring(derive_check(wired(head)))) == ["ip1", "relu", "ip2", "softmax", "loss", "accuracy"]


def test_vertices_are_numbered_again() -> None:
    for graph in (derive_check(wired(branched())), derive_prediction(wired(branched()))):
        assert [vertex.order for vertex in graph] == list(range(len(graph)))
        assert all(source < vertex.order for vertex in graph for source in vertex.inputs)


def test_checking_twice_changes_nothing() -> None:
    once = derive_check(wired(branched()))
    assert wiring(derive_check(once)) == wiring(once)


# Prediction.


def test_prediction_ends_at_the_losss_input() -> None:
    graph = derive_prediction(wired(branched()))
    names = list(wiring(graph))
    assert names[-1] == "softmax"
    assert not {"loss", "accuracy", "dropout"} & set(names)


def test_prediction_leaves_out_what_it_does_not_need() -> None:
    ip, softmax, loss = inner_product(), *softmax_loss()
    chain(ip, softmax, loss)
    chain(ip, node("unused", ReLU()), node("accuracy", Accuracy()))
    assert list(wiring(derive_prediction(wired(ip)))) == ["ip", "softmax"]


def test_prediction_of_a_regression_is_the_losss_input() -> None:
    graph = derive_prediction(wired(chain(inner_product(), node("loss", EuclideanLoss()))))
    assert wiring(graph) == {"ip": ("batch",)}


def test_prediction_without_a_loss_is_the_last_operator() -> None:
    graph = derive_prediction(wired(chain(inner_product(), node("relu", ReLU()))))
    assert wiring(graph) == {"ip": ("batch",), "relu": ("ip",)}


def test_a_classify_that_nobody_reads_is_the_prediction() -> None:
    ip, softmax, loss = inner_product(), *softmax_loss()
    chain(ip, softmax, loss)
    chain(softmax, node("classes", Classify()))
    assert list(wiring(derive_prediction(wired(ip)))) == ["ip", "softmax", "classes"]
    chain(softmax, node("again", Classify()))  # which of the two is not clear
    assert list(wiring(derive_prediction(wired(ip)))) == ["ip", "softmax"]


def test_prediction_without_a_loss_is_no_measure() -> None:
    ip = inner_product()
    chain(ip, node("accuracy", Accuracy()))
    assert wiring(derive_prediction(wired(ip))) == {"ip": ("batch",)}


def test_a_loss_of_the_batch_predicts_nothing() -> None:
    with pytest.raises(GraphError, match=r"nothing to predict: .*: a loss, 'loss' \(EuclideanLoss\), that"):
        derive_prediction(wired(node("loss", EuclideanLoss())))


def test_a_loss_of_the_batch_may_have_a_prediction() -> None:
    """The node is the same, so that the prediction has the variables of the loss."""
    graph = wired(node("ratings", MatFact(rows=3, columns=4, latents=2)))
    (vertex,) = derive_prediction(graph)
    assert vertex.operator is graph[0].operator
    assert vertex.kernel == vertex.forward == MatFactPrediction(rows=3, columns=4, latents=2)
    assert infer_shapes((vertex,), (5, 2)) == ((5,),)
    assert derive_prediction((vertex,)) == (vertex,)


def test_operators_before_such_a_loss_are_part_of_its_prediction() -> None:
    head = chain(node("same", Noop()), node("ratings", MatFact(rows=3, columns=4, latents=2)))
    graph = derive_prediction(wired(head))
    assert wiring(graph) == {"same": ("batch",), "ratings": ("same",)}
    assert isinstance(graph[-1].kernel, MatFactPrediction)


def test_a_derived_loss_does_not_inherit_the_prediction() -> None:
    class Biased(MatFact):
        pass

    with pytest.raises(GraphError, match=r"nothing to predict: .*: a loss, 'loss' \(Biased\), that"):
        derive_prediction(wired(node("loss", Biased(rows=3, columns=4, latents=2))))


@pytest.mark.parametrize(
    ("prediction", "fault"),
    [
        (
            MatFactPrediction(rows=3, columns=4, latents=1),
            r"with variables of Other, .*\(3, 2\).*Received: {'users': \(3, 1\), 'items': \(4, 1\)}",
        ),
        (InnerProduct(1), r"with variables of Other, .* Received: {'weights': \(1, 2\), 'bias': \(1,\)}"),
        (3, "expected prediction to return an operator or None. Received: 3"),
        (EuclideanLoss(), "expected prediction to return an operator without labels. Received: EuclideanLoss"),
    ],
)
def test_a_prediction_that_does_not_fit_its_loss(prediction: Any, fault: str) -> None:
    class Other(MatFact):
        def prediction(self) -> Any:
            return prediction

    with pytest.raises(GraphError, match=fault):
        infer_shapes(derive_prediction(wired(node("loss", Other(rows=3, columns=4, latents=2)))), (5, 2))


# By way of the dataflow.


def test_the_phase_decides_what_is_derived() -> None:
    dataflow = Dataflow(SubGraph(perceptron()))
    assert dataflow.phase is Phase.TRAIN
    assert wiring(dataflow.graph) == wiring(training(perceptron()))
    assert dataflow.graph is dataflow.graph  # derived once
    assert dataflow.set_phase(Phase.CHECK) is dataflow
    assert wiring(dataflow.graph) == wiring(derive_check(wired(perceptron())))
    assert all(source == BATCH or source >= 0 for vertex in dataflow.graph for source in vertex.inputs)
