"""The whole way from a model to the parts of its gradient, against one plain backward pass a token."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.rank import measure
from gradscope.diagnostics.rank import tokens as token_parts
from gradscope.diagnostics.rank.measure import rows_and_extra
from gradscope.diagnostics.rank.tokens import TokenChange, by_group
from gradscope.errors import VerificationError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.plan.losses import SamplerCorrection
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.plan.rows import Row
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens import sums as sums_module
from gradscope.gradients.tokens.sums import CountedTokens, counted_tokens
from gradscope.metrics.sampler import UNDECIDED, UNLIKELY, TokenCell
from gradscope.metrics.uncertainty.intervals import jackknife
from gradscope.reason import Reason
from gradscope.results.rank import LogprobChange, TokenKind
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from tests.diagnostics.claims.made_up_evidence import collected_of
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.diagnostics.rank.made_up_parts import MadeUp, made_up
from tests.diagnostics.report.sections.made_up_inputs import gram_of
from tests.gradients.models import DAPO, changed, naive_token_rows, tiny_groups, tiny_model, tiny_policy, weight_of


def prepared_of(groups: list[Any], *, lora: bool = False, **objective: Any) -> PreparedStep:
    return prepare_step(tiny_policy("llama_untied_biases", lora=lora), groups, replace(DAPO, **objective))


def weighed_of(prepared: PreparedStep) -> token_parts.WeighedTokens:
    answer = token_parts.weigh_step(prepared, measure_step(prepared), in_parts=True)
    assert answer is not None
    return answer


def off_policy(size: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(1)
    return changed(
        tiny_groups(4, 3), logprobs=lambda first: tuple(rng.normal(-3.0, size, len(first.completion_ids)).tolist())
    )


@pytest.mark.slow
def test_a_step_that_another_engine_sampled() -> None:
    groups = off_policy()
    prepared = prepared_of(groups)
    gathered, rows = weighed_of(prepared), naive_token_rows(prepared.policy, groups)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    advantages = np.concatenate([np.full(len(rollout.completion_ids), rollout.advantage) for rollout in rollouts])
    weights = -weight_of(groups) * advantages
    ratio = np.exp(gathered.tokens.logprobs - np.concatenate([rollout.logprobs for rollout in rollouts]))
    uncorrected = weights @ rows
    effects = {effect.correction: effect for effect in token_parts.correction_effects(1, gathered)}
    for name, factors in (
        ("tis", np.minimum(ratio, 2.0)),
        ("icepop", np.where((ratio < 0.5) | (ratio > 5), 0.0, ratio)),
    ):
        corrected = (factors * weights) @ rows
        expected = corrected @ uncorrected / np.linalg.norm(corrected) / np.linalg.norm(uncorrected)
        assert effects[name].cosine.value == pytest.approx(expected, abs=1e-5)
        assert effects[name].norm_ratio.value == pytest.approx(
            np.linalg.norm(corrected) / np.linalg.norm(uncorrected), rel=1e-5
        )
    kinds = token_parts.token_kinds(1, gathered, [])
    negative = next(kind for kind in kinds if kind.sign == "negative" and not kind.probability)
    part = weights[advantages < 0] @ rows[advantages < 0]
    assert negative.gradient_share.value == pytest.approx(part @ uncorrected / (uncorrected @ uncorrected), rel=1e-4)


def with_a_tool() -> list[Any]:
    """Five tokens, of which the third is a tool's."""
    ids, mask = lambda first: (3, 4, 5, 6, 7 + first.sample), lambda first: (True, True, False, True, True)
    return changed(tiny_groups(4, 2), completion_ids=ids, mask=mask)


@pytest.mark.slow
def test_turns_are_split_and_a_tools_tokens_have_no_part() -> None:
    groups = with_a_tool()
    prepared = prepared_of(groups)
    rows = naive_token_rows(prepared.policy, groups)
    turn = np.tile([0, 0, -1, 1, 1], 8)
    advantages = np.repeat([first.advantage for group in groups for first in group.rollouts], 5)
    gradient = advantages[turn >= 0] @ rows[turn >= 0]
    for share, number in zip(token_parts.turn_shares(1, weighed_of(prepared)), (0, 1), strict=True):
        part = advantages[turn == number] @ rows[turn == number]
        assert share.gradient_share.value == pytest.approx(part @ gradient / (gradient @ gradient), rel=1e-4)
        assert share.num_rollouts == 8


