from __future__ import annotations

from dataclasses import replace

from gradscope.render import csv_rows
from tests.render import compare_example, examples
from tests.render.html.test_index_page import INDEX
from tests.render.report_example import run_report


def test_attributes_are_tables_under_their_own_names() -> None:
    report = examples.replay_report()
    assert csv_rows.attributes("steps")(report) == {"steps": report.steps}


def test_a_curve_has_a_row_a_point() -> None:
    comparison = compare_example.comparison()
    points = list(csv_rows.comparison_rows(comparison)["curves"])
    curve = comparison.curves[0]
    assert len(points) == sum(len(one.steps) for one in comparison.curves)
    assert points[0] == {
        "cell": curve.cell,
        "metric": curve.metric,
        "step": curve.steps[0],
        "mean": curve.mean[0],
        "low": curve.low[0],
        "high": curve.high[0],
    }


def test_plans_are_a_table_where_a_target_was_named() -> None:
    report = examples.degeneracy_report()
    assert csv_rows.degeneracy_rows(report)["plans"] == report.target.plans
    assert csv_rows.degeneracy_rows(replace(report, target=None))["plans"] == ()


def test_rows_of_several_files_and_pairs_carry_their_names() -> None:
    report = examples.passk_report()
    more = replace(report, further_comparisons=(replace(report.comparison, second="third.jsonl"),))
    tables = csv_rows.pass_at_k_rows(more)
    assert [row["name"] for row in tables["tables"]] == ["before.jsonl"] * 8 + [examples.HOSTILE] * 8
    differences = list(tables["differences"])
    assert [row["second"] for row in differences] == [examples.HOSTILE] * 5 + ["third.jsonl"] * 5
    assert csv_rows.pass_at_k_rows(examples.passk_report(num_files=1))["differences"] == []


def test_evaluations_are_rows_of_their_own() -> None:
    rows = list(csv_rows.pass_at_k_rows(examples.evaluations_report(num_models=1))["evaluations"])
    assert [row["scorer"] for row in rows] == ["exact_match,first-filtered", "model_graded_qa,scored"]
    assert (rows[0]["task"], rows[0]["unfinished"]) == ("gsm8k", "was cancelled: 12 of 32 samples")


def test_a_section_is_its_question_and_one_sentence() -> None:
    (signal, _, coverage) = csv_rows.section_rows(run_report())["sections"]
    assert (signal["name"], signal["severity"], signal["finding"]) == (
        "signal",
        "look",
        run_report().sections[0].findings[0],
    )
    assert coverage["finding"] == run_report().sections[2].missing


def test_a_run_is_its_numbers_without_its_curves() -> None:
    row, _ = csv_rows.run_rows(INDEX)["runs"]
    assert list(row) == ["name", "num_steps", "num_rollouts", "frac_reward_zero_std", "reward", "reward_change"]
    assert row["num_steps"] == 3
