import re
from functools import cache, partial

import pytest
from msgspec.structs import replace

from gradscope.catalog.lookup import CATALOG, ESSENTIAL
from gradscope.estimate import Estimate
from gradscope.render.registry import render_table
from gradscope.render.terminal.answer import Answer
from gradscope.render.terminal.explain import essential_metrics, metric_answer
from gradscope.render.terminal.names import TABLES
from gradscope.render.words import IN_THE_FILES, STYLES, Footnotes, Tone
from gradscope.results.report import ReportSection
from tests.render import examples
from tests.render.examples import run_report
from tests.render.printing import printed

REPORTS: dict[str, object] = {
    "degeneracy": examples.degeneracy_report(),
    "passk": examples.passk_report(),
    "passk-one": examples.passk_report(num_files=1),
    "passk-evaluations": examples.evaluations_report(),
    "rank": examples.rank_report(),
    "weights": examples.weight_report(),
    "replay": examples.replay_report(),
    "report": run_report(),
    "check": examples.check_report(),
    "claims": examples.claims_report(),
    "spike": examples.spike_report(),
    "compare": examples.comparison(),
}


@cache
def shown(name: str, *show: str) -> str:
    return printed(render_table(REPORTS[name], show))


@pytest.mark.slow
@pytest.mark.parametrize("show", [(), ("all",)], ids=["answer", "all"])
@pytest.mark.parametrize("name", REPORTS)
def test_each_table_fits_80_columns_escapes_text_and_cuts_names_alone(name: str, show: tuple[str, ...]) -> None:
    text = shown(name, *show)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert all("red" in line or "scrip" in line for line in text.splitlines() if "…" in line)
    assert not {"\x1b", "\u202e"} & set(text)


@pytest.mark.parametrize("name", ["degeneracy", "passk", "check"])
def test_names_of_the_log_are_shown_in_full_and_rows_that_were_set_aside_stand_in_the_heading(name: str) -> None:
    assert r"<script>[red]\x1b[31mred\u202egnp" in shown(name)
    assert "; 2 rows set aside: reward is not a number" in " ".join(shown(name).split())


@pytest.mark.parametrize("name", REPORTS)
def test_findings_are_printed_in_their_own_words(name: str) -> None:
    text = " ".join(shown(name, "all").split())
    for finding in getattr(REPORTS[name], "findings", ()):
        assert finding.replace(examples.HOSTILE, r"<script>[red]\x1b[31mred\u202egnp") in text


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_an_answer_fits_one_screen_verdict_first_and_names_every_further_table_that_says_something(name: str) -> None:
    verdict, text, more = shown(name, "verdict").rstrip(), shown(name), shown(name, "all")
    assert text.startswith(verdict)
    assert 1 <= len(verdict.splitlines()) <= 4
    # The example of degeneracy was asked for sizes, windows and a target at once; that of compare has long names.
    assert len(text.splitlines()) <= {"degeneracy": 40, "compare": 24}.get(name, 21)
    offered = re.search(r"--show adds (.*); or all\.", " ".join(text.split()))
    for table in offered[1].split(", ") if offered else []:
        assert len(shown(name, table)) > len(text) - 80, table
    assert "--show adds" not in more
    assert "There is no table" not in more