@pytest.mark.slow
def test_a_whole_step_has_one_cell_its_turns_and_its_entropy() -> None:
    groups = with_a_tool()
    prepared = prepared_of(groups)
    sums, parts = token_parts.weigh_step(prepared, measure_step(prepared)), weighed_of(prepared)
    assert sums.labels == (("cell", TokenCell()), ("turn", 1), ("turn", 2), ("entropy", None))
    assert sums.factors == {}
    assert [share.gradient_share.value for share in token_parts.turn_shares(1, sums)] == pytest.approx(
        [share.gradient_share.value for share in token_parts.turn_shares(1, parts)]
    )
    first, other = (token_parts.entropy_change(1, weighed, {}) for weighed in (sums, parts))
    assert first.rate.value == pytest.approx(other.rate.value, rel=1e-5)
    assert first.cosine.ends == pytest.approx(other.cosine.ends, rel=1e-4)
    no_gradient = prepared_of(changed(groups, advantage=lambda first: 0.0))
    assert token_parts.weigh_step(no_gradient, measure_step(no_gradient)) is None


@pytest.mark.slow
def test_corrections_are_the_runs_own_too_and_none_beyond_single_precision() -> None:
    trained = SamplerCorrection(mode="sequence_mask", low=0.1, high=9.0)
    effects = token_parts.correction_effects(
        1, weighed_of(prepared_of(off_policy(0.1), correction=trained, needs_sampler=True))
    )
    assert [(row.correction, row.units) for row in effects][-1] == ("trained", "sequences")
    usual = SamplerCorrection(mode="sequence_mask", low=None, high=3.0)
    effects = token_parts.correction_effects(
        1, weighed_of(prepared_of(off_policy(0.1), correction=usual, needs_sampler=True))
    )
    assert [row.correction for row in effects][-1] == "sequence_ratio"
    groups = changed(tiny_groups(3, 2), logprobs=lambda first: (-90.0,) * len(first.completion_ids))
    effects = {row.correction: row for row in token_parts.correction_effects(1, weighed_of(prepared_of(groups)))}
    assert effects["token_ratio"].cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["tis"].cosine.value == pytest.approx(1.0)
    assert math.isfinite(effects["tis"].chi2.value or math.nan)


def test_tokens_far_from_the_reference_have_their_text() -> None:
    groups = tiny_groups(3, 2)
    kl = token_parts.token_kl(1, weighed_of(prepared_of(groups, lora=True, beta=0.1)), groups)
    rollouts = {(rollout.group_id, rollout.sample): rollout for group in groups for rollout in group.rollouts}
    for token in kl.top:
        assert token.text == f"[{rollouts[token.group_id, token.sample].completion_ids[token.position]}]"
        assert token.k1 == pytest.approx(token.logprob - token.reference)


@pytest.mark.parametrize("advantage", [None, 0.0])
def test_a_step_without_a_gradient_has_no_parts(advantage: float | None) -> None:
    prepared = prepared_of(changed(tiny_groups(2, 2), advantage=lambda first: advantage))
    for in_parts in (True, False):
        assert token_parts.weigh_step(prepared, measure_step(prepared), in_parts=in_parts) is None


def test_sums_that_do_not_add_up_to_the_step_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sums_module.measure_token_sums
    monkeypatch.setattr(sums_module, "measure_token_sums", lambda *args, **options: 1.01 * right(*args, **options))
    prepared = prepared_of(tiny_groups(2, 2))
    with pytest.raises(VerificationError, match="sums of tokens disagree"):
        token_parts.weigh_step(prepared, measure_step(prepared), in_parts=True)


def test_each_kind_has_the_energy_of_its_tokens_by_group() -> None:
    made = made_up()
    tokens = made.weighed.tokens
    energy = np.square(tokens.weights[:, None] * made.rows).sum(axis=1)
    np.testing.assert_allclose(token_parts.token_energy(tokens, made.grams), energy)
    masks = {
        UNDECIDED: tokens.entropies >= np.quantile(tokens.entropies, 0.8),
        UNLIKELY: np.exp(tokens.logprobs) < 0.25,
    }
    for first in token_parts.kind_energies(7, tokens, made.grams):
        mask = masks[first.kind] & (tokens.advantages != 0)
        np.testing.assert_allclose(first.energy, by_group(tokens, energy * mask))
        np.testing.assert_allclose(first.tokens, by_group(tokens, np.where(mask, 1.0, 0.0)))
        assert first.all_energy.sum() == pytest.approx(energy.sum())
        np.testing.assert_allclose(first.all_tokens, by_group(tokens, np.abs(tokens.advantages)))
        assert first.step == 7


