import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.report.sections.inputs import TokenParts
from gradscope.diagnostics.report.sections.tokens import MAX_TEXTS, tokens_section
from gradscope.findings.rank_parts import logprob_change_findings, turn_findings
from gradscope.gradients.tokens.measure import RolloutTokens
from gradscope.results.report import ReportSection
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import gram_of, inputs_of
from tests.render.rank_examples import logprob_change, turn


def rollout(
    norms: list[float], entropies: list[float], *, weights: list[float] | None = None, sample: int = 0, **parts: object
) -> RolloutTokens:
    number = len(norms)
    values: dict[str, object] = {
        "texts": tuple(f"t{index}" for index in range(number)),
        "is_seen": np.ones(number, dtype=bool),
        "shares": None,
        "logprobs": np.zeros(number),
        **parts,
    }
    signs = np.array(weights or [-1.0] * number)
    return RolloutTokens(
        group_id="g", sample=sample, weights=signs, norms=np.array(norms), entropies=np.array(entropies), **values
    )


def section_of_tokens(*rollouts: RolloutTokens) -> ReportSection:
    inputs = inputs_of(run_of(group_of([1, 0])), grams=[gram_of([[1.0]], ["0/p"], step=7)], tokens=rollouts)
    return tokens_section(inputs)


RISING = [rollout([1.0, 2.0, 3.0, 4.0, 10.0], [0.1, 0.2, 0.3, 0.4, 0.5], sample=n) for n in range(6)]


def test_uncertain_tokens_with_the_largest_gradients_are_reported() -> None:
    section = section_of_tokens(*RISING)
    assert section.findings[0].startswith("Within rollouts, a token's gradient norm and the policy's entropy correlate")
    assert "at +1.00" in section.findings[0]
    assert section.findings[1] == "The tenth of tokens with the largest gradients holds 25.0 % of the summed norms."
    assert section.findings[3] == "The update pushes 30 of these tokens up and 0 down."
    assert section.command.endswith("rank made-up --rows token --step 7 --show energy")


def test_norms_are_summed_by_position_and_entropy() -> None:
    section = section_of_tokens(rollout([1.0, 2.0, 3.0, 4.0, 10.0], [0.5, 0.4, 0.3, 0.2, 0.1]))
    assert section.findings[0].endswith(" correlate at -1.00 (5 tokens of 1 rollout).")  # too few for an interval
    assert section.charts[0].series[0].values == pytest.approx((0.05, 0.1, 0.15, 0.2, 0.5))
    by_entropy = section.tables[0].rows
    assert [row[:3] for row in by_entropy] == [
        ("most certain quarter", 2, "0.10 to 0.20"),
        ("second", 1, "0.30 to 0.30"),
        ("third", 1, "0.40 to 0.40"),
        ("most uncertain quarter", 1, "0.50 to 0.50"),
    ]
    assert [row[4] for row in by_entropy] == pytest.approx([0.7, 0.15, 0.1, 0.05])
    # a token that is white space can be seen
    section = section_of_tokens(rollout([1.0, 2.0], [0.5, 0.4], texts=(" ", "\n")))
    assert [row[2] for row in section.tables[2].rows] == [repr("\n"), repr(" ")]
    assert len(section_of_tokens(rollout([1.0, 2.0], [0.5, 0.5])).findings) == 3  # a kind holds every token or none


def test_the_largest_tokens_are_listed_with_their_part_and_direction() -> None:
    made = rollout([1.0, 0.0, 3.0], [0.5, 0.4, 0.3], weights=[-1.0, 0.0, 2.0], shares=np.array([1.25, 0.0, -0.25]))
    section = section_of_tokens(made)
    assert section.tables[2].rows == (
        ("g #0", 3, "t2", "less likely", 3.0, 0.3, -0.25),
        ("g #0", 1, "t0", "more likely", 1.0, 0.5, 1.25),
    )
    assert section.findings[1].endswith("; 33.3 % of tokens have no gradient at all.")
    assert section.findings[3] == (
        "The update pushes 1 of these tokens up and 1 down; 1 pull against the gradient of their own rollout."
    )