@pytest.mark.parametrize("show", [(), ("one",), ("all",), ("one", "none")])
def test_each_view_is_made_once_whatever_is_shown(show: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def view(name: str, notes: Footnotes) -> list[str]:
        made.append(name)
        return [] if name == "none" else [f"the table of {name}{notes.number(f'why {name}')}"]

    monkeypatch.setitem(TABLES, "rank", ("one", "two", "none"))  # type: ignore[misc]
    views = {name: partial(view, name) for name in ("two", "one", "none")}
    text = printed(Answer(command="rank", headline=("Verdict.",), table=(), views=views).screen(show))
    assert sorted(made) == ["none", "one", "two"]
    assert ("the table of one¹" in text) == ("one" in show or "all" in show)
    assert ("¹ why one" in text) == ("the table of one¹" in text)
    assert ("the table of two²" in text) == ("all" in show)
    assert ("There is no table of none" in text) == ("none" in show)
    assert ("--show adds" in text) == ("all" not in show)


@pytest.mark.parametrize(("dead", "tone"), [(0.0, "fine"), (1.0, "problem"), (0.4, "")])
def test_the_verdict_has_the_color_of_what_it_says(dead: float, tone: Tone) -> None:
    report = replace(examples.degeneracy_report(), frac_reward_zero_std=Estimate.exact(dead))
    (line, *_) = render_table(report, ("verdict",)).renderables
    assert str(line.style) == f"bold {STYLES[tone]}".strip()


def test_pass_at_k_compares_pair_by_pair() -> None:
    text = shown("passk")
    assert " 1  0.420 [0.36, 0.48]  0.740 [0.68, 0.80]     +0.320 [+0.27, +0.37]" in text
    assert "k = 32 exceeds the 16 samples of a prompt" in text
    assert "both 40, only before.jsonl 2" in " ".join(shown("passk", "pairs").split())


def test_a_forecast_stands_beside_what_is_undefined() -> None:
    row = next(line for line in shown("passk-one").splitlines() if line.startswith("32"))
    assert row.split() == ["32", "—¹", "—¹", "0.810", "[0.73,", "0.89]"]


def test_evaluations_are_rows_of_which_those_beyond_a_screen_are_counted() -> None:
    report = examples.evaluations_report()
    text = printed(render_table(report))
    assert "gsm8k" not in text
    assert "…iltered" in text
    assert re.search(r"64 x 16¹  0\.420 \[0\.36, 0\.48\]  0\.\d{3} k = 16", text)
    assert "¹ the evaluation was cancelled: 12 of 32 samples" in text
    assert "The first 8 of 14 rows." in text
    assert printed(render_table(report, ("files",))).count("64 x 16") == 8 + 14
    entries = (examples.evaluations_report().tables[0].evaluation,) * 9
    tasks = ("gsm8k",) * 8 + ("aime24",)
    named = [replace(entry, model=f"m{i}", scorer="", task=tasks[i]) for i, entry in enumerate(entries) if entry]
    tables = [replace(report.tables[0], evaluation=entry) for entry in named]
    assert printed(render_table(replace(report, tables=tuple(tables)))).count("gsm8k") == 8
    few = examples.evaluations_report(num_models=2)
    assert "The first" not in printed(render_table(few))
    assert IN_THE_FILES in printed(render_table(few))
    of_one_sample = [replace(table, num_samples=(1, 1), rows=table.rows[:1]) for table in few.tables]
    with_means, without = (replace(few, tables=tuple(of_one_sample[::step])) for step in (1, 2))
    assert [IN_THE_FILES in printed(render_table(report)) for report in (with_means, without)] == [True, False]


def test_evaluations_are_told_apart_by_their_files_or_by_as_many_names_as_have_room() -> None:
    first = examples.evaluations_report(num_models=1).tables[0]
    assert first.evaluation is not None

    def table(*names: tuple[str, str, str]) -> str:
        about = [
            replace(
                first,
                source=replace(first.source, path=f"logs/{file}"),
                evaluation=replace(first.evaluation, task=task, model=model),
            )
            for task, model, file in names
        ]
        return printed(render_table(replace(examples.evaluations_report(), tables=tuple(about))))

    def columns(*names: tuple[str, str, str]) -> list[str]:
        return table(*names).partition("pass@1")[0].splitlines()[-1].split()[:-1]

    assert columns(("a", "m", "1.json"), ("a", "m", "2.json")) == ["file"]
    of_one_name = table(("a", "m", "5f2c/1.json"), ("a", "m", "77ab/1.json"))
    assert ("5f2c" in of_one_name, "77ab" in of_one_name, "1.json" in of_one_name) == (True, True, False)
    assert columns(("a", "m", "1.json"), ("b", "n", "2.json")) == ["task", "model"]
    assert columns(("a" * 30, "m" * 30, "1.json"), ("b" * 30, "n" * 30, "2.json")) == ["task"]
    middle = table(*((f"{'a' * 40}-{of}-{'b' * 40}", "m", f"{of}.json") for of in ("one", "two")))
    assert "-one-" in middle
    assert "-two-" in middle


def test_many_budgets_are_thinned_and_all_are_there_when_asked() -> None:
    report = examples.passk_report(num_files=1)
    (table,) = report.tables
    many = tuple(replace(table.rows[0], k=k) for k in range(1, 31))
    longer = replace(report, tables=(replace(table, rows=many, forecasts=()),))
    rows = [line for line in printed(render_table(longer)).splitlines() if re.match(r" *\d+  0\.", line)]
    assert (len(rows), rows[0].split()[0], rows[-1].split()[0]) == (8, "1", "30")
    assert " 29  0." in printed(render_table(longer, ("files",))).replace("\n", "\n ")


def test_of_many_files_each_has_a_row() -> None:
    report = examples.passk_report()
    assert report.comparison is not None
    first, second = report.tables
    more = replace(report, tables=(first, second, second, second))
    more = replace(more, further_comparisons=(report.comparison, report.comparison))
    rows = [line.split() for line in printed(render_table(more)).splitlines() if "-0.030" in line]
    assert len(rows) == 3
    heading = next(line for line in printed(render_table(more)).splitlines() if line.startswith("file"))
    assert heading.split() == ["file", "k", "=", "1", "k", "=", "16", "at", "k", "=", "16"]  # 64 exceeds all samples
    lone = [replace(table, rows=table.rows[:1]) for table in more.tables]
    of_one = printed(render_table(replace(more, tables=tuple(lone), further_comparisons=())))
    assert "file k = 1 at k = 1" in " ".join(of_one.split())
    three = replace(more, tables=more.tables[:3], further_comparisons=(report.comparison,))
    assert "difference" not in printed(render_table(three))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("math-1.5B-step_0100-temp1.0.jsonl", "math-1.5B-step_0200-temp1.0.jsonl"),
        ("a" * 30 + "b" + "a" * 30, "a" * 30 + "c" + "a" * 30),
    ],
)
def test_long_names_that_begin_and_end_alike_stay_apart(first: str, second: str) -> None:
    report = examples.passk_report()
    tables = [replace(table, name=name) for table, name in zip(report.tables, (first, second), strict=True)]
    pair = replace(report.comparison, first=first, second=second)
    for shown_tables in (tables, [*tables, tables[0], tables[1]]):
        named = replace(report, tables=tuple(shown_tables), comparison=pair)
        text = printed(render_table(named, ("pairs",)))
        assert max(map(len, text.splitlines())) <= 80
        shortened = [tuple(re.findall(r"…\S*", line)) for line in text.splitlines() if "…" in line]
        assert all(len(set(names)) == len(names) for names in shortened)
        assert len(set(shortened)) == (2 if len(shown_tables) == 2 else 3)  # both in a heading, or a row each


