"""Claims about what moves the policy's entropy."""

from __future__ import annotations

import math

from gradscope.diagnostics.claims.claim import Judgement, cannot_tell, in_range
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.diagnostics.rank.tokens.parts import advantage_covariance, entropy_cosine, mean_over_tokens
from gradscope.estimate import Estimate
from gradscope.results.claims import ClaimVerdict
from gradscope.say import with_interval

NO_TOKENS = "No step has a gradient and a logged advantage of every token"
_BY_SIGNS: dict[int, ClaimVerdict] = {1: "supported", 0: "cannot_tell", -1: "contradicted"}


def likely_are_rewarded(evidence: Evidence) -> Judgement:
    """Whether log-probabilities and advantages vary together, which lowers the entropy of a softmax policy."""
    weighed = evidence.weighed_tokens()
    if not weighed:
        return cannot_tell(NO_TOKENS)
    tokens = [one.tokens for one in weighed.values()]
    covariance = advantage_covariance(tokens)
    return Judgement(
        estimate=covariance,
        null=Estimate.exact(0.0),
        verdict=in_range(covariance, 0.0, math.inf),
        why=f"Over {sum(len(one.groups) for one in tokens):,} tokens of {covariance.num_units} groups, each beside the "
        "means of its own step.",
        steps=tuple(weighed),
    )


def changes_as_predicted(evidence: Evidence) -> Judgement:
    """Whether the entropy at the steps' own tokens went, by the next checkpoint, the way their gradients point."""
    found = evidence.followed_tokens()
    steps = tuple(found.changes)
    if not steps:
        return cannot_tell(next(iter(found.missing.values()), NO_TOKENS))
    weighed = [found.weighed[step] for step in steps]
    predicted = entropy_cosine(weighed)
    change = mean_over_tokens([one.tokens for one in weighed], [found.changes[step].entropies for step in steps])
    updates = sum(one.last - one.first for one in found.changes.values())
    return Judgement(
        estimate=change,
        null=Estimate.exact(0.0),
        verdict=_BY_SIGNS[predicted.side_of_zero * change.side_of_zero],
        why=f"To first order: cosine {with_interval(predicted, '+.2f')} of the entropy's gradient with the updates of "
        f"these steps, which are {len(steps)} of the {updates} between the checkpoints.",
        steps=steps,
    )
