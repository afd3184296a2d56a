"""How a process was started, by its environment."""

from __future__ import annotations

import pytest

from crossbow.cluster.launch import RankLaunch, launch_of, variables_of


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, RankLaunch()),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, RankLaunch()),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, RankLaunch(3, 4)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            RankLaunch(3, 4, 1, 2),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
                "SLURM_LOCALID": "1",
                "SLURM_NTASKS_PER_NODE": "2",
            },
            RankLaunch(1, 2),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, RankLaunch(1, 2)),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMI_RANK": "1", "PMI_SIZE": "2"},
            RankLaunch(1, 2),
        ),
        (  # the local numbers are those of the same launcher
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "1",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
                "PMI_RANK": "1",
                "PMI_SIZE": "2",
                "MPI_LOCALRANKID": "1",
                "MPI_LOCALNRANKS": "2",
            },
            RankLaunch(1, 2, 1, 2),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2"},
            RankLaunch(1, 2, 1, 2),
        ),
        ({"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}, RankLaunch(1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, RankLaunch()),
        ({"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": "4"}, RankLaunch()),
    ],
)
def test_what_mpirun_and_srun_set(environment: dict[str, str], expected: RankLaunch) -> None:
    """A batch script of SLURM is not a rank."""
    assert launch_of(environment) == expected


@pytest.mark.parametrize("launch", [RankLaunch(), RankLaunch(1, 4, 1, 2), RankLaunch(1, 4, 0, 1), RankLaunch(3, 4)])
def test_what_crossbow_sets(launch: RankLaunch) -> None:
    """A rank that is alone on its host, too."""
    assert launch_of(variables_of(launch)) == launch