def test_rank_says_shape_centering_and_what_was_left_out() -> None:
    text = " ".join(shown("rank", "engine", "formulations").split())
    assert "shape 8 to 24 x 99,264, rows not centered" in text
    assert "Step 7 was left out: the weights before step 7 are not on disk" in text
    assert "left out: tasa. needs binary rewards" in text


def test_a_spectrum_table_that_is_cut_says_so() -> None:
    spectra = tuple(examples.spectrum(step, None, 8) for step in range(1, 40))
    text = printed(render_table(replace(examples.rank_report(), spectra=spectra), ("spectra",)))
    assert "38 more spectra are in the JSON and the CSV" in " ".join(text.split())


def test_replay_shows_what_was_recomputed_and_counts_the_rest() -> None:
    text = shown("replay")
    steps = [line.split()[0] for line in text.splitlines() if re.match(r" *\d+  (mis)?match", line)]
    assert steps == ["1", "6", "11", "16"]
    words = " ".join(text.split())
    assert words.startswith("Replay: mismatch at 1 of 20 steps; 3 match; 16 cannot. ")
    assert "mismatch¹" in words
    assert "¹ the token ids were inferred from text" in words
    assert "Not shown: 16 cannot (--show steps,causes)." in words
    more = " ".join(shown("replay", "causes").split())
    assert "grad_norm, steps 2:5,7:10,12:15,17:20: cannot the weights before step 2 are not on disk" in more


def test_replay_of_a_long_run_shows_its_mismatches_first() -> None:
    report = examples.replay_report()
    good, bad = report.steps[0], report.steps[10]
    steps = tuple(replace(bad if step % 100 == 7 else good, step=step) for step in range(600))
    lines = printed(render_table(replace(report, steps=steps))).splitlines()
    rows = [line.split()[:2] for line in lines if re.match(r" *\d+  (mis)?match", line)]
    assert rows == [[f"{step}", "mismatch¹"] for step in (7, 107, 207, 307, 407, 507)]
    assert "Not shown: 594 match (--show steps,causes)." in "\n".join(lines)
    assert len(lines) <= 21
    fine = tuple(replace(good, step=step) for step in range(600))
    lines = printed(render_table(replace(report, steps=fine))).splitlines()
    assert len([line for line in lines if re.match(r" *\d+  match", line)]) == 8


