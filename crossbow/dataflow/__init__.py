"""Dataflows: nodes, operators, subgraphs; derived gradients; validated and printable graphs."""

from crossbow.dataflow.dataflow import Dataflow
from crossbow.dataflow.node import DataflowNode
from crossbow.dataflow.operator import Operator
from crossbow.dataflow.sequential import Sequential, chain
from crossbow.dataflow.subgraph import SubGraph

__all__ = ["Dataflow", "DataflowNode", "Operator", "Sequential", "SubGraph", "chain"]