def test_the_energy_needs_the_weights_of_the_step_alone() -> None:
    prepared = prepared_of(off_policy())
    gram = measure_step(prepared)
    rows, answer = rows_and_extra(prepared, gram, rows=lambda *_, progress: ("rows",), extra=token_parts.weigh_step)
    assert (rows, list(answer.cells)) == (("rows",), [TokenCell()])
    np.testing.assert_array_equal(answer.tokens.entropies, counted_tokens(prepared, gram).entropies)


def test_shares_are_those_of_the_tables_where_tokens_were_drawn_too() -> None:
    made = made_up(max_rows=9)
    energies = {row.kind: row for row in token_parts.kind_energies(7, made.weighed.tokens, made.grams)}
    tables = [row for row in token_parts.token_kinds(7, made.weighed, made.grams) if row.sign is None]
    (undecided,) = [row for row in tables if row.entropy == "top_fifth"]
    (unlikely,) = [row for row in tables if row.probability is not None and row.probability[0] == 0.0]
    for kind, table in zip(token_parts.KINDS, (undecided, unlikely), strict=True):
        share = energies[kind].energy.sum() / energies[kind].all_energy.sum()
        assert share == pytest.approx(table.energy_share.value)
        assert energies[kind].tokens.sum() / energies[kind].all_tokens.sum() == pytest.approx(table.frac_tokens.value)


ON_CPU = EngineOptions(device="cpu")
TEMPERATURE = 0.7


def run_on(folder: Path, *updates: int) -> Run:
    """Four groups of three at step 1, and weights that move."""
    weights = []
    for count in updates:
        model = tiny_model("llama_untied_biases")
        torch.manual_seed(count)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * count * torch.randn_like(parameter))
        model.save_pretrained(folder / str(count))
        weights.append(WeightsRef(num_updates=count, path=folder / str(count), kind="full"))
    run = run_of(*tiny_groups(4, 3), settings={"loss_type": "dapo", "temperature": TEMPERATURE})
    return replace(run, weights=tuple(weights))


def tokens_of(run: Run) -> CountedTokens:
    """All tokens, in the order of the log; of each only what the change looks at."""
    positions = [(number, rollout) for number, group in enumerate(run.groups_at(1)) for rollout in group.rollouts]
    lengths = [len(rollout.completion_ids) for _, rollout in positions]
    return replace(
        made_up().weighed.tokens,
        rollouts=np.repeat(np.arange(len(positions)), lengths),
        groups=np.repeat([number for number, _ in positions], lengths),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        logprobs=-np.ones(sum(lengths)),
        advantages=np.repeat([rollout.advantage for _, rollout in positions], lengths),
    )


def plain_outputs(run: Run, folder: Path) -> np.ndarray:
    """Log-probabilities and entropies of all completion tokens, [2, N]."""
    model = AutoModelForCausalLM.from_pretrained(folder).double()
    rows = []
    for group in run.groups_at(1):
        for first in group.rollouts:
            ids = torch.tensor([[*first.prompt_ids, *first.completion_ids]])
            logs = torch.log_softmax(model(input_ids=ids).logits[0] / TEMPERATURE, dim=-1)
            positions = range(len(first.prompt_ids), ids.shape[1])
            entropies = -(logs.exp() * logs).sum(dim=-1)
            rows.append([[logs[i - 1, ids[0, i]].item(), entropies[i - 1].item()] for i in positions])
    return np.concatenate(rows).T


@pytest.mark.slow
def test_the_change_is_that_of_the_models_own_forward_passes(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2, 5)
    changes, missing = token_parts.token_changes(run, {1: tokens_of(run)}, ON_CPU)
    logprobs, entropies = plain_outputs(run, tmp_path / "2") - plain_outputs(run, tmp_path / "0")
    assert (list(changes), changes[1].first, changes[1].last, missing) == ([1], 0, 2, {})
    assert changes[1].logprobs == pytest.approx(logprobs, abs=1e-5)
    assert changes[1].entropies == pytest.approx(entropies, abs=1e-5)


