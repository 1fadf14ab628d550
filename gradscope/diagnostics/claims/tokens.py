"""Claims about tokens: where their energy is, and what became of the entropy and of log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from gradscope.diagnostics.claims.claim import BY_SIDE, Judgement, cannot_tell, in_range, on_side
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.diagnostics.rank.tokens.changes import matched_change
from gradscope.diagnostics.rank.tokens.parts import advantage_covariance, mean_over_tokens
from gradscope.diagnostics.rank.tokens.weighed import UNDECIDED, UNLIKELY
from gradscope.estimate import Estimate
from gradscope.metrics.gram.part_sums import ratio_over_groups
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.sampler import PROBABILITIES, TokenCell
from gradscope.say import percent, with_interval

NO_TOKENS = "No step has a gradient and a logged advantage of every token"


def likely_are_rewarded(evidence: Evidence) -> Judgement:
    """Whether log-probabilities and advantages vary together."""
    weighed = evidence.weighed_tokens()
    if not weighed:
        return cannot_tell(NO_TOKENS)
    tokens = [one.tokens for one in weighed.values()]
    covariance = advantage_covariance(tokens)
    return Judgement(
        estimate=covariance,
        null=Estimate.exact(0.0),
        verdict=on_side(covariance),
        why=f"Over {sum(len(one.groups) for one in tokens):,} tokens of {covariance.num_units} groups, each beside the "
        "means of its own step.",
        steps=tuple(weighed),
    )


def changes_as_predicted(evidence: Evidence) -> Judgement:
    """Whether the entropy at the steps' own tokens fell by the next checkpoint where their covariance is positive."""
    # The change is that of the weights on disk, whatever optimizer made them.
    found = evidence.followed_tokens()
    steps = tuple(found.changes)
    if not steps:
        return cannot_tell(next(iter(found.missing.values()), NO_TOKENS))
    tokens = [found.weighed[step].tokens for step in steps]
    covariance = advantage_covariance(tokens)
    change = mean_over_tokens(tokens, [found.changes[step].entropies for step in steps])
    updates = sum(one.last - one.first for one in found.changes.values())
    return Judgement(
        estimate=change,
        null=Estimate.exact(0.0),
        verdict=BY_SIDE[-covariance.side_of_zero * change.side_of_zero],
        why=f"The covariance of log p and advantage is {with_interval(covariance, '+.3g')} over the tokens of these "
        f"steps, which are {len(steps)} of the {updates} between the checkpoints.",
        steps=steps,
    )


MOST = 0.5
"""The share of the energy from which on some tokens have most of it."""


def holds_most(kind: TokenCell) -> Callable[[Evidence], Judgement]:
    """Whether tokens of one kind have most of the energy, the summed squared norms of the tokens' gradients."""
    # Beside it stands their share of the tokens, which is that of the energy where all gradients are of one size.

    def judge(evidence: Evidence) -> Judgement:
        found = [one for one in evidence.gradients("token").energies if one.kind == kind]
        steps = tuple(one.step for one in found)
        if not found:
            return cannot_tell(NO_TOKENS)
        share = _ratio([one.energy for one in found], [one.all_energy for one in found])
        of_tokens = _ratio([one.tokens for one in found], [one.all_tokens for one in found])
        if not sum(float(one.energy.sum()) for one in found):
            return cannot_tell(f"No token {_NAMES[kind]} has a gradient", estimate=share, steps=steps)
        return Judgement(
            estimate=share,
            null=of_tokens,
            verdict=in_range(share, MOST, 1.0),
            why=f"Such tokens are {percent(of_tokens.value or 0.0)} of those of {share.num_units} groups at "
            f"{len(steps)} step{'s' * (len(steps) != 1)}; groups weigh as much as they have energy.",
            steps=steps,
        )

    return judge


def moves_as_asked(evidence: Evidence) -> Judgement:
    """Whether training moved tokens of like probability apart the way their advantages ask."""
    found = evidence.followed_tokens()
    steps = tuple(found.changes)
    if not steps:
        return cannot_tell(next(iter(found.missing.values()), NO_TOKENS))
    tokens = [found.weighed[step].tokens for step in steps]
    matched = matched_change(tokens, [found.changes[step] for step in steps])
    if matched.undefined is not None:
        return cannot_tell(matched.undefined, steps=steps)
    return Judgement(
        estimate=matched,
        null=Estimate.exact(0.0),
        verdict=in_range(matched, 0.0, math.inf),
        why=f"From the weights before each step to the next on disk, over {sum(len(one.groups) for one in tokens):,} "
        f"tokens of {matched.num_units} groups; updates on other prompts lie between the two.",
        steps=steps,
    )


_NAMES = {
    UNDECIDED: "of the top fifth by entropy",
    UNLIKELY: f"of probability below {PROBABILITIES[1]:g}",
}


def _ratio(of_part: Sequence[Array], of_all: Sequence[Array]) -> Estimate:
    return ratio_over_groups(np.concatenate(of_part), np.concatenate(of_all))
