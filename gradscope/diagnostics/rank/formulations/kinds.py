"""What groups without a success, with both, and without a failure each give to a formulation's update.

Shapes: R rollouts of a step, J groups, F formulations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.rank.formulations.updates import (
    group_index,
    in_order,
    pass_at_k_targets,
    weights_by_name,
)
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.diagnostics.rank.rollouts.sub_groups import sub_groups
from gradscope.estimate import Estimate
from gradscope.metrics.gram.alignment import expected_updates
from gradscope.metrics.gram.geometry import batch_norm, gradient_gram
from gradscope.metrics.gram.row_shares import cosine_of_updates
from gradscope.results.rank import GroupKind, KindUpdate


def measure_kinds(rows: StepRows, advantages: Sequence[str]) -> list[KindUpdate]:
    """The parts of the update under every formulation that these rewards have.

    Args:
        advantages: ``logged`` and formulations. Logged advantages that differ by token have no row here.

    Returns:
        One per formulation and kind of group that the step has; none where rewards are not 0 and 1.
    """
    targets, why_not = pass_at_k_targets(rows)
    names, table = weights_by_name(rows, advantages)
    if why_not is not None or not names:
        return []
    masks, groups = kinds_of(rows), group_index(rows)
    present = [kind for kind, mask in masks.items() if mask.any()]
    parts = np.array([np.where(masks[kind], weights, 0.0) for weights in table for kind in present])
    expected = expected_updates(rows.gram, np.array([*parts, *targets.values()]), groups)
    found = []
    for place, (name, kind) in enumerate((name, kind) for name in names for kind in present):
        whole = table[names.index(name)]
        found.append(
            KindUpdate(
                step=rows.step,
                advantage=name,
                kind=kind,
                num_groups=len(np.unique(groups[masks[kind]])),
                norm=Estimate.exact(batch_norm(gradient_gram(rows.gram, parts[place]))),
                cosine=cosine_of_updates(rows.gram, parts[place], whole),
                alignment={target: expected.cosine(place, len(parts) + index) for index, target in enumerate(targets)},
            )
        )
    return found


def kinds_of(rows: StepRows) -> Mapping[GroupKind, NDArray[np.bool_]]:
    """Which rollouts are of a group of each kind, [R], of a step with rewards of 0 and 1."""
    parts = sub_groups(rows, None)
    mean = in_order(rows, [np.full(len(part.index), rows.rewards[part.index].mean()) for part in parts])
    masks = (mean == 0.0, (mean > 0.0) & (mean < 1.0), mean == 1.0)
    return dict(zip(get_args(GroupKind), masks, strict=True))
