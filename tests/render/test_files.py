import csv
import hashlib
import io
import json
import math
import sys
from pathlib import Path

import pyarrow
import pytest
from msgspec.structs import replace
from safetensors import safe_open
from safetensors.numpy import load_file

from gradscope.catalog.lookup import CATALOG
from gradscope.errors import MissingDependencyError, UsageError
from gradscope.render import files
from tests.render import examples
from tests.render.examples import comparison, run_report
from tests.render.rank_examples import formulation_report, gradient_update_report, sparse_weight_report, update_report


def test_inputs_of_all_sources_are_listed_once_with_their_digest(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"abc")
    report = examples.passk_report()
    tables = tuple(replace(table, source=examples.source("a", files=(str(log),))) for table in report.tables)
    document = files.document_of(replace(report, tables=tables))
    assert document["inputs"] == [{"path": str(log), "sha256": hashlib.sha256(b"abc").hexdigest()}]


@pytest.mark.parametrize("result", [examples.passk_report(), run_report()], ids=["passk", "report"])
def test_the_definitions_of_a_document_are_the_formulas_of_the_catalogue(result: object) -> None:
    definitions = files.document_of(result)["definitions"]
    assert definitions == {name: CATALOG[name].formula for name in definitions}


def test_a_comparison_defines_budgets_as_it_names_them() -> None:
    definitions = files.document_of(examples.comparison())["definitions"]
    assert definitions["pass@1"] == CATALOG["pass_at_k"].formula


def test_notes_are_those_of_the_engine() -> None:
    report = replace(examples.rank_report(), engine={"notes": ["float32 throughout", 7]})
    assert files.notes_of(report) == ("float32 throughout", "7")
    assert files.notes_of(examples.rank_report()) == files.notes_of(examples.check_report()) == ()


def test_a_csv_reads_back_as_the_numbers_that_were_measured() -> None:
    report = examples.degeneracy_report()
    rows = list(csv.DictReader(files.render_csv(files.tidy_tables(report)["by_step"]).splitlines()))
    assert len(rows) == 20
    assert float(rows[4]["pass_rate"]) == report.by_step[4].pass_rate.value
    assert float(rows[4]["pass_rate_low"]) == report.by_step[4].pass_rate.low
    assert rows[2]["logged"] == ""


def test_an_undefined_number_is_an_empty_cell_with_its_reason_in_the_next() -> None:
    row = files.tidy_tables(examples.passk_report())["tables"][7]
    assert (row["k"], row["pass_at_k"]) == (32, None)
    assert row["pass_at_k_undefined"] == "k = 32 exceeds the 16 samples of a prompt"


@pytest.mark.parametrize(
    ("report", "names"),
    [
        (
            examples.degeneracy_report(),
            "by_step by_group_size by_policy by_environment predictions advantages by_reward by_prompt histogram plans",
        ),
        (examples.passk_report(), "tables differences"),
        (examples.passk_report(num_files=1), "tables"),
        (examples.weight_report(), "spectra steps"),
        (examples.spike_report(), "metrics rollouts removals tokens tensors"),
    ],
)
def test_each_result_has_its_tables(report: object, names: str) -> None:
    assert list(files.tidy_tables(report)) == names.split()


def test_mappings_become_columns() -> None:
    assert files.tidy_tables(examples.replay_report())["steps"][0]["logged.grad_norm"] == 0.52
    tables = files.tidy_tables(examples.rank_report())
    assert tables["steps"][0]["sparsity.zero_rows"] == 0.41
    assert tables["spectra"][0]["num_columns"] == 99_264


def test_every_sequence_of_a_rank_report_is_a_table() -> None:
    tables = files.tidy_tables(formulation_report())
    assert {"formulations", "shares", "baselines"} <= set(tables)
    assert tables["formulations"][0]["alignment.pass@1_low"] == 0.9
    assert files.tidy_tables(update_report())["updates"][0]["principal_overlap"] == 0.123
    assert files.tidy_tables(gradient_update_report())["gradient_updates"][0]["update_rank"] == 24.98
    assert len(files.tidy_tables(sparse_weight_report())["sparsity"]) == len(sparse_weight_report().sparsity)


def test_rows_that_differ_in_columns_share_a_header() -> None:
    assert files.render_csv([{"a": 1, "b": None}, {"a": 2, "c": "x, y"}]) == 'a,b,c\n1,,\n2,,"x, y"\n'


