"""Claims judged by what a report has computed: which are told, which are left to the command, and what is said."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.passk.measure import pass_at_k_of_samples
from gradscope.diagnostics.rank.tokens import advantage_covariance
from gradscope.diagnostics.report.sections.claims import claims_answer, claims_section
from gradscope.diagnostics.report.sections.inputs import ReportInputs, TokenParts
from gradscope.estimate import Estimate
from gradscope.results.report import Cell, ReportSection
from gradscope.results.verdicts import ClaimRow
from gradscope.rollouts.run import Run, WeightsRef
from tests.diagnostics.made_up_runs import group_of, run_of, samples
from tests.diagnostics.rank.made_up_parts import made_up
from tests.diagnostics.report.sections.made_up_inputs import NOT_READ, gram_of, inputs_of
from tests.render.examples import claims_report

NEEDS_MORE = {
    *("tokens.as_asked", "tokens.high_entropy", "tokens.low_probability", "entropy.covariance", "entropy.predicted"),
    *(
        f"rank_two.{name}"
        for name in ("tokens", "weights", "output_head", "hidden_rollouts", "hidden_tokens", "logits")
    ),
    *("rank_rises.token_credit", "sparser.tokens", "sparser.entries"),
    *("weights.off_principal", "weights.singular_values", "weights.few_change"),
}


def run_with_weights(num_groups: int = 12, size: int = 4) -> Run:
    """One step of groups with one pass each."""
    groups = [group_of([1.0] + [0.0] * (size - 1), step=1, prompt=f"p{index}") for index in range(num_groups)]
    return replace(run_of(*groups), weights=(WeightsRef(num_updates=0, path=Path("w"), kind="full"),))


def orthogonal(run: Run) -> Any:
    """The step's Gram matrix where all score vectors are orthogonal."""
    names = [group.group_id for group in run.groups for _ in group.rollouts]
    rewards = [rollout.reward for group in run.groups for rollout in group.rollouts]
    return gram_of(
        np.eye(len(names)).tolist(),
        names,
        step=1,
        rewards=[reward or 0.0 for reward in rewards],
        num_inferred_ids=0,
        kl_gram=None,
        verification=SimpleNamespace(describe=dict),
        describe=lambda: {"engine": "made up"},
        notes=(),
    )


def inputs_with_grams(**more: Any) -> ReportInputs:
    run = run_with_weights()
    return inputs_of(run, grams=[orthogonal(run)], **{"degeneracy": degeneracy_of_run(run), **more})


def rows_of(section: ReportSection) -> dict[str, tuple[Cell, ...]]:
    by_metric = {claim.metric: claim.name for claim in CLAIMS}
    return {by_metric[str(row[1])]: row for row in section.tables[0].rows}


def test_claims_of_orthogonal_rows_are_judged_and_the_others_left_to_the_command() -> None:
    section = claims_section(inputs_with_grams())
    assert {claim.name for claim in CLAIMS} - set(rows_of(section)) == NEEDS_MORE
    assert section.findings[0].startswith(f"Of {len(CLAIMS) - len(NEEDS_MORE)} claims this run supports ")
    assert section.findings[-1].startswith(f"gradscope claims measures {len(NEEDS_MORE)} more, which need rows of ")
    assert section.command == "gradscope claims made-up"
    # Advantages 3/4 and three times -1/4 on orthogonal rows: q = (1/2, 1/6, 1/6, 1/6), rank exp(1.2425) = 3.464.
    _, _, measured, null, verdict = rows_of(section)["rank_two.rollouts"]
    assert measured.value == pytest.approx(2 * 3**0.5)
    assert null.value is not None
    assert verdict == "cannot tell"  # all groups are alike, so nothing tells how far others lie
    assert section.tables[0].caption.startswith("Claims; gradients of steps 1. ")


