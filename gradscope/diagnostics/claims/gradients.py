"""Claims about gradients: directions, baselines, sparsity, ranks by group size, and the change of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.claims.evidence import Evidence, Judgement, all_hold, cannot_tell, in_range, rises
from gradscope.diagnostics.rank.rollout_spectra import AdvantagedStep
from gradscope.diagnostics.rank.rows import advantage_rows, advantages_of, sub_groups
from gradscope.diagnostics.rank.spectrum import GroupRank, compare_sizes, ranks_of_groups
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, bounded_means, ratios
from gradscope.metrics.uncertainty.paired import student_mean
from gradscope.metrics.uncertainty.steps import MIN_STEPS, trend, trend_within
from gradscope.results.rank import GroupKind, RankCurvePoint, TokenRankPoint, WeightRankPoint, whole_changes
from gradscope.results.source import RowKind
from gradscope.results.verdicts import ClaimVerdict
from gradscope.rollouts.groups import MAX_READ_BACK, reward_table, rollouts_by_step
from gradscope.say import number, percent, with_interval

if TYPE_CHECKING:
    from gradscope.diagnostics.rank.formulations import BaselineGroup
    from gradscope.diagnostics.rank.measure import Collected

SPARSER = 0.02  # the least change of an index from 0 to 1 over training that is called growth
SAME_DIRECTION = 0.9
"""Cosines of expected updates from here on are the same direction, within 26 degrees; to climb takes one above 0."""
SAME_BASELINE = 0.05
"""A baseline as near to the mean reward as this share of the range of the run's rewards is no other."""
_OTHER_PROMPTS = (
    "the prompts change between these steps, and a change of prompts may look the same; steps of the same prompts tell"
)
_NO_RETURN = "no prompt returns, so a change of prompts may look the same"
_NO_SPREAD = 1e-9


def groups_grow_sparser(evidence: Evidence) -> Judgement:
    """Share of groups without a gradient over all steps of the log, within the prompts that return."""
    table = evidence.groups()
    prompts, index = np.unique(table.prompt, return_inverse=True)
    order = np.lexsort((table.step, index))
    returns = (np.diff(index[order]) == 0) & (np.diff(table.step[order]) > 0)
    num_returning = len(np.unique(index[order][1:][returns]))
    if not num_returning:
        return cannot_tell(_NO_RETURN)
    change = trend_within(table.step, index, table.dead.astype(np.float64)).within(-1.0, 1.0)
    why = f"Within the {num_returning} of {len(prompts)} prompts that return"
    return _growth(change, tuple(np.unique(table.step).tolist()), why)


def _grow_sparser(kind: RowKind, evidence: Evidence) -> Judgement:
    """Gini of the sizes of the parts of each checkpoint's gradient, of several matrices their mean."""
    report, ginis = evidence.gradients(kind).report, dict[int, list[float]]()
    by_rollout = [(step.step, step.sparsity["gini"]) for step in report.steps if kind == "rollout"]
    for step, gini in by_rollout or [(row.step, row.gini) for row in report.sparsity]:
        if gini.value is not None:
            ginis.setdefault(step, []).append(gini.value)
    gini_at = {step: fmean(values) for step, values in sorted(ginis.items())}
    steps = tuple(gini_at)
    if not gini_at:
        return cannot_tell("No step has such a gradient")
    change = trend(steps, list(gini_at.values())).within(-1.0, 1.0)
    prompts = {tuple(sorted(group.prompt_id for group in evidence.run.groups_at(step))) for step in steps}
    if change.is_defined and len(prompts) > 1:
        value = Estimate.exact(change.value or 0.0, num_units=change.num_units)
        return cannot_tell(_OTHER_PROMPTS, estimate=value, steps=steps)
    low, high = min(gini_at.values()), max(gini_at.values())
    return _growth(change, steps, f"Of values from {number(low, '.2f')} to {number(high, '.2f')}, of the same prompts")


rows_grow_sparser = partial(_grow_sparser, "rollout")  # the norms of the rollouts' rows
tokens_grow_sparser = partial(_grow_sparser, "token")  # those of the tokens'
entries_grow_sparser = partial(_grow_sparser, "weight")  # the entries of each weight's gradient