def test_without_later_weights_or_with_unreadable_ones_it_says_why(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2)
    first = replace(run, weights=run.weights[:1])
    assert token_parts.token_changes(first, {1: tokens_of(run)}, ON_CPU) == (
        {},
        {1: "no weights after its update are on disk"},
    )
    changes, missing = token_parts.token_changes(run, {1: tokens_of(run), 3: tokens_of(run)}, ON_CPU)
    assert (list(changes), missing) == ([1], {3: "no weights after its update are on disk"})
    (tmp_path / "2" / "model.safetensors").unlink()
    changes, missing = token_parts.token_changes(run, {1: tokens_of(run)}, ON_CPU)
    assert changes == {}
    assert missing[1]


def change_of(logprobs: np.ndarray) -> token_parts.TokenChange:
    return token_parts.TokenChange(first=6, last=9, logprobs=logprobs, entropies=np.zeros(len(logprobs)))


def change_by_advantage(advantages: Sequence[float], groups: Sequence[int], change: Sequence[float]) -> LogprobChange:
    fields = {"advantages": np.array(advantages), "groups": np.array(groups), "logprobs": -np.ones(len(groups))}
    return token_parts.logprob_change(7, replace(made_up().weighed.tokens, **fields), change_of(np.array(change)))


def test_means_are_of_tokens_and_intervals_of_groups() -> None:
    rng = np.random.default_rng(0)
    groups, signs = np.repeat(np.arange(6), 8), np.tile([1.0, 1.0, -1.0, 0.0], 12)
    change = rng.normal(size=48) + 0.5 * signs
    result = change_by_advantage(signs, groups, change)
    for name, sign in (("positive", 1), ("negative", -1), ("neither", 0)):
        assert getattr(result, name).value == pytest.approx(change[signs == sign].mean())
    by_group = [
        change[(groups == g) & (signs > 0)].mean() - change[(groups == g) & (signs < 0)].mean() for g in range(6)
    ]
    # as many tokens of a sign in each group: a mean of groups
    left_out = (np.sum(by_group) - np.array(by_group)) / 5
    expected = jackknife(float(np.mean(by_group)), [left_out], low=-9.0, high=9.0)
    assert result.difference.value == pytest.approx(np.mean(by_group))
    assert result.difference.interval is not None
    # Satterthwaite's degrees of freedom are at most Student's
    assert result.difference.high - result.difference.low >= expected.high - expected.low
    assert result.difference.num_units == 6
    # a sign that no token has is undefined and one of a single group has no interval
    change = change_by_advantage([1.0, 1.0, 2.0, -1.0], [0, 1, 2, 2], [0.5, 1.0, 1.5, -1.0])
    assert change.neither.undefined == "no token of the step has such an advantage"
    assert change.positive.value == pytest.approx(1.0)
    assert change.positive.interval is not None
    assert (change.negative.value, change.negative.interval) == (-1.0, None)
    assert (change.difference.value, change.difference.interval) == (2.0, None)


def test_tokens_of_like_probability_are_compared_as_least_squares_with_a_constant_a_bin_does() -> None:
    rng = np.random.default_rng(4)
    tokens = made_up(num_groups=5).weighed.tokens
    signs = rng.choice([-1.0, 0.0, 1.0], len(tokens.groups), p=[0.3, 0.2, 0.5])
    change = tokens.logprobs + 0.25 * signs + 0.1 * rng.normal(size=len(signs))
    result = token_parts.logprob_change(7, replace(tokens, advantages=signs), change_of(change))
    seen = signs != 0
    likely = tokens.logprobs[seen]
    bins = np.eye(10)[np.digitize(likely, np.quantile(likely, np.linspace(0.1, 0.9, 9)))]
    columns = np.column_stack([signs[seen] > 0, bins]).astype(float)
    slope = np.linalg.lstsq(columns, change[seen], rcond=None)[0][0]
    assert result.matched.value == pytest.approx(slope)
    assert result.matched.low < slope < result.matched.high


