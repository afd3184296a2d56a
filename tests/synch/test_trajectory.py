"""Trajectories: replicas are kept as changes, and parts are joined."""

from __future__ import annotations

import numpy as np

from crossbow.synch.trajectory import ReplicaLog, Trajectory, joined


def part(log: ReplicaLog, merges: int) -> Trajectory:
    events = len(log.moves)
    return Trajectory(
        np.ones((merges, 1)), np.ones(events, np.int64), np.zeros(events, np.bool_), np.zeros(events, np.int64),
        np.arange(events) * 1.0, np.arange(merges) * 2.0, (log,),
    )  # fmt: skip


def test_replicas_change_only_where_a_learner_moved() -> None:
    log = ReplicaLog(np.array([[1.0], [2.0], [np.nan]]))
    log.moves = [[([1], np.array([[5.0]]))], [], [((0, 2), np.array([7.0])), ([2], np.array([[8.0]]))]]
    np.testing.assert_array_equal(log.replay()[:, :, 0], [[1, 5, np.nan], [1, 5, np.nan], [7, 5, 8]])
    assert log.start[0] == 1  # reading changes nothing


def test_parts_follow_each_other() -> None:
    first, second = ReplicaLog(np.zeros((2, 1)), [[]]), ReplicaLog(np.ones((2, 1)), [[], [([0], np.array([[3.0]]))]])
    made = joined([part(first, 1), part(second, 2)])
    assert made.replicas[:, :, 0].tolist() == [[0, 0], [1, 1], [3, 1]]
    assert made.merge_times.tolist() == [0, 0, 2]
    assert made.times.tolist() == [0, 0, 1]
    assert len(made.base) == 3
