from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.findings.passk import passk_findings
from gradscope.results.passk import PassAtKComparison
from tests.render.examples import passk_report

REPORT = passk_report()
TABLE, SECOND = REPORT.tables
COMPARISON = replace(REPORT.comparison, first="before", second="after")


def compared(comparison: PassAtKComparison) -> tuple[str, ...]:
    return passk_findings([], [comparison], [])


def test_a_file_reaches_from_its_smallest_to_its_largest_budget() -> None:
    reach, forecast = passk_findings([TABLE], [], [0])
    assert reach == "before.jsonl: pass@1 = 0.420 [0.360, 0.480] and pass@16 = 0.710 [0.650, 0.770] over 64 prompts."
    assert forecast == (
        "before.jsonl: pass@32 is forecast at 0.810 [0.730, 0.890] from 16 samples a prompt; the value rests on the "
        "shape of the distribution of pass rates, the interval does not."
    )
    # a forecast says from how many samples where prompts have unlike numbers
    *_, forecast = passk_findings([replace(TABLE, num_samples=(1, 19))], [], [0])
    assert "is forecast at 0.810 [0.730, 0.890] from 1 to 19 samples a prompt; the value" in forecast
    # a single budget is named once and none is explained
    first = replace(TABLE, rows=TABLE.rows[:1], forecasts=())
    assert passk_findings([first], [], [0]) == ("before.jsonl: pass@1 = 0.420 [0.360, 0.480] over 64 prompts.",)
    beyond = replace(TABLE, rows=TABLE.rows[-1:], forecasts=())
    assert passk_findings([beyond], [], [0]) == (
        "before.jsonl: no budget asked for is within the 16 samples of every prompt.",
    )


def test_prompts_that_numbers_alone_name_may_not_be_the_same() -> None:
    def sentences(*inferred: str) -> str:
        tables = [replace(table, source=replace(table.source, inferred=inferred)) for table in REPORT.tables]
        return " ".join(passk_findings(tables, [COMPARISON], [0, 0]))

    assert "Numbers alone name the prompts: pairs are" in sentences("Prompts are told apart by their numbers.")
    assert "Numbers alone" not in sentences("Prompts are told apart by their keys.")


def test_a_comparison_is_its_verdict_its_factor_and_what_is_left_out() -> None:
    verdict, factor, caution = compared(COMPARISON)
    assert verdict == (
        "after against before, over 64 prompts in both and without 1 in one: a gain at the smallest budget, no certain "
        "difference at the largest; the sign has turned at k = 16. Verdict: undecided whether it solves more "
        "or needs fewer samples."
    )
    assert caution.startswith("A verifier that passes 1.0 % of wrong samples counts")
    assert factor == "before needs 6.30 [4.80, 8.20] times the samples of after for the same pass@1."
    paired = compared(replace(COMPARISON, num_unpaired=0))
    assert paired[0].startswith("after against before: a gain at the smallest budget, ")


def test_samples_that_agree_are_called_copies_unless_all_prompts_pass_or_fail() -> None:
    # whether one or all of k pass is the same
    rows = [replace(row, pass_hat_k=row.pass_at_k) for row in TABLE.rows if row.pass_at_k.is_defined]
    copies = replace(TABLE, rows=tuple(rows), forecasts=())
    assert passk_findings([copies], [], [0])[1:] == (
        "before.jsonl: all samples of a prompt agree: are they copies (temperature 0)?",
    )
    solved = replace(rows[-1], pass_at_k=Estimate.exact(1.0), pass_hat_k=Estimate.exact(1.0))
    for changes in ({"num_prompts": 10}, {"rows": (solved,)}, {"rows": copies.rows[:1]}):
        assert len(passk_findings([replace(copies, **changes)], [], [0])) == 1
    # a single common budget has no course
    single = replace(COMPARISON, rows=COMPARISON.rows[:1], crossover_k=None, num_unpaired=0)
    assert compared(single)[0].startswith("after against before: +0.320 [+0.270, +0.370] at k = 1; a gain ")
    nothing = replace(COMPARISON.rows[0], difference=Estimate.undefined_because("k exceeds the samples"))
    assert compared(replace(single, rows=(nothing,)))[0] == "before and after have no budget in common."
    # a factor beyond the samples is a lower bound
    open_upwards = replace(COMPARISON, rows=COMPARISON.rows[3:])
    assert compared(open_upwards)[1] == (
        "before needs at least 1.40 times the samples of after for the same pass@8; its own set no upper end."
    )
    unknown = replace(COMPARISON.rows[3], compression_at_least=None)
    assert len(compared(replace(COMPARISON, rows=(unknown,), num_unpaired=0))) == 2


def test_the_verdict_on_two_files_comes_first_and_what_each_reaches_last() -> None:
    sentences = passk_findings([TABLE, SECOND], [COMPARISON], [0, 3])
    assert sentences[0].startswith("after against before, over 64 prompts in both ")
    assert sentences[1] == f"{SECOND.name}: 3 samples have no reward and are not counted."
    for sentence, table in zip(sentences[-2:], (TABLE, SECOND), strict=True):
        assert sentence.startswith(f"{table.name}: pass@1 = ")
    # a verdict that is decided names no other
    decided = replace(COMPARISON, verdict="search compression")
    assert compared(decided)[0].endswith(". Verdict: search compression.")