def test_tokens_of_several_steps_are_compared_within_each_step() -> None:
    rng = np.random.default_rng(3)
    tokens, changes = [], []
    for seed, slope in ((0, 0.3), (1, 0.1)):
        counted = made_up(seed, num_groups=6).weighed.tokens
        signs = rng.choice([-1.0, 1.0], len(counted.groups))
        tokens.append(replace(counted, advantages=signs))
        changes.append(change_of(5.0 * seed + slope * signs + 0.01 * rng.normal(size=len(signs))))
    by_step = [token_parts.logprob_change(7, row, change).matched for row, change in zip(tokens, changes, strict=True)]
    assert token_parts.matched_change(tokens[:1], changes[:1]) == by_step[0]
    pooled = token_parts.matched_change(tokens, changes)
    assert by_step[1].value < pooled.value < by_step[0].value
    assert pooled.value == pytest.approx(0.4, abs=0.02)  # steps of like weight, whose levels are five apart
    assert pooled.num_units == 12
    assert pooled.low < pooled.value < pooled.high


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def replaced(gram: Any, **parts: Any) -> Any:
    return type(gram)(**{**vars(gram), **parts})


def tokens_in(kind: TokenKind, made: MadeUp) -> np.ndarray:
    """Which tokens a kind holds, by its own words."""
    tokens = made.weighed.tokens
    probability, top = np.exp(tokens.logprobs), tokens.entropies >= np.quantile(tokens.entropies, 0.8)
    mask = tokens.advantages != 0
    if kind.sign:
        mask = mask & ((tokens.advantages > 0) == (kind.sign == "positive"))
    if kind.probability:
        mask = mask & (probability >= kind.probability[0]) & (probability < kind.probability[1])
    return mask & (top == (kind.entropy == "top_fifth")) if kind.entropy else mask


def test_each_kind_has_the_parts_of_its_tokens() -> None:
    made = made_up()
    kinds, tokens = token_parts.token_kinds(7, made.weighed, made.grams), made.weighed.tokens
    rows = tokens.weights[:, None] * made.rows
    full, energy = rows.sum(axis=0), np.square(rows).sum(axis=1)
    for kind in kinds:
        mask = tokens_in(kind, made)
        part = rows[mask].sum(axis=0)
        assert kind.num_tokens == mask.sum()
        assert kind.frac_tokens.value == pytest.approx(mask.sum() / np.count_nonzero(tokens.advantages))
        assert kind.energy_share.value == pytest.approx(energy[mask].sum() / energy.sum())
        assert kind.gradient_share.value == pytest.approx(part @ full / (full @ full))
        assert kind.cosine.value == pytest.approx(cosine(part, full))
    drawn = made_up(max_rows=9)  # of each group the first nine stand for the others
    seen = np.concatenate([np.flatnonzero(tokens.groups == group)[:9] for group in range(4)])
    (first, *_) = token_parts.token_kinds(7, drawn.weighed, drawn.grams)
    in_both = np.intersect1d(np.flatnonzero(tokens_in(first, drawn)), seen)
    assert first.energy_share.value == pytest.approx(energy[in_both].sum() / energy[seen].sum())
    by_entropy = [kind for kind in kinds if kind.entropy and not kind.sign]
    assert sum(kind.gradient_share.value for kind in by_entropy) == pytest.approx(1.0)
    assert len([kind for kind in kinds if kind.sign and kind.probability and kind.entropy]) == len(made.weighed.cells)


def test_turns_add_up_and_late_ones_are_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_up(num_turns=3)
    turns, rows = token_parts.turn_shares(7, made.weighed), made.weighed.tokens.weights[:, None] * made.rows
    assert [(turn.turn, turn.and_later, turn.num_rollouts) for turn in turns] == [(n, False, 12) for n in (1, 2, 3)]
    full = rows.sum(axis=0)
    for turn in turns:
        part = rows[made.weighed.tokens.turns == turn.turn - 1].sum(axis=0)
        assert turn.gradient_share.value == pytest.approx(part @ full / (full @ full))
        assert turn.cosine.value == pytest.approx(cosine(part, full))
    assert [turn.frac_tokens.value for turn in turns] == pytest.approx([1 / 6, 1 / 6, 4 / 6])
    assert token_parts.turn_shares(7, made_up().weighed) == []
    monkeypatch.setattr("gradscope.diagnostics.rank.tokens.MAX_TURNS", 2)
    turns = token_parts.turn_shares(7, made_up(num_turns=4).weighed)
    assert [(turn.turn, turn.and_later) for turn in turns] == [(1, False), (2, True)]
    assert sum(turn.frac_tokens.value for turn in turns) == pytest.approx(1.0)


