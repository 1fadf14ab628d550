"""Spectra of a step's rollouts and of the groups among them, of their tokens, and averages at every group size.

A token's row is its weight times grad log pi of the token, so its Gram matrix under any advantage is diag(v) U diag(v);
exchanging the advantage is arithmetic here too.

Shapes: R rollouts of a step, G rollouts of a part, n parts of one size, N rows of a matrix, P parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.advantages.registry import LOGGED, formulation
from gradscope.diagnostics.rank.rows import (
    WEIGHED,
    StepRows,
    SubGroup,
    advantages_of,
    baseline_weights_of,
    by_size,
    formulated,
    sub_groups,
)
from gradscope.diagnostics.rank.spectrum import (
    TOKEN_ADVANTAGES,
    MeanRanks,
    ScoreVectors,
    drawn_counts,
    mean_null_ranks,
    null_values,
    profile,
    spectrum_of,
)
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import CHANNELS, channels, row_norms, update_gram
from gradscope.metrics.gram.spectrum import (
    NULLS,
    Array,
    center_grams,
    effective_ranks,
    rank_counts,
    singular_values_from_grams,
)
from gradscope.metrics.uncertainty.bootstrap import bootstrap_means
from gradscope.metrics.uncertainty.intervals import jackknife
from gradscope.results.rank import GradientSpectrum, NullRank, RankCurvePoint, SpectrumLabel, TokenRankPoint, TokenRows
from gradscope.results.source import RowKind

if TYPE_CHECKING:
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.rows import TokenTable


class PartStack(Struct, frozen=True, kw_only=True, dict=True):
    """Parts of one size under one advantage, as arrays."""

    parts: tuple[SubGroup, ...]  # the parts, [n]
    scores: Array  # Gram matrices of their score vectors, [n, G, G]
    baseline_weights: Array  # what each rollout weighs in the baseline of its formulation, [n, G]
    gradients: Array  # Gram matrices of their gradient rows, [n, G, G]
    weights: Array  # advantages, [n, G]; 1 and 0 where each token has its own
    rewards: Array  # scalar rewards, NaN where missing, [n, G]
    is_scalar: bool  # whether each rollout has one advantage
    num_columns: int  # P
    centered: bool  # whether the mean row is subtracted

    @cached_property
    def values(self) -> Array:
        """Singular values, descending, [n, G]."""
        return singular_values_from_grams(center_grams(self.gradients) if self.centered else self.gradients)

    @property
    def summed_energy(self) -> Array:
        """|sum of rows|^2 over the sum of their squared norms, [n]; NaN for a part without a gradient."""
        energy = np.trace(self.gradients, axis1=1, axis2=2)
        total = np.clip(self.gradients.sum(axis=(1, 2)), 0.0, None)
        return np.asarray(np.divide(total, energy, out=np.full(len(energy), np.nan), where=energy > 0))

    @property
    def is_live(self) -> NDArray[np.bool_]:
        """Which parts have an advantage that is not zero, [n]."""
        return np.asarray(np.any(self.weights != 0, axis=1))

    def null_values(self, chosen: NDArray[np.bool_]) -> dict[str, Array]:
        """Null -> singular values of the chosen parts, [D, n, G]."""
        num_parts, size = self.weights[chosen].shape
        return null_values(
            ScoreVectors(gram=self.scores[chosen]),
            np.sqrt(np.clip(np.diagonal(self.gradients[chosen], axis1=1, axis2=2), 0.0, None)),
            self.weights[chosen] if self.is_scalar else None,
            np.repeat(np.arange(num_parts), size).reshape(num_parts, size),
            num_columns=self.num_columns,
            centered=self.centered,
        )


def _rank_given_prompts(stack: PartStack, advantage: str, ranks: Array, is_ranked: NDArray[np.bool_]) -> Estimate:
    """The mean effective rank of the live parts, with the interval of other rollouts of the same prompts."""
    size = stack.weights.shape[1]
    if advantage == LOGGED:
        return Estimate.undefined_because(_LOGGED_IS_RELATIVE)
    entry = formulation(advantage)
    if entry.scope not in {"group", *WEIGHED}:
        return Estimate.undefined_because(
            f"{advantage} is relative to more than a group, so that a rollout less changes all groups"
        )
    if size <= entry.min_group_size:
        return Estimate.undefined_because(
            f"{advantage} needs groups of at least {entry.min_group_size}, and leaving one out leaves {size - 1}"
        )
    # the sum of ranks without one rollout is that of the other parts and of this part made smaller
    part_ranks = np.where(is_ranked, ranks, 0.0)
    left_out = np.empty(stack.weights.shape)
    for left in range(size):
        remaining = np.delete(np.arange(size), left)
        weights = formulated(advantage, stack.rewards[:, remaining], stack.baseline_weights[:, remaining])
        grams = weights[:, :, None] * stack.scores[:, remaining][:, :, remaining] * weights[:, None, :]
        ranks_without = effective_ranks(singular_values_from_grams(center_grams(grams) if stack.centered else grams))
        lives = np.any(weights != 0, axis=1) & np.isfinite(ranks_without)
        sums = part_ranks.sum() - part_ranks + np.where(lives, ranks_without, 0.0)
        counts = is_ranked.sum() - is_ranked + lives
        left_out[:, left] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return jackknife(float(part_ranks.sum() / is_ranked.sum()), list(left_out[is_ranked]), low=1.0, high=float(size))


_LOGGED_IS_RELATIVE = "the logged advantages are relative to all rollouts of a group; name their formulation"
_SHARES = ("shared_energy", "shared_sum")
_NO_CHANNEL = {
    "shared_sum": "the gradients of every group cancel altogether",
    "shared_kept": "the rows of no group share a direction",
    "residual_kept": "the rows of every group lie on the directions that they share",
}
"""Why no part has a number of a channel, though it has a gradient."""
_EQUAL_GROUPS = "groups weigh alike here, and leaving out a rollout is for parts that weigh alike"


def curve_point(stack: PartStack, *, step: int, advantage: str, by_group: bool) -> RankCurvePoint:
    """The ranks of the live parts, averaged; intervals resample groups. Undefined where every part is dead."""
    counts = rank_counts(stack.values)
    is_ranked = stack.is_live & np.isfinite(counts[:, 0])
    drawn = stack.null_values(is_ranked) if is_ranked.any() else {}
    mean = MeanRanks(
        counts=counts[is_ranked],
        nulls={name: drawn_counts(values) for name, values in drawn.items()},
        group_ids=[part.group_id for part, is_chosen in zip(stack.parts, is_ranked, strict=True) if is_chosen],
        max_rank=stack.weights.shape[1],
        by_group=by_group,
    )
    means, null_ranks, nulls = mean.means(), mean.null_ranks(), dict[str, NullRank]()
    for name in NULLS if drawn else ():
        unknown = Estimate.undefined_because(TOKEN_ADVANTAGES)
        nulls[name] = NullRank(effective_rank=unknown, difference=unknown, ratio=unknown, two_direction_energy=unknown)
        if name in null_ranks and name in drawn:
            nulls[name] = replace(null_ranks[name], profile=profile(drawn[name]))
    if not is_ranked.any():
        given_prompts = means["effective_rank"]
    elif by_group:
        given_prompts = Estimate.undefined_because(_EQUAL_GROUPS)
    else:
        given_prompts = _rank_given_prompts(stack, advantage, counts[:, 0], is_ranked)
    size = float(stack.weights.shape[1])
    shared = {
        name: mean.mean_up_to(1.0 if name in _SHARES else size, column, _NO_CHANNEL.get(name, ""))
        for name, column in zip(CHANNELS, channels(stack.gradients)[is_ranked].T, strict=True)
    }
    # no interval of a whole number: where nearly all parts have the same one, resampling them says too little
    shared["shared_directions"] = replace(shared["shared_directions"], low=None, high=None)
    return RankCurvePoint(
        step=step,
        advantage=advantage,
        group_size=stack.weights.shape[1],
        num_groups=len(stack.parts),
        num_dead=int(np.sum(~stack.is_live)),
        **means,
        summed_energy=mean.mean_up_to(size, stack.summed_energy[is_ranked]),
        **shared,
        given_prompts=given_prompts,
        profile=profile(stack.values[is_ranked]),
        nulls=nulls,
    )


def step_spectra(
    rows: StepRows,
    advantage: str,
    group_size: int | None,
    *,
    by_group: bool,
    centered: bool = False,
    only: Collection[str] | None = None,
) -> tuple[list[GradientSpectrum], list[RankCurvePoint]]:
    """All spectra of one step for one advantage and one group size: the step's, then one per (sub-)group; and averages.

    There is one average per group size: ranks of matrices of different size are not averaged. None of either where no
    group is large enough.

    Args:
        group_size: Regroup into groups of this size; None: as logged.
        by_group: Whether rows of the step's matrix are whole groups (sums over their rollouts) rather than rollouts.
        only: The groups whose ranks are averaged, each weighing the same; None: all, each part weighing the same.
    """
    step = AdvantagedStep.split(rows, advantage, group_size, centered=centered)
    if not step.parts:
        return [], []
    # at sub-sampled sizes the whole step's rows are nearly the same rows, so its nulls are given once
    step_spectrum = step.step_spectrum(by_group, with_nulls=group_size is None)
    if by_group:
        return [step_spectrum], []
    spectra, curve = step.part_spectra(only)
    return [step_spectrum, *spectra], curve


class AdvantagedStep(Struct, frozen=True, kw_only=True):
    """One step under one advantage, in parts."""

    rows: StepRows
    advantage: str
    centered: bool
    parts: list[SubGroup]
    weights: list[Array]

    @classmethod
    def split(cls, rows: StepRows, advantage: str, group_size: int | None, *, centered: bool = False) -> AdvantagedStep:
        """A step in parts of a size; without one where no group is large enough."""
        parts = sub_groups(rows, group_size)
        weights = advantages_of(rows, parts, advantage) if parts else []
        return cls(rows=rows, advantage=advantage, centered=centered, parts=parts, weights=weights)

    def part_spectra(self, only: Collection[str] | None) -> tuple[list[GradientSpectrum], list[RankCurvePoint]]:
        """The parts' spectra and averages; ``only`` some groups, under the advantages that they have in the step."""
        # The step's own spectrum, which :func:`step_spectra` adds, takes the cube of its number of rollouts.
        indices = [index for index, part in enumerate(self.parts) if only is None or part.group_id in only]
        parts, weights = [self.parts[index] for index in indices], [self.weights[index] for index in indices]
        stacks = replace(self, parts=parts, weights=weights).stacks()
        spectra = {
            id(part): spectrum_of(
                gram,
                self._label(part, "rollout", (len(part.index), self.rows.num_parameters)),
                self.rows.relative_row_error,
                values=values,
            )
            for stack in stacks
            for part, gram, values in zip(stack.parts, stack.gradients, stack.values, strict=True)
        }
        curve = [
            curve_point(stack, step=self.rows.step, advantage=self.advantage, by_group=only is not None)
            for stack in stacks
        ]
        return [spectra[id(part)] for part in parts], curve

    @property
    def is_scalar(self) -> bool:
        """Whether each rollout has one advantage."""
        return self.advantage != LOGGED or self.rows.advantages is not None

    def gradients(self, index: NDArray[np.intp], weights: Array) -> Array:
        """Gram matrices of gradient rows at [..., N] rows of the step, [..., N, N]."""
        square = (index[..., :, None], index[..., None, :])
        if self.advantage == LOGGED and self.rows.policy_gram is not None:
            return np.asarray(self.rows.policy_gram[square], dtype=np.float64)
        return np.asarray(weights[..., :, None] * self.rows.gram[square] * weights[..., None, :], dtype=np.float64)

    def stacks(self) -> list[PartStack]:
        """The parts by size."""
        baseline_weights = baseline_weights_of(self.rows, self.advantage)
        stacks = []
        for chosen in by_size(self.parts):
            index = np.stack([self.parts[position].index for position in chosen])
            weights = np.stack([self.weights[position] for position in chosen])
            stacks.append(
                PartStack(
                    parts=tuple(self.parts[position] for position in chosen),
                    scores=self.rows.gram[index[:, :, None], index[:, None, :]],
                    baseline_weights=baseline_weights[index],
                    gradients=self.gradients(index, weights),
                    weights=weights,
                    rewards=self.rows.rewards[index],
                    is_scalar=self.is_scalar,
                    num_columns=self.rows.num_parameters,
                    centered=self.centered,
                )
            )
        return stacks

    def step_spectrum(self, by_group: bool, *, with_nulls: bool) -> GradientSpectrum:
        """The spectrum of all rows of the step, or of the sums over its groups."""
        scores, weights, gram = self._matrix(self.parts, self.weights, by_group)
        values = None if scores.rows is None else scores.singular_values(weights, centered=self.centered)
        largest, shape = max(self.parts, key=lambda part: len(part.index)), (len(gram), self.rows.num_parameters)
        label = replace(self._label(largest, "group" if by_group else "rollout", shape), group_id=None, samples=())
        nulls = self._step_nulls(by_group) if with_nulls else None
        return spectrum_of(gram, label, self.rows.relative_row_error, values=values, nulls=nulls)

    def token_part(self, gram: TokenGram, part: SubGroup, advantages: Array, *, seed: int) -> _TokenPart:
        """The tokens of one part of a group, as ``seed`` drew them."""
        inside = np.flatnonzero(np.isin(gram.table.rollouts, part.index))
        weights = _token_weights(gram.table, part.index, advantages, self.advantage)[inside]
        scores = gram.gram[np.ix_(inside, inside)]
        weighted = weights[:, None] * scores * weights
        frac_seen = len(gram.gram) / gram.table.num_tokens
        error = None
        if gram.num_buckets is not None:
            # root mean square of |K~ - K|_F / tr K where rows were sketched: sqrt((1 + 1/PR) / k)
            energy, squares = float(np.trace(weighted)), float(np.sum(weighted**2))
            error = ((1.0 + squares / energy**2) / gram.num_buckets) ** 0.5 if energy > 0 else 0.0
        row_error = self.rows.relative_row_error
        token_rows = TokenRows(
            method="sketch" if error is not None else "exact" if frac_seen == 1.0 else "sampled",
            num_tokens=round(len(inside) / frac_seen),
            frac_seen=frac_seen,
            seed=seed,
            value_error=row_error if error is None else max(row_error, error**0.5),
            num_buckets=gram.num_buckets,
            energy_error=error,
        )
        drawn: Mapping[str, Array] = {}
        norms = np.abs(weights) * np.sqrt(np.clip(np.diag(scores), 0.0, None))
        if norms.any():
            # a shuffle deals the rollouts' advantages, and tokens keep their own's
            spread = np.zeros((len(inside), len(part.index)))
            owners = np.searchsorted(part.index, gram.table.rollouts[inside])
            spread[np.arange(len(inside)), owners] = gram.table.score_weights[inside]
            drawn = null_values(
                ScoreVectors(gram=scores[None]),
                norms[None],
                advantages[None] if self.is_scalar else None,
                np.zeros((1, len(part.index)), dtype=np.int64),
                num_columns=gram.num_columns,
                centered=self.centered,
                spread=spread,
            )
        label = self._label(part, "token", (len(inside), gram.num_columns))
        spectrum = spectrum_of(weighted, label, token_rows.value_error, nulls=mean_null_ranks(drawn), tokens=token_rows)
        return spectrum, {name: drawn_counts(values)[0] for name, values in drawn.items()}

    def _label(self, part: SubGroup, rows: RowKind, shape: tuple[int, int]) -> SpectrumLabel:
        return SpectrumLabel(
            step=self.rows.step,
            group_id=part.group_id,
            rows=rows,
            advantage=self.advantage,
            group_size=len(part.index),
            samples=part.samples,
            shape=shape,
            centered=self.centered,
        )

    def _step_nulls(self, by_group: bool) -> Mapping[str, Estimate]:
        """Effective rank under each null, on the live groups: a dead group's score vectors are no gradient."""
        live = [position for position, weights in enumerate(self.weights) if np.any(weights != 0)]
        if not live:
            return mean_null_ranks({})
        parts = [self.parts[position] for position in live]
        scores, weights, gram = self._matrix(parts, [self.weights[position] for position in live], by_group)
        values = null_values(
            scores,
            row_norms(gram)[None],
            weights[None] if self.is_scalar else None,
            np.repeat(np.arange(len(parts)), [len(part.index) for part in parts])[None],
            num_columns=self.rows.num_parameters,
            centered=self.centered,
        )
        return mean_null_ranks(values, num_units=len(parts))

    def _matrix(
        self, parts: Sequence[SubGroup], weights: Sequence[Array], by_group: bool
    ) -> tuple[ScoreVectors, Array, Array]:
        """The score vectors of parts, their advantages, [R], and the Gram matrix of all rows or of sums by part."""
        index, advantages = np.concatenate([part.index for part in parts]), np.concatenate(weights)
        gram, sums = self.gradients(index, advantages), None
        if by_group:
            sums = np.repeat(np.eye(len(parts)), [len(part.index) for part in parts], axis=1)
            gram = update_gram(gram, sums)
        rows = self.rows.score_rows if self.is_scalar else None
        rows = None if rows is None or rows.shape[1] >= len(gram) else rows[index]
        return ScoreVectors(gram=self.rows.gram[np.ix_(index, index)][None], rows=rows, sums=sums), advantages, gram


