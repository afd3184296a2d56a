"""The launch of this process, alone or as one of several ranks, from the environment variables that `crossbow launch`,
mpirun and srun set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class RankLaunch:
    """The rank of a process, and the number of ranks, from its launch."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Number of the process among those of its host."""
    local_size: int = 1
    """Number of processes on its host, if it is known; otherwise 1."""


class _Family(NamedTuple):
    """Variables that one launcher sets."""

    ranks: tuple[str, str]
    """The variables of the rank and of the number of ranks."""
    of_host: tuple[tuple[str, str], ...]
    """The same within the host; the first pair that is set is used."""


_MPICH, _SLURM = ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"), ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
_FAMILIES = (
    _Family(("CROSSBOW_RANK", "CROSSBOW_SIZE"), (("CROSSBOW_LOCAL_RANK", "CROSSBOW_LOCAL_SIZE"),)),  # on Ray
    _Family(  # mpirun of Open MPI
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        (("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),),
    ),
    _Family(("PMI_RANK", "PMI_SIZE"), (_MPICH, _SLURM)),  # mpirun of MPICH, srun --mpi=pmi2
    _Family(("PMIX_RANK", "SLURM_STEP_NUM_TASKS"), (_SLURM,)),  # srun --mpi=pmix
    _Family(("PMI_RANK", "SLURM_STEP_NUM_TASKS"), (_SLURM,)),
)
"""SLURM's own variables alone do not count, because a batch script has them, too."""


def variables_of(launch: RankLaunch) -> dict[str, str]:
    """The environment variables of a process with this launch.

    >>> launch_of(variables_of(RankLaunch(1, 4, 1, 2)))
    RankLaunch(rank=1, size=4, local_rank=1, local_size=2)
    """
    values = (launch.rank, launch.size, launch.local_rank, launch.local_size)
    own = _FAMILIES[0]
    return dict(zip((*own.ranks, *own.of_host[0]), map(str, values), strict=True))


def launch_of(environment: Mapping[str, str]) -> RankLaunch:
    """The launch of a process with this environment: rank 0 of 1, unless several processes were started.

    >>> launch_of({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"})
    RankLaunch(rank=2, size=4, local_rank=0, local_size=1)
    """
    for family in _FAMILIES:
        found = _numbers(family.ranks, environment)
        if found is not None and found[1] > 1:
            of_host = (numbers for names in family.of_host if (numbers := _numbers(names, environment)) is not None)
            return RankLaunch(*found, *next(of_host, (0, 1)))
    return RankLaunch()


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment was started as a rank, even if it is the only one.

    >>> is_rank({"CROSSBOW_RANK": "0", "CROSSBOW_SIZE": "1"}), is_rank({})
    (True, False)
    """
    return _FAMILIES[0].ranks[0] in environment or launch_of(environment).size > 1


def _numbers(names: tuple[str, str], environment: Mapping[str, str]) -> tuple[int, int] | None:
    """An index and a count, which is at least 1, from two variables; None if they are not set."""
    first, second = (environment.get(name, "") for name in names)
    return (int(first), int(second)) if first.isdecimal() and second.isdecimal() and int(second) else None
