import ast
import json
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import pytest

from gradscope.results.report import ReportSection
from tests.conftest import REPOSITORY
from tests.results import golden

MODULES = sorted((REPOSITORY / "gradscope" / "results").glob("[!_]*.py"))
RECORDS = [
    record
    for path in MODULES
    for record in vars(import_module(f"gradscope.results.{path.stem}")).values()
    if isinstance(record, type)
    and getattr(record, "__struct_fields__", ())
    and record.__module__ == f"gradscope.results.{path.stem}"
]


def test_a_result_cannot_be_changed_nor_grow() -> None:
    for record in RECORDS:
        assert record.__struct_config__.frozen, record
        assert record.__dictoffset__ == 0, record
        kinds = {parameter.kind for parameter in signature(record).parameters.values()}
        assert kinds == {Parameter.KEYWORD_ONLY}, record


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_field_but_those_that_name_a_thing_is_explained_behind_or_below_it(path: Path) -> None:
    names = {"environment", "group_id", "name", "policy", "sample", "source", "step", "tensor"}
    lines = path.read_text(encoding="utf-8").splitlines()
    for record in (node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.ClassDef)):
        for number, node in enumerate(record.body):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) not in names:
                if len(lines[(node.end_lineno or 0) - 1].partition("  # ")[2]) > 0:
                    continue
                below = record.body[number + 1]
                sentence = below.value.value if isinstance(below, ast.Expr) else ""  # type: ignore[attr-defined]
                assert sentence.rstrip().endswith((".", "...")), f"{record.name}.{ast.unparse(node.target)}"


def test_a_section_is_headed_by_its_first_finding_or_by_what_is_missing() -> None:
    assert ReportSection(name="a", question="?", findings=("First.", "Second.")).headline == "First."
    assert ReportSection(name="a", question="?", missing="No rewards.").headline == "No rewards."
    assert ReportSection(name="a", question="?").headline == ""


@pytest.mark.parametrize("name", sorted(golden.reports()))
def test_documents_stay_as_scripts_know_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden.FOLDER.parent.parent)
    expected = json.loads((golden.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert golden.golden_document(golden.reports()[name]) == expected
