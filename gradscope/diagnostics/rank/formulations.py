"""What each formulation makes of a step (sizes, directions, what it climbs, how groups pull), and baselines.

Shapes: R rollouts of a step, J groups of G rollouts, F formulations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.advantages.registry import LOGGED, compute_step_advantages, formulation
from gradscope.diagnostics.rank.rows import WEIGHED, StepRows, SubGroup, advantages_of, by_size, sub_groups
from gradscope.errors import GradscopeError
from gradscope.estimate import Estimate
from gradscope.metrics.gram import alignment, geometry
from gradscope.metrics.gram.alignment import prompt_effects
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, bounded_means
from gradscope.results import rank as results
from gradscope.rollouts.run import WeightsRef

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram


def measure_geometry(
    rows: StepRows, weights: WeightsRef, gram: StepGram, logged: Mapping[str, float]
) -> results.StepGeometry:
    """One step's gradient under the logged advantage; undefined where none was logged."""
    full, policy = rows.full_gram, rows.policy_gram
    unknown, sparsity = Estimate.undefined_because("no advantages were logged"), dict[str, Estimate]()
    if policy is not None:
        norms = geometry.row_norms(policy)
        sparsity = {"zero_groups": geometry.zero_groups(norms, rows.group_ids), **geometry.row_sparsity(norms)}
    return results.StepGeometry(
        step=rows.step,
        weights=weights.path.name,
        num_rollouts=len(rows.group_ids),
        num_inferred_ids=gram.num_inferred_ids,
        grad_norm=unknown if full is None else Estimate.exact(geometry.batch_norm(full), num_units=len(full)),
        logged_grad_norm=logged.get("grad_norm"),
        cancellation=unknown if policy is None else geometry.cancellation(policy),
        class_subspace_energy=unknown if policy is None else _class_energy(rows, policy),
        sparsity=sparsity,
        verification=gram.verification.describe(),
    )


def _class_energy(rows: StepRows, gradients: Array) -> Estimate:
    """Energy in the class means, mean over the groups whose rewards differ; its interval resamples groups."""
    energies = []
    for part in sub_groups(rows, None):
        rewards = rows.rewards[part.index]
        if np.isnan(rewards).any() or rewards.max() == rewards.min():
            continue
        inner = gradients[np.ix_(part.index, part.index)]
        energy = geometry.class_subspace_energy(inner, rewards > rewards.mean())
        if energy.value is not None:
            energies.append(energy.value)
    if not energies:
        return Estimate.undefined_because(
            "no group of this step has rewards that differ and a gradient that is not zero"
        )
    (mean,) = bounded_means([[energy] for energy in energies], low=0.0, high=1.0)
    return mean


_NOT_BINARY = "pass@k is defined for rewards of 0 and 1, and there are others"
_BY_TOKEN = "each token has an advantage of its own, and rows of rollouts tell no angle with others"
_ZERO_UPDATE = "one of the two updates is zero"


def measure_formulations(rows: StepRows, advantages: Sequence[str]) -> list[results.FormulationUpdate]:
    """The update under every formulation that these rewards have."""
    # Logged advantages that differ by token have sizes and noise of their own, but no angle with the others.
    names, table = weights_by_name(rows, advantages)
    groups = group_index(rows)
    by_token = LOGGED in advantages and rows.advantages is None and rows.policy_gram is not None
    cosines = {LOGGED: Estimate.undefined_because(_BY_TOKEN)} if by_token else {}
    first = [_token_update(rows, groups, names)] if by_token else []
    if not names:
        return first
    targets, why_no_target = _pass_at_k_targets(rows)
    everything = np.array([*table, *targets.values()])
    expected = alignment.expected_updates(rows.gram, everything, groups)
    angles = geometry.cosines(geometry.update_gram(rows.gram, table))
    index_of = {name: len(names) + index for index, name in enumerate(targets)}
    return first + [
        results.FormulationUpdate(
            step=rows.step,
            advantage=name,
            signal_to_noise=expected.signal_to_noise(index),
            critical_batch_size=expected.critical_batch_size(index),
            noise_within=_noise_within(rows, name),
            alignment={"pass@1": Estimate.undefined_because(why_no_target)}
            if why_no_target is not None
            else {name: expected.cosine(index, target) for name, target in index_of.items()},
            cosines=cosines
            | {
                other: Estimate.undefined_because(_ZERO_UPDATE) if np.isnan(angle) else Estimate.exact(float(angle))
                for other, angle in zip(names, angles[index], strict=True)
                if other != name
            },
            **_size(rows, table[index], groups),
        )
        for index, name in enumerate(names)
    ]


