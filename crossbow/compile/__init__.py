"""The compiler: it derives order, layouts, memory plan and prepared kernels, which form a printable program."""

from crossbow.compile.compiler import BatchSource, compile_graph
from crossbow.compile.memory import Lifetime, MemoryPlan, check_memory, plan_memory
from crossbow.compile.model import Layouts, ModelLayout, load_vectors, share_of
from crossbow.compile.program import BoundBlock, BoundStep, Memory, Parts, Program

__all__ = [
    "BatchSource",
    "BoundBlock",
    "BoundStep",
    "Layouts",
    "Lifetime",
    "Memory",
    "MemoryPlan",
    "ModelLayout",
    "Parts",
    "Program",
    "check_memory",
    "compile_graph",
    "load_vectors",
    "plan_memory",
    "share_of",
]
