"""Logistic regression, Crossbow's first program: `python -m models.logistic_regression`; `--help` lists the options.

One inner product and a softmax: p = softmax(W x + b), with 7,850 parameters for 28×28 images and ten classes. Ports
src/test/java/uk/ac/imperial/lsds/crossbow/LogisticRegression.java, with the values of the README's first program.
"""

from __future__ import annotations

from collections.abc import Sequence

from crossbow import Constant, Dataflow, DataflowNode, Gaussian, Operator, Phase, SolverConf, SubGraph
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss
from crossbow.scripts import Defaults, ModelScript


def logistic_regression(*, number_of_outputs: int = 10) -> Dataflow:
    """The training dataflow, for examples (N, …) of any shape."""
    inner_product = DataflowNode(
        Operator(
            "InnerProduct",
            InnerProduct(
                number_of_outputs=number_of_outputs,
                weight_initialiser=Gaussian(std=0.1),
                bias_initialiser=Constant(1.0),
            ),
        )
    )
    softmax = DataflowNode(Operator("SoftMax", SoftMax()))
    loss = DataflowNode(Operator("SoftMaxLoss", SoftMaxLoss()))
    inner_product.connect_to(softmax).connect_to(loss)
    return Dataflow(SubGraph(inner_product)).set_phase(Phase.TRAIN)


SCRIPT = ModelScript(
    name="logistic_regression",
    title="Trains a logistic regression on handwritten digits.",
    build=lambda options: logistic_regression(number_of_outputs=options.classes),
    defaults=Defaults(
        epochs={"digits": 20, "mnist": 5, "fashion_mnist": 10, "synthetic": 3},
        batch_size=8,
        solver=SolverConf(learning_rate=0.1),
        image_shape=(1, 28, 28),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
