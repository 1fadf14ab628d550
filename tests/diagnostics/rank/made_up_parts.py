"""Tokens with made-up gradients, as the engine hands them on: what every number should be is a few lines of numpy."""

from functools import cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.diagnostics.rank.tokens import ENTROPY, MAX_KL_TOKENS, WeighedTokens, turn_masks
from gradscope.gradients.tokens.measure import TokenGram
from gradscope.gradients.tokens.rows import TokenRow
from gradscope.gradients.tokens.sums import CORRECTIONS, CountedTokens, corrected
from gradscope.metrics.gram.part_sums import products_without
from gradscope.metrics.sampler import token_cells
from tests.diagnostics.rank.test_rollout_spectra import tokens_of


class MadeUp(Struct, frozen=True):
    """Tokens whose gradients are known."""

    weighed: WeighedTokens
    grams: list[TokenGram]  # of the first rows of each group
    rows: np.ndarray  # grad log pi of each token, [N, P]
    climbs: np.ndarray  # grad of each entropy, [N, P]


@cache
def made_up(
    seed: int = 0,
    *,
    num_groups: int = 4,
    num_turns: int = 1,
    scale: float = 0.5,
    sampler: bool = True,
    max_rows: int = 99,
) -> MadeUp:
    """Groups of three rollouts of six tokens; ``scale`` is how far the sampler's log-probabilities are off."""
    rng = np.random.default_rng(seed)
    count = 18 * num_groups
    logprobs = -rng.exponential(1.0, count)
    tokens = CountedTokens(
        rollouts=np.repeat(np.arange(3 * num_groups), 6),
        groups=np.repeat(np.arange(num_groups), 18),
        positions=np.tile(np.arange(6), 3 * num_groups),
        turns=np.minimum(np.tile(np.arange(6), 3 * num_groups), num_turns - 1),
        logprobs=logprobs,
        entropies=rng.exponential(1.0, count),
        sampler=logprobs + rng.normal(0, scale, count) if sampler else None,
        reference=logprobs + rng.normal(0, scale, count),
        advantages=np.repeat(rng.choice([-1.0, 0.0, 1.0], 3 * num_groups), 6),
        weights=np.zeros(count),
        on_policy_weights=np.zeros(count),
        lengths=(6,) * (3 * num_groups),
    )
    tokens = replace(tokens, weights=-0.1 * tokens.advantages, on_policy_weights=-0.1 * tokens.advantages)
    rows, climbs = rng.normal(size=(count, 5)), rng.normal(size=(count, 5))
    cells = token_cells(tokens.advantages, tokens.logprobs, tokens.entropies)
    factors = (
        {} if tokens.sampler is None else {n: corrected(tokens, tokens.sampler, c) for n, c in CORRECTIONS.items()}
    )
    weightings = {("cell", cell): mask * tokens.weights for cell, mask in cells.items()}
    weightings |= {("turn", turn): mask * tokens.weights for turn, mask in turn_masks(tokens).items()}
    weightings |= {("correction", name): values * tokens.on_policy_weights for name, values in factors.items()}
    weightings[ENTROPY, None] = np.full(count, 1 / count)
    sums = np.stack(
        [
            [
                weights[tokens.groups == j] @ (climbs if kind == ENTROPY else rows)[tokens.groups == j]
                for j in range(num_groups)
            ]
            for (kind, _), weights in weightings.items()
        ]
    )
    k3 = np.expm1(tokens.reference - logprobs) - (tokens.reference - logprobs)
    weighed = WeighedTokens(
        tokens=tokens,
        texts={index: f"t{index}" for index in np.argsort(-k3, kind="stable")[:MAX_KL_TOKENS].tolist()},
        labels=tuple(weightings),
        cells=cells,
        factors=factors,
        by_sequence=frozenset(name for name in factors if name.startswith(("sequence", "geometric"))),
        products=products_without(np.einsum("vjp,wkp->vjwk", sums, sums)),
    )
    return MadeUp(weighed=weighed, grams=_grams(tokens, rows, max_rows), rows=rows, climbs=climbs)


def _grams(tokens: CountedTokens, rows: np.ndarray, max_rows: int) -> list[TokenGram]:
    grams = []
    for group in range(tokens.num_groups):
        inside = np.flatnonzero(tokens.groups == group)
        chosen = inside[:max_rows]
        gram = tokens_of(str(group), tokens.rollouts[chosen].tolist(), num_tokens=len(inside))
        positions = tuple(TokenRow(sequence=int(tokens.rollouts[i]), position=int(tokens.positions[i])) for i in chosen)
        grams.append(replace(gram, table=replace(gram.table, rows=positions), gram=rows[chosen] @ rows[chosen].T))
    return grams
