"""The model of many hosts: its formulas, the table of the docs, and its pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import cluster_model
from benchmarks.cluster_model import NETWORKS, SCHEMES, WORKS, Network, Scheme, Work
from crossbow import SMA
from crossbow.synch import BarrierRule, DiLoCo, ModelAveraging, simulate

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "cluster-model.md"


def test_the_table_of_the_docs_is_the_one_that_the_command_prints() -> None:
    assert cluster_model.table() in DOCUMENT.read_text("utf-8")


def test_ticks_by_hand() -> None:
    """Four hosts on a ring, 8 bytes at 4 bytes/s with a latency of ¼ s: e = 6 (¼ + 2/4) = 4.5 s; a tree needs 9 s."""
    work, network = Work("", 2.0, 8), Network("", 0.25, 4.0)
    assert cluster_model.exchange_seconds(4, work, network) == (4.5, "ring")
    every, two, diloco = SCHEMES
    assert cluster_model.efficiency(every, work, network, 4) == 2 / 4.5
    assert cluster_model.efficiency(two, work, network, 4) == pytest.approx(128 / 132.5)
    assert cluster_model.efficiency(diloco, work, network, 4) == pytest.approx(1000 / 1004.5)
    assert cluster_model.efficiency(every, Work("", 5.0, 8), network, 4) == 1  # hidden


def test_most_hosts_compute_for_the_share_that_is_asked_for() -> None:
    work, network, scheme = WORKS[0], NETWORKS[0], SCHEMES[0]
    most = cluster_model.most_hosts(scheme, work, network, 0.5)
    assert cluster_model.efficiency(scheme, work, network, most) >= 0.5
    assert cluster_model.efficiency(scheme, work, network, 2 * most) < 0.5
    assert cluster_model.most_hosts(scheme, work, NETWORKS[2], 0.5) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "hosts"), [(SMA(), 1024), (ModelAveraging(tau=4), 128), (DiLoCo(tau=10), 16)], ids=str
)
def test_the_simulator_agrees_where_nothing_overlaps(rule: BarrierRule, hosts: int) -> None:
    work, network, ticks = WORKS[0], NETWORKS[1], 3
    exchange, _ = cluster_model.exchange_seconds(hosts, work, network)
    made = simulate(
        rule, initial=[1.0], gradient=lambda weights, learner, task: weights, learners=hosts,
        speeds=[1 / work.seconds] * hosts, events=ticks * rule.tau * hosts, latency=exchange / 2,
    )  # fmt: skip
    tick = cluster_model.tick_seconds(Scheme("", rule, overlaps=False), work.seconds, exchange)
    np.testing.assert_allclose(np.diff(made.merge_times), tick, rtol=1e-9)


def test_the_command_prints_the_table_of_given_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--task-seconds", "2", "--bytes", "8", "--latency", "0.25", "--bandwidth", "4"]
    assert cluster_model.main(given) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 + len(SCHEMES)
    assert printed[2].startswith("| 8 bytes, 2 s | 4 bytes/s, 0.25 s | ")
    with pytest.raises(SystemExit):
        cluster_model.main(given[:-2])


@pytest.mark.slow
def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra zoo, is not installed")
    monkeypatch.setattr(cluster_model, "SIMULATED_TIME", 600.0)
    cluster_model.write_pictures(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(cluster_model.PICTURES)