def test_replay_of_nothing_shows_why() -> None:
    report = examples.replay_report()
    steps = tuple(step for step in report.steps if step.verdict == "cannot")
    cannot = replace(report, steps=steps, verdict="cannot", headline="cannot at 16 of 16 steps")
    text = " ".join(printed(render_table(cannot)).split())
    assert "relative" not in text
    assert "grad_norm, steps 2:5,7:10,12:15,17:20: cannot the weights before step 2" in text
    assert "cannot¹" in printed(render_table(cannot, ("steps",)))


def test_check_says_number_limit_meaning_and_next_step() -> None:
    text = shown("check")
    assert text.startswith("Check: fail. Of 3 requirements: 1 failed, 1 undecided, 1 held.")
    assert "FAIL     frac_reward_zero_std <= 0.3  0.4125 [0.33, 0.49]" in text
    held = replace(examples.check_report().verdicts[0], outcome="pass", limit=0.45)
    chance = replace(examples.check_report(), verdicts=(held, replace(held, limit=0.5)))
    assert "2 held (1 within chance of its limit)." in printed(render_table(chance))
    assert "UNKNOWN  pass@4 >= 0.5                —" in text
    assert "• frac_reward_zero_std: Try prompts of middling difficulty." in text
    more = shown("check", "requirements")
    assert "FAIL  frac_reward_zero_std <= 0.3, is 0.4125 [0.33, 0.49]" in more
    assert "\n  It holds." in more


def test_of_many_requirements_those_that_need_a_look_are_shown() -> None:
    report = examples.check_report()
    fail, unknown, good = report.verdicts
    many = replace(report, verdicts=(*[good] * 20, replace(unknown, allowed=True), fail))
    lines = printed(render_table(many)).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("FAIL", "UNKNOWN", "PASS"))][:3] == [
        "FAIL",
        "UNKNOWN",
        "PASS",
    ]
    assert "UNKNOWN (allowed)" in "\n".join(lines)
    assert "14 more requirements: --show requirements." in "\n".join(lines)


def test_claims_are_verdicts_at_a_glance_and_reasons_when_asked() -> None:
    text = shown("claims")
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if line.split()[1:] == ["measured", "against"]]
    assert [lines[number].split()[0] for number in heads] == ["contradicted", "supported"]
    assert lines[heads[0] + 2].startswith("More groups are dead than one pass rate")
    assert lines[heads[0] + 2].split()[-4:] == ["-0.012", "[-0.021,", "-0.003]", "0.000"]
    assert "gradients of steps 1,21" in text
    more = shown("claims", "reasons")
    assert "contradicted -0.012 [-0.021, -0.003] against 0.000: " in " ".join(more.split())
    assert more.count("The gradient of a group has effective rank about 2, whatever the group size.") == 1
    assert "cannot tell dL/dW of one group, output head. The output head is tied" in " ".join(more.split())
    assert more.count("Would settle it:") == 2
    unmeasured = replace(examples.claims_report(), steps=())
    assert "no gradient was recomputed" in printed(render_table(unmeasured))


def test_what_a_run_does_not_show_by_our_measure_contradicts_nobody() -> None:
    report = examples.claims_report()
    ours = replace(report, claims=tuple(replace(row, ours=True) for row in report.claims))
    text, more = (printed(render_table(ours, show)) for show in ((), ("reasons",)))
    assert "More groups are dead" not in text
    assert "this run does not show it, by our measure  " in more
    assert "contradicted" not in text + more.partition("Of 4 claims")[0]
    assert "not shown" not in printed(render_table(report))


def test_a_claim_may_be_decided_by_a_number_without_an_interval() -> None:
    report = examples.claims_report()
    exact = tuple(replace(row, estimate=Estimate.exact(0.25)) for row in report.claims)
    assert "0.250" in printed(render_table(replace(report, claims=exact)))


def test_many_decided_claims_are_cut_and_counted() -> None:
    report = examples.claims_report()
    text = printed(render_table(replace(report, claims=report.claims[:1] * 20)))
    assert text.count("(rollouts)") == 8
    assert "12 more are decided: --show reasons." in text


