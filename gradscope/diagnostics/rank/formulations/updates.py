"""What each formulation makes of a step's rollouts: sizes, directions, and what it climbs on average.

Shapes: R rollouts of a step, J groups, F formulations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import LOGGED, formulation
from gradscope.diagnostics.rank.rollouts.geometry import class_energy
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.diagnostics.rank.rollouts.sub_groups import WEIGHED, SubGroup, advantages_of, by_size, sub_groups
from gradscope.errors import GradscopeError
from gradscope.estimate import Estimate
from gradscope.metrics.gram.alignment import ExpectedUpdates, expected_updates, pass_at_k_weights
from gradscope.metrics.gram.geometry import (
    batch_norm,
    between_groups,
    cancellation,
    cosines,
    gradient_gram,
    group_sums,
    update_gram,
)
from gradscope.metrics.gram.prompt_noise import group_cosine, noise_within
from gradscope.metrics.gram.row_shares import projection_shares
from gradscope.metrics.gram.spectrum import Array
from gradscope.results.rank import FormulationUpdate, GroupShare

_NOT_BINARY = "pass@k is defined for rewards of 0 and 1, and there are others"
_ZERO_UPDATE = "one of the two updates is zero"


def measure_formulations(rows: StepRows, advantages: Sequence[str]) -> list[FormulationUpdate]:
    """The update under every formulation that these rewards have.

    Args:
        advantages: ``logged`` and formulations. Logged advantages that differ by token have no row here.

    Returns:
        One per formulation; those that the rewards do not have are left out.
    """
    names, table = weights_by_name(rows, advantages)
    if not names:
        return []
    groups = group_index(rows)
    targets, why_no_target = pass_at_k_targets(rows)
    everything = np.array([*table, *targets.values()])
    expected = expected_updates(rows.gram, everything, groups)
    angles = cosines(update_gram(rows.gram, table))
    place_of = {name: len(names) + index for index, name in enumerate(targets)}
    return [
        FormulationUpdate(
            step=rows.step,
            advantage=name,
            signal_to_noise=expected.signal_to_noise(index),
            critical_batch_size=expected.critical_batch_size(index),
            noise_within=_noise_within(rows, name),
            alignment=_alignment(expected, index, place_of, why_no_target),
            cosines={other: _cosine(angles[index, at]) for at, other in enumerate(names) if at != index},
            **_size(rows, table[index], groups),
        )
        for index, name in enumerate(names)
    ]


def measure_shares(rows: StepRows) -> list[GroupShare]:
    """Each group's and rollout's part of the step's gradient under the logged advantage; empty without one."""
    if rows.policy_gram is None:
        return []
    shares = projection_shares(rows.policy_gram)
    none = Estimate.undefined_because("the step has no gradient")
    group_shares = []
    for part in sub_groups(rows, None):
        mine = shares[part.index]
        rewards = rows.rewards[part.index]
        has_share = bool(np.isfinite(mine).all())
        group_shares.append(
            GroupShare(
                step=rows.step,
                group_id=part.group_id,
                pass_rate=None if np.isnan(rewards).any() else float(rewards.mean()),
                projection_share=Estimate.exact(float(mine.sum()), num_units=len(mine)) if has_share else none,
                rollouts=tuple(float(share) for share in mine) if has_share else (),
            )
        )
    return group_shares


def group_index(rows: StepRows) -> NDArray[np.int64]:
    """The group of each rollout as a number from 0 to J - 1, in the order of the log, [R]."""
    index_of = {group_id: index for index, group_id in enumerate(dict.fromkeys(rows.group_ids))}
    return np.array([index_of[group_id] for group_id in rows.group_ids], dtype=np.int64)


def weights_by_name(rows: StepRows, advantages: Sequence[str]) -> tuple[list[str], Array]:
    """The advantages of a step under each formulation that its rewards have.

    Returns:
        Names, and one row each, [F, R].
    """
    names, table = [], []
    for name in advantages:
        if name == LOGGED and rows.advantages is None:
            continue
        try:
            table.append(in_order(rows, advantages_of(rows, sub_groups(rows, None), name)))
        except GradscopeError:  # said once for the whole run, beside the spectra
            continue
        names.append(name)
    return names, np.array(table)


def in_order(rows: StepRows, values: Sequence[Array]) -> Array:
    """Values by group, [J][G], in the order of the step's rollouts, [R]."""
    ordered = np.empty(len(rows.group_ids))
    for part, mine in zip(sub_groups(rows, None), values, strict=True):
        ordered[part.index] = mine
    return ordered


def pass_at_k_targets(rows: StepRows) -> tuple[Mapping[str, Array], str | None]:
    """The weights whose expected update is the gradient of pass@k, for k = 1 and the group size."""
    if not np.isin(rows.rewards, (0.0, 1.0)).all():
        return {}, _NOT_BINARY
    parts = sub_groups(rows, None)
    sizes = [len(parts[indices[0]].index) for indices in by_size(parts)]
    if min(sizes) < 2:
        return {}, "a group of one rollout has no baseline"
    return {
        f"pass@{k}": in_order(rows, [pass_at_k_weights(rows.rewards[part.index], k) for part in parts])
        for k in dict.fromkeys((1, min(sizes)))
    }, None


def _alignment(
    expected: ExpectedUpdates, index: int, targets: Mapping[str, int], why_not: str | None
) -> Mapping[str, Estimate]:
    if why_not is not None:
        return {"pass@1": Estimate.undefined_because(why_not)}
    return {name: expected.cosine(index, target) for name, target in targets.items()}


def _cosine(value: float) -> Estimate:
    return Estimate.undefined_because(_ZERO_UPDATE) if np.isnan(value) else Estimate.exact(float(value))


def _noise_within(rows: StepRows, advantage: str) -> Estimate:
    """The noise of halves of the groups, whose advantages are made of the half alone."""
    if advantage == LOGGED:
        return Estimate.undefined_because("logged advantages are relative to whole groups; name their formulation")
    entry, wholes = formulation(advantage), sub_groups(rows, None)
    if entry.scope not in {"group", *WEIGHED}:
        return Estimate.undefined_because(f"{advantage} is relative to more than a group")
    size = min(len(whole.index) for whole in wholes) // 2
    if size < max(2, entry.min_group_size):
        return Estimate.undefined_because(f"half of a group has {size} rollouts, too few for {advantage}")
    halves: dict[str, list[SubGroup]] = {}
    for part in sub_groups(rows, size):
        halves.setdefault(part.group_id, []).append(part)
    parts = [half for of_group in halves.values() for half in of_group[:2]]
    weights = np.zeros((len(parts), len(rows.group_ids)))
    for row, part, own in zip(weights, parts, advantages_of(rows, parts, advantage), strict=True):
        row[part.index] = own
    return noise_within(weights @ rows.gram @ weights.T)


def _size(rows: StepRows, weights: Array, groups: NDArray[np.int64]) -> dict[str, Estimate]:
    gram = gradient_gram(rows.gram, weights)
    return {
        "update_norm": Estimate.exact(batch_norm(gram), num_units=len(gram)),
        "cancellation": cancellation(gram),
        "between_groups": between_groups(gram, groups),
        "group_cosine": group_cosine(group_sums(gram, groups)),
        "class_subspace_energy": class_energy(rows, gram),
    }