def test_claims_judge_the_numbers_of_the_report() -> None:
    inputs = inputs_with_grams()
    gap = rows_of(claims_section(inputs))["dead_groups.excess"][2]
    assert gap == degeneracy_of_run(inputs.run).jensen_gap
    assert inputs.degeneracy != NOT_READ
    other = replace(inputs.degeneracy, jensen_gap=Estimate(value=0.5, low=0.4, high=0.6))
    assert rows_of(claims_section(replace(inputs, degeneracy=other)))["dead_groups.excess"][2:] == (
        Estimate(value=0.5, low=0.4, high=0.6),
        Estimate.exact(0.0),
        "supported",
    )


def test_tokens_that_the_report_looked_at_are_judged() -> None:
    weighed = {1: made_up(num_groups=8).weighed}
    section = claims_section(inputs_with_grams(parts=TokenParts(weighed=weighed)))
    assert rows_of(section)["entropy.covariance"][2] == advantage_covariance([weighed[1].tokens])
    assert {claim.name for claim in CLAIMS} - set(rows_of(section)) == NEEDS_MORE - {"entropy.covariance"}


def test_without_gradients_or_a_group_to_judge_the_table_says_why() -> None:
    run = run_of(group_of([None, None], step=1))
    assert rows_of(claims_section(inputs_of(run)))["dead_groups.excess"][2].undefined is not None
    run = run_of(group_of([1, 0, 0, 1], step=1))
    section = claims_section(inputs_of(run, degeneracy=degeneracy_of_run(run)))
    assert rows_of(section)["rank_two.rollouts"][2].undefined == "It was not read"
    assert section.next_step == NOT_READ.hint
    assert "no gradient was recomputed" in section.tables[0].caption


def test_held_out_samples_are_those_of_the_report_before_and_after() -> None:
    before = samples("before", {f"p{index}": [1.0, 0.0, 0.0, 0.0] for index in range(30)})
    after = samples("after", {f"p{index}": [1.0, 1.0, 0.0, 0.0] for index in range(30)})
    both = pass_at_k_of_samples([before, after])
    section = claims_section(inputs_with_grams(passk=both, samples=(before, after)))
    assert rows_of(section)["reach.compression"][2] == both.comparison.rows[-1].difference
    assert section.command == "gradscope claims made-up --samples before --samples after"
    reach = rows_of(claims_section(inputs_with_grams()))["reach.compression"]
    assert str(reach[2].undefined).startswith("The run has no samples of held-out prompts")
    files = [samples(name, {"p": [1.0, 0.0], "q": [0.0, 0.0]}) for name in ("one", "two", "three")]
    reach = rows_of(claims_section(inputs_with_grams(passk=pass_at_k_of_samples(files))))["reach.compression"]
    assert str(reach[2].undefined).endswith("and there are 3")


@pytest.mark.parametrize("path", ["made-up/heldout/before.jsonl", "made-up"])
def test_samples_of_the_run_itself_need_no_option(path: str) -> None:
    own = samples(path, {"p": [1.0, 0.0]})
    assert claims_section(inputs_with_grams(samples=(own,))).command == "gradscope claims made-up"


def row_of(verdict: Any, settle: str) -> ClaimRow:
    first = Estimate.exact(1.0)
    texts = {"source": "s", "claim": "c", "metric": "m", "why": "w"}
    return ClaimRow(name="n", steps=(), estimate=first, null=first, verdict=verdict, settle=settle, ours=False, **texts)


def next_step(rows: list[ClaimRow]) -> str:
    return claims_answer(replace(claims_report(), claims=tuple(rows))).next_step


def test_the_next_step_settles_most_or_repeats_the_run() -> None:
    open_rows = [row_of("cannot_tell", settle) for settle in ("More groups.", "A longer log.", "More groups.")]
    assert next_step([*open_rows, row_of("supported", "Nothing.")]) == (
        "What would settle 2 of the 3 that cannot be told: More groups. The command says what would settle the others."
    )
    assert next_step(open_rows[1:2]) == "What would settle 1 of the 1 that cannot be told: A longer log."
    assert next_step([row_of("supported", "Nothing.")]).startswith("Repeat the run with another seed")
