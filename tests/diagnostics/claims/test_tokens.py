"""Claims about tokens, from made-up tokens whose gradients are known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.claims.claim import Judgement
from gradscope.diagnostics.claims.tokens import (
    MOST,
    NO_TOKENS,
    changes_as_predicted,
    holds_most,
    likely_are_rewarded,
    moves_as_asked,
)
from gradscope.diagnostics.rank.collected import Collected
from gradscope.diagnostics.rank.tokens.changes import FollowedTokens, TokenChange
from gradscope.diagnostics.rank.tokens.weighed import UNDECIDED, UNLIKELY, KindEnergy, WeighedTokens
from gradscope.errors import InputError
from gradscope.metrics.gram.part_sums import ratio_over_groups
from gradscope.metrics.sampler import TokenCell
from tests.diagnostics.claims.made_up_evidence import Given
from tests.diagnostics.rank.tokens.made_up_parts import made_up

GROUPS = 8


def judged(judge, weighed: dict[int, WeighedTokens], changes: dict[int, TokenChange], missing=None) -> Judgement:
    found = FollowedTokens(weighed=weighed, changes=changes, missing=missing or {})
    return judge(Given(found={"followed_tokens": found, "weighed_tokens": weighed}))


def with_advantages(sign: float, seed: int = 0) -> WeighedTokens:
    """Tokens whose advantages go with their log-probabilities, against them, or with neither."""
    found, rng = made_up(seed, num_groups=GROUPS).found, np.random.default_rng(seed)
    own = sign * np.sign(found.tokens.logprobs - np.median(found.tokens.logprobs))
    advantages = own if sign else rng.choice([-1.0, 1.0], len(own))
    return dataclasses.replace(found, tokens=dataclasses.replace(found.tokens, advantages=advantages))


@pytest.mark.parametrize(("sign", "verdict"), [(1.0, "supported"), (0.0, "cannot_tell"), (-1.0, "contradicted")])
def test_likely_tokens_are_rewarded_where_both_vary_together(sign: float, verdict: str) -> None:
    steps = {step: with_advantages(sign, seed=step) for step in (1, 6)}
    found = judged(likely_are_rewarded, steps, {})
    assert (found.verdict, found.null.value, found.steps) == (verdict, 0.0, (1, 6))
    parts = [np.cov(one.tokens.logprobs, one.tokens.advantages, bias=True)[0, 1] for one in steps.values()]
    assert found.estimate.value == pytest.approx(np.mean(parts))  # steps of as many tokens
    assert found.why == "Over 288 tokens of 16 groups, each beside the means of its own step."


def later(found: WeighedTokens, change: float, seed: int = 0) -> TokenChange:
    noise = np.random.default_rng(seed).normal(size=len(found.tokens.groups))
    return TokenChange(first=4, last=9, logprobs=np.zeros(len(noise)), entropies=change + 0.1 * noise)


@pytest.mark.parametrize(
    ("sign", "change", "verdict"),
    [
        (1.0, -0.5, "supported"),
        (-1.0, 0.5, "supported"),
        (1.0, 0.5, "contradicted"),
        (-1.0, -0.5, "contradicted"),
        (0.0, 0.5, "cannot_tell"),
        (1.0, 0.0, "cannot_tell"),
    ],
)
def test_the_entropy_falls_where_likely_tokens_are_rewarded(sign: float, change: float, verdict: str) -> None:
    """The change is that of the weights on disk: no gradient, and no optimizer's step, is looked at."""
    weighed = {step: with_advantages(sign, seed=seed) for step, seed in ((5, 1), (10, 6))}
    weighed = {step: dataclasses.replace(one, products=np.zeros_like(one.products)) for step, one in weighed.items()}
    changes = {step: later(one, change, seed=step) for step, one in weighed.items()}
    found = judged(changes_as_predicted, weighed, changes)
    assert (found.verdict, found.null.value, found.steps) == (verdict, 0.0, (5, 10))
    assert found.estimate.value == pytest.approx(np.mean([one.entropies.mean() for one in changes.values()]))
    assert "which are 2 of the 10 between the checkpoints" in found.why


def test_steps_without_later_weights_are_left_out() -> None:
    weighed = {5: with_advantages(1.0), 10: with_advantages(-1.0)}
    found = judged(changes_as_predicted, weighed, {5: later(weighed[5], -0.5)}, {10: "no weights"})
    assert (found.verdict, found.steps) == ("supported", (5,))


def test_without_tokens_or_later_weights_nobody_can_tell() -> None:
    for judge in (likely_are_rewarded, changes_as_predicted):
        assert judged(judge, {}, {}).why == f"{NO_TOKENS}."
        with pytest.raises(InputError, match="nobody asked"):
            judge(Given(no_gradients="nobody asked"))
    found = judged(changes_as_predicted, {5: with_advantages(1.0)}, {}, {5: "no weights after its update are on disk"})
    assert (found.verdict, found.why) == ("cannot_tell", "No weights after its update are on disk.")


