"""Claims about what moves the policy's entropy."""

from __future__ import annotations

from gradscope.diagnostics.claims.claim import BY_SIDE, Judgement, cannot_tell, on_side
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.diagnostics.rank.tokens.parts import advantage_covariance, mean_over_tokens
from gradscope.estimate import Estimate
from gradscope.say import with_interval

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
    """Whether the entropy at the steps' own tokens went down by the next checkpoint where their covariance is positive.

    Returns:
        The judgement; the change is that of the weights on disk, whatever optimizer made them.
    """
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
