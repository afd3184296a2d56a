"""Files of models: the variables, their graph, and the description of the data that prediction needs.

A file is in the format safetensors. Its tensors are the variables and running statistics by name, such as
"conv1.weights", and the arrays that configurations contain, such as "graph/0". Its metadata has the key "format" and,
except in files of old versions, the key "model": JSON with the version of its format, the dataflows
(`crossbow.dataflow.description`), shape, type and scale of an example, the classes, and the settings that the bits of a
prediction depend on.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from crossbow.conf import is_integer
from crossbow.data import Dataset
from crossbow.dataflow import Dataflow
from crossbow.dataflow.description import Json, NotDescribedError, describe_dataflows, read_dataflows
from crossbow.dataflow.graph import unique_names
from crossbow.files import checked_path, reason, write_whole
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.types import Array, DataError, Shape, bytes_text

VERSION = 1
"""Version of the format of the JSON. It increases if older versions of this package cannot read the new format."""
LARGEST_HEADER = 16 << 20
"""Maximum size of the header of a saved model, in bytes. It has a few hundred bytes per operator."""
OF_A_RUN = ("best.safetensors", "model.safetensors")
"""Names of model files in the directory of a run, the preferred one first."""
ARRAY = re.compile(r"graph/\d+")
"""Names of the arrays that configurations contain. They differ from names of variables, which have a dot."""


@dataclass(frozen=True)
class ModelSettings:
    """The settings that prediction and tests depend on, besides the graph and the variables."""

    image_shape: Shape
    image_dtype: np.dtype[np.generic]
    scale: float
    """Factor by which images are multiplied, such as 1/255 for pixels."""
    number_of_classes: int | None
    """Number of classes; None for a regression."""
    class_names: tuple[str, ...] | None
    batch_size: int
    """Number of examples in a batch of a learner."""
    check_batch_size: int | None
    """Number of examples in a test batch; None for the default."""
    kernels: str
    precision: str
    winograd: bool
    threads_per_learner: int | None
    """Number of threads of a learner; None on GPUs."""

    @classmethod
    def of(cls, data: Dataset, model: ModelConf, system: SystemConf, threads_per_learner: int | None) -> ModelSettings:
        """The settings of a context."""
        return cls(
            image_shape=data.image_shape,
            image_dtype=data.train.image_dtype,
            scale=data.scale,
            number_of_classes=data.number_of_classes,
            class_names=data.class_names,
            batch_size=model.batch_size,
            check_batch_size=model.check_batch_size,
            kernels=system.kernels,
            precision=system.precision,
            winograd=system.winograd,
            threads_per_learner=threads_per_learner,
        )

    def to_json(self) -> Json:
        """The fields as JSON."""
        return {**vars(self), "image_shape": list(self.image_shape), "image_dtype": self.image_dtype.name}

    @classmethod
    def from_json(cls, given: Mapping[str, Json]) -> ModelSettings:
        """The settings in the JSON of `to_json`. Raises KeyError, TypeError or ValueError if it is invalid."""
        values = {name: given[name] for name in cls.__dataclass_fields__}
        shape, names, classes = (values[name] for name in ("image_shape", "class_names", "number_of_classes"))
        if not shape or not all(is_integer(size) and size >= 1 for size in shape):
            raise ValueError(f"image_shape={shape!r}")
        dtype = np.dtype(values["image_dtype"])
        if dtype not in (np.uint8, np.float32, np.float64):
            raise ValueError(f"image_dtype={dtype}")
        if not (classes is None or is_integer(classes)) or not isinstance(names, list | None):
            raise ValueError(f"number_of_classes={classes!r}, class_names={names!r}")
        SystemConf(**{name: values[name] for name in ("kernels", "precision", "winograd", "threads_per_learner")})
        ModelConf(batch_size=values["batch_size"], check_batch_size=values["check_batch_size"])
        return cls(
            **{
                **values,
                "image_shape": tuple(shape),
                "image_dtype": dtype,
                "scale": float(values["scale"]),
                "class_names": None if names is None else tuple(map(str, names)),
            }
        )


@dataclass(frozen=True)
class ModelFile:
    """A model that was read from a file."""

    path: Path
    variables: Mapping[str, Array]
    """Variables and running statistics by name."""
    arrays: Mapping[str, Array]
    """Arrays of the configurations by name."""
    settings: ModelSettings
    description: Json

    def dataflows(self, operators: Iterable[type[Any]] = ()) -> tuple[Dataflow, Dataflow | None]:
        """The training dataflow and the check dataflow; the latter is None if it is derived from the former. operators:
        classes of the user's own operators. Raises DataError for an invalid description, or an unknown class."""
        try:
            training, *others = read_dataflows(self.description, self.arrays, operators)
        except (DataError, ValueError) as error:
            raise DataError(f"{self.path}: {reason(error)}") from error
        return training, others[0] if others else None

    def by_operator(self, training: Dataflow) -> dict[tuple[int, str], Array]:
        """The variables by the id of their operator in this training dataflow and by their name in the operator."""
        operators = [node.operator for node in training.subgraph.nodes]
        ids = {name: operator for operator, name in unique_names(operators).items()}
        found = {}
        for name, value in self.variables.items():
            for dot in (match.start() for match in re.finditer(r"\.", name)):  # names of operators may have dots
                if name[:dot] in ids:
                    found[ids[name[:dot]], name[dot + 1 :]] = value
        return found


