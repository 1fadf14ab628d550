"""What became of a step's tokens between two checkpoints, against transformers' own forward pass."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gradscope.diagnostics.rank.tokens.changes import TokenChange, follow, logprob_change, matched_change, token_changes
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.tokens.sums import CountedTokens
from gradscope.metrics.uncertainty.intervals import jackknife
from gradscope.results.tokens import LogprobChange
from gradscope.rollouts.run import Run, WeightsRef
from tests.diagnostics.made_up_runs import run_of
from tests.diagnostics.rank.tokens.made_up_parts import made_up
from tests.gradients.models import tiny_groups, tiny_model

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
    return dataclasses.replace(run, weights=tuple(weights))


def tokens_of(run: Run) -> CountedTokens:
    """All tokens, in the order of the log; of each only what the change looks at."""
    places = [(number, one) for number, group in enumerate(run.groups_at(1)) for one in group.rollouts]
    lengths = [len(one.completion_ids) for _, one in places]
    return dataclasses.replace(
        made_up().found.tokens,
        rollouts=np.repeat(np.arange(len(places)), lengths),
        groups=np.repeat([number for number, _ in places], lengths),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        logprobs=-np.ones(sum(lengths)),
        advantages=np.repeat([one.advantage for _, one in places], lengths),
    )


def plain_outputs(run: Run, folder: Path) -> np.ndarray:
    """Log-probabilities and entropies of all completion tokens, [2, N]."""
    model = AutoModelForCausalLM.from_pretrained(folder).double()
    rows = []
    for group in run.groups_at(1):
        for one in group.rollouts:
            ids = torch.tensor([[*one.prompt_ids, *one.completion_ids]])
            logs = torch.log_softmax(model(input_ids=ids).logits[0] / TEMPERATURE, dim=-1)
            places = range(len(one.prompt_ids), ids.shape[1])
            entropies = -(logs.exp() * logs).sum(dim=-1)
            rows.append([[logs[at - 1, ids[0, at]].item(), entropies[at - 1].item()] for at in places])
    return np.concatenate(rows).T


def test_the_change_is_that_of_the_models_own_forward_passes(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2, 5)
    tokens = tokens_of(run)
    found, missing = token_changes(run, {1: tokens}, ON_CPU)
    logprobs, entropies = plain_outputs(run, tmp_path / "2") - plain_outputs(run, tmp_path / "0")
    assert (list(found), found[1].first, found[1].last, missing) == ([1], 0, 2, {})
    assert found[1].logprobs == pytest.approx(logprobs, abs=1e-5)
    assert found[1].entropies == pytest.approx(entropies, abs=1e-5)


def test_without_later_weights_or_with_unreadable_ones_it_says_why(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2)
    first = dataclasses.replace(run, weights=run.weights[:1])
    assert token_changes(first, {1: tokens_of(run)}, ON_CPU) == ({}, {1: "no weights after its update are on disk"})
    (tmp_path / "2" / "model.safetensors").unlink()
    found, missing = token_changes(run, {1: tokens_of(run)}, ON_CPU)
    assert found == {}
    assert missing[1]


def test_tokens_are_followed_as_far_as_there_are_weights(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2)
    weighed = dataclasses.replace(made_up().found, tokens=tokens_of(run))
    found = follow(run, {1: weighed, 3: weighed}, ON_CPU)
    assert found.weighed == {1: weighed, 3: weighed}
    assert (list(found.changes), found.missing) == ([1], {3: "no weights after its update are on disk"})


def change_of(logprobs: np.ndarray) -> TokenChange:
    return TokenChange(first=6, last=9, logprobs=logprobs, entropies=np.zeros(len(logprobs)))


def changed(advantages: list[float], groups: list[int], change: list[float]) -> LogprobChange:
    tokens = dataclasses.replace(
        made_up().found.tokens,
        advantages=np.array(advantages),
        groups=np.array(groups),
        logprobs=-np.ones(len(groups)),
    )
    return logprob_change(7, tokens, change_of(np.array(change)))


def test_means_are_of_tokens_and_intervals_of_groups() -> None:
    rng = np.random.default_rng(0)
    groups, signs = np.repeat(np.arange(6), 8), np.tile([1.0, 1.0, -1.0, 0.0], 12)
    change = rng.normal(size=48) + 0.5 * signs
    found = changed(signs.tolist(), groups.tolist(), change.tolist())
    for name, sign in (("positive", 1), ("negative", -1), ("neither", 0)):
        assert getattr(found, name).value == pytest.approx(change[signs == sign].mean())
    by_group = [
        change[(groups == g) & (signs > 0)].mean() - change[(groups == g) & (signs < 0)].mean() for g in range(6)
    ]
    # as many tokens of a sign in each group: a mean of groups
    left_out = (np.sum(by_group) - np.array(by_group)) / 5
    plain = jackknife(float(np.mean(by_group)), [left_out], low=-9.0, high=9.0)
    assert found.difference.value == pytest.approx(np.mean(by_group))
    assert found.difference.interval is not None
    # Satterthwaite's degrees of freedom are at most Student's
    assert found.difference.high - found.difference.low >= plain.high - plain.low
    assert found.difference.num_units == 6


def test_a_sign_that_no_token_has_is_undefined_and_one_of_a_single_group_has_no_interval() -> None:
    found = changed([1.0, 1.0, 2.0, -1.0], [0, 1, 2, 2], [0.5, 1.0, 1.5, -1.0])
    assert found.neither.undefined == "no token of the step has such an advantage"
    assert found.positive.value == pytest.approx(1.0)
    assert found.positive.interval is not None
    assert (found.negative.value, found.negative.interval) == (-1.0, None)
    assert (found.difference.value, found.difference.interval) == (2.0, None)


def test_tokens_of_like_probability_are_compared_as_least_squares_with_a_constant_a_bin_does() -> None:
    rng = np.random.default_rng(4)
    tokens = made_up(num_groups=5).found.tokens
    signs = rng.choice([-1.0, 0.0, 1.0], len(tokens.groups), p=[0.3, 0.2, 0.5])
    change = tokens.logprobs + 0.25 * signs + 0.1 * rng.normal(size=len(signs))
    found = logprob_change(7, dataclasses.replace(tokens, advantages=signs), change_of(change))
    seen = signs != 0
    likely = tokens.logprobs[seen]
    bins = np.eye(10)[np.digitize(likely, np.quantile(likely, np.linspace(0.1, 0.9, 9)))]
    columns = np.column_stack([signs[seen] > 0, bins]).astype(float)
    slope = np.linalg.lstsq(columns, change[seen], rcond=None)[0][0]
    assert found.matched.value == pytest.approx(slope)
    assert found.matched.low < slope < found.matched.high


def test_a_policy_that_only_sharpens_moves_tokens_apart_and_none_of_like_probability() -> None:
    rng = np.random.default_rng(6)
    tokens = dataclasses.replace(made_up(num_groups=40).found.tokens)
    signs = np.where(rng.random(len(tokens.groups)) < np.exp(tokens.logprobs), 1.0, -1.0)  # failing ones are unlikelier
    change = 0.1 * (tokens.logprobs + 1.0)
    found = logprob_change(7, dataclasses.replace(tokens, advantages=signs), change_of(change))
    assert found.difference.low > 0.05
    assert abs(found.matched.value) < 0.2 * found.difference.value


def test_tokens_of_other_probabilities_are_not_compared() -> None:
    signs = np.where(made_up().found.tokens.logprobs > np.median(made_up().found.tokens.logprobs), 1.0, -1.0)
    tokens = dataclasses.replace(made_up().found.tokens, advantages=signs)
    found = logprob_change(7, tokens, change_of(tokens.entropies))
    assert found.matched.undefined == "no tokens of positive and of negative advantage are of like probability"


def test_tokens_of_several_steps_are_compared_within_each_step() -> None:
    rng = np.random.default_rng(3)
    tokens, changes = [], []
    for seed, slope in ((0, 0.3), (1, 0.1)):
        own = made_up(seed, num_groups=6).found.tokens
        signs = rng.choice([-1.0, 1.0], len(own.groups))
        tokens.append(dataclasses.replace(own, advantages=signs))
        changes.append(change_of(5.0 * seed + slope * signs + 0.01 * rng.normal(size=len(signs))))
    alone = [logprob_change(7, own, change).matched for own, change in zip(tokens, changes, strict=True)]
    assert matched_change(tokens[:1], changes[:1]) == alone[0]
    both = matched_change(tokens, changes)
    assert alone[1].value < both.value < alone[0].value
    assert both.value == pytest.approx(0.4, abs=0.02)  # steps of like weight, whose levels are five apart
    assert both.num_units == 12
    assert both.low < both.value < both.high
