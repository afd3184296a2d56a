"""Models of other frameworks that train as learners under any of Crossbow's rules. They follow Theano-MPI's contract of
models and data."""

from crossbow.foreign.contract import DataClass, ModelClass, check_model
from crossbow.foreign.models import ForeignModels
from crossbow.foreign.recorder import IterationRecorder
from crossbow.foreign.theano_mpi import BSP, EASGD, GOSGD

__all__ = [
    "BSP",
    "EASGD",
    "GOSGD",
    "DataClass",
    "ForeignModels",
    "IterationRecorder",
    "ModelClass",
    "check_model",
]
