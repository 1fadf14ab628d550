"""A step's gradient by kinds of tokens and by turns, and which way it moves the entropy.

Shapes: N tokens that count, J groups, V sums of token gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.rank.tokens.kind_energy import by_group, token_energy
from gradscope.diagnostics.rank.tokens.parts_question import (
    ENTROPY,
    MOST_KL_TOKENS,
    MOST_TURNS,
    WeighedTokens,
    k3_of,
    turn_masks,
)
from gradscope.diagnostics.rank.tokens.token_changes import NO_LATER, TokenChange
from gradscope.estimate import Estimate
from gradscope.metrics.gram.part_sums import ANY, POSITIVE, over_steps, ratio_over_groups, sum_cosine, sum_share
from gradscope.metrics.gram.row_shares import share_of_largest
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.sampler.token_cells import ENTROPIES, PROBABILITIES, SIGNS, TokenCell
from gradscope.results.ranks.token_parts import EntropyChange, KlToken, TokenKind, TokenKl, TurnShare
from gradscope.rollouts.types import RolloutGroup

if TYPE_CHECKING:
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.sums import CountedTokens


_ROUNDING = 1e-5
"""Log-probabilities in float32 that differ by less are one number."""
_NO_DISTANCE = "the policy is the reference but for rounding"


def token_kinds(step: int, found: WeighedTokens, grams: Sequence[TokenGram]) -> list[TokenKind]:
    """The parts of each sign, each bucket of probability and of entropy, then of every cell of all three.

    Args:
        grams: The Gram matrices of token rows, whose diagonal has the energy; where tokens were drawn, each stands for
            as many as were left out.

    Returns:
        One a kind that has a token.
    """
    energy, whole = token_energy(found.tokens, grams), found.chosen("cell")
    return [_kind(step, found, kind, energy, whole) for kind in _kinds(found)]


def _kinds(found: WeighedTokens) -> Iterator[TokenCell]:
    buckets = range(len(PROBABILITIES) - 1)
    alone = (
        *(TokenCell(sign=sign) for sign in SIGNS),
        *(TokenCell(probability=place) for place in buckets),
        *(TokenCell(entropy=entropy) for entropy in ENTROPIES),
    )
    yield from (kind for kind in alone if any(kind.holds(cell) for cell in found.cells))
    for sign, place, entropy in product(SIGNS, buckets, ENTROPIES):
        if (cell := TokenCell(sign=sign, probability=place, entropy=entropy)) in found.cells:
            yield cell


def _kind(step: int, found: WeighedTokens, kind: TokenCell, energy: Array, whole: Array) -> TokenKind:
    cells = [cell for cell in found.cells if kind.holds(cell)]
    part, mask = found.chosen("cell", *cells), np.any([found.cells[cell] for cell in cells], axis=0)
    place = kind.probability
    return TokenKind(
        step=step,
        sign=kind.sign,
        probability=None if place is None else (PROBABILITIES[place], PROBABILITIES[place + 1]),
        entropy=kind.entropy,
        num_tokens=int(mask.sum()),
        frac_tokens=_share_of_tokens(found, mask),
        energy_share=ratio_over_groups(by_group(found.tokens, energy * mask), by_group(found.tokens, energy)),
        gradient_share=sum_share(found.products, part, whole),
        cosine=sum_cosine(found.products, part, whole),
    )


def _share_of_tokens(found: WeighedTokens, mask: NDArray[np.bool_]) -> Estimate:
    ones = np.ones(len(mask))
    return ratio_over_groups(by_group(found.tokens, ones * mask), by_group(found.tokens, ones))


def turn_shares(step: int, found: WeighedTokens) -> list[TurnShare]:
    """The part of each turn; none where no completion has two."""
    masks, whole = turn_masks(found.tokens), found.chosen("turn")
    return [
        TurnShare(
            step=step,
            turn=turn,
            and_later=turn == MOST_TURNS and int(found.tokens.turns.max()) >= MOST_TURNS,
            num_rollouts=len(np.unique(found.tokens.rollouts[mask])),
            frac_tokens=_share_of_tokens(found, mask),
            gradient_share=sum_share(found.products, found.chosen("turn", turn), whole),
            cosine=sum_cosine(found.products, found.chosen("turn", turn), whole),
        )
        for turn, mask in masks.items()
    ]


def entropy_change(step: int, found: WeighedTokens, logged: Mapping[int, float]) -> EntropyChange:
    """Which way the step moves the entropy.

    Args:
        logged: Step -> the entropy that the trainer logged.

    Returns:
        The change to first order, beside what was logged.
    """
    tokens, update, climb = found.tokens, -found.chosen("cell"), found.chosen(ENTROPY)
    ones = np.ones(len(tokens.groups))
    return EntropyChange(
        step=step,
        entropy=ratio_over_groups(by_group(found.tokens, tokens.entropies), by_group(found.tokens, ones), POSITIVE),
        rate=Estimate.exact(float(climb @ found.products[0] @ update), num_units=tokens.num_groups),
        cosine=entropy_cosine([found]),
        covariance=advantage_covariance([tokens]),
        logged=logged.get(step),
        logged_next=logged.get(step + 1),
        last=None,
        measured=Estimate.undefined_because(NO_LATER, num_units=tokens.num_groups),
    )


def entropy_cosine(found: Sequence[WeighedTokens]) -> Estimate:
    """Cosine of the gradients of the entropy at several steps' tokens with the steps' updates, laid end to end.

    Returns:
        With an interval over the groups of all steps; a step weighs as much as its gradients.
    """
    pairs = [np.stack([one.chosen(ENTROPY), -one.chosen("cell")]) for one in found]
    products = [np.einsum("av,jvw,bw->jab", pair, one.products, pair) for pair, one in zip(pairs, found, strict=True)]
    return sum_cosine(over_steps(products), [1.0, 0.0], [0.0, 1.0])


def with_later(change: EntropyChange, tokens: CountedTokens, later: TokenChange) -> EntropyChange:
    """The same with what became of the entropy at the step's own tokens."""
    return replace(change, last=later.last, measured=mean_over_tokens([tokens], [later.entropies]))