def token_spectra(
    rows: StepRows,
    tokens: Sequence[TokenGram],
    advantage: str,
    group_size: int | None,
    *,
    seed: int,
    centered: bool = False,
    only: Collection[str] | None = None,
) -> tuple[list[GradientSpectrum], list[TokenRankPoint]]:
    """The spectra of each group's token rows, as ``seed`` drew them, and a point a group size, as ``step_spectra``."""
    gram_of = {gram.table.group_id: gram for gram in tokens}
    parts = [part for part in sub_groups(rows, group_size) if part.group_id in gram_of]
    weights = advantages_of(rows, parts, advantage)
    step = AdvantagedStep(rows=rows, advantage=advantage, centered=centered, parts=parts, weights=weights)
    token_parts = [
        step.token_part(gram_of[part.group_id], part, advantages, seed=seed)
        for part, advantages in zip(parts, weights, strict=True)
        if only is None or part.group_id in only
    ]
    by_sizes: dict[int, list[_TokenPart]] = {}
    for token_part in token_parts:
        by_sizes.setdefault(token_part[0].label.group_size, []).append(token_part)
    points = [_point(by_sizes[size], by_group=only is not None) for size in sorted(by_sizes)]
    return [spectrum for spectrum, _ in token_parts], points


def _token_weights(table: TokenTable, rollouts: NDArray[np.intp], advantages: Array, advantage: str) -> Array:
    """What multiplies each token's grad log pi, [N]."""
    by_rollout = dict(zip(rollouts.tolist(), advantages.tolist(), strict=True))
    if advantage == LOGGED and table.logged_weights is not None:
        return np.where(np.isin(table.rollouts, rollouts), table.logged_weights, 0.0)
    return -np.array([by_rollout.get(rollout, 0.0) for rollout in table.rollouts.tolist()]) * table.score_weights


