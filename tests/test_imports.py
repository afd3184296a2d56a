"""Imports between the files of the package: without circles, and without exceptions in the contract of the layers."""

from __future__ import annotations

import configparser
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_files_do_not_import_each_other_in_circles() -> None:
    """Imports inside functions and for types only count too: a file can be understood after those that it imports."""
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("crossbow", "models", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200
    assert imports["crossbow.context"]
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a circle: {' → '.join(reversed(error.args[1]))}")


def test_the_layers_hold_for_all_imports() -> None:
    """Those for types, too, and none is ignored."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert settings.getboolean("importlinter", "exclude_type_checking_imports") is False
    contracts = [settings[name] for name in settings.sections() if name.startswith("importlinter:contract:")]
    assert contracts
    assert not [contract for contract in contracts if "ignore_imports" in contract]