def of_step(shares: list[float], *, step: int = 1, kind: TokenCell = UNDECIDED, scale: float = 1.0) -> KindEnergy:
    """Groups of energies 1, 2, ... of which the kind has these shares, and a fifth of ten tokens each."""
    energy = scale * np.arange(1.0, len(shares) + 1)
    return KindEnergy(
        step=step,
        kind=kind,
        tokens=np.full(len(shares), 2.0),
        all_tokens=np.full(len(shares), 10.0),
        energy=energy * shares,
        all_energy=energy,
    )


def judge_tokens(*energies: KindEnergy, kind: TokenCell = UNDECIDED) -> Judgement:
    return holds_most(kind)(Given(found={"gradients": {"token": Collected(energies=list(energies))}}))


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([0.9, 0.92, 0.88, 0.91], "supported"),
        ([0.52, 0.53, 0.51, 0.52], "supported"),
        ([0.3, 0.9, 0.5, 0.6], "cannot_tell"),
        ([0.48, 0.47, 0.49, 0.48], "contradicted"),
        ([0.9, 0.9], "cannot_tell"),
    ],
)
def test_most_is_half_of_the_energy(shares: list[float], verdict: str) -> None:
    found = judge_tokens(of_step(shares), of_step([0.0] * len(shares), kind=UNLIKELY))
    assert MOST == 0.5
    assert found.verdict == verdict
    weights = np.arange(1.0, len(shares) + 1)
    assert found.estimate == ratio_over_groups(weights * shares, weights)
    assert found.null.value == pytest.approx(0.2)
    assert found.steps == (1,)


def test_groups_of_all_steps_count_by_their_energy() -> None:
    found = judge_tokens(of_step([0.9] * 3), of_step([0.1, 0.11, 0.12], step=6, scale=100.0))
    assert found.verdict == "contradicted"
    assert found.estimate.num_units == 6
    assert found.steps == (1, 6)
    assert (
        found.why == "Such tokens are 20.0 % of those of 6 groups at 2 steps; groups weigh as much as they have energy."
    )


def test_without_such_tokens_or_steps_nobody_can_tell() -> None:
    none = judge_tokens(of_step([0.0] * 4, kind=UNLIKELY), kind=UNLIKELY)
    assert (none.verdict, none.estimate.value) == ("cannot_tell", 0.0)
    assert none.why == "No token of probability below 0.25 has a gradient."
    assert judge_tokens().why == "No step has a gradient and a logged advantage of every token."
    with pytest.raises(InputError, match="nobody asked"):
        holds_most(UNDECIDED)(Given(no_gradients="nobody asked"))


def moved(slope: float, *, seed: int = 0, signs: bool = True, missing: dict[int, str] | None = None) -> Judgement:
    """Two steps whose tokens moved by as much as their advantage, plus noise."""
    rng, weighed, changes = np.random.default_rng(seed), {}, {}
    for step in (1, 6):
        found = made_up(step, num_groups=8).found
        advantages = rng.choice([-1.0, 1.0], len(found.tokens.groups)) if signs else np.ones(len(found.tokens.groups))
        weighed[step] = dataclasses.replace(found, tokens=dataclasses.replace(found.tokens, advantages=advantages))
        own = slope * advantages + 0.1 * found.tokens.logprobs + 0.1 * rng.normal(size=len(advantages))
        changes[step] = TokenChange(first=step - 1, last=step + 4, logprobs=own, entropies=0.0 * own)
    given = FollowedTokens(weighed=weighed, changes={} if missing else changes, missing=missing or {})
    return moves_as_asked(Given(found={"followed_tokens": given}))


@pytest.mark.parametrize(("slope", "verdict"), [(0.2, "supported"), (0.0, "cannot_tell"), (-0.2, "contradicted")])
def test_tokens_move_as_asked_where_like_ones_part_by_their_advantage(slope: float, verdict: str) -> None:
    found = moved(slope)
    assert (found.verdict, found.null.value, found.steps) == (verdict, 0.0, (1, 6))
    assert found.estimate.value == pytest.approx(2 * slope, abs=0.03)
    assert "over 288 tokens of 16 groups; updates on other prompts lie between the two" in found.why


def test_where_no_tokens_can_be_compared_nobody_can_tell() -> None:
    assert moved(0.2, signs=False).why == "No tokens of positive and of negative advantage are of like probability."
    assert moved(0.2, missing={1: "no weights"}).why == "No weights."
    none = FollowedTokens(weighed={}, changes={}, missing={})
    found = moves_as_asked(Given(found={"followed_tokens": none}))
    assert (found.verdict, found.why) == ("cannot_tell", f"{NO_TOKENS}.")
    with pytest.raises(InputError, match="nobody asked"):
        moves_as_asked(Given(no_gradients="nobody asked"))