def _token_update(rows: StepRows, groups: NDArray[np.int64], names: Sequence[str]) -> results.FormulationUpdate:
    """The logged update where each token has its own advantage: its rows are weighed already."""
    assert rows.policy_gram is not None, "the caller looked"
    weighed, weights = replace(rows, gram=rows.policy_gram), np.ones(len(rows.group_ids))
    expected = alignment.expected_updates(weighed.gram, weights[None], groups)
    unknown = Estimate.undefined_because(_BY_TOKEN)
    targets = list(_pass_at_k_targets(rows)[0]) or ["pass@1"]
    return results.FormulationUpdate(
        step=rows.step,
        advantage=LOGGED,
        signal_to_noise=expected.signal_to_noise(0),
        critical_batch_size=expected.critical_batch_size(0),
        noise_within=unknown,
        alignment=dict.fromkeys(targets, unknown),
        cosines=dict.fromkeys(names, unknown),
        **_size(weighed, weights, groups),
    )


def measure_shares(rows: StepRows) -> list[results.GroupShare]:
    """Each group's and rollout's part of the step's gradient under the logged advantage; empty without one."""
    if rows.policy_gram is None:
        return []
    shares = geometry.projection_shares(rows.policy_gram)
    unknown = Estimate.undefined_because("the step has no gradient")
    group_shares = []
    for part in sub_groups(rows, None):
        rewards, part_shares = rows.rewards[part.index], shares[part.index]
        has_share = bool(np.isfinite(part_shares).all())
        group_shares.append(
            results.GroupShare(
                step=rows.step,
                group_id=part.group_id,
                pass_rate=None if np.isnan(rewards).any() else float(rewards.mean()),
                projection_share=Estimate.exact(float(part_shares.sum()), num_units=len(part_shares))
                if has_share
                else unknown,
                rollouts=tuple(float(share) for share in part_shares) if has_share else (),
            )
        )
    return group_shares


def group_index(rows: StepRows) -> NDArray[np.int64]:
    """The group of each rollout as a number from 0 to J - 1, in the order of the log, [R]."""
    index_of = {group_id: index for index, group_id in enumerate(dict.fromkeys(rows.group_ids))}
    return np.array([index_of[group_id] for group_id in rows.group_ids], dtype=np.int64)


def weights_by_name(rows: StepRows, advantages: Sequence[str]) -> tuple[list[str], Array]:
    """The formulations that a step's rewards have, and its advantages under each, [F, R]."""
    names, table = [], []
    for name in advantages:
        if name == LOGGED and rows.advantages is None:
            continue
        try:
            table.append(in_order(rows, advantages_of(rows, sub_groups(rows, None), name)))
        except GradscopeError:  # reported once for the whole run, with the spectra
            continue
        names.append(name)
    return names, np.array(table)


def in_order(rows: StepRows, values: Sequence[Array]) -> Array:
    """Values by group, [J][G], in the order of the step's rollouts, [R]."""
    ordered = np.empty(len(rows.group_ids))
    for part, part_values in zip(sub_groups(rows, None), values, strict=True):
        ordered[part.index] = part_values
    return ordered


def _pass_at_k_targets(rows: StepRows) -> tuple[Mapping[str, Array], str | None]:
    """The weights whose expected update is the gradient of pass@k, for k = 1 and the group size."""
    if not np.isin(rows.rewards, (0.0, 1.0)).all():
        return {}, _NOT_BINARY
    parts = sub_groups(rows, None)
    sizes = [len(parts[indices[0]].index) for indices in by_size(parts)]
    if min(sizes) < 2:
        return {}, "a group of one rollout has no baseline"
    return {
        f"pass@{k}": in_order(rows, [alignment.pass_at_k_weights(rows.rewards[part.index], k) for part in parts])
        for k in dict.fromkeys((1, min(sizes)))
    }, None


def _noise_within(rows: StepRows, advantage: str) -> Estimate:
    """The noise of halves of the groups, with advantages relative to the half."""
    if advantage == LOGGED:
        return Estimate.undefined_because("logged advantages are relative to whole groups; name their formulation")
    entry, groups = formulation(advantage), sub_groups(rows, None)
    if entry.scope not in {"group", *WEIGHED}:
        return Estimate.undefined_because(f"{advantage} is relative to more than a group")
    size = min(len(group.index) for group in groups) // 2
    if size < max(2, entry.min_group_size):
        return Estimate.undefined_because(f"half of a group has {size} rollouts, too few for {advantage}")
    halves: dict[str, list[SubGroup]] = {}
    for part in sub_groups(rows, size):
        halves.setdefault(part.group_id, []).append(part)
    parts = [half for group_halves in halves.values() for half in group_halves[:2]]
    weights = np.zeros((len(parts), len(rows.group_ids)))
    for row, part, advantages in zip(weights, parts, advantages_of(rows, parts, advantage), strict=True):
        row[part.index] = advantages
    return alignment.noise_within(geometry.update_gram(rows.gram, weights))