_TokenPart = tuple[GradientSpectrum, Mapping[str, Array]]
"""Of one part of a group its spectrum, and the counts of its nulls [4]."""


def _point(parts: Sequence[_TokenPart], *, by_group: bool) -> TokenRankPoint:
    """Ranks of one step, advantage and group size, averaged over the live groups."""
    spectra = [spectrum for spectrum, _ in parts]
    label = spectra[0].label
    live = [part for part in parts if part[0].ranks.effective_rank.is_defined]
    seen = [spectrum.tokens for spectrum in spectra if spectrum.tokens is not None]
    group_ids = [str(spectrum.label.group_id) for spectrum, _ in live]
    names = [name for name in NULLS if live and all(np.isfinite(nulls.get(name, np.nan)).all() for _, nulls in live)]
    mean = MeanRanks(
        counts=np.array([rank_counts(np.array(spectrum.singular_values)) for spectrum, _ in live]).reshape(-1, 4),
        nulls={name: np.array([nulls[name] for _, nulls in live]) for name in names},
        group_ids=group_ids,
        max_rank=max(spectrum.label.shape[0] for spectrum in spectra),
        by_group=by_group,
    )
    num_rows = [[float(spectrum.label.shape[0])] for spectrum, _ in live]
    (rows,) = bootstrap_means(num_rows, group_ids, share=False) if live else (mean.means()["effective_rank"],)
    return TokenRankPoint(
        step=label.step,
        advantage=label.advantage,
        group_size=label.group_size,
        method=max((rows.method for rows in seen), key=("exact", "sketch", "sampled").index),
        num_groups=len(spectra),
        num_dead=len(spectra) - len(live),
        num_rows=rows,
        frac_seen=sum(rows.frac_seen * rows.num_tokens for rows in seen) / sum(rows.num_tokens for rows in seen),
        **mean.means(),
        energy_error=max((rows.energy_error for rows in seen if rows.energy_error is not None), default=None),
        nulls=mean.null_ranks(),
    )
