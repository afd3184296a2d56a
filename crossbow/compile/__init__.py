"""How: order → layouts → memory plan → prepared kernels = a program, which can be printed."""

from crossbow.compile.compiler import BatchSource, compile_graph
from crossbow.compile.memory import Lifetime, MemoryPlan, plan_memory
from crossbow.compile.model import ModelLayout
from crossbow.compile.program import BoundStep, Memory, Program

__all__ = [
    "BatchSource",
    "BoundStep",
    "Lifetime",
    "Memory",
    "MemoryPlan",
    "ModelLayout",
    "Program",
    "compile_graph",
    "plan_memory",
]
