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

from gradscope.diagnostics.rank.collected import rows_and_more
from gradscope.diagnostics.rank.tokens import parts
from gradscope.diagnostics.rank.tokens import weighed as weighed_tokens
from gradscope.diagnostics.rank.tokens.weighed import by_group
from gradscope.errors import VerificationError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.plan.losses import SamplerCorrection
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens import sums as sums_module
from gradscope.gradients.tokens.sums import CountedTokens, counted_tokens
from gradscope.metrics.sampler import UNDECIDED, UNLIKELY, TokenCell
from gradscope.metrics.uncertainty.intervals import jackknife
from gradscope.results.tokens import LogprobChange
from gradscope.rollouts.run import Run, WeightsRef
from tests.diagnostics.made_up_runs import run_of
from tests.diagnostics.rank.tokens.made_up_parts import made_up
from tests.gradients.models import DAPO, changed, naive_token_rows, tiny_groups, tiny_model, tiny_policy, weight_of


def prepared_of(groups: list[Any], *, lora: bool = False, **objective: Any) -> PreparedStep:
    return prepare_step(tiny_policy("llama_untied_biases", lora=lora), groups, replace(DAPO, **objective))


def weighed_of(prepared: PreparedStep) -> weighed_tokens.WeighedTokens:
    answer = weighed_tokens.weigh_step(prepared, measure_step(prepared), in_parts=True)
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
    rollouts = [one for group in groups for one in group.rollouts]
    advantages = np.concatenate([np.full(len(one.completion_ids), one.advantage) for one in rollouts])
    plain = -weight_of(groups) * advantages
    ratio = np.exp(gathered.tokens.logprobs - np.concatenate([one.logprobs for one in rollouts]))
    uncorrected = plain @ rows
    effects = {effect.correction: effect for effect in parts.correction_effects(1, gathered)}
    for name, factors in (
        ("tis", np.minimum(ratio, 2.0)),
        ("icepop", np.where((ratio < 0.5) | (ratio > 5), 0.0, ratio)),
    ):
        own = (factors * plain) @ rows
        expected = own @ uncorrected / np.linalg.norm(own) / np.linalg.norm(uncorrected)
        assert effects[name].cosine.value == pytest.approx(expected, abs=1e-5)
        assert effects[name].norm_ratio.value == pytest.approx(
            np.linalg.norm(own) / np.linalg.norm(uncorrected), rel=1e-5
        )
    kinds = parts.token_kinds(1, gathered, [])
    negative = next(kind for kind in kinds if kind.sign == "negative" and not kind.probability)
    part = plain[advantages < 0] @ rows[advantages < 0]
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
    for share, number in zip(parts.turn_shares(1, weighed_of(prepared)), (0, 1), strict=True):
        part = advantages[turn == number] @ rows[turn == number]
        assert share.gradient_share.value == pytest.approx(part @ gradient / (gradient @ gradient), rel=1e-4)
        assert share.num_rollouts == 8


@pytest.mark.slow
def test_a_whole_step_has_one_cell_its_turns_and_its_entropy() -> None:
    groups = with_a_tool()
    prepared = prepared_of(groups)
    sums, every = weighed_tokens.weigh_step(prepared, measure_step(prepared)), weighed_of(prepared)
    assert sums.labels == (("cell", TokenCell()), ("turn", 1), ("turn", 2), ("entropy", None))
    assert sums.factors == {}
    assert [share.gradient_share.value for share in parts.turn_shares(1, sums)] == pytest.approx(
        [share.gradient_share.value for share in parts.turn_shares(1, every)]
    )
    first, other = (parts.entropy_change(1, weighed, {}) for weighed in (sums, every))
    assert first.rate.value == pytest.approx(other.rate.value, rel=1e-5)
    assert first.cosine.ends == pytest.approx(other.cosine.ends, rel=1e-4)
    no_gradient = prepared_of(changed(groups, advantage=lambda first: 0.0))
    assert weighed_tokens.weigh_step(no_gradient, measure_step(no_gradient)) is None


