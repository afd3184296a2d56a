"""Every translation is registered under the name of an ONNX operator, with versions that exist."""

from __future__ import annotations

from collections import defaultdict

import onnx
import pytest

from crossbow import ops
from crossbow.onnx import load
from crossbow.onnx.reading import table
from crossbow.onnx.reading.graph import FIRST_OPSET
from crossbow.onnx.reading.table import GROUPS, TRANSLATIONS, reads, reads_group

assert load  # importing it fills the table
OURS = [op_type for op_type, translation in TRANSLATIONS.items() if translation.read.__module__.startswith("crossbow")]


SCHEMAS: dict[str, dict[int, onnx.defs.OpSchema]] = defaultdict(dict)
"""Definitions of ONNX's operators, by name and version."""
for _schema in onnx.defs.get_all_schemas_with_history():
    if not _schema.domain:
        SCHEMAS[_schema.name][_schema.since_version] = _schema


@pytest.mark.parametrize("op_type", sorted(OURS))
def test_a_translation_fits_the_definition_of_its_operator(op_type: str) -> None:
    """Versions, attributes and inputs are those that ONNX knows. All versions are read from the first on that has
    opset 6 or is newer, or all from a later one on."""
    translation, known = TRANSLATIONS[op_type], SCHEMAS[op_type]
    assert set(translation.versions) <= known.keys()
    usable = [version for version in sorted(known) if version >= min(translation.versions)]
    assert list(translation.versions) == usable
    before = [version for version in known if version < min(translation.versions)]
    assert max(before, default=0) < max(FIRST_OPSET, min(translation.versions))
    used = [known[version] for version in translation.versions]
    assert translation.attributes <= {name for schema in used for name in schema.attributes}
    assert set(translation.constants) <= set(translation.variables)
    assert max(translation.variables, default=-1) < max(schema.max_input for schema in used)


def test_a_translation_is_registered_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "TRANSLATIONS", {})
    monkeypatch.setattr(table, "GROUPS", {})

    @reads("Op", versions=(1, 7), attributes="a b", constants=(1,), variables=(2,), several_outputs=True)
    def read(node: object) -> list[object]:
        return [node]

    @reads_group("Group", least=3)
    def read_group(nodes: object) -> object:
        return nodes

    found = table.TRANSLATIONS["Op"]
    assert found.read is read
    assert (found.versions, found.attributes, found.constants) == ((1, 7), {"a", "b"}, (1,))
    assert set(found.variables) == {1, 2}
    assert (found.is_form, found.several_outputs) == (False, True)
    assert {"Group": (read_group, 3)} == table.GROUPS
    assert read("node") == ["node"]


def test_groups_are_operators_of_crossbow() -> None:
    assert all(issubclass(getattr(ops, name), ops.Kernel) for name in GROUPS)
    assert {name: least for name, (_, least) in GROUPS.items() if least > 2} == {
        "MatFactPrediction": 7,
        "SelfAttention": 15,
    }