def test_an_estimate_is_numbers_even_where_none_is_defined() -> None:
    assert files.arrow_of(examples.claims_report()).schema.field("null_low").type == pyarrow.float64()
    undefined = files.arrow_of(replace(examples.claims_report(), claims=examples.claims_report().claims[1:2]))
    assert undefined.schema.field("estimate").type == pyarrow.float64()
    assert undefined.schema.field("estimate_undefined").type == pyarrow.string()
    assert undefined["estimate"].to_pylist() == [None]


def test_what_a_trainer_logged_as_infinite_is_that_number() -> None:
    report = examples.replay_report()
    first, second, third, *_ = report.steps
    logged = [math.inf, math.nan, 0.25]
    steps = [replace(step, logged={"loss": value}) for step, value in zip((first, second, third), logged, strict=True)]
    values = files.arrow_of(replace(report, steps=tuple(steps)))["logged.loss"].to_pylist()
    assert values[0] == math.inf
    assert math.isnan(values[1])
    assert values[2] == 0.25


def test_a_column_of_numbers_and_words_is_text() -> None:
    made = comparison()
    cells = tuple(
        replace(cell, settings={"beta": value})
        for cell, value in zip(made.cells, (0.1, "none", True, None), strict=True)
    )
    table = files.arrow_of(replace(made, cells=cells), "cells")
    assert table["settings.beta"].to_pylist() == ["0.1", "none", "True", None]


def test_pandas_has_nan_for_an_absent_number() -> None:
    frame = files.pandas_of(examples.claims_report())
    assert frame["estimate"].dtype == float
    assert math.isnan(frame["estimate"][1])


def test_a_table_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="This ReplayReport has no table 'curve' with rows") as caught:
        files.arrow_of(examples.replay_report(), "curve")
    assert caught.value.hint == "There are: steps."


def test_a_result_without_rows_has_no_table() -> None:
    empty = replace(examples.check_report(), verdicts=())
    assert files.tidy_tables(empty) == {}
    with pytest.raises(UsageError, match="This CheckReport has no table with rows") as caught:
        files.arrow_of(empty)
    assert caught.value.hint is None


def test_without_pandas_the_error_names_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="needs pandas") as caught:
        files.pandas_of(examples.replay_report())
    assert caught.value.hint == "Use to_arrow(), or: pip install pandas"


@pytest.mark.slow
def test_everything_that_a_result_gives_is_written(tmp_path: Path) -> None:
    report, figures = examples.rank_report(), ("curve", "sizes", "nulls", "spectrum", "sparsity")
    files.write_files(report, files.document_of(report), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("rank.json", "rank_curve.csv", "rank_spectra.csv", "rank_steps.csv", "rank_spectra.safetensors"),
        *(f"rank_{stem}.{kind}" for stem in figures for kind in ("png", "svg")),
    }
    assert json.loads((tmp_path / "rank.json").read_text())["schema"] == "gradscope/rank"
    check = examples.check_report()
    files.write_files(check, files.document_of(check), tmp_path)
    assert {path.name for path in tmp_path.glob("check*")} == {"check.json", "check_verdicts.csv"}


def test_spectra_are_arrays_under_names_that_say_whose(tmp_path: Path) -> None:
    report = examples.rank_report()
    path = tmp_path / "rank_spectra.safetensors"
    files.write_spectra(report, tmp_path)
    arrays = load_file(path)
    assert len(arrays) == len(report.spectra)
    assert arrays["00001/logged/G8/step"].tolist() == list(report.spectra[-3].singular_values)
    assert arrays["00001/logged/G8/00001-000/0-1-2-3-4-5-6-7"].tolist() == list(report.spectra[0].singular_values)
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"rows": "rollout", "values": "singular values, descending"}
    path.unlink()
    files.write_spectra(replace(report, spectra=()), tmp_path)
    assert not path.exists()
    files.write_spectra(examples.weight_report(), tmp_path)
    assert "00041/logged/G20/model.layers.0.self_attn.q_proj.weight" in load_file(path)


def test_no_cell_is_a_formula_of_a_spreadsheet() -> None:
    hostile = ["=HYPERLINK(1)", "+1+cmd", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", "\uff1d1"]
    text = files.render_csv([dict.fromkeys(hostile, cell) for cell in (*hostile, "a\r=1", -0.5, "-Infinity", None)])
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[0] == [f"'{cell}" for cell in hostile]
    assert [row[0] for row in rows[1:]] == [*rows[0], "a\r=1", "-0.5", "-Infinity", ""]
