"""Which prompts of a step help held-out prompts' correct answers, and which hurt them, under each formulation.

Shapes: R rollouts of a step, J groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.rank.formulations.updates import group_index, weights_by_name
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.metrics.gram.heldout import HeldoutEffects, heldout_effects
from gradscope.metrics.gram.spectrum import Array
from gradscope.results.ranks.heldout import HeldoutInfluence, HeldoutTransfer

if TYPE_CHECKING:
    from gradscope.gradients.step.heldout import HeldoutGram

_NOT_BINARY = "rewards other than 0 and 1 do not say which of the step's own answers are correct"
_UNEVEN = "the loss weighs the tokens of an answer unequally, so what the step does to its own is not known"


def measure_heldout(
    rows: StepRows, heldout: HeldoutGram, advantages: Sequence[str]
) -> tuple[list[HeldoutTransfer], list[HeldoutInfluence]]:
    """The effect of the groups on held-out prompts' correct answers.

    Args:
        advantages: ``logged`` and formulations. Logged advantages that differ by token have no row here.

    Returns:
        One per formulation, and under the first of them one per group that has a gradient.
    """
    names, table = weights_by_name(rows, advantages)
    every = [_effects(rows, heldout, weights) for weights in table]
    of_steps = [
        HeldoutTransfer(
            step=rows.step,
            advantage=name,
            num_groups=effects.effect.shape[0],
            num_heldout=effects.effect.shape[1],
            frac_hurt=effects.frac_hurt(),
            cosine=effects.mean_cosine(),
            transfer=effects.transfer(),
        )
        for name, effects in zip(names, every, strict=True)
    ]
    return of_steps, _influences(rows, names[0], every[0]) if names else []


def _effects(rows: StepRows, heldout: HeldoutGram, weights: Array) -> HeldoutEffects:
    own, unknown, is_correct = None, _UNEVEN, np.zeros(len(weights), dtype=np.bool_)
    if not np.isin(rows.rewards, (0.0, 1.0)).all():
        unknown = _NOT_BINARY
    elif heldout.scales is not None:
        own, is_correct = rows.gram * heldout.scales, (rows.rewards == 1.0) & (heldout.scales > 0)
    return heldout_effects(
        rows.gram, weights, group_index(rows), is_correct, heldout.cross, heldout.norms, own, unknown
    )


def _influences(rows: StepRows, advantage: str, effects: HeldoutEffects) -> list[HeldoutInfluence]:
    groups = group_index(rows)
    rates = np.bincount(groups, weights=rows.rewards) / np.bincount(groups)
    pulling = [(name, rate) for name, rate, pulls in zip(_names(rows), rates, effects.pulls, strict=True) if pulls]
    return [
        HeldoutInfluence(
            step=rows.step,
            advantage=advantage,
            group_id=name,
            pass_rate=None if np.isnan(rate) else float(rate),
            influence=influence,
        )
        for (name, rate), influence in zip(pulling, effects.influences(), strict=True)
    ]


def _names(rows: StepRows) -> list[str]:
    return list(dict.fromkeys(rows.group_ids))
