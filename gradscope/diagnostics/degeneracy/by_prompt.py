"""Which prompts the policy learns from: a row a prompt, of arrays alone, so that a million cost what their groups do.

Legend: J groups, P prompts that have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.degeneracy.course import chosen_threshold
from gradscope.diagnostics.degeneracy.group_rewards import TRAINER_REWARD, GroupRewards
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS, passes
from gradscope.results.degeneracy import PromptCounts
from gradscope.results.envelope import LazyRows

_STATUS = np.array(["live", "never", "always"], dtype=object)
_LIVE, _NEVER, _ALWAYS = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompts:
    """The prompts of a log."""

    counts: PromptCounts
    """How many of them the policy learns from."""
    rows: LazyRows
    """One row a prompt, as ``DegeneracyReport.by_prompt`` has them."""


def measure_prompts(
    chosen: GroupRewards, threshold: float | None, main: str | None = None, *, name: str = TRAINER_REWARD
) -> MeasuredPrompts:
    """The prompts of a log, by the reward that should be learned.

    Args:
        chosen: The groups, with the reward that is reported.
        threshold: From which of these rewards on a rollout passes; None: not known.
        main: The main one of several reward functions, which then tells instead; None: the reported reward does.
        name: How the reported reward is called.

    Returns:
        A row a prompt, those first that took the most rollouts and are not live.
    """
    groups = chosen.table
    values = chosen.values if main is None else groups.rewards[main]
    spread = groups.spread(values)
    if main is not None:
        threshold = chosen_threshold(
            GroupRewards(table=groups, values=values, num_singletons=0, num_incomplete=0), None
        )
    present, prompt = np.unique(groups.prompt, return_inverse=True)  # [P], [J]
    rollouts = np.bincount(prompt, weights=groups.size).astype(np.int64)
    is_live = np.bincount(prompt, weights=~(spread <= EQUAL_REWARDS)) > 0
    first, last = np.full(len(present), np.iinfo(np.int64).max), np.full(len(present), -1)
    np.minimum.at(first, prompt, groups.step)
    differs = spread > EQUAL_REWARDS
    np.maximum.at(last, prompt[differs], groups.step[differs])
    status, rate = np.full(len(present), _LIVE), np.full(len(present), np.nan)
    if threshold is not None:
        num_passing = np.bincount(prompt, weights=groups.sums(passes(values, threshold)))
        rate = num_passing / rollouts
        status[~is_live & (num_passing == 0)] = _NEVER
        status[~is_live & (num_passing == rollouts)] = _ALWAYS
    is_known = is_live | (threshold is not None)
    order = np.lexsort((present, -rollouts, (status == _LIVE) & is_known))
    texts = groups.prompt_texts
    columns = {
        "prompt_id": _take(groups.prompts, present[order]),
        "prompt": np.full(len(present), None) if texts is None else _take(texts, present[order]),
        "num_groups": np.bincount(prompt)[order],
        "num_rollouts": rollouts[order],
        "pass_rate": _or_none(rate, np.isfinite(rate))[order],
        "status": _or_none(_STATUS[status], is_known)[order],
        "first_step": first[order],
        "last_live_step": _or_none(last, last >= 0)[order],
    }
    counts = np.bincount(status, minlength=3).tolist()
    return MeasuredPrompts(
        counts=PromptCounts(
            never=None if threshold is None else counts[_NEVER],
            always=None if threshold is None else counts[_ALWAYS],
            live=int(np.sum(is_live)) if threshold is None else counts[_LIVE],
            frac_rollouts=float(rollouts[~((status == _LIVE) & is_known)].sum() / rollouts.sum()),
            reward=main or name,
        ),
        rows=LazyRows(columns),
    )


def _take(names: object, places: NDArray[np.int64]) -> NDArray[np.object_]:
    return np.array(names, dtype=object)[places]


def _or_none(values: NDArray[Any], is_known: NDArray[np.bool_]) -> NDArray[np.object_]:
    plain = values.astype(object)
    plain[~is_known] = None
    return plain
