"""Crossbow: train deep networks with small batches at full hardware speed."""

from crossbow import interruption

# isort: split

from crossbow.context import ExecutionContext
from crossbow.data import Dataset
from crossbow.dataflow import Dataflow, DataflowNode, Operator, Sequential, SubGraph, chain
from crossbow.learning_rates import RangeTest, find_learning_rate
from crossbow.monitors import (
    ConsoleMonitor,
    CsvMonitor,
    EarlyStopping,
    JsonLinesMonitor,
    StatusMonitor,
    TensorBoardMonitor,
    WandbMonitor,
)
from crossbow.ops import MSRA, Constant, Gaussian, Uniform, Values, Xavier
from crossbow.predictor import Predictor
from crossbow.runtime.checkpointing import Checkpoints
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.monitor import Monitor
from crossbow.runtime.profiling import Profile
from crossbow.runtime.results import History, Record, TestResult
from crossbow.runtime.summary import RunSummary
from crossbow.solver import SolverConf
from crossbow.synch import SMA, SSGD
from crossbow.timeline.timeline import Timeline
from crossbow.types import (
    ConfigurationError,
    CrossbowError,
    DataError,
    DurationUnit,
    ExampleError,
    GraphError,
    MonitorError,
    NonFiniteError,
    NonFiniteLossError,
    Phase,
    TaskError,
    TrainingUnit,
)

__version__ = "0.1.0"

interruption.package_is_imported()

__all__ = [
    "MSRA",
    "SMA",
    "SSGD",
    "Checkpoints",
    "ConfigurationError",
    "ConsoleMonitor",
    "Constant",
    "CrossbowError",
    "CsvMonitor",
    "DataError",
    "Dataflow",
    "DataflowNode",
    "Dataset",
    "DurationUnit",
    "EarlyStopping",
    "ExampleError",
    "ExecutionContext",
    "Gaussian",
    "GraphError",
    "History",
    "JsonLinesMonitor",
    "ModelConf",
    "Monitor",
    "MonitorError",
    "NonFiniteError",
    "NonFiniteLossError",
    "Operator",
    "Phase",
    "Predictor",
    "Profile",
    "RangeTest",
    "Record",
    "RunSummary",
    "Sequential",
    "SolverConf",
    "StatusMonitor",
    "SubGraph",
    "SystemConf",
    "TaskError",
    "TensorBoardMonitor",
    "TestResult",
    "Timeline",
    "TrainingUnit",
    "Uniform",
    "Values",
    "WandbMonitor",
    "Xavier",
    "__version__",
    "chain",
    "find_learning_rate",
]