@pytest.mark.slow
def test_corrections_are_the_runs_own_too_and_none_beyond_single_precision() -> None:
    own = SamplerCorrection(mode="sequence_mask", low=0.1, high=9.0)
    effects = parts.correction_effects(1, weighed_of(prepared_of(off_policy(0.1), correction=own, needs_sampler=True)))
    assert [(effect.correction, effect.units) for effect in effects][-1] == ("trained", "sequences")
    usual = SamplerCorrection(mode="sequence_mask", low=None, high=3.0)
    effects = parts.correction_effects(
        1, weighed_of(prepared_of(off_policy(0.1), correction=usual, needs_sampler=True))
    )
    assert [effect.correction for effect in effects][-1] == "sequence_ratio"
    groups = changed(tiny_groups(3, 2), logprobs=lambda first: (-90.0,) * len(first.completion_ids))
    effects = {effect.correction: effect for effect in parts.correction_effects(1, weighed_of(prepared_of(groups)))}
    assert effects["token_ratio"].cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["tis"].cosine.value == pytest.approx(1.0)
    assert math.isfinite(effects["tis"].chi2.value or math.nan)


def test_tokens_far_from_the_reference_have_their_text() -> None:
    groups = tiny_groups(3, 2)
    kl = parts.token_kl(1, weighed_of(prepared_of(groups, lora=True, beta=0.1)), groups)
    rollouts = {(one.group_id, one.sample): one for group in groups for one in group.rollouts}
    for token in kl.top:
        assert token.text == f"[{rollouts[token.group_id, token.sample].completion_ids[token.position]}]"
        assert token.k1 == pytest.approx(token.logprob - token.reference)


@pytest.mark.parametrize("advantage", [None, 0.0])
def test_a_step_without_a_gradient_has_no_parts(advantage: float | None) -> None:
    prepared = prepared_of(changed(tiny_groups(2, 2), advantage=lambda first: advantage))
    for in_parts in (True, False):
        assert weighed_tokens.weigh_step(prepared, measure_step(prepared), in_parts=in_parts) is None


def test_sums_that_do_not_add_up_to_the_step_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sums_module.measure_token_sums
    monkeypatch.setattr(sums_module, "measure_token_sums", lambda *args, **options: 1.01 * right(*args, **options))
    prepared = prepared_of(tiny_groups(2, 2))
    with pytest.raises(VerificationError, match="sums of tokens disagree"):
        weighed_tokens.weigh_step(prepared, measure_step(prepared), in_parts=True)


def test_each_kind_has_the_energy_of_its_tokens_by_group() -> None:
    made = made_up()
    tokens = made.weighed.tokens
    energy = np.square(tokens.weights[:, None] * made.rows).sum(axis=1)
    np.testing.assert_allclose(weighed_tokens.token_energy(tokens, made.grams), energy)
    masks = {
        UNDECIDED: tokens.entropies >= np.quantile(tokens.entropies, 0.8),
        UNLIKELY: np.exp(tokens.logprobs) < 0.25,
    }
    for first in weighed_tokens.kind_energies(7, tokens, made.grams):
        mask = masks[first.kind] & (tokens.advantages != 0)
        np.testing.assert_allclose(first.energy, by_group(tokens, energy * mask))
        np.testing.assert_allclose(first.tokens, by_group(tokens, np.where(mask, 1.0, 0.0)))
        assert first.all_energy.sum() == pytest.approx(energy.sum())
        np.testing.assert_allclose(first.all_tokens, by_group(tokens, np.abs(tokens.advantages)))
        assert first.step == 7


def test_the_energy_needs_the_weights_of_the_step_alone() -> None:
    prepared = prepared_of(off_policy())
    gram = measure_step(prepared)
    rows, answer = rows_and_more(prepared, gram, rows=lambda *_, progress: ("rows",), more=weighed_tokens.weigh_step)
    assert (rows, list(answer.cells)) == (("rows",), [TokenCell()])
    np.testing.assert_array_equal(answer.tokens.entropies, counted_tokens(prepared, gram).entropies)