def write_model(
    path: str | os.PathLike[str],
    variables: Mapping[str, Array],
    training: Dataflow,
    check: Dataflow | None,
    settings: ModelSettings,
) -> None:
    """Write a model atomically. A graph that has no description is left out, and the file states the reason.

    check: None if it is derived from `training`. Raises DataError if the file cannot be written.
    """
    path = checked_path("save", path)
    model: dict[str, Json] = {"version": VERSION, "settings": settings.to_json()}
    arrays: dict[str, Array] = {}
    try:
        graphs, arrays = describe_dataflows([training] if check is None else [training, check])
        model["graph"] = graphs
    except NotDescribedError as error:
        model["no_graph"] = str(error)
    tensors = {**variables, **{f"graph/{name}": array for name, array in arrays.items()}}
    metadata = {"format": "crossbow", "model": json.dumps(model, allow_nan=False)}
    # safetensors writes the entries in random order, but equal models should give equal files.
    whole = safetensors.numpy.save(tensors, metadata=metadata)  # type: ignore[arg-type, unused-ignore]
    write_whole(path, _with_metadata(whole, metadata))


def _with_metadata(whole: bytes, metadata: Mapping[str, str]) -> bytes:
    """A file in the format safetensors with its metadata in the given order."""
    end = 8 + int.from_bytes(whole[:8], "little")
    header = json.dumps({**json.loads(whole[8:end]), "__metadata__": metadata}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the tensors begin at a multiple of 8 bytes
    return len(header).to_bytes(8, "little") + header + whole[end:]


def model_path(path: str | os.PathLike[str]) -> Path:
    """The file of a model: the path itself or, if it is the directory of a run, the best model or else the last one.

    Raises DataError if there is none.
    """
    path = checked_path("load", path)
    if not os.path.isdir(path):  # also False if the path is not accessible: opening the file then reports the reason
        return path
    for name in OF_A_RUN:
        if (path / name).is_file():
            return path / name
    raise DataError(f"{path}: expected the directory of a run, with {' or '.join(OF_A_RUN)}. Received: neither")


def read_variables(path: str | os.PathLike[str], check: Any = lambda shapes: None) -> dict[str, Array]:
    """The variables of a file, which need not have a graph. check: function that is called with all shapes by name
    before memory is allocated for them. Raises DataError if the file cannot be read."""
    path = checked_path("load", path)
    with _Opened(path) as opened:
        names = [name for name in opened.shapes if not ARRAY.fullmatch(name)]
        check({name: opened.shapes[name] for name in names})
        return {name: opened.tensor(name) for name in names}


def read_model(path: str | os.PathLike[str]) -> ModelFile:
    """A model with its graph. Raises DataError if the file cannot be read, is not a model, is of a newer version, or
    has no graph."""
    path = model_path(path)
    with _Opened(path) as opened:
        model = opened.model
        if model is None:
            expected = "expected a model with its graph, as ExecutionContext.save writes"
            received = "one without a graph, of an older version or another program"
            raise DataError(f"{path}: {expected}. Received: {received}")
        if "no_graph" in model:
            received = f"one without a graph, because it had no description: {model['no_graph']}"
            raise DataError(f"{path}: expected a model with its graph. Received: {received}")
        try:
            settings, graph = ModelSettings.from_json(model["settings"]), model["graph"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            received = f"damaged settings ({reason(error)})"
            raise DataError(f"{path}: expected a saved model. Received: {received}") from error
        tensors = {name: opened.tensor(name) for name in opened.shapes}
    arrays = {name.removeprefix("graph/"): value for name, value in tensors.items() if ARRAY.fullmatch(name)}
    variables = {name: value for name, value in tensors.items() if not ARRAY.fullmatch(name)}
    return ModelFile(path, variables, arrays, settings, graph)


class _Opened:
    """An open model file; a context manager that converts all errors of reading to DataError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self.shapes: dict[str, Shape] = {}
        self.model: Json = None
        """The JSON of the model; None in files of old versions."""

    def __enter__(self) -> _Opened:
        try:
            if not self.path.is_file():
                raise DataError(f"{self.path}: expected a saved model. Received: no such file")
            self._check_header()
            open_file: Any = safetensors.safe_open  # it has no type annotations
            self._file = open_file(self.path, framework="np")
            self._file.__enter__()
            names = self._file.keys()
            self.shapes = {name: tuple(self._file.get_slice(name).get_shape()) for name in names}
            self.model = self._read_model(self._file.metadata() or {})
        except Exception as error:
            raise self._error(error) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._file.__exit__(None, None, None)

    def tensor(self, name: str) -> Array:
        try:
            tensor: Array = self._file.get_tensor(name)
        except Exception as error:
            raise self._error(error) from error
        return tensor

    def _error(self, error: Exception) -> Exception:
        # TypeError and AttributeError: an element type that NumPy does not have, such as bfloat16.
        expected = (safetensors.SafetensorError, ValueError, TypeError, AttributeError, OSError, RecursionError)
        if isinstance(error, DataError) or not isinstance(error, expected):
            return error
        return DataError(f"{self.path}: expected a saved model (safetensors). Received: {reason(error)}")

    def _check_header(self) -> None:
        """Raise DataError if the header, whose length comes first in the file, is longer than that of any model."""
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length > LARGEST_HEADER:
            received = f"a header of {bytes_text(length)}, more than {bytes_text(LARGEST_HEADER)}"
            raise DataError(f"{self.path}: expected a saved model (safetensors). Received: {received}")

    def _read_model(self, metadata: Mapping[str, str]) -> Json:
        if "model" not in metadata:
            return None
        model = json.loads(metadata["model"])
        version = model.get("version") if isinstance(model, dict) else None
        if version is None or not is_integer(version):
            raise DataError(f"{self.path}: expected a saved model. Received: one without a version")
        if version > VERSION:
            expected = f"expected a model of version {VERSION} or older"
            raise DataError(f"{self.path}: {expected}. Received: version {version}, of a newer Crossbow")
        return model
