"""How a learner steps: momentum, weight decay, learning-rate policies."""

from crossbow.solver.learning_rate import LearningRate
from crossbow.solver.step import solver_step
from crossbow.solver.update import Update

__all__ = ["LearningRate", "Update", "solver_step"]