@pytest.mark.slow
def test_every_metric_has_a_page() -> None:
    for name in (*CATALOG, "pass@4"):
        page = printed(metric_answer(name))
        assert f"({name})" in " ".join(page.split())
        assert "formula" in page, name
        assert max(len(line.rstrip()) for line in page.splitlines()) <= 80, name


def test_the_list_names_what_to_know_first() -> None:
    text = printed(essential_metrics())
    assert all(name in text for name in ESSENTIAL)
    assert len(text.splitlines()) <= 24


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("dead", "frac_reward_zero_std"),
        ("rank", "effective_rank"),
        ("Zero STD", "frac_reward_zero_std"),
        ("entropy collapse", "entropy.mean"),
        ("effective_rnk", "effective_rank"),
        ("side rewards", "frac_reward_conflict"),
        ("off-policy lag", "staleness.mean_lag"),
    ],
)
def test_words_find_the_metric_that_they_mean(words: str, first: str) -> None:
    lines = [line.split("  ")[0] for line in printed(metric_answer(words)).splitlines()]
    assert lines[4] == first
    assert lines[-1] == f"$ gradscope explain {first}"
    assert len(lines) <= 11


def test_words_that_fit_one_metric_alone_show_its_page() -> None:
    assert "(compression_factor)" in printed(metric_answer("compression"))


def test_a_report_shows_the_course_of_its_first_figure_in_80_columns() -> None:
    """Bars fall as 1/step does; a chart of names and a section without data have no curve."""
    lines = printed(render_table(run_report(), ("sections",))).splitlines()
    (curve,) = (line for line in lines if "▁" in line)
    assert curve.rstrip() == "  █▄▃▂▂▁▁▁▁▁▁▁ 0.0833 to 1,"
    assert lines[lines.index(curve) + 1].startswith("  Lines <script>")  # what does not fit has a line of its own
    assert max(map(len, lines)) <= 80


def test_a_report_says_what_each_answer_asks_for_the_numbers_on_top_and_what_is_not_answered() -> None:
    text = " ".join(printed(render_table(run_report())).split())
    assert text.startswith(
        "It does not. Of 3 questions this log answers 2 (1 with a problem: replay; 1 to look at: signal)."
    )
    assert "look Half of it, says" in text
    asking = [replace(section, next_step="Do this.") for section in run_report().sections]
    assert " ".join(printed(render_table(replace(run_report(), sections=tuple(asking)))).split()).startswith(
        "It does not. Do this. Of 3 questions"
    )
    assert "25.0 % [10.0 %, 40.0 %]" in text
    assert "absent coverage: the page says what to log" in text
    sections = " ".join(printed(render_table(run_report(), ("sections",))).split())
    positions = [sections.index(f"{section.severity} {section.question}") for section in run_report().by_severity]
    assert positions == sorted(positions)
    nothing = replace(
        run_report(), sections=tuple(section for section in run_report().sections if section.missing is not None)
    )
    assert printed(render_table(nothing)).startswith("Of 1 questions this log answers 0. The page says what to log.")
    unknown = ReportSection(name="claims", findings=("Cannot tell.",))
    no_groups = replace(nothing, sections=(ReportSection(name="signal", missing="No group has two rollouts."), unknown))
    text = " ".join(printed(render_table(no_groups)).split())
    assert text.startswith("Of 2 questions this log answers 1 (1 undecided). No group has two rollouts. ")
    assert "unknown Cannot tell." in text


def test_a_logged_nan_is_shown_as_such() -> None:
    report = examples.replay_report()
    broken = replace(report.steps[0], logged={"grad_norm": float("nan")})
    assert " NaN " in printed(render_table(replace(report, steps=(broken,))))


def test_findings_are_shown_as_far_as_a_terminal_of_24_lines_bears() -> None:
    lines = [f"Finding {number}, long enough for a line of its own." for number in range(5)]
    for rows, most in ((0, 3), (11, 3), (12, 2), (14, 0)):
        answer = Answer(command="spike", headline=("Verdict.", *lines), table=["row"] * rows, findings=lines, views={})
        text = printed(answer.screen(()))
        assert text.count("Finding") == most
        assert len(text.splitlines()) <= 19
    text = printed(answer.screen(("findings",)))
    assert text.count("Finding") == 5


def test_runs_side_by_side_say_that_their_means_are_of_all_steps() -> None:
    """Below a difference at common steps; the two numbers did not agree."""
    text = " ".join(printed(render_table(examples.run_index())).split())
    assert "mean, groups without run" in text
    assert text.count("all steps") == 2