def _growth(change: Estimate, steps: tuple[int, ...], subject: str) -> Judgement:
    if change.undefined is not None:
        return cannot_tell(change.undefined, estimate=change, steps=steps)
    if change.ends[1] - change.ends[0] < _NO_SPREAD:
        change = Estimate.exact(change.value or 0.0, num_units=change.num_units)
        return cannot_tell("the steps lie on one line, so nothing tells the noise", estimate=change, steps=steps)
    few = "" if change.num_units >= MIN_STEPS else "; so few hardly tell a trend from steps like their neighbors"
    return Judgement(
        estimate=change,
        verdict=rises(change, 0.0, SPARSER),
        why=f"{subject}, along the line through {change.num_units} steps from {steps[0]} to {steps[-1]}{few}.",
        steps=steps,
    )


def group_mean_is_optimal(evidence: Evidence) -> Judgement:
    """Whether the least noisy constant of a group, E[|s|^2 r] / E[|s|^2], is the group's mean reward."""
    # It is where reward and squared norm are uncorrelated (Greensmith, Bartlett & Baxter 2004). Groups of equal
    # rewards say nothing: every optimum between their rewards is that reward.
    collected = evidence.gradients("rollout")
    steps = tuple(step.step for step in collected.report.steps)

    from gradscope.diagnostics.rank.formulations import measure_baselines

    mixed = [group for group in collected.baseline_groups if group.is_mixed]
    gaps = [[best - group.rewards.mean()] for group in mixed if (best := group.optimal_baseline) is not None]
    if not gaps:
        return cannot_tell("no group with unequal rewards has a gradient", steps=steps)
    rewards = reward_table(evidence.run.groups).reward
    reach = float(np.ptp(rewards[~np.isnan(rewards)]))
    (distance,) = bounded_means(gaps, low=-reach, high=reach)
    margin = SAME_BASELINE * reach
    pooled = measure_baselines(collected.baseline_groups)[0]
    noise = pooled.relative_noise["optimal_leave_one_out"]
    return Judgement(
        estimate=distance,
        verdict=in_range(distance, -margin, margin),
        why=f"Over {len(gaps)} groups of unequal rewards. The condition: squared norms above a mean reward are "
        f"{_or_unknown(_norm_ratio(mixed))} of those below it, and the correlation of reward and squared norm is "
        f"{_or_unknown(pooled.reward_norm_correlation)}; taken from the other rollouts the least "
        f"noisy constant leaves {_or_unknown(noise)} of leave-one-out's noise.",
        steps=steps,
    )


def _norm_ratio(groups: Sequence[BaselineGroup]) -> Estimate:
    """Mean squared norm above the group's mean reward over that below it; 1 where norm and reward are unrelated."""
    parts = []
    for group in groups:
        above = group.rewards > group.rewards.mean()
        parts.append((group.squared_norms[above].mean(), group.squared_norms[~above].mean()))
    total = np.sum(parts, axis=0)
    if not total.all():
        return Estimate.undefined_because("one side has no gradient", num_units=len(parts))

    def ratio(sums: Array) -> Array:
        floored = np.maximum(sums, _NO_SPREAD * total)  # a resample may hold no group with a gradient
        return np.asarray(floored[..., :1] / floored[..., 1:], dtype=np.float64)

    return bootstrap_statistics(ratio, parts, bounds=(0.0, np.inf))[0]


