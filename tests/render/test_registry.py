import inspect

import pytest
from msgspec.structs import replace

from gradscope.render.files import tidy_tables
from gradscope.render.registry import SPECS, draw_figures, load, metrics_of, render_table, spec_of
from tests.render import examples
from tests.render.examples import ATTACK, run_index, run_report


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_what_a_row_names_exists_and_takes_its_result(spec) -> None:
    for name, num_arguments in ((spec.table, 1), (spec.figures, 1), (spec.arrays, 2)):
        if name is not None:
            parameters = list(inspect.signature(load(name)).parameters.values())
            needed = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
            assert len(needed) == num_arguments
            assert spec.result.partition(":")[2] in parameters[0].annotation.removeprefix("results.").split(" | ")


def test_no_two_rows_share_a_name_or_a_type() -> None:
    assert len({spec.name for spec in SPECS}) == len({spec.result for spec in SPECS}) == len(SPECS)


@pytest.mark.parametrize("ask", [spec_of, render_table, draw_figures])
def test_a_result_of_no_command_has_no_row(ask) -> None:
    with pytest.raises(TypeError, match="no command finds a dict"):
        ask({})


def test_the_input_of_a_run_is_its_source() -> None:
    check = examples.check_report()
    assert spec_of(check).sources(check) == (check.source,)


def test_a_command_without_metrics_of_its_own_defines_none() -> None:
    assert metrics_of("report_index") == []
    assert metrics_of("passk") == ["pass_at_k", "pass_hat_k", "compression_factor", "frac_won", "frac_lost"]


def test_a_curve_has_a_row_a_point() -> None:
    comparison = examples.comparison()
    points = list(spec_of(comparison).csv(comparison)["curves"])
    curve = comparison.curves[0]
    assert len(points) == sum(len(curve.steps) for curve in comparison.curves)
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
    assert spec_of(report).csv(report)["plans"] == report.target.plans
    assert spec_of(report).csv(replace(report, target=None))["plans"] == ()


def test_rows_of_several_files_and_pairs_carry_their_names() -> None:
    report = examples.passk_report()
    more = replace(report, further_comparisons=(replace(report.comparison, second="third.jsonl"),))
    tables = spec_of(more).csv(more)
    assert [row["name"] for row in tables["tables"]] == ["before.jsonl"] * 8 + [examples.HOSTILE] * 8
    differences = list(tables["differences"])
    assert [row["second"] for row in differences] == [examples.HOSTILE] * 5 + ["third.jsonl"] * 5
    assert spec_of(report).csv(examples.passk_report(num_files=1))["differences"] == []


def test_evaluations_are_rows_of_their_own() -> None:
    report = examples.evaluations_report(num_models=1)
    rows = list(spec_of(report).csv(report)["evaluations"])
    assert [row["scorer"] for row in rows] == ["exact_match,first-filtered", "model_graded_qa,scored"]
    assert (rows[0]["task"], rows[0]["unfinished"]) == ("gsm8k", "was cancelled: 12 of 32 samples")


def test_a_section_is_its_question_and_one_sentence() -> None:
    (signal, _, coverage) = spec_of(run_report()).csv(run_report())["sections"]
    assert (signal["name"], signal["severity"], signal["finding"]) == (
        "signal",
        "look",
        run_report().sections[0].findings[0],
    )
    assert coverage["finding"] == run_report().sections[2].missing


def test_a_run_is_its_numbers_without_its_curves() -> None:
    row, _ = spec_of(run_index()).csv(run_index())["runs"]
    table = tidy_tables(run_index())["runs"]
    assert [row["name"] for row in table] == ["quiet", ATTACK]
    assert (table[0]["frac_reward_zero_std"], table[0]["frac_reward_zero_std_low"]) == (0.5, 0.4)
    assert list(row) == ["name", "num_steps", "num_rollouts", "frac_reward_zero_std", "reward", "reward_change"]
    assert row["num_steps"] == 3
