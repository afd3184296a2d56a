"""The solver: momentum, weight decay, schedules of learning rate and momentum."""

from crossbow.solver.configuration import SolverConf
from crossbow.solver.schedule import Pace, Schedule
from crossbow.solver.step import solver_step
from crossbow.solver.update import Update

__all__ = ["Pace", "Schedule", "SolverConf", "Update", "solver_step"]