def sign_part(
    part: GroupKind, target: Literal["pass@1", "pass@G"], rule: Callable[[Estimate], ClaimVerdict], evidence: Evidence
) -> Judgement:
    """The cosine of Sign's update on one kind of group with the gradient of pass@1 or pass@G, judged by a rule."""
    binary = []
    for step in evidence.gradients("rollout").report.steps:
        rows = evidence.rows(step.step)
        sizes = set(np.unique(rows.group_ids, return_counts=True)[1].tolist())
        if np.isin(rows.rewards, (0.0, 1.0)).all() and len(sizes) == 1 and sizes != {1}:
            binary.append(rows)

    from gradscope.diagnostics.rank.formulations import group_index, kinds_of
    from gradscope.metrics.gram.alignment import expected_updates, pass_at_k_weights

    if not binary:
        return cannot_tell("The rewards are not 0 and 1 in groups of two or more of one size")
    chosen = max(binary, key=lambda step_rows: int(kinds_of(step_rows)[part].sum()))
    groups, is_part = group_index(chosen), kinds_of(chosen)[part]
    num_groups, size = len(np.unique(groups[is_part])), int(np.sum(groups == 0))
    if not num_groups:
        return cannot_tell(f"No group of these steps is {part.replace('_', '-')}", steps=(chosen.step,))
    climbs = np.empty(len(groups))
    for group in range(int(groups.max()) + 1):
        rewards = chosen.rewards[groups == group]
        climbs[groups == group] = pass_at_k_weights(rewards, 1 if target == "pass@1" else size)
    sign = np.where(is_part, 2 * chosen.rewards - 1, 0.0)
    cosine = expected_updates(chosen.gram, [sign, climbs], groups).cosine(0, 1)
    return Judgement(
        estimate=cosine,
        verdict=rule(cosine),
        why=f"{num_groups} such groups of {groups.max() + 1}, G = {size}"
        f"{'' if cosine.undefined is None else f': {cosine.undefined}'}.",
        steps=(chosen.step,),
    )


def _or_unknown(estimate: Estimate) -> str:
    return with_interval(estimate, ".2f") if estimate.is_defined else "unknown"


ABOUT_TWO = (1.5, 2.5)  # ranks that are called "about 2"
SAME_RANK = 0.5
"""A change of the rank between the smallest and the largest group up to this is "whatever the group size"."""
CLASS_MEANS_SHARE = 0.9
"""Rows with this share of their energy in the means of two classes count as two rows: a rank sees no difference."""
HIGHER_RANK = 0.05  # the least relative rise of a rank that is called higher
_Point = RankCurvePoint | TokenRankPoint | WeightRankPoint


class RankEvidence(Struct, frozen=True, kw_only=True):
    """One matrix at one step, at every group size, on the same prompts."""

    points: Sequence[_Point]  # by group size, ascending
    change: Estimate | None
    """Rank at the largest size minus at the smallest, paired by prompt; None where there is one size, or tokens were
    drawn: of fewer tokens, not only of fewer rollouts, is then the rank at a smaller size."""
    seen: str = ""  # what was drawn, after a space, where not everything was looked at


def rank_two_at_every_size(measure: Callable[[Evidence], RankEvidence], evidence: Evidence) -> Judgement:
    """Whether the rank at the largest group is about 2 and the smallest group's is no other, at the last step."""
    ranks = measure(evidence)
    ranked = [point for point in ranks.points if point.effective_rank.is_defined]
    if not ranked:
        reason = ranks.points[0].effective_rank.undefined if ranks.points else None
        return cannot_tell(reason or "No group has such a matrix")
    last = ranked[-1]
    verdicts = [in_range(last.effective_rank, *ABOUT_TWO, num_tests=2)]
    changed = "there is one group size" if len(ranked) < 2 else "no change is stated"
    if ranks.change is not None and ranks.change.is_defined and len(ranked) > 1:
        verdicts.append(in_range(ranks.change, -SAME_RANK, SAME_RANK, num_tests=2))
        change = with_interval(ranks.change, "+.2f")
        changed = f"{change} from the smallest to the largest R on the same prompts ({ranks.change.num_units})"
    else:
        verdicts.append("cannot_tell")
    listed = ", ".join(f"{number(p.effective_rank.value or 0.0, '.2f')} at R = {p.group_size}" for p in ranked)
    return Judgement(
        estimate=last.effective_rank,
        null=last.nulls["gaussian"].effective_rank,
        verdict=all_hold(verdicts),
        why=f"Rank {listed}; {changed}; {with_interval(last.nulls['gaussian'].ratio, '.2f')} of unrelated rows."
        f"{ranks.seen}",
        steps=(last.step,),
    )


