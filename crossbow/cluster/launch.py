"""Whether this process was started as one of several ranks: what `crossbow launch`, mpirun and srun set in the
environment."""

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
    ("CROSSBOW_RANK", "CROSSBOW_SIZE"),  # crossbow launch, on Ray
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # mpirun of Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # mpirun of MPICH, srun --mpi=pmi2
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),  # srun --mpi=pmix
    ("PMI_RANK", "SLURM_STEP_NUM_TASKS"),
)
"""Variables with the rank and the number of ranks. SLURM's own are not enough: a batch script has them, too."""

_LOCAL_VARIABLES = (
    ("CROSSBOW_LOCAL_RANK", "CROSSBOW_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)


def variables_of(launch: RankLaunch) -> dict[str, str]:
    """The environment of a process that is started in this way.

    >>> launch_of(variables_of(RankLaunch(1, 4, 1, 2)))
    RankLaunch(rank=1, size=4, local_rank=1, local_size=2)
    """
    values = (launch.rank, launch.size, launch.local_rank, launch.local_size)
    return dict(zip((*_VARIABLES[0], *_LOCAL_VARIABLES[0]), map(str, values), strict=True))


def launch_of(environment: Mapping[str, str]) -> RankLaunch:
    """How a process with this environment was started: rank 0 of 1, unless several were started.

    >>> launch_of({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"})
    RankLaunch(rank=2, size=4, local_rank=0, local_size=1)
    """
    found = _first_pair(_VARIABLES, environment, least=2)
    if found is None:
        return RankLaunch()
    return RankLaunch(*found, *(_first_pair(_LOCAL_VARIABLES, environment, least=1) or (0, 1)))


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment was started as a rank, even if it is the only one.

    >>> is_rank({"CROSSBOW_RANK": "0", "CROSSBOW_SIZE": "1"}), is_rank({})
    (True, False)
    """
    return _VARIABLES[0][0] in environment or launch_of(environment).size > 1


def _first_pair(pairs: Sequence[tuple[str, str]], environment: Mapping[str, str], least: int) -> tuple[int, int] | None:
    """The first pair of a number and how many there are, if there are at least `least`."""
    for names in pairs:
        numbers = [environment.get(name, "") for name in names]
        if all(number.isdecimal() for number in numbers) and int(numbers[1]) >= least:
            return int(numbers[0]), int(numbers[1])
    return None