def _size(rows: StepRows, weights: Array, groups: NDArray[np.int64]) -> dict[str, Estimate]:
    gram = geometry.gradient_gram(rows.gram, weights)
    return {
        "update_norm": Estimate.exact(geometry.batch_norm(gram), num_units=len(gram)),
        "cancellation": geometry.cancellation(gram),
        "between_groups": geometry.between_groups(gram, groups),
        "group_cosine": alignment.group_cosine(geometry.group_sums(gram, groups)),
        "class_subspace_energy": _class_energy(rows, gram),
    }


def measure_kinds(rows: StepRows, advantages: Sequence[str]) -> list[results.KindUpdate]:
    """The parts of the update by kind of group under every formulation; none where rewards are not 0 and 1."""
    # Logged advantages that differ by token have no row here.
    targets, why_not = _pass_at_k_targets(rows)
    names, table = weights_by_name(rows, advantages)
    if why_not is not None or not names:
        return []
    masks, groups = kinds_of(rows), group_index(rows)
    present = [kind for kind, mask in masks.items() if mask.any()]
    parts = np.array([np.where(masks[kind], weights, 0.0) for weights in table for kind in present])
    expected = alignment.expected_updates(rows.gram, np.array([*parts, *targets.values()]), groups)
    updates = []
    for row, (name, kind) in enumerate((name, kind) for name in names for kind in present):
        full_weights = table[names.index(name)]
        updates.append(
            results.KindUpdate(
                step=rows.step,
                advantage=name,
                kind=kind,
                num_groups=len(np.unique(groups[masks[kind]])),
                norm=Estimate.exact(geometry.batch_norm(geometry.gradient_gram(rows.gram, parts[row]))),
                cosine=geometry.cosine_of_updates(rows.gram, parts[row], full_weights),
                alignment={target: expected.cosine(row, len(parts) + index) for index, target in enumerate(targets)},
            )
        )
    return updates


def kinds_of(rows: StepRows) -> Mapping[results.GroupKind, NDArray[np.bool_]]:
    """Which rollouts are of a group of each kind, [R], of a step with rewards of 0 and 1."""
    parts = sub_groups(rows, None)
    mean = in_order(rows, [np.full(len(part.index), rows.rewards[part.index].mean()) for part in parts])
    masks = (mean == 0.0, (mean > 0.0) & (mean < 1.0), mean == 1.0)
    return dict(zip(get_args(results.GroupKind), masks, strict=True))


def measure_interference(
    rows: StepRows, advantages: Sequence[str]
) -> tuple[list[results.Interference], list[results.GroupInfluence]]:
    """The effect of the groups on each other's correct answers, by formulation, and of each group under the first."""
    # None where rewards are not 0 and 1; logged advantages that differ by token have no row here.
    _, why_not = _pass_at_k_targets(rows)
    names, table = weights_by_name(rows, advantages)
    if why_not is not None or not names:
        return [], []
    groups, is_correct = group_index(rows), rows.rewards == 1.0
    all_effects = [prompt_effects(rows.gram, weights, groups, is_correct) for weights in table]
    interference = [
        results.Interference(
            step=rows.step,
            advantage=name,
            frac_hurt=effects.frac_hurt(),
            cosine=effects.mean_cosine(),
            transfer=effects.transfer(),
        )
        for name, effects in zip(names, all_effects, strict=True)
    ]
    pulls = all_effects[0].pulls
    return interference, influences_of(rows, names[0], pulls, compress(all_effects[0].influences(), pulls))


def influences_of(
    rows: StepRows, advantage: str, pulls: NDArray[np.bool_], influences: Iterable[Estimate]
) -> list[results.GroupInfluence]:
    """Those of the groups with a gradient, ``pulls`` [J], in the order of the step."""
    groups = group_index(rows)
    rates = np.bincount(groups, weights=rows.rewards) / np.bincount(groups)
    named = compress(zip(dict.fromkeys(rows.group_ids), rates.tolist(), strict=True), pulls)
    return [
        results.GroupInfluence(
            step=rows.step,
            advantage=advantage,
            group_id=name,
            pass_rate=None if np.isnan(rate) else rate,
            influence=influence,
        )
        for (name, rate), influence in zip(named, influences, strict=True)
    ]


_SHRINKAGE = "shrinkage"
_NOTHING = 1e-9  # a resample may hold no group with a gradient; its sum then counts as this share of the whole
_MIN_LIVE = 10  # with fewer groups that have a gradient, resamples of the ratio's denominator say nothing
_NO_NOISE = "leave_one_out has no gradient here, so there is nothing to compare with"