def test_shades_are_relative_to_the_largest_norm_and_unseen_tokens_have_none() -> None:
    made = rollout([4.0, 1.0, 0.0], [0.5, 0.4, 0.3], weights=[-1.0, 2.0, 0.0], is_seen=np.array([True, True, False]))
    tokens = section_of_tokens(made).texts[0].tokens
    assert [(token.strength, token.is_raised) for token in tokens] == [(1.0, True), (0.25, False), (None, True)]
    assert [token.note for token in tokens] == [
        "norm 4, entropy 0.50",
        "norm 1, entropy 0.40",
        "not measured, entropy 0.30",
    ]
    assert len(section_of_tokens(*RISING, *RISING).texts) == MAX_TEXTS


def test_quarters_are_of_each_rollout_so_that_they_say_what_the_sentence_says() -> None:
    """Within each rollout undecided tokens pull hardest; the sure rollout has the larger gradients."""
    firm, open_ = [10.0, 11.0, 12.0, 13.0], [1.0, 2.0, 3.0, 4.0]
    sure = [rollout([*firm[:3], 13.0 + n], [0.1, 0.2, 0.3, 0.4], sample=n) for n in range(8)]
    unsure = [rollout([*open_[:3], 4.0 + n], [2.1, 2.2, 2.3, 2.4], sample=n) for n in range(8, 16)]
    section = section_of_tokens(*sure, *unsure)
    assert "correlate at +" in section.findings[0]
    assert section.next_step.endswith("keeps 45.1 % of these norms.")  # 256 of 568
    means = [row[3] for row in section.tables[0].rows]
    assert means == sorted(means)


def test_energy_is_of_kinds_of_tokens_among_all_that_were_measured() -> None:
    """Squares 1, 4, 9, 16 and 4 of 34; the last token was not measured."""
    made = rollout(
        [1.0, 2.0, 3.0, 4.0, 2.0, 9.0],
        [0.1, 0.2, 0.3, 0.9, 0.4, 5.0],
        weights=[-1.0, -1.0, 2.0, 2.0, 0.0, 1.0],
        logprobs=np.log([0.9, 0.5, 0.2, 0.1, 0.8, 0.1]),
        is_seen=np.array([True] * 5 + [False]),
    )
    section = section_of_tokens(made)
    assert section.findings[2] == (
        "The 20.0 % of these tokens with the highest entropy hold 47.1 % of the energy, the summed squared norms; the "
        "40.0 % of probability below 0.25 hold 73.5 %."
    )
    table = section.tables[1]
    assert table.folded_as == "By kind of token as a table"
    assert [row[:2] for row in table.rows] == [
        ("made more likely", 2),
        ("made less likely", 2),
        ("probability below 0.25", 2),
        ("0.25 to 0.75", 1),
        ("from 0.75 on", 1),
        ("fifth with the highest entropy", 1),
        ("the other four fifths", 3),
    ]
    assert [row[3] for row in table.rows] == pytest.approx([5 / 34, 25 / 34, 25 / 34, 4 / 34, 1 / 34, 16 / 34, 14 / 34])


def test_turns_and_later_changes_of_tokens_are_listed() -> None:
    last = replace(turn(8), and_later=True)
    parts = TokenParts(turns=(turn(1), last), logprobs=(logprob_change(6),))
    inputs = inputs_of(run_of(group_of([1, 0])), grams=[gram_of([[1.0]], ["0/p"], step=7)], tokens=RISING, parts=parts)
    section = tokens_section(inputs)
    assert section.findings[-2:] == (*turn_findings([turn(1), last]), *logprob_change_findings([logprob_change(6)]))
    (table,) = [table for table in section.tables if table.caption.startswith("Each turn")]
    assert [row[:3] for row in table.rows] == [(41, "1", turn(1).num_rollouts), (41, "8 and later", last.num_rollouts)]
    assert table.rows[0][3:] == (turn(1).frac_tokens, turn(1).gradient_share, turn(1).cosine)
