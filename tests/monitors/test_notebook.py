"""Progress in a real notebook, whose cell has one output that is updated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

CELL = """
from crossbow import ExecutionContext, ModelConf, Sequential, SystemConf
from crossbow.data import synthetic
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss

network = Sequential(InnerProduct(10), SoftMax(), SoftMaxLoss())
data = synthetic((1, 8, 8), training=2000, check=100)
with ExecutionContext(network, data=data, model=ModelConf(batch_size=4),
                      system=SystemConf(learners_per_device=2, kernels="reference")) as context:
    history = context.train_and_test(3)
"""


@pytest.mark.slow
def test_a_cell_has_one_output_that_is_updated(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    kinds: list[str] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc]
        """Notes the messages of the kernel."""

        def process_message(self, message: dict[str, Any], cell: Any, cell_index: int) -> Any:
            kinds.append(message["header"]["msg_type"])
            return super().process_message(message, cell, cell_index)

    cell = nbformat.v4.new_code_cell(CELL)
    resources = {"metadata": {"path": str(tmp_path)}}
    Client(nbformat.v4.new_notebook(cells=[cell]), timeout=300, resources=resources).execute()
    assert kinds.count("display_data") == 1
    assert kinds.count("update_display_data") >= 4, "three lines, and the end of the bar"
    assert "stream" not in kinds
    (output,) = cell.outputs
    lines = re.fullmatch(r"<pre>(.*)\n</pre>", output.data["text/html"], re.DOTALL)
    assert lines is not None
    epochs = lines[1].split("\n")
    assert [line.split("  ")[0] for line in epochs] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert all("test accuracy" in line for line in epochs)