def test_the_entropy_moves_with_the_inner_product_of_its_gradient_and_the_update() -> None:
    made = made_up()
    tokens = made.weighed.tokens
    update = -(tokens.weights @ made.rows)
    climb = made.climbs.mean(axis=0)
    change = token_parts.entropy_change(7, made.weighed, {7: 0.5, 8: 0.25})
    assert change.rate.value == pytest.approx(climb @ update)
    assert change.cosine.value == pytest.approx(cosine(climb, update))
    assert change.entropy.value == pytest.approx(tokens.entropies.mean())
    assert change.covariance.value == pytest.approx(np.cov(tokens.logprobs, tokens.advantages, bias=True)[0, 1])
    assert (change.logged, change.logged_next) == (0.5, 0.25)
    assert token_parts.entropy_change(9, made.weighed, {}).logged is None


def test_tokens_of_several_steps_vary_about_the_means_of_their_own_step() -> None:
    made = [made_up(seed, num_groups=4 + seed) for seed in range(2)]
    tokens = [step.weighed.tokens for step in made]
    gaps = [(step.logprobs - step.logprobs.mean()) * (step.advantages - step.advantages.mean()) for step in tokens]
    covariance = token_parts.advantage_covariance(tokens)
    assert covariance.value == pytest.approx(np.concatenate(gaps).mean())
    moved = [replace(step, advantages=step.advantages + shift) for step, shift in zip(tokens, (3, -5), strict=True)]
    assert token_parts.advantage_covariance(moved).ends == pytest.approx(covariance.ends)