def mean_over_tokens(tokens: Sequence[CountedTokens], values: Sequence[Array]) -> Estimate:
    """The mean of a number over the tokens of several steps.

    Args:
        values: Of each step's tokens, [N] each.

    Returns:
        With an interval over the groups of all steps.
    """
    sums, numbers = (
        np.concatenate([by_group(own, each) for own, each in zip(tokens, of_steps, strict=True)])
        for of_steps in (values, [np.ones(len(each)) for each in values])
    )
    return ratio_over_groups(sums, numbers, ANY)


def advantage_covariance(tokens: Sequence[CountedTokens]) -> Estimate:
    """Covariance of log pi and advantage over the tokens of several steps, each about the means of its own step."""
    parts = [(own.logprobs - own.logprobs.mean()) * (own.advantages - own.advantages.mean()) for own in tokens]
    return mean_over_tokens(tokens, parts)


def token_kl(step: int, found: WeighedTokens, groups: Sequence[RolloutGroup]) -> TokenKl | None:
    """The tokens beside the reference; None without one."""
    tokens = found.tokens
    if tokens.reference is None:
        return None
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    k1, k3, ones = tokens.logprobs - tokens.reference, k3_of(tokens), np.ones(len(tokens.groups))
    order = np.argsort(-k3, kind="stable")[:MOST_KL_TOKENS].tolist()
    return TokenKl(
        step=step,
        k1=ratio_over_groups(by_group(found.tokens, k1), by_group(found.tokens, ones), ANY),
        k3=ratio_over_groups(by_group(found.tokens, k3), by_group(found.tokens, ones), POSITIVE),
        top_share=share_of_largest(k3, fraction=0.01)
        if np.abs(k1).max() > _ROUNDING
        else Estimate.undefined_because(_NO_DISTANCE, num_units=len(k1)),
        top=tuple(
            KlToken(
                group_id=rollouts[int(tokens.rollouts[at])].group_id,
                sample=rollouts[int(tokens.rollouts[at])].sample,
                position=int(tokens.positions[at]),
                text=found.texts[at],
                logprob=float(tokens.logprobs[at]),
                reference=float(tokens.reference[at]),
                k1=float(k1[at]),
                k3=float(k3[at]),
            )
            for at in order
        ),
    )
