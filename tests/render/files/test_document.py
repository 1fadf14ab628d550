from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.catalog.lookup import CATALOG
from gradscope.render.files.document import document_of, notes_of
from tests.render import compare_example, examples
from tests.render.html.test_index_page import INDEX
from tests.render.report_example import run_report


def test_inputs_of_all_sources_are_listed_once_with_their_digest(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"abc")
    report = examples.passk_report()
    tables = tuple(replace(one, source=examples.source("a", files=(str(log),))) for one in report.tables)
    document = document_of(replace(report, tables=tables))
    assert document["inputs"] == [{"path": str(log), "sha256": hashlib.sha256(b"abc").hexdigest()}]


@pytest.mark.parametrize(
    ("result", "schema", "names"),
    [
        (examples.passk_report(), "passk", {"pass_at_k", "pass_hat_k", "compression_factor", "frac_won", "frac_lost"}),
        (examples.check_report(), "check", {"frac_reward_zero_std", "pass_rate"}),
        (examples.claims_report(), "claims", set()),
        (INDEX, "report_index", {"frac_reward_zero_std"}),
        (run_report(), "report", {name for name, entry in CATALOG.items() if entry.command == "report"}),
    ],
)
def test_a_document_defines_the_metrics_that_it_holds(result: object, schema: str, names: set[str]) -> None:
    document = document_of(result)
    assert document["schema"] == f"gradscope/{schema}"
    assert set(document["definitions"]) == names
    assert document["definitions"] == {name: CATALOG[name].formula for name in document["definitions"]}


def test_a_comparison_defines_budgets_as_it_names_them() -> None:
    definitions = document_of(compare_example.comparison())["definitions"]
    assert definitions["pass@1"] == CATALOG["pass_at_k"].formula
    assert "p_holm" in definitions


def test_notes_are_those_of_the_engine() -> None:
    report = replace(examples.rank_report(), engine={"notes": ["float32 throughout", 7]})
    assert notes_of(report) == ("float32 throughout", "7")
    assert notes_of(examples.rank_report()) == notes_of(examples.check_report()) == ()
