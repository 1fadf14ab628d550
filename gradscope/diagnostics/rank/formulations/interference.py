"""Which prompts of a step help the others' correct answers, and which hurt them, under each formulation.

Shapes: R rollouts of a step, J groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradscope.diagnostics.rank.formulations.updates import group_index, pass_at_k_targets, weights_by_name
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.metrics.gram.interference import prompt_effects
from gradscope.results.ranks.interference import Interference, PromptInfluence


def measure_interference(rows: StepRows, advantages: Sequence[str]) -> tuple[list[Interference], list[PromptInfluence]]:
    """The effect of the groups on each other's correct answers.

    Args:
        advantages: ``logged`` and formulations. Logged advantages that differ by token have no row here.

    Returns:
        One per formulation, and under the first of them one per group that has a gradient; none where rewards are not
        0 and 1.
    """
    _, why_not = pass_at_k_targets(rows)
    names, table = weights_by_name(rows, advantages)
    if why_not is not None or not names:
        return [], []
    groups, is_correct = group_index(rows), rows.rewards == 1.0
    every = [prompt_effects(rows.gram, weights, groups, is_correct) for weights in table]
    of_steps = [
        Interference(
            step=rows.step,
            advantage=name,
            frac_hurt=effects.frac_hurt(),
            cosine=effects.mean_cosine(),
            transfer=effects.transfer(),
        )
        for name, effects in zip(names, every, strict=True)
    ]
    rates = np.bincount(groups, weights=rows.rewards) / np.bincount(groups)
    of_prompts = [
        PromptInfluence(
            step=rows.step, advantage=names[0], group_id=group_id, pass_rate=float(rate), influence=influence
        )
        for group_id, rate, pulls, influence in zip(
            dict.fromkeys(rows.group_ids), rates, every[0].pulls, every[0].influences(), strict=True
        )
        if pulls
    ]
    return of_steps, of_prompts