def test_shares_are_those_of_the_tables_where_tokens_were_drawn_too() -> None:
    made = made_up(most=9)
    energies = {one.kind: one for one in weighed_tokens.kind_energies(7, made.weighed.tokens, made.grams)}
    tables = [one for one in parts.token_kinds(7, made.weighed, made.grams) if one.sign is None]
    (undecided,) = [one for one in tables if one.entropy == "top_fifth"]
    (unlikely,) = [one for one in tables if one.probability is not None and one.probability[0] == 0.0]
    for kind, table in zip(weighed_tokens.KINDS, (undecided, unlikely), strict=True):
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
    positions = [(number, one) for number, group in enumerate(run.groups_at(1)) for one in group.rollouts]
    lengths = [len(one.completion_ids) for _, one in positions]
    return replace(
        made_up().weighed.tokens,
        rollouts=np.repeat(np.arange(len(positions)), lengths),
        groups=np.repeat([number for number, _ in positions], lengths),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        logprobs=-np.ones(sum(lengths)),
        advantages=np.repeat([one.advantage for _, one in positions], lengths),
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
            rows.append([[logs[at - 1, ids[0, at]].item(), entropies[at - 1].item()] for at in positions])
    return np.concatenate(rows).T


@pytest.mark.slow
def test_the_change_is_that_of_the_models_own_forward_passes(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2, 5)
    changes, missing = weighed_tokens.token_changes(run, {1: tokens_of(run)}, ON_CPU)
    logprobs, entropies = plain_outputs(run, tmp_path / "2") - plain_outputs(run, tmp_path / "0")
    assert (list(changes), changes[1].first, changes[1].last, missing) == ([1], 0, 2, {})
    assert changes[1].logprobs == pytest.approx(logprobs, abs=1e-5)
    assert changes[1].entropies == pytest.approx(entropies, abs=1e-5)


def test_without_later_weights_or_with_unreadable_ones_it_says_why(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2)
    first = replace(run, weights=run.weights[:1])
    assert weighed_tokens.token_changes(first, {1: tokens_of(run)}, ON_CPU) == (
        {},
        {1: "no weights after its update are on disk"},
    )
    changes, missing = weighed_tokens.token_changes(run, {1: tokens_of(run), 3: tokens_of(run)}, ON_CPU)
    assert (list(changes), missing) == ([1], {3: "no weights after its update are on disk"})
    (tmp_path / "2" / "model.safetensors").unlink()
    changes, missing = weighed_tokens.token_changes(run, {1: tokens_of(run)}, ON_CPU)
    assert changes == {}
    assert missing[1]


def change_of(logprobs: np.ndarray) -> weighed_tokens.TokenChange:
    return weighed_tokens.TokenChange(first=6, last=9, logprobs=logprobs, entropies=np.zeros(len(logprobs)))


def change_by_advantage(advantages: Sequence[float], groups: Sequence[int], change: Sequence[float]) -> LogprobChange:
    own = {"advantages": np.array(advantages), "groups": np.array(groups), "logprobs": -np.ones(len(groups))}
    return weighed_tokens.logprob_change(7, replace(made_up().weighed.tokens, **own), change_of(np.array(change)))


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
    plain = jackknife(float(np.mean(by_group)), [left_out], low=-9.0, high=9.0)
    assert result.difference.value == pytest.approx(np.mean(by_group))
    assert result.difference.interval is not None
    # Satterthwaite's degrees of freedom are at most Student's
    assert result.difference.high - result.difference.low >= plain.high - plain.low
    assert result.difference.num_units == 6


def test_a_sign_that_no_token_has_is_undefined_and_one_of_a_single_group_has_no_interval() -> None:
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
    result = weighed_tokens.logprob_change(7, replace(tokens, advantages=signs), change_of(change))
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
        own = made_up(seed, num_groups=6).weighed.tokens
        signs = rng.choice([-1.0, 1.0], len(own.groups))
        tokens.append(replace(own, advantages=signs))
        changes.append(change_of(5.0 * seed + slope * signs + 0.01 * rng.normal(size=len(signs))))
    alone = [weighed_tokens.logprob_change(7, own, change).matched for own, change in zip(tokens, changes, strict=True)]
    assert weighed_tokens.matched_change(tokens[:1], changes[:1]) == alone[0]
    both = weighed_tokens.matched_change(tokens, changes)
    assert alone[1].value < both.value < alone[0].value
    assert both.value == pytest.approx(0.4, abs=0.02)  # steps of like weight, whose levels are five apart
    assert both.num_units == 12
    assert both.low < both.value < both.high
