"""The gradients of single tokens: where in the texts they are large, and which tokens the update makes more likely.

A token's row is what the trainer multiplies its grad log pi by, times that gradient; the rows of a rollout add up to
its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section, visible
from gradscope.estimate import Estimate
from gradscope.findings.rank_parts import logprob_change_findings, turn_findings
from gradscope.metrics.gram.geometry import share_of_largest
from gradscope.metrics.outcomes.reward_shares import rank_correlation_within
from gradscope.metrics.sampler import PROBABILITIES, UNDECIDED, UNLIKELY, TokenCell, token_cells
from gradscope.render.views.rank_parts import turn_words
from gradscope.render.views.view import Column, named_bars, tabulate
from gradscope.results.report import Chart, ReportSection, ReportTable, ShadedText, ShadedToken
from gradscope.say import counted, interval, percent

if TYPE_CHECKING:
    from gradscope.gradients.tokens.measure import RolloutTokens

Array = NDArray[np.float64]

MAX_TEXTS = 6  # rollouts whose text is shown; the numbers are of all that were measured
_NUM_LARGEST = 10  # tokens in the table of the largest gradients
_FIFTHS = ("first fifth", "second", "third", "fourth", "last fifth")
_KINDS = {
    TokenCell(sign="positive"): "made more likely",
    TokenCell(sign="negative"): "made less likely",
    UNLIKELY: f"probability below {PROBABILITIES[1]:g}",
    TokenCell(probability=1): f"{PROBABILITIES[1]:g} to {PROBABILITIES[2]:g}",
    TokenCell(probability=2): f"from {PROBABILITIES[2]:g} on",
    UNDECIDED: "fifth with the highest entropy",
    TokenCell(entropy="rest"): "the other four fifths",
}
"""Kinds of tokens as the table calls them; equal entropies at the bound stay together, so a fifth can be more."""
_QUARTERS = ("most certain quarter", "second", "third", "most uncertain quarter")


_TURNS = (
    Column("step", "step", "count"),
    Column("turn", turn_words),
    Column("rollouts", "num_rollouts", "count"),
    Column("share of the tokens", "frac_tokens", "share"),
    Column("share of the gradient", "gradient_share", "gap"),
    Column("cosine", "cosine", "gap"),
)


def tokens_section(inputs: ReportInputs) -> ReportSection:
    """The largest rollouts' text, shaded by the norm of each token's gradient, and where in it the norms are."""
    rollouts = inputs.tokens
    if isinstance(rollouts, Unavailable):
        return missing_section("tokens", rollouts)
    owners = np.repeat(np.arange(len(rollouts)), [int(rollout.is_seen.sum()) for rollout in rollouts])
    norms, entropies = _joined(rollouts, "norms"), _joined(rollouts, "entropies")
    correlation = rank_correlation_within(norms, entropies, owners, owners)
    kinds, quarters = _kinds(rollouts), _quarters(rollouts)
    top, zero = share_of_largest(norms).value or 0.0, float((norms == 0).mean())
    advice = "Read the dark tokens: is this where the completion is right or wrong? If not, look at the reward first."
    if correlation.side_of_zero > 0:
        remaining = float(norms[quarters == len(_QUARTERS) - 1].sum() / norms.sum())
        advice = (
            "Read the dark tokens: are they where the answer is decided, or format and numbers copied? A loss on the "
            f"most uncertain quarter alone (top_entropy_quantile in TRL) keeps {percent(remaining)} of these norms."
        )
    nothing = f"; {percent(zero)} of tokens have no gradient at all" if zero else ""
    return ReportSection(
        name="tokens",
        findings=(
            _entropy(correlation, rollouts),
            f"The tenth of tokens with the largest gradients holds {percent(top)} of the summed norms{nothing}.",
            *_energy(kinds, len(norms)),
            _direction(rollouts),
            *turn_findings(inputs.parts.turns),
            *logprob_change_findings(inputs.parts.logprobs),
        ),
        severity="fine",
        meaning=f"{metric('token_norm').meaning} Correlation with entropy: "
        f"{metric('token_entropy_correlation').meaning.lower()}",
        next_step=advice,
        command=inputs.command("rank", "--rows", "token", "--step", str(inputs.largest_step), "--show", "energy"),
        charts=_by_position(rollouts),
        texts=_texts(rollouts),
        tables=(
            *_by_entropy(norms, entropies, quarters),
            *tabulate(
                "The same tokens by what the update makes of them, by their probability, and by entropy among all of "
                f"them. share of the energy = {metric('token_kinds.energy_share').formula}",
                (
                    Column("tokens", lambda kind: _KINDS[kind]),
                    Column("number", lambda kind: kinds[kind][0], "count"),
                    Column("share of the tokens", lambda kind: kinds[kind][0] / len(norms), "share"),
                    Column("share of the energy", lambda kind: kinds[kind][1], "share"),
                ),
                kinds,
                folded_as="By kind of token as a table",
            ),
            *tabulate(
                "Each turn, a stretch of sampled tokens; share of the gradient = "
                f"{metric('turns.gradient_share').formula}",
                _TURNS,
                inputs.parts.turns,
            ),
            *_largest(rollouts),
        ),
    )


def _joined(rollouts: Sequence[RolloutTokens], name: str) -> Array:
    return np.concatenate([getattr(rollout, name)[rollout.is_seen] for rollout in rollouts])


def _entropy(correlation: Estimate, rollouts: Sequence[RolloutTokens]) -> str:
    counts = f"{counted(len(_joined(rollouts, 'norms')), 'token')} of {counted(len(rollouts), 'rollout')}"
    if correlation.value is None:
        return f"Over {counts}, entropy says nothing about the gradient: {correlation.undefined}."
    text = f"Within rollouts, a token's gradient norm and the policy's entropy correlate at {correlation.value:+.2f}"
    if correlation.interval is None:
        return f"{text} ({counts})."
    conclusion = {
        1: "tokens at which the policy was undecided pull hardest",
        -1: "tokens at which the policy was sure pull hardest",
        0: "no direction is certain",
    }[correlation.side_of_zero]
    return f"{text}{interval(correlation, '+.2f')} by rank, over {counts}: {conclusion}."


def _kinds(rollouts: Sequence[RolloutTokens]) -> dict[TokenCell, tuple[int, float]]:
    """Kind -> how many of the measured tokens are of it, and their share of the summed squared norms."""
    names = ("weights", "logprobs", "entropies", "norms")
    weights, logprobs, entropies, norms = (_joined(rollouts, name) for name in names)
    cells, total = token_cells(-weights, logprobs, entropies), float(np.sum(norms**2)) or 1.0
    masks = {kind: [mask for cell, mask in cells.items() if kind.holds(cell)] for kind in _KINDS}
    mask_of = {kind: np.any(parts, axis=0) for kind, parts in masks.items() if parts}
    return {kind: (int(mask.sum()), float(np.sum(norms[mask] ** 2)) / total) for kind, mask in mask_of.items()}


def _energy(kinds: Mapping[TokenCell, tuple[int, float]], num_tokens: int) -> tuple[str, ...]:
    named = {UNDECIDED: "with the highest entropy", UNLIKELY: f"of {_KINDS[UNLIKELY]}"}
    held = [(*kinds[kind], name) for kind, name in named.items() if 0 < kinds.get(kind, (0,))[0] < num_tokens]
    if not held:
        return ()
    (first, share, name), *remaining = held
    rest = "".join(f"; the {percent(n / num_tokens)} {words} hold {percent(part)}" for n, part, words in remaining)
    return (
        f"The {percent(first / num_tokens)} of these tokens {name} hold {percent(share)} of the energy, the summed "
        f"squared norms{rest}.",
    )


def _direction(rollouts: Sequence[RolloutTokens]) -> str:
    weights = _joined(rollouts, "weights")
    raised, lowered = int((weights < 0).sum()), int((weights > 0).sum())
    text = f"The update pushes {raised:,} of these tokens up and {lowered:,} down"
    shares = [(rollout.shares, rollout.is_seen) for rollout in rollouts if rollout.shares is not None]
    if not shares:
        return f"{text}."
    against = sum(int((values[seen] < 0).sum()) for values, seen in shares)
    return f"{text}; {against:,} pull against the gradient of their own rollout."


def _by_position(rollouts: Sequence[RolloutTokens]) -> tuple[Chart, ...]:
    norms = _joined(rollouts, "norms")
    positions = np.concatenate([np.flatnonzero(rollout.is_seen) / len(rollout.norms) for rollout in rollouts])
    fifths = np.minimum((positions * len(_FIFTHS)).astype(int), len(_FIFTHS) - 1)
    shares = np.bincount(fifths, weights=norms, minlength=len(_FIFTHS)) / (float(norms.sum()) or 1.0)
    bars = dict(zip(_FIFTHS, shares.tolist(), strict=True))
    title = "Summed norms of token gradients, by place in the completion"
    return named_bars(title, "share", bars, x_label="share of the summed norms")


def _texts(rollouts: Sequence[RolloutTokens]) -> tuple[ShadedText, ...]:
    largest = float(_joined(rollouts, "norms").max()) or 1.0
    return tuple(
        ShadedText(
            title=f"{rollout.group_id} #{rollout.sample}",
            tokens=tuple(
                ShadedToken(
                    text=text,
                    strength=float(norm) / largest if seen else None,
                    is_raised=bool(weight <= 0),
                    note=f"norm {norm:.3g}, entropy {entropy:.2f}" if seen else f"not measured, entropy {entropy:.2f}",
                )
                for text, norm, weight, entropy, seen in zip(
                    rollout.texts, rollout.norms, rollout.weights, rollout.entropies, rollout.is_seen, strict=True
                )
            ),
        )
        for rollout in rollouts[:MAX_TEXTS]
    )


def _by_entropy(norms: Array, entropies: Array, quarters: NDArray[np.int64]) -> tuple[ReportTable, ...]:
    total = float(norms.sum()) or 1.0
    parts = [np.flatnonzero(quarters == number) for number in range(len(_QUARTERS))]
    return tabulate(
        "Tokens by the policy's entropy where they were sampled, each among those of its rollout; norm = "
        f"{metric('token_norm').formula}",
        (
            Column("tokens", lambda row: row[0]),
            Column("number", lambda row: len(row[1]), "count"),
            Column("entropy, nats", lambda row: f"{entropies[row[1]].min():.2f} to {entropies[row[1]].max():.2f}"),
            Column("mean norm", lambda row: float(norms[row[1]].mean()), "norm"),
            Column("share of the norms", lambda row: float(norms[row[1]].sum()) / total, "share"),
        ),
        [(name, part) for name, part in zip(_QUARTERS, parts, strict=True) if len(part)],
    )


def _quarters(rollouts: Sequence[RolloutTokens]) -> NDArray[np.int64]:
    """In which quarter of its rollout's tokens each one is, from 0 for the most certain."""
    entropies = [rollout.entropies[rollout.is_seen] for rollout in rollouts]
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in entropies]
    return np.concatenate([rank * len(_QUARTERS) // max(len(rank), 1) for rank in ranks])


def _largest(rollouts: Sequence[RolloutTokens]) -> tuple[ReportTable, ...]:
    tokens = [(row, token) for row in rollouts for token in np.flatnonzero(row.is_seen & (row.norms > 0))]
    tokens.sort(key=lambda pair: -pair[0].norms[pair[1]])
    largest = tokens[:_NUM_LARGEST]

    def value_of(name: str) -> Callable[[tuple[RolloutTokens, int]], float]:
        return lambda pair: float(getattr(pair[0], name)[pair[1]])

    return tabulate(
        f"The {len(largest)} tokens with the largest gradients; share of the rollout's own gradient = "
        f"{metric('projection_share').formula}, G of its tokens",
        (
            Column("rollout", lambda pair: f"{pair[0].group_id} #{pair[0].sample}"),
            Column("token", lambda pair: int(pair[1]) + 1, "count"),
            Column("text", lambda pair: visible(pair[0].texts[pair[1]])),
            Column("made", lambda pair: "more likely" if value_of("weights")(pair) < 0 else "less likely"),
            Column("norm", value_of("norms"), "norm"),
            Column("entropy", value_of("entropies"), "rank"),
            Column("share", lambda pair: None if pair[0].shares is None else value_of("shares")(pair), "gap"),
        ),
        largest,
    )
