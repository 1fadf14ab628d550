"""What a step's gradient is made of: rollouts, what is left without some of them, tokens and parameters.

Shapes: R rollouts of a step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from gradscope.estimate import Estimate
from gradscope.metrics.gram.removal import norms_without, removal_order
from gradscope.metrics.gram.row_shares import projection_shares
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.outcomes.repeats import NGRAM, repeated_ngrams
from gradscope.results.spike import SpikeRemoval, SpikeRollout, SpikeTensor, SpikeToken
from gradscope.rollouts.types import Rollout, RolloutGroup

if TYPE_CHECKING:
    from gradscope.gradients.step.directions import TensorNorm
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import RolloutTokens

MOST_REMOVED = 0.25
"""Share of the rollouts that is left out at most: a step of which more has to go is not made by a few."""
MOST_TOKENS = 20
"""Tokens that are listed."""

_Name = tuple[str, int]


def rollouts_of(groups: Sequence[RolloutGroup], gram: StepGram | None, reason: str) -> tuple[SpikeRollout, ...]:
    """All rollouts of a step, those with the largest part of its gradient first.

    Args:
        gram: The step's; None where it could not be recomputed.
        reason: Why there are no parts.

    Returns:
        One a rollout; where none has a part, those that repeat most come first.
    """
    shares, without = _parts(gram)
    none = Estimate.undefined_because(reason)
    found = [
        SpikeRollout(
            group_id=rollout.group_id,
            sample=rollout.sample,
            reward=rollout.reward,
            advantage=rollout.advantage,
            num_tokens=rollout.num_tokens,
            repeated_ngrams=_repeats(rollout),
            projection_share=shares.get((rollout.group_id, rollout.sample), none),
            norm_without=without.get((rollout.group_id, rollout.sample), none),
        )
        for group in groups
        for rollout in group.rollouts
    ]
    return tuple(sorted(found, key=_weight, reverse=True))


def _weight(rollout: SpikeRollout) -> tuple[float, float]:
    return abs(rollout.projection_share.value or 0.0), rollout.repeated_ngrams.value or 0.0


def _parts(gram: StepGram | None) -> tuple[Mapping[_Name, Estimate], Mapping[_Name, Estimate]]:
    whole = None if gram is None else gram.logged_gram
    if gram is None or whole is None or not whole.sum() > 0:
        return {}, {}
    names = list(zip(gram.group_ids, gram.samples, strict=True))
    return _named(names, projection_shares(whole)), _named(names, norms_without(whole))


def _named(names: Sequence[_Name], values: Array) -> Mapping[_Name, Estimate]:
    return {name: Estimate.exact(value) for name, value in zip(names, values.tolist(), strict=True)}


def _repeats(rollout: Rollout) -> Estimate:
    items: Sequence[Hashable] = rollout.completion_ids or rollout.completion.split()
    share = repeated_ngrams(items)
    if share is None:
        return Estimate.undefined_because(f"the completion is shorter than {NGRAM}")
    return Estimate.exact(share, num_units=len(items) - NGRAM + 1)


def removals_of(gram: StepGram | None, typical: float | None) -> tuple[SpikeRemoval, ...]:
    """The step without one rollout after the other.

    Args:
        typical: The norm of the steps around it, at which it ends; None: not known.

    Returns:
        One a removal, at most a quarter of the rollouts.
    """
    whole = None if gram is None else gram.logged_gram
    if gram is None or whole is None or not whole.sum() > 0:
        return ()
    most = math.ceil(MOST_REMOVED * len(whole))
    order, norms = removal_order(whole, most=most)
    enough = next((at for at, norm in enumerate(norms, start=1) if typical is not None and norm <= typical), most)
    return tuple(
        SpikeRemoval(num_removed=number, group_id=gram.group_ids[index], sample=gram.samples[index], grad_norm=norm)
        for number, (index, norm) in enumerate(zip(order[:enough], norms, strict=False), start=1)
    )


def tokens_of(measured: Sequence[RolloutTokens]) -> tuple[SpikeToken, ...]:
    """The tokens with the largest gradients among those that were measured."""
    every = [
        SpikeToken(
            group_id=one.group_id,
            sample=one.sample,
            position=at,
            text=one.texts[at],
            norm=float(one.norms[at]),
            weight=float(one.weights[at]),
            entropy=float(one.entropies[at]),
        )
        for one in measured
        for at in range(len(one.texts))
        if one.is_seen[at]
    ]
    return tuple(sorted(every, key=lambda token: token.norm, reverse=True)[:MOST_TOKENS])


def tensors_of(measured: Sequence[TensorNorm]) -> tuple[SpikeTensor, ...]:
    """Every parameter's part, the largest first."""
    total = sum(one.norm**2 for one in measured)
    entries = sum(one.num_entries for one in measured)
    found = [
        SpikeTensor(
            tensor=one.tensor,
            norm=one.norm,
            tensor_share=one.norm**2 / total,
            frac_parameters=one.num_entries / entries,
        )
        for one in measured
        if total > 0
    ]
    return tuple(sorted(found, key=lambda one: one.tensor_share, reverse=True))
