"""Theano-MPI's configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import DataError
from crossbow.foreign.config_file import ForeignConfig, read_config

TEXT = """
# example
RULE=BSP
export MODELFILE='models.cifar10'   # of Theano-MPI
MODELCLASS="Cifar10"
DEVICES=cuda0,cuda1
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "bsp.cfg"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file(tmp_path: Path) -> None:
    expected = ForeignConfig("BSP", "models.cifar10", "Cifar10", ("cuda0", "cuda1"))
    assert read_config(written(tmp_path, TEXT)) == expected
    more = TEXT + "BSP_SYNC_TYPE=avg\nBSP_EXCH_STRATEGY=ar\n"
    assert read_config(written(tmp_path, more)) == ForeignConfig(
        "BSP", "models.cifar10", "Cifar10", ("cuda0", "cuda1"), "avg", "ar"
    )


@pytest.mark.parametrize(
    "devices", ['("node0:cuda0" "node1:cuda0,cuda1")', '(\n  "node0:cuda0"  # first\n  node1:cuda0,cuda1\n)']
)
def test_devices_of_several_hosts(devices: str, tmp_path: Path) -> None:
    path = written(tmp_path, TEXT.replace("cuda0,cuda1", devices))
    assert read_config(path).devices == ("node0:cuda0", "node1:cuda0", "node1:cuda1")


KNOWN = "RULE, MODELFILE, MODELCLASS, DEVICES, BSP_SYNC_TYPE, BSP_EXCH_STRATEGY"
FAULTS = [
    (TEXT + "RUEL=BSP", f", line 7: expected an assignment to one of {KNOWN}. Received: 'RUEL=BSP'"),
    (TEXT + "echo hello", f", line 7: expected an assignment to one of {KNOWN}. Received: 'echo hello'"),
    (TEXT + "RULE=EASGD", ", line 7: expected one value of RULE. Received: another"),
    (TEXT.replace("BSP", "BSP EASGD"), ", line 3: expected one word as RULE. Received: 'BSP EASGD'"),
    (TEXT.replace("BSP", "'BSP"), ', line 3: expected a value. Received: "\'BSP" (No closing quotation)'),
    (
        TEXT.replace("BSP", "$(rule)"),
        ", line 3: expected a literal value, because the file is not executed. Received: '$(rule)'",
    ),
    (TEXT.replace("RULE=BSP", ""), ": expected a value of RULE. Received: none"),
    (TEXT.replace("cuda0,cuda1", "cpu && ls"), ", line 6: expected one word as DEVICES. Received: 'cpu && ls'"),
    (
        TEXT.replace("cuda0,cuda1", "(cpu") + "BSP_SYNC_TYPE=avg",
        ", line 6: expected a list that ends with a parenthesis. Received: 'DEVICES=(cpu BSP_SYNC_TYPE=avg'",
    ),
    (TEXT.replace("cuda0,cuda1", "()"), ": expected devices, as DEVICES=cuda0,cuda1. Received: none"),
]


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_faults_are_named_by_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError) as raised:
        read_config(path)
    assert str(raised.value) == f"{path}{message}"


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: expected a text file with assignments, as RULE=BSP"):
        read_config(tmp_path / "nowhere")
