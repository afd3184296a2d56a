"""Whether this process was started as one of several ranks: what mpirun and srun set in the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RankLaunch:
    """How a process was started."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Number of the process among those of its host."""
    local_size: int = 1
    """Number of processes on its host, if that is known."""


_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # mpirun of Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # mpirun of MPICH, srun --mpi=pmi2
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),  # srun --mpi=pmix
    ("PMI_RANK", "SLURM_STEP_NUM_TASKS"),
)
"""Variables with the rank and the number of ranks. SLURM's own are not enough: a batch script has them, too."""

_LOCAL_VARIABLES = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)


def launch_of(environment: Mapping[str, str]) -> RankLaunch:
    """How a process with this environment was started: rank 0 of 1, unless mpirun or srun started several.

    >>> launch_of({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"})
    RankLaunch(rank=2, size=4, local_rank=0, local_size=1)
    """
    found = _first_pair(_VARIABLES, environment)
    return (
        RankLaunch() if found is None else RankLaunch(*found, *(_first_pair(_LOCAL_VARIABLES, environment) or (0, 1)))
    )


def _first_pair(pairs: Sequence[tuple[str, str]], environment: Mapping[str, str]) -> tuple[int, int] | None:
    """The first pair of a number and how many there are, if there are several."""
    for names in pairs:
        numbers = [environment.get(name, "") for name in names]
        if all(number.isdecimal() for number in numbers) and int(numbers[1]) > 1:
            return int(numbers[0]), int(numbers[1])
    return None
