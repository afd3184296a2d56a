"""Models of other frameworks as learners: Theano-MPI's contract of model and data, under all of Crossbow's rules."""

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
