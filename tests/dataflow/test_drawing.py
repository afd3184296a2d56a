"""Pictures of graphs with shapes, parameters, kernels and buffers. The structure is tested in `test_dataflow`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from crossbow import ConfigurationError, DataError, Dataflow
from crossbow.dataflow.drawing import dot_of
from models.lenet import lenet
from tests.compile.execution import compile_network

BATCH = (16, 1, 28, 28)


@pytest.fixture(scope="module")
def network() -> Dataflow:
    return lenet()


def labels(dot: str) -> dict[str, list[str]]:
    """The lines of each node's label, by the operator's name."""
    texts = re.findall(r'^  n\d+ \[label="\d+ (.*?)"[\],]', dot, re.MULTILINE)
    return {name: lines for name, *lines in (text.split("\\n") for text in texts)}


def test_shapes_and_parameters(network: Dataflow) -> None:
    found = labels(dot_of(network.graph, BATCH, gradients=False))
    assert found["conv2"] == [
        "Conv",
        "number_of_outputs=64",
        "kernel_size=5",
        "weights 64×32×5×5",
        "bias 64",
        "51,264 parameters",
        "→ 16×64×8×8",
    ]
    assert found["softmax"] == ["SoftMax", "→ 16×10"]
    drawn = [vertex.name for vertex in network.graph if vertex.forward is not None and vertex.name != "optimiser"]
    assert list(found) == drawn, "and no gradients"


def test_kernels_fusions_and_buffers(network: Dataflow) -> None:
    program = compile_network(network.graph, BATCH, dtype=np.float32)
    dot = dot_of(network.graph, BATCH, compiled=program)
    found = labels(dot)
    for vertex in network.graph:
        nbytes, place = program.memory_of(vertex.order)
        assert (program.kernels_of(vertex.order) or "→ 1") in found[vertex.name]
        assert (not nbytes) == (f"{place}, " not in " ".join(found[vertex.name]))
    fused = {name for name, lines in found.items() if any(line.startswith("(in that of") for line in lines)}
    dashed = set(re.findall(r'label="\d+ (\S+?)\\n.*style="?(?:filled,)?dashed', dot))
    assert fused == dashed


def test_the_formats(network: Dataflow, tmp_path: Path) -> None:
    pytest.importorskip("pygraphviz")
    for ending in ("svg", "PNG", "dot"):
        network.draw(tmp_path / f"net.{ending}", BATCH)
    assert (tmp_path / "net.dot").read_text(encoding="utf-8") == dot_of(network.graph, BATCH, gradients=False)
    for gradients in (False, True):
        network.draw(tmp_path / "net.dot", BATCH, gradients=gradients)
        assert (tmp_path / "net.dot").read_text(encoding="utf-8") == dot_of(network.graph, BATCH, gradients=gradients)
    assert (tmp_path / "net.PNG").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    texts = {element.text for element in ElementTree.parse(tmp_path / "net.svg").iter() if element.text}
    assert {"3 conv2", "weights 64×32×5×5", "→ 16×64×8×8"} <= texts


def test_bad_requests(network: Dataflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"ends with one of \.svg, \.png, \.dot\. Received: 'net\.gif'"):
        network.draw(tmp_path / "net.gif", BATCH)
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    with pytest.raises(ConfigurationError, match=r"as SVG needs the package pygraphviz: pip install 'crossbow\[graph"):
        network.draw(tmp_path / "net.svg", BATCH)
    assert not list(tmp_path.iterdir())
    network.draw(tmp_path / "net.dot")
