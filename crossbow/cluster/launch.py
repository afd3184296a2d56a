"""Whether this process was started as one of several ranks: what mpirun and srun set in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """How a process was started."""

    rank: int = 0
    size: int = 1


_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # mpirun of Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # mpirun of MPICH, srun --mpi=pmi2
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),  # srun --mpi=pmix
    ("PMI_RANK", "SLURM_STEP_NUM_TASKS"),
)
"""Variables with the rank and the number of ranks. SLURM's own are not enough: a batch script has them, too."""


def launch_of(environment: Mapping[str, str]) -> Launch:
    """How a process with this environment was started: rank 0 of 1, unless mpirun or srun started several.

    >>> launch_of({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"})
    Launch(rank=2, size=4)
    """
    for rank, size in _VARIABLES:
        numbers = environment.get(rank, ""), environment.get(size, "")
        if all(number.isdecimal() for number in numbers) and int(numbers[1]) > 1:
            return Launch(int(numbers[0]), int(numbers[1]))
    return Launch()