class BaselineGroup(Struct, frozen=True, kw_only=True):
    """One group's rewards, squared norms, and second moment under each baseline."""

    step: int
    group_id: str
    rewards: Array  # [G]
    squared_norms: Array  # |s|^2, [G]
    moments: Mapping[str, float]  # baseline -> mean of |s|^2 (r - b)^2

    @property
    def is_mixed(self) -> bool:
        """Whether rewards differ."""
        return bool(np.ptp(self.rewards) > 0)

    @property
    def optimal_baseline(self) -> float | None:
        """The constant of least noise; None where every score vector is zero."""
        if not self.squared_norms.any():
            return None
        return float(alignment.optimal_baselines(self.rewards, self.squared_norms).item())


def baseline_groups(rows: StepRows) -> list[BaselineGroup]:
    """The groups of two or more rollouts of a step whose rewards are all known."""
    rewarded = [part for part in sub_groups(rows, None) if not np.isnan(rows.rewards[part.index]).any()]
    parts = [part for part in rewarded if len(part.index) > 1]
    norms, groups = np.clip(np.diag(rows.gram), 0.0, None), []
    shrunk = compute_step_advantages(_SHRINKAGE, [rows.rewards[part.index] for part in parts]) if parts else ()
    for positions in by_size(parts):
        index = np.stack([parts[position].index for position in positions])
        rewards = rows.rewards[index]
        tables = alignment.baselines(rewards, norms[index])
        tables[_SHRINKAGE] = rewards - np.stack([shrunk[position] for position in positions])
        moments = {name: alignment.second_moment(rewards, norms[index], table) for name, table in tables.items()}
        groups += [
            BaselineGroup(
                step=rows.step,
                group_id=parts[position].group_id,
                rewards=rewards[row],
                squared_norms=norms[index[row]],
                moments={name: float(values[row]) for name, values in moments.items()},
            )
            for row, position in enumerate(positions)
        ]
    return groups


def measure_baselines(groups: Sequence[BaselineGroup]) -> tuple[results.BaselineNoise, ...]:
    """The noise of all steps together, of each step, and of each group whose rewards differ."""
    if not groups:
        return ()
    steps = sorted({group.step for group in groups})
    return (
        _noise(groups, step=None),
        *(_noise([group for group in groups if group.step == step], step=step) for step in steps),
        *(_noise([group], step=group.step, group_id=group.group_id) for group in groups if group.is_mixed),
    )


def _noise(groups: Sequence[BaselineGroup], *, step: int | None, group_id: str | None = None) -> results.BaselineNoise:
    # pooled over groups of one size; of several sizes, over the most frequent one
    sizes = [len(group.rewards) for group in groups]
    chosen = [group for group in groups if len(group.rewards) == max(set(sizes), key=sizes.count)]
    # norms differ by orders of magnitude between groups; each group's own scale makes them comparable
    norms = np.stack([group.squared_norms / max(group.squared_norms.mean(), 1e-300) for group in chosen])
    return results.BaselineNoise(
        step=step,
        group_id=group_id,
        num_groups=len(groups),
        pass_rate=float(np.mean([group.rewards.mean() for group in groups])),
        optimal_baseline=_optimal(groups),
        reward_norm_correlation=alignment.reward_norm_correlation(np.stack([group.rewards for group in chosen]), norms),
        relative_noise={name: _relative(groups, name) for name in groups[0].moments if name != alignment.REFERENCE},
    )


def _optimal(groups: Sequence[BaselineGroup]) -> Estimate:
    mixed = [group for group in groups if group.is_mixed]
    values = [[best] for group in mixed if (best := group.optimal_baseline) is not None]
    if not values:
        return Estimate.undefined_because("no group has rewards that differ and a gradient", num_units=len(groups))
    rewards = np.concatenate([group.rewards for group in mixed])
    (mean,) = bounded_means(values, low=float(rewards.min()), high=float(rewards.max()))
    return mean


def _relative(groups: Sequence[BaselineGroup], name: str) -> Estimate:
    """Sum of second moments over that of the reference; resampled by group, as a logarithm, because it is a ratio."""
    moments = np.array([[group.moments[name], group.moments[alignment.REFERENCE]] for group in groups])
    total = moments.sum(axis=0)
    if total[1] <= 0.0:
        return Estimate.undefined_because(_NO_NOISE, num_units=len(groups))
    if total[0] <= 0.0:
        return Estimate.exact(0.0, num_units=len(groups))
    floor = _NOTHING * total

    def log_ratio(sums: Array) -> Array:
        logs = np.log(np.maximum(sums, floor))
        return np.asarray(logs[..., :1] - logs[..., 1:], dtype=np.float64)

    (log,) = bootstrap_statistics(log_ratio, moments)
    value = float(total[0] / total[1])
    if log.low is None or log.high is None or np.sum(moments[:, 1] > 0) < _MIN_LIVE:
        return Estimate.exact(value, num_units=len(groups))
    low, high = float(np.exp(log.low)), float(np.exp(log.high))
    return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=len(groups))