def two_class_means(evidence: Evidence) -> Judgement:
    """Whether the rows A_i s_i of a group are little else than one mean row of its passes and one of its fails."""
    # Advantages that sum to zero and have two values make a group's gradient a multiple of the difference of the two
    # mean score vectors, whatever G. Its rows have rank 2 only as far as those of a class are alike: the part of
    # their summed squared norms in the class means, sum over classes of |sum of A_i s_i|^2 / n_c over the sum of |A_i
    # s_i|^2.
    rows = evidence.rows(evidence.gradients("rollout").report.steps[-1].step)
    parts = sub_groups(rows, None)
    shares, unfit = [], 0
    for part, advantages in zip(parts, advantages_of(rows, parts, evidence.advantage), strict=True):
        if not np.any(advantages):
            continue
        values, classes = np.unique(advantages.round(9), return_inverse=True)
        if len(values) > 2 or abs(advantages.sum()) > _NO_SPREAD * len(advantages):
            unfit += 1
            continue
        gram = rows.gram[np.ix_(part.index, part.index)] * np.outer(advantages, advantages)
        means = np.eye(len(values))[classes] / np.sqrt(np.bincount(classes))  # [G, classes]
        energy = np.trace(gram)
        shares.append(np.array([np.trace(means.T @ gram @ means), np.sum(means**2 * np.diag(gram)[:, None])]) / energy)
    if unfit or not shares:
        why = f"under {evidence.advantage} the advantages of {unfit} groups do not sum to zero or have over two values"
        return cannot_tell(why if unfit else "no group has a gradient", steps=(rows.step,))
    share, null = bounded_means(shares, low=0.0, high=1.0)
    return Judgement(
        estimate=share,
        null=null,
        verdict=in_range(share, CLASS_MEANS_SHARE, 1.0),
        why=f"Over {len(shares)} groups whose advantages sum to zero and have two values, so that their gradient is a "
        "multiple of the mean score of the passes minus that of the fails.",
        steps=(rows.step,),
    )


def rollout_ranks(kind: RowKind, evidence: Evidence) -> RankEvidence:
    """Rows that are rollouts, in the space of one kind."""
    collected = evidence.gradients(kind)
    return _rank_evidence(collected.report.curve, collected.group_ranks, "rollout")


def token_ranks(kind: RowKind, evidence: Evidence) -> RankEvidence:
    """Rows that are tokens, in the space of one kind."""
    collected = evidence.gradients(kind)
    ranks = _rank_evidence(collected.report.token_curve, collected.group_ranks, "token")
    seen = min((point.frac_seen for point in ranks.points if isinstance(point, TokenRankPoint)), default=1.0)
    return ranks if seen == 1.0 else replace(ranks, change=None, seen=f" {percent(seen)} of the tokens are rows.")


def weight_ranks(kind: RowKind, evidence: Evidence) -> RankEvidence:
    """dL/dW of one group, mean over all weights."""
    collected = evidence.gradients(kind)
    num_ranked, total = len({point.tensor for point in collected.report.weight_curve} - {None}), collected.num_weights
    seen = "" if num_ranked == total else f" The mean is over {num_ranked} of {total} weights, drawn at random."
    return replace(_weight_evidence(collected, None), seen=seen)


def head_ranks(kind: RowKind, evidence: Evidence) -> RankEvidence:
    """dL/dW of one group, of the output head; an ``InputError`` where no weight is the head alone."""
    from gradscope.diagnostics.rank.weight_groups import is_output_head

    collected = evidence.gradients(kind)
    names = [point.tensor for point in collected.report.weight_curve if point.tensor is not None]
    heads = list(filter(is_output_head, names))
    if not heads:
        raise InputError("No weight is the output head alone: it is tied to the embedding, or was not trained.")
    return _weight_evidence(collected, heads[-1])


_MOST_ADVANTAGES = 2048  # rollouts whose inner products are computed at once: a rank of groups needs no more


def advantage_ranks(kind: RowKind, evidence: Evidence) -> RankEvidence:
    """The advantages themselves, rollouts by tokens, of groups spread evenly over the step; no gradient is needed."""
    steps, num_rollouts = rollouts_by_step(evidence.run.groups)
    step = int(steps[-1])
    if num_rollouts[-1] > MAX_READ_BACK:
        raise InputError(f"Step {step} has {num_rollouts[-1]:,} rollouts, too many to look at.")
    groups = evidence.run.groups_at(step)
    drawn = groups[:: math.ceil(num_rollouts[-1] / _MOST_ADVANTAGES)]
    rows = advantage_rows(step, drawn)
    request = evidence.request(kind)
    chosen = request.groups(rows, evidence.advantage)
    points: list[RankCurvePoint] = []
    ranks: list[GroupRank] = []
    for size in request.sizes(rows, evidence.advantage):
        spectra, curve = AdvantagedStep.split(rows, evidence.advantage, size).part_spectra(chosen)
        ranks.extend(ranks_of_groups(spectra))
        points.extend(curve)
    seen = "" if len(drawn) == len(groups) else f" {len(drawn):,} of {len(groups):,} groups were looked at."
    return replace(_rank_evidence(points, ranks, "rollout"), seen=seen)


