"""What to compute: nodes, operators, subgraphs, dataflows; gradients derived; graphs validated and described."""

from crossbow.dataflow.dataflow import Dataflow
from crossbow.dataflow.node import DataflowNode
from crossbow.dataflow.operator import Operator
from crossbow.dataflow.subgraph import SubGraph

__all__ = ["Dataflow", "DataflowNode", "Operator", "SubGraph"]
