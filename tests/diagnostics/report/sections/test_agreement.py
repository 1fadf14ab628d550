"""Do sampler and trainer agree: as logged, as recomputed, as the trainer said."""

import math
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
from gradscope.diagnostics.report.sections.agreement import (
    agreement_section,
    claims_answer,
    claims_section,
    logged_agreement,
    replay_section,
)
from gradscope.diagnostics.report.sections.inputs import ReportInputs, TokenParts
from gradscope.estimate import Estimate
from gradscope.results.norms import Quantity, ReplayVerdict
from gradscope.results.report import Cell, ReportSection
from gradscope.results.verdicts import ClaimRow
from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from tests.diagnostics.logged.made_up_tokens import drifting_run, scored, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of, samples, with_fields
from tests.diagnostics.rank.made_up_parts import made_up
from tests.diagnostics.report.sections.made_up_inputs import NOT_READ, gram_of, inputs_of
from tests.render.examples import claims_report, replay_report


def run_with(*logprobs: tuple[float, ...] | None) -> Run:
    return run_of(with_fields(group_of([1.0] * len(logprobs)), logprobs=list(logprobs)))


def recomputed(*logprobs: tuple[float, ...]) -> object:
    return gram_of([[1.0]] * len(logprobs), ["0/p"] * len(logprobs), logprobs=tuple(map(np.array, logprobs)))


def test_every_token_is_compared() -> None:
    inputs = inputs_of(run_with((-1.0, -2.0), (-0.5,)), grams=[recomputed((-1.0, -2.3), (-0.8,))])
    section = agreement_section(inputs)
    assert section.findings[0].endswith("by 0.2 a token at most (mean of step 0).")
    assert section.tables[0].rows[0][:5] == pytest.approx((0, 3, 0.2, 0.3, (1 + 2 * np.exp(-0.3)) / 3))
    assert section.next_step.startswith("Find out which side is off")
    assert section.command.endswith(" --step 0")
    equal = agreement_section(inputs_of(run_with((-1.0,)), grams=[recomputed((-1.0,))]))
    assert equal.next_step == "Nothing to do: the sampler's policy is the one that was updated."


def test_the_step_that_sequence_ratios_turn_most_is_named() -> None:
    """Ratios 1 and e: of gradients (1, 0) and (0, 1) the one of ratio e is masked, and (1, 1) becomes (1, 0)."""
    runs = [run_with((-1.0,), (-2.0,)), run_with((-1.0,), (-1.0,))]
    groups = tuple(replace(group, step=step) for step, run in enumerate(runs, start=1) for group in run.groups)
    grams = [
        gram_of([[1.0, 0.0], [0.0, 1.0]], ["0/p"] * 2, step=step, logprobs=(np.array([-1.0]), np.array([-1.0])))
        for step in (1, 2)
    ]
    section = agreement_section(inputs_of(run_of(*groups), grams=grams))
    cosine = 1 / np.sqrt(2)
    assert section.findings[1].startswith(
        f"Corrections for the sampler by sequence turn the gradient of step 1: geometric_mask has cosine {cosine:.2f}"
    )
    assert section.tables[0].columns[-1].title == "cosine by sequence"
    assert [row[-1].value for row in section.tables[0].rows] == pytest.approx([cosine, 1.0])


def test_a_loss_that_looks_at_the_sampler_is_not_corrected_again() -> None:
    run = replace(run_with((-2.0,)), settings=TrainerSettings(values={"use_vllm": True}, origin="args.json"))
    section = agreement_section(inputs_of(run, grams=[recomputed((-1.0,))]))
    assert len(section.findings) == 1
    assert section.tables[0].columns[-1].title == "mean p ratio"


@pytest.mark.parametrize(
    ("logged", "missing"),
    [
        (None, "The log has no log-probabilities of the sampler."),
        ((-1.0, -2.0), "The log does not have the log-probabilities of both sampler and trainer (1 row: no log-p"),
    ],
)
def test_other_tokens_are_not_compared(logged: tuple[float, ...] | None, missing: str) -> None:
    section = agreement_section(inputs_of(run_with(logged), grams=[recomputed((-1.0,))]))
    assert section.name == "agreement"
    assert section.missing.startswith(missing)


def test_zeros_in_place_of_log_probabilities_are_a_reason() -> None:
    section = agreement_section(inputs_of(run_of(tokens_of(scored([-1.0, -2.0], [0.0, 0.0])))))
    assert "(1 row: zeros in place of log-probabilities)" in section.missing


def test_what_was_logged_goes_first_and_what_was_recomputed_follows() -> None:
    run = run_of(tokens_of(scored([-1.0, -2.0], [-1.1, -2.0]), step=0))
    logged = agreement_section(inputs_of(run))
    section = agreement_section(inputs_of(run, grams=[recomputed((-1.0, -2.3))]))
    assert logged.findings[0].startswith("Over 2 tokens of 1 sequence the logged log-probabilities")
    distant = agreement_section(inputs_of(run_of(tokens_of(scored([-1.0, -2.0], [-2.0, -3.0])))))
    assert distant.findings[1].startswith("The ratio is outside [0.8, 1.2] at 100 %")
    assert section.findings[: len(logged.findings)] == logged.findings
    assert section.findings[len(logged.findings)].startswith("Over 1 recomputed steps")
    assert len(section.tables) == len(logged.tables) + 1


