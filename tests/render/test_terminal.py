from __future__ import annotations

import dataclasses

import pytest

from gradscope.catalog.lookup import CATALOG
from gradscope.render.registry import render_table
from gradscope.render.terminal.explain import metric_list, metric_page
from tests.render import examples
from tests.render.printing import printed
from tests.render.report_example import run_report

REPORTS: dict[str, object] = {
    "degeneracy": examples.degeneracy_report(),
    "passk": examples.passk_report(),
    "passk-one": examples.passk_report(num_files=1),
    "rank": examples.rank_report(),
    "weights": examples.weight_report(),
    "replay": examples.replay_report(),
    "report": run_report(),
    "check": examples.check_report(),
    "claims": examples.claims_report(),
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_every_table_fits_80_columns_and_cuts_nothing_but_names(report: object) -> None:
    text = printed(render_table(report))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert all("red" in line or "script" in line for line in text.splitlines() if "…" in line)


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_hostile_text_is_spelled_out(report: object) -> None:
    text = printed(render_table(report))
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("name", ["degeneracy", "passk", "check", "claims"])
def test_names_from_the_log_are_shown_whole(name: str) -> None:
    assert r"<script>[red]\x1b[31mred\u202egnp" in printed(render_table(REPORTS[name]))


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_findings_are_printed_in_their_own_words(report: object) -> None:
    text = " ".join(printed(render_table(report)).split())
    for finding in getattr(report, "findings", ()):
        assert finding.replace(examples.HOSTILE, r"<script>[red]\x1b[31mred\u202egnp") in text


def test_degeneracy_says_share_kinds_gap_and_reasons() -> None:
    text = printed(render_table(REPORTS["degeneracy"]))
    for part in (
        "degenerate groups            0.412 [0.33, 0.49]",
        "all fail                   0.250 [0.18, 0.32]",
        "Jensen gap                   +0.404 [+0.32, +0.48]",
        "160 groups of 8, 1,280 rollouts",
        "i.i.d. prediction = ",
        "a forecast at G = 16 could be anything from 0.05 to 0.81",
        "with p of each step 0.022 [0.016, 0.034]",
        "groups to sample for each live one 1.70 [1.49, 1.95]",
        "resampling 8 0.200 10.90",
        "grpo 0.240 0.240 0.412",
        "format 0.200 [0.15, 0.25] 70 41",
    ):
        assert " ".join(part.split()) in " ".join(text.split())


def test_a_long_run_shows_its_steps_as_sparklines_only() -> None:
    text = printed(render_table(examples.degeneracy_report(num_steps=60)))
    assert "steps 1 to 60" in text
    assert "  logged" not in text


def test_the_trainers_own_share_has_a_column_only_where_it_was_logged() -> None:
    assert "logged no share" in printed(render_table(REPORTS["degeneracy"])).replace("\n", " ")
    assert "  logged" in printed(render_table(REPORTS["degeneracy"]))


def test_pass_at_k_compares_pair_by_pair() -> None:
    text = printed(render_table(REPORTS["passk"]))
    assert "+0.320 [+0.27, +0.37]" in text
    assert "both 40, only before.jsonl 2" in " ".join(text.split())
    assert "k = 32 exceeds the 16 samples of a prompt" in text


def test_rank_says_shape_centering_and_what_was_left_out() -> None:
    text = " ".join(printed(render_table(REPORTS["rank"], ("engine", "formulations"))).split())
    assert "shape 8 to 24 x 99,264, rows not centered" in text
    assert "Step 7 was left out: the weights before step 7 are not on disk" in text
    assert "left out: tasa. needs binary rewards" in text


def test_a_spectrum_table_that_is_cut_says_so() -> None:
    many = examples.rank_report()
    spectra = tuple(examples.spectrum(step, None, 8) for step in range(1, 40))
    text = printed(
        render_table(type(many)(**{n: getattr(many, n) for n in many.__slots__} | {"spectra": spectra}), ("spectra",))
    )
    assert "38 more spectra are in the JSON and the CSV" in " ".join(text.split())


def test_replay_causes_that_differ_in_numbers_share_a_footnote() -> None:
    text = " ".join(printed(render_table(REPORTS["replay"])).split())
    assert "(1) the weights before step 2 are not on disk (likewise 15 more)" in text
    assert "mismatch(2)" in text
    assert "(3)" not in text


def test_check_says_number_limit_meaning_and_next_step() -> None:
    text = printed(render_table(REPORTS["check"]))
    assert "FAIL  frac_reward_zero_std <= 0.3, is 0.4125 [0.33, 0.49]" in text
    assert "UNKNOWN  pass@4 >= 0.5, is —" in text
    assert "  Try prompts of middling difficulty." in text


def test_claims_are_verdicts_at_a_glance_then_a_paragraph_a_sentence() -> None:
    text = printed(render_table(REPORTS["claims"]))
    lines = text.splitlines()
    (row,) = (line for line in lines if line.lstrip().startswith("dead_groups.excess"))
    assert row.split() == ["dead_groups.excess", "-0.01", "[-0.02,", "-0.00]", "0.00", "contradicted"]
    (row,) = (line for line in lines if line.lstrip().startswith("rank_two.output_head"))
    assert row.split() == ["rank_two.output_head", "—", "—", "cannot", "tell"]
    assert "gradients of steps 1, 21" in text
    assert text.count("The gradient of a group has effective rank about 2, whatever the group size.") == 1
    assert "cannot tell dL/dW of one group, output head. The output head is tied" in " ".join(text.split())
    assert text.count("Would settle it:") == 2
    unmeasured = dataclasses.replace(examples.claims_report(), steps=())
    assert "no gradient was recomputed" in printed(render_table(unmeasured))


def test_there_is_no_table_for_anything_else() -> None:
    with pytest.raises(TypeError, match="no command finds a dict"):
        render_table({})


@pytest.mark.parametrize("name", [*CATALOG, "pass@4"])
def test_every_metric_has_a_page(name: str) -> None:
    page = " ".join(printed(metric_page(name)).split())
    assert f"({name})" in page
    assert "formula" in page
    assert max(len(line.rstrip()) for line in printed(metric_page(name)).splitlines()) <= 80


def test_the_list_names_every_metric() -> None:
    text = printed(metric_list())
    assert not [name for name in CATALOG if name not in text]


def test_a_report_shows_the_course_of_its_first_figure_in_80_columns() -> None:
    """Bars fall as 1/step does; a chart of names and a section without data have no curve."""
    lines = printed(render_table(run_report())).splitlines()
    (curve,) = (line for line in lines if "▁" in line)
    assert curve.rstrip() == "  █▄▃▂▂▁▁▁▁▁▁▁ 0.0833 to 1,"
    assert lines[lines.index(curve) + 1].startswith("  Lines <script>")  # what does not fit has a line of its own
    assert max(map(len, lines)) <= 80


def test_rows_that_were_set_aside_stand_in_the_heading() -> None:
    for name in ("degeneracy", "passk", "check"):
        assert "; 2 rows set aside: reward is not a number" in " ".join(printed(render_table(REPORTS[name])).split())


def test_a_logged_nan_is_shown_as_such() -> None:
    report = examples.replay_report()
    broken = dataclasses.replace(report.steps[0], logged={"grad_norm": float("nan")})
    assert " NaN " in printed(render_table(dataclasses.replace(report, steps=(broken,))))
