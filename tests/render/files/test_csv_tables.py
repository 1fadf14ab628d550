from __future__ import annotations

import csv

import pytest

from gradscope.render.files.csv_tables import render_csv, tidy_tables
from tests.render import examples
from tests.render.rank_examples import (
    formulation_report,
    gradient_update_report,
    sparse_weight_report,
    update_report,
)


def test_a_csv_reads_back_as_the_numbers_that_were_measured() -> None:
    report = examples.degeneracy_report()
    rows = list(csv.DictReader(render_csv(tidy_tables(report)["degeneracy_by_step"]).splitlines()))
    assert len(rows) == 20
    assert float(rows[4]["pass_rate"]) == report.by_step[4].pass_rate.value
    assert float(rows[4]["pass_rate_low"]) == report.by_step[4].pass_rate.low
    assert rows[2]["logged"] == ""


def test_an_undefined_number_is_an_empty_cell_with_its_reason_in_the_next() -> None:
    row = tidy_tables(examples.passk_report())["passk_tables"][7]
    assert (row["k"], row["pass_at_k"], row["pass_at_k_undefined"]) == (
        32,
        None,
        "k = 32 exceeds the 16 samples of a prompt",
    )


@pytest.mark.parametrize(
    ("report", "names"),
    [
        (
            examples.degeneracy_report(),
            [
                "degeneracy_by_step",
                "degeneracy_by_group_size",
                "degeneracy_by_policy",
                "degeneracy_by_environment",
                "degeneracy_predictions",
                "degeneracy_advantages",
                "degeneracy_by_reward",
                "degeneracy_by_prompt",
                "degeneracy_histogram",
                "degeneracy_plans",
            ],
        ),
        (examples.passk_report(), ["passk_tables", "passk_differences"]),
        (examples.passk_report(num_files=1), ["passk_tables"]),
        (examples.weight_report(), ["rank_spectra", "rank_steps"]),
        (examples.replay_report(), ["replay_steps"]),
        (examples.check_report(), ["check_verdicts"]),
        (examples.claims_report(), ["claims_claims"]),
        (
            examples.spike_report(),
            ["spike_metrics", "spike_rollouts", "spike_removals", "spike_tokens", "spike_tensors"],
        ),
    ],
)
def test_each_result_has_its_tables(report: object, names: list[str]) -> None:
    assert list(tidy_tables(report)) == names  # type: ignore[arg-type]


def test_mappings_become_columns() -> None:
    row = tidy_tables(examples.replay_report())["replay_steps"][0]
    assert row["logged.grad_norm"] == 0.52
    row = tidy_tables(examples.rank_report())["rank_steps"][0]
    assert row["sparsity.zero_rows"] == 0.41
    assert tidy_tables(examples.rank_report())["rank_spectra"][0]["num_columns"] == 99_264


def test_every_sequence_of_a_rank_report_is_a_table() -> None:
    tables = tidy_tables(formulation_report())
    assert {"rank_formulations", "rank_shares", "rank_baselines"} <= set(tables)
    assert tables["rank_formulations"][0]["alignment.pass@1_low"] == 0.9
    assert tidy_tables(update_report())["rank_updates"][0]["principal_overlap"] == 0.123
    assert tidy_tables(gradient_update_report())["rank_gradient_updates"][0]["update_rank"] == 24.98
    assert len(tidy_tables(sparse_weight_report())["rank_sparsity"]) == len(sparse_weight_report().sparsity)


def test_rows_that_differ_in_columns_share_a_header() -> None:
    assert render_csv([{"a": 1, "b": None}, {"a": 2, "c": "x, y"}]) == 'a,b,c\n1,,\n2,,"x, y"\n'