def higher_with_token_credit(evidence: Evidence) -> Judgement:
    """Whether dL/dW of a group has a higher rank where each token has an advantage of its own."""
    # Compared is the mean over weights of a group's dL/dW. A rank of rows would not do: it depends on how unequal the
    # advantages' sizes are, and never on whom they reward.
    origin, collected = evidence.credited()

    from gradscope.diagnostics.rank.weight_groups import ALL_WEIGHTS

    by_group: dict[str, dict[str, float]] = {}
    for group_rank in collected.group_ranks:
        if group_rank.matrix == ALL_WEIGHTS:
            by_group.setdefault(group_rank.group_id, {})[group_rank.advantage] = group_rank.rank
    pairs = [(ranks[LOGGED], ranks[evidence.advantage]) for ranks in by_group.values() if len(ranks) == 2]
    step = collected.report.steps[-1].step
    if not pairs:
        return cannot_tell("No group has a gradient under both advantages", steps=(step,))
    (ratio,) = bootstrap_statistics(ratios, pairs, bounds=(0.0, np.inf))
    token, outcome = np.mean(pairs, axis=0).tolist()
    return Judgement(
        estimate=ratio,
        null=Estimate.exact(1.0),
        verdict=rises(ratio, 1.0, HIGHER_RANK),
        why=f"Rank {token:.2f} with {origin}, {outcome:.2f} with the outcome's, on {len(pairs)} groups.",
        steps=(step,),
    )


def _weight_evidence(collected: Collected, tensor: str | None) -> RankEvidence:
    from gradscope.diagnostics.rank.weight_groups import ALL_WEIGHTS

    points = [point for point in collected.report.weight_curve if point.tensor == tensor]
    return _rank_evidence(points, collected.group_ranks, tensor or ALL_WEIGHTS)


def _rank_evidence(points: Sequence[_Point], ranks: Iterable[GroupRank], matrix: str) -> RankEvidence:
    step = max((point.step for point in points), default=0)
    chosen = sorted((point for point in points if point.step == step), key=lambda point: point.group_size)
    changes = compare_sizes(rank for rank in ranks if (rank.step, rank.matrix) == (step, matrix))
    return RankEvidence(points=chosen, change=changes[-1].difference if changes else None)


FEW_CHANGE = 0.3  # the largest share of changed parameters that arXiv 2505.11711 reports


def _mean_over_weights(name: str, null: str | None, bounds: tuple[float, float], evidence: Evidence) -> Judgement:
    """The mean over weights of a share of their change, minus its value by chance where it has one."""
    changes = whole_changes(evidence.updates())
    pairs = [(getattr(update, name).value, getattr(update, null).value if null else 0.0) for update in changes]
    values = [value - by_chance for value, by_chance in pairs if value is not None and by_chance is not None]
    if len(values) < 2:
        return cannot_tell("The initial weights of fewer than two matrices are on disk")
    mean = student_mean(values, bounds=(bounds[0], 1.0))
    return Judgement(
        estimate=mean,
        null=Estimate.exact(bounds[1]),
        verdict=in_range(mean, *bounds),
        why=f"The change from {changes[0].first} to {changes[0].last} updates, with an interval over {len(values)} "
        "weights: other weights, not other runs.",
    )


avoids_principal_directions = partial(_mean_over_weights, "principal_overlap", "principal_null", (-1.0, 0.0))
inherits_singular_values = partial(_mean_over_weights, "spectrum_drift", "spectrum_drift_null", (-1.0, 0.0))
few_parameters_change = partial(_mean_over_weights, "bfloat16_changed", None, (0.0, FEW_CHANGE))
