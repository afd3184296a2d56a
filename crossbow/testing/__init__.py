"""Test tools that run one operator on one device, compare its gradients with finite differences, and inject faults of
devices.

The tools for operators also work for operators outside this package:

>>> import numpy as np
>>> from crossbow.ops import ReLU
>>> from crossbow.testing import check_gradients, run_operator
>>> run = run_operator(ReLU(), [np.array([[-1.0, 2.0]])])
>>> run.outputs[0].tolist(), run.input_gradients[0].tolist()
([[0.0, 2.0]], [[0.0, 1.0]])
>>> check_gradients(ReLU(), [(2, 3, 4, 4)]) < 1e-6
True
"""

from crossbow.testing.collective import Failure, FakeCollective, Stall, WrongSize
from crossbow.testing.gradients import check_gradients
from crossbow.testing.operator import OperatorRun, run_operator

__all__ = ["Failure", "FakeCollective", "OperatorRun", "Stall", "WrongSize", "check_gradients", "run_operator"]