def test_what_the_trainer_logged_of_it_stands_in() -> None:
    name = "sampling/sampling_logp_difference/mean"
    groups = [group_of([1, 0], step=step) for step in (1, 2)]
    section = agreement_section(inputs_of(run_of(*groups, metrics={1: {name: 0.5, "loss": 1.0}, 2: {name: 0.25}})))
    assert section.findings == (f"The trainer logged at step 2: {name} = 0.25.",)
    assert section.charts[0].series[0].values == (0.5, 0.25)
    assert section.next_step.startswith("Find out which side is off")


@pytest.mark.parametrize(
    ("name", "advice"),
    [("mean", "Nothing to do: the sampler's policy is the one"), ("max", "Log the mean difference as well")],
)
def test_what_to_do_follows_from_the_logged_mean(name: str, advice: str) -> None:
    metrics = {1: {f"sampling/sampling_logp_difference/{name}": 0.001}}
    assert agreement_section(inputs_of(run_of(group_of([1, 0], step=1), metrics=metrics))).next_step.startswith(advice)
    without_rollouts = run_of(group_of([1, 0], step=2), metrics=metrics)
    assert agreement_section(inputs_of(without_rollouts)).missing is not None


def section_of(run: Run) -> ReportSection:
    mismatch = inputs_of(run).logged.sampler
    assert mismatch.overall is not None
    section = logged_agreement(mismatch, mismatch.overall)
    assert agreement_section(inputs_of(run)) == section
    return section


def test_the_whole_log_each_step_and_the_worst_tokens() -> None:
    section = section_of(drifting_run())
    assert section.findings[0].startswith("Over 72 tokens of 36 sequences the logged log-probabilities")
    assert "differ by 0.02 a token" in section.findings[0]
    assert "PPO's clip would take the gradient of 0 %" in section.findings[1]
    full, steps, worst = section.tables
    assert {row[0]: row[1] for row in full.rows}["sampler and trainer"].value == pytest.approx(0.02)
    assert [row[:2] for row in steps.rows] == [(1, 24), (2, 24), (3, 24)]
    assert all(len(row) == len(table.columns) for table in section.tables for row in table.rows)
    assert worst.rows[0][:3] == (3, 0, 0)
    assert worst.rows[0][5] == pytest.approx(math.exp(0.03))
    assert section.charts[0].series[0].values == pytest.approx((0.01, 0.02, 0.03))
    # one step has no course and long sequences disagree though their tokens do not
    section = section_of(run_of(tokens_of(scored([-1.0], [-1.5]))))
    assert section.charts == ()
    assert len(section.tables) == 2
    assert "PPO" not in section.findings[1]
    assert section.next_step.startswith("Find out which side is off")
    run = run_of(tokens_of(*(scored([-1.0] * 400, [-1.0 + sign / 110] * 400) for sign in (-1, -1, -1, 1))))
    section = section_of(run)
    assert section.next_step.startswith("Tokens agree and sequences do not")
    assert section_of(run_of(tokens_of(scored([-1.0], [-1.001])))).next_step.startswith("Nothing to do")


def test_copied_values_and_ratios_beyond_floating_point_are_no_agreement() -> None:
    section = section_of(run_of(tokens_of(scored([-1.0, -2.0], [-1.0, -2.0]))))
    assert "to the last bit at all of 2 tokens" in section.findings[0]
    assert section.next_step.startswith("To compare them")
    assert len(section.tables) == 1
    section = section_of(run_of(tokens_of(scored([-900.0], [-1.0]))))
    assert len(section.findings) == 2
    assert section.tables[0].rows[5][1].undefined == "a ratio in the log is beyond floating-point numbers"
    assert section.tables[1].rows[0][5] == pytest.approx(math.exp(700))


def test_rows_that_were_set_aside_are_counted_and_sequences_numbered() -> None:
    run = run_of(tokens_of(scored([-1.0], [-1.5]), scored([-1.0], [math.nan])), group_of([1.0, 0.0], step=4))
    assert section_of(run).findings[-1] == (
        "Rows set aside: 1 with a log-probability that is missing, NaN or infinite, "
        "2 with no log-probabilities of the sampler."
    )
    before = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,), logprobs=(-1.0,), trainer_logprobs=(-1.0,))
    section = section_of(run_of(tokens_of(scored([-1.0], [-1.5], completion_ids=(9,), earlier=(before,)))))
    worst = section.tables[1]
    assert [column.title for column in worst.columns[:4]] == ["step", "row", "sequence", "position"]
    assert worst.rows[0][:4] == (1, 0, 1, 0)


REPORT = replay_report()
RUN = run_of(group_of([1, 0]))