def test_the_tokens_furthest_from_the_reference_come_first() -> None:
    made = made_up()
    tokens = made.weighed.tokens
    groups = [group_of([0.0] * 3, prompt=f"p{number}") for number in range(4)]
    distance = token_parts.token_kl(7, made.weighed, groups)
    ratio = np.exp(tokens.reference - tokens.logprobs)
    k3 = ratio - 1 - np.log(ratio)
    assert distance.k1.value == pytest.approx(-np.log(ratio).mean())
    assert distance.k3.value == pytest.approx(k3.mean())
    order = np.argsort(-k3)
    assert distance.top_share.value == pytest.approx(k3[order[0]] / k3.sum())
    assert [token.k3 for token in distance.top] == pytest.approx(k3[order[:10]].tolist())
    assert distance.top[0].text == f"t{order[0]}"
    first = int(tokens.rollouts[order[0]])
    assert (distance.top[0].group_id, distance.top[0].sample) == (groups[first // 3].group_id, first % 3)
    same = replace(tokens, reference=tokens.logprobs + 1e-7)
    kl = token_parts.token_kl(7, replace(made.weighed, tokens=same, texts=dict.fromkeys(range(72), "t")), groups)
    assert kl.top_share.undefined == "the policy is the reference but for rounding"


GROUPS = tuple(group_of([0.0] * 3, step=7, prompt=f"p{number}") for number in range(4))
STEP = MeasuredStep(step=7, groups=GROUPS, weights=None, gram=None, reason=None)


def test_a_step_adds_its_parts_and_hands_on_its_rows() -> None:
    made, gathered = made_up(num_turns=2), collected_of()
    run = replace(run_of(*GROUPS), metrics={7: {"entropy": 0.5}, 8: {"entropy": 0.4}})
    handed = gathered.take_parts(run, replace(STEP, answer=(tuple(made.grams), made.weighed)), "token")
    assert handed.answer == tuple(made.grams)
    report = gathered.report
    assert {row.step for table in (report.corrections, report.token_kinds, report.turns) for row in table} == {7}
    (change,) = report.entropy_changes
    assert (change.logged, change.logged_next) == (0.5, None)  # step 8 has no rollouts here
    assert len(report.token_kl) == 1
    assert report.missing_parts == {}


def test_what_a_step_lacks_is_missing_with_its_reason() -> None:
    made, gathered = made_up(sampler=False), collected_of()
    no_reference = replace(made.weighed, tokens=replace(made.weighed.tokens, reference=None))
    gathered.take_parts(run_of(*GROUPS), replace(STEP, answer=((), no_reference)), "token")
    assert set(gathered.missing_parts) == {"corrections", "turns", "kl"}
    assert "step 7: the log does not have the sampler's log-probability" in gathered.missing_parts["corrections"]
    assert gathered.report.entropy_changes[0].logged is None
    assert token_parts.correction_effects(7, made.weighed) == []
    gathered = collected_of()
    assert gathered.take_parts(run_of(*GROUPS), replace(STEP, answer=(("rows",), None)), "token").answer == ("rows",)
    assert set(gathered.missing_parts) == {"corrections", "turns", "kl", "energy", "entropy", "logprobs"}
    refused = replace(STEP, reason=Reason("unusable", "no weights"))
    assert collected_of().take_parts(run_of(*GROUPS), refused, "token") is refused


def test_later_weights_add_what_became_of_the_tokens_to_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    made, gathered = made_up(num_turns=2), collected_of()
    gathered.take_parts(run_of(*GROUPS), replace(STEP, answer=(tuple(made.grams), made.weighed)), "token")
    gathered.look_later(run_of(*GROUPS), EngineOptions(device="cpu"))
    assert gathered.report.logprob_changes == ()
    assert gathered.missing_parts == {"logprobs": "step 7: no weights after its update are on disk"}
    assert gathered.tokens == {}
    made, gathered = made_up(), collected_of()
    gathered.take_parts(run_of(*GROUPS), replace(STEP, answer=(tuple(made.grams), made.weighed)), "token")
    unit = np.ones(len(made.weighed.tokens.groups))
    later = TokenChange(first=6, last=9, logprobs=0.5 * unit, entropies=-0.25 * unit)
    monkeypatch.setattr(measure, "token_changes", lambda run, tokens, options: ({7: later}, {}))
    gathered.look_later(run_of(*GROUPS), EngineOptions())
    assert [(row.step, row.last) for row in gathered.report.logprob_changes] == [(7, 9)]
    assert [(row.last, row.measured.value) for row in gathered.report.entropy_changes] == [(9, -0.25)]


def test_each_correction_is_the_sum_of_its_rows() -> None:
    made = made_up(scale=0.8)
    tokens = made.weighed.tokens
    ratio = np.exp(tokens.logprobs - tokens.sampler)
    full = np.repeat(ratio.reshape(-1, 6).prod(axis=1), 6)
    factors = {
        "none": np.ones(len(ratio)),
        "token_ratio": ratio,
        "tis": np.minimum(ratio, 2),
        "icepop": ratio * (ratio >= 0.5) * (ratio <= 5),
        "mis": ratio * (ratio >= 0.5) * (ratio <= 2),
        "token_mask": ratio * (ratio <= 3),
        "sequence_truncate": np.minimum(full, 3),
        "sequence_mask": full * (full <= 3),
        "geometric_mask": full ** (1 / 6) * (abs(np.log(full)) / 6 <= np.log(1.001)),
        "sequence_ratio": full,
    }
    uncorrected, unbiased = tokens.on_policy_weights @ made.rows, (full * tokens.on_policy_weights) @ made.rows
    effects = token_parts.correction_effects(7, made.weighed)
    assert [effect.correction for effect in effects] == list(factors)
    for effect in effects:
        weighed = (factors[effect.correction] * tokens.on_policy_weights) @ made.rows
        sums = {"own": weighed, "plain": uncorrected, "unbiased": unbiased}
        lengths = {name: np.linalg.norm(vector) for name, vector in sums.items()}
        assert effect.norm_ratio.value == pytest.approx(lengths["own"] / lengths["plain"])
        if not weighed.any():  # no geometric mean is within one in a thousand
            assert (effect.correction, effect.kept.value) == ("geometric_mask", 0.0)
            assert effect.cosine.undefined
            continue
        assert effect.cosine.value == pytest.approx(weighed @ uncorrected / lengths["own"] / lengths["plain"])
        assert effect.unbiased_cosine.value == pytest.approx(weighed @ unbiased / lengths["own"] / lengths["unbiased"])
        f = factors[effect.correction][:: 6 if effect.units == "sequences" else 1]
        assert effect.kept.value == pytest.approx((f > 0).mean())
        assert effect.ess.value == pytest.approx(f.sum() ** 2 / len(f) / (f**2).sum())
        assert effect.chi2.value == pytest.approx((f**2).mean() - 1)
    by_sequence = ["sequence_truncate", "sequence_mask", "geometric_mask", "sequence_ratio"]
    assert [effect.correction for effect in effects if effect.units == "sequences"] == by_sequence


def test_a_ratio_that_is_too_large_is_a_reason() -> None:
    result = made_up().weighed
    left = [index for index, label in enumerate(result.labels) if label != ("correction", "sequence_ratio")]
    cut = replace(result, labels=tuple(result.labels[i] for i in left), products=result.products[:, left][:, :, left])
    effects = {row.correction: row for row in token_parts.correction_effects(7, cut)}
    assert effects["sequence_ratio"].cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["tis"].unbiased_cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["tis"].cosine.is_defined
    run, gram = made()
    far = (np.full(2, 98.0), *gram.logprobs[1:])
    effects = {row.correction: row for row in token_parts.sequence_corrections(run, replaced(gram, logprobs=far))}
    assert effects["sequence_ratio"].cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["sequence_truncate"].cosine.is_defined


GAPS = np.array([[0.1, 0.2], [-0.4, 0.0], [0.9, 0.5], [0.0, 0.3], [-0.2, -0.1], [0.6, 0.1], [0.0, 0.0], [-1.0, 0.4]])
"""Of two tokens of eight rollouts: log-probability by the weights minus the sampler's."""
ROWS = np.random.default_rng(3).normal(size=(8, 5))


def made(**fields: Any) -> tuple[Run, Any]:
    groups = []
    for index, prompt in enumerate("abcd"):
        logprobs = [tuple((-2.0 - gaps).tolist()) for gaps in GAPS[2 * index : 2 * index + 2]]
        groups.append(with_fields(group_of([0.0, 1.0], prompt=prompt), logprobs=logprobs, **fields))
    gram = gram_of(
        ROWS.tolist(), [group.group_id for group in groups for _ in group.rollouts], logprobs=(np.full(2, -2.0),) * 8
    )
    return run_of(*groups), gram


def test_each_sequence_correction_is_the_sum_of_its_rows() -> None:
    full = np.exp(GAPS.sum(axis=1))
    factors = {
        "none": np.ones(8),
        "sequence_truncate": np.minimum(full, 3),
        "sequence_mask": full * (full <= 3),
        "geometric_mask": full**0.5 * (abs(np.log(full)) / 2 <= np.log(1.001)),
        "sequence_ratio": full,
    }
    effects = token_parts.sequence_corrections(*made())
    assert [effect.correction for effect in effects] == list(factors)
    uncorrected, unbiased = ROWS.sum(axis=0), full @ ROWS
    for effect in effects:
        f = factors[effect.correction]
        corrected = f @ ROWS
        assert effect.units == "sequences"
        assert effect.norm_ratio.value == pytest.approx(np.linalg.norm(corrected) / np.linalg.norm(uncorrected))
        for cosine, other in ((effect.cosine, uncorrected), (effect.unbiased_cosine, unbiased)):
            assert cosine.value == pytest.approx(corrected @ other / np.linalg.norm(corrected) / np.linalg.norm(other))
        assert effect.kept.value == pytest.approx((f > 0).mean())
        assert effect.ess.value == pytest.approx(f.sum() ** 2 / 8 / (f**2).sum())
    assert effects[-1].cosine.low is not None
    assert effects[-1].cosine.num_units == 4
    # tokens that do not count and numbers that are none are on policy
    run, gram = made(mask=(True, False))
    ratio = token_parts.sequence_corrections(run, gram)[-1]
    first = np.exp(GAPS[:, 0])
    assert ratio.ess.value == pytest.approx(first.sum() ** 2 / 8 / (first**2).sum())
    run, gram = made()
    broken = with_fields(run.groups[0], logprobs=(float("nan"),) * 2)
    full = np.exp(np.where(np.arange(8) < 2, 0.0, GAPS.sum(axis=1)))
    ratio = token_parts.sequence_corrections(run_of(broken, *run.groups[1:]), gram)[-1]
    assert ratio.ess.value == pytest.approx(full.sum() ** 2 / 8 / (full**2).sum())


def test_without_what_it_takes_there_is_none() -> None:
    run, gram = made()
    first, *rest = run.groups
    assert token_parts.sequence_corrections(run_of(with_fields(first, logprobs=None), *rest), gram) == ()
    assert token_parts.sequence_corrections(run, replaced(gram, policy_gram=None)) == ()
    assert token_parts.sequence_corrections(run, replaced(gram, policy_gram=np.zeros((8, 8)))) == ()
    vllm = TrainerSettings(values={"use_vllm": True}, origin="args.json")
    assert token_parts.sequence_corrections(replace(run, settings=vllm), gram) == ()
    script = replace(run, source=replace(run.source, format="generic"))
    for channel, number in (("score", 5), ("logged", 0)):
        weighed = replaced(gram, rows=(Row(sequence=0, channel=channel),))
        assert len(token_parts.sequence_corrections(script, weighed)) == number
