"""What moves the entropy, from made-up tokens whose gradients are known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.claims.claim import Judgement
from gradscope.diagnostics.claims.entropy import NO_TOKENS, changes_as_predicted, likely_are_rewarded
from gradscope.diagnostics.rank.tokens.followed_tokens import FollowedTokens
from gradscope.diagnostics.rank.tokens.parts_question import WeighedTokens
from gradscope.diagnostics.rank.tokens.token_changes import TokenChange
from gradscope.errors import InputError
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