def test_each_step_has_its_verdicts_and_both_norms() -> None:
    section = replay_section(inputs_of(RUN, replay=REPORT))
    logged, norms = section.charts[0].series
    assert (logged.values[:2], norms.values[:2]) == ((0.52, 0.54), (0.52, None))
    steps, causes = section.tables
    assert [column.title for column in steps.columns][-3:] == ["logged grad_norm", "recomputed", "error"]
    assert steps.rows[0] == (1, None, None, "match", "match", 0.52, 0.52, 3e-7)
    assert steps.rows[1] == (2, None, None, "match", "cannot", 0.54, None, None)
    assert steps.caption == "Verdicts by step; grad_norm matches within a relative error of 1e-05"
    assert causes.rows == (
        (2, 16, "grad_norm", "cannot", "the weights before step 2 are not on disk"),
        (11, 1, "grad_norm", "mismatch", "the token ids were inferred from text"),
    )


def test_steps_that_match_need_nothing_and_the_others_a_checkpoint() -> None:
    judged = Estimate.exact(0.0, num_units=1)
    matched = replace(
        REPORT, steps=REPORT.steps[:1], verdict="match", headline="match at 1 of 1 step", frac_replay_mismatch=judged
    )
    section = replay_section(inputs_of(RUN, replay=matched))
    assert len(section.tables) == 1
    assert section.charts == ()
    assert section.findings[0] == "Replay: match at 1 of 1 step."
    assert section.next_step.startswith("Nothing to do")
    assert section.severity == "fine"
    unknown = replace(REPORT, verdict="cannot", findings=("grad_norm could not be recomputed.", "Rewards agree."))
    assert replay_section(inputs_of(RUN, replay=unknown)).findings == (" ".join(unknown.findings),)
    report = replace(REPORT, verdict="match", headline="match at 3 of 19 steps; 16 cannot")
    section = replay_section(inputs_of(RUN, replay=report))
    assert section.next_step == "Save a checkpoint before each step that matters."


@pytest.mark.parametrize(
    ("verdict", "cause", "advice"),
    [
        ("mismatch", "the token ids of 4 of 4 completions were inferred from their text", "log exact token ids"),
        ("mismatch", "the recomputed norm is 3% off: other weights, ids, masks", "check that --run-config holds"),
        ("mismatch", "the log says 0.5, its rollouts say 0.75", "look for rows that were changed"),
        ("mismatch", "an advantage differs from grpo of its group by 0.1", "check the formulation"),
        ("cannot", "the loss settings are not in the folder: --run-config", "give the trainer's arguments"),
        ("cannot", "weights are not on disk; pass them with --initial", "give the weights before the first update"),
        ("cannot", "loss_type bnpo is not known", "Read the cause of the first such step below."),
    ],
)
def test_what_to_do_follows_from_the_causes(verdict: ReplayVerdict, cause: str, advice: str) -> None:
    quantity = Quantity(name="grad_norm", verdict=verdict, cause=cause)
    steps = (replace(REPORT.steps[0], verdict=verdict, cause=cause, quantities=(quantity,)),)
    section = replay_section(inputs_of(RUN, replay=replace(REPORT, steps=steps, verdict=verdict, headline="so")))
    assert section.next_step.startswith(f"{advice[:1].upper()}{advice[1:]}")
    assert section.severity == {"mismatch": "problem", "cannot": "unknown"}[verdict]


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


def inputs_with_grams(**fields: Any) -> ReportInputs:
    run = run_with_weights()
    return inputs_of(run, grams=[orthogonal(run)], **{"degeneracy": degeneracy_of_run(run), **fields})


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
    # tokens that the report looked at are judged
    weighed = {1: made_up(num_groups=8).weighed}
    section = claims_section(inputs_with_grams(parts=TokenParts(weighed=weighed)))
    assert rows_of(section)["entropy.covariance"][2] == advantage_covariance([weighed[1].tokens])
    assert {claim.name for claim in CLAIMS} - set(rows_of(section)) == NEEDS_MORE - {"entropy.covariance"}
    # without gradients or a group to judge the table says why
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
    scored = pass_at_k_of_samples([before, after])
    section = claims_section(inputs_with_grams(passk=scored, samples=(before, after)))
    assert rows_of(section)["reach.compression"][2] == scored.comparison.rows[-1].difference
    assert section.command == "gradscope claims made-up --samples before --samples after"
    reach = rows_of(claims_section(inputs_with_grams()))["reach.compression"]
    assert str(reach[2].undefined).startswith("The run has no samples of held-out prompts")
    files = [samples(name, {"p": [1.0, 0.0], "q": [0.0, 0.0]}) for name in ("one", "two", "three")]
    reach = rows_of(claims_section(inputs_with_grams(passk=pass_at_k_of_samples(files))))["reach.compression"]
    assert str(reach[2].undefined).endswith("and there are 3")


@pytest.mark.parametrize("path", ["made-up/heldout/before.jsonl", "made-up"])
def test_samples_of_the_run_itself_need_no_option(path: str) -> None:
    heldout = samples(path, {"p": [1.0, 0.0]})
    assert claims_section(inputs_with_grams(samples=(heldout,))).command == "gradscope claims made-up"


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
