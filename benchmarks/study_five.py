"""Five changes to GRPO, each against what is said of it: docs/research/study_five.md.

A learned token-level critic, probability compensation, re-allocation of the budget, a negative advantage for groups
without a success, and a dense reward. Run ``python benchmarks/study_five.py --output DIR --page
docs/research/study_five.md
--images docs/images``, first with ``--pilot``; ``--quick`` is the smoke test. A study that is there goes on where it
stopped, and no number on the page is typed.
"""

from __future__ import annotations

import numpy as np
from study import PASS_AT_1, Claim, Study, dead_groups, drawdown, held_out, held_out_before
from study_tables import run_study

from gradscope.diagnostics.compare.runs import ComparedRun

_STEPS = 100
_PARTS = 10
"""Parts of a run of which the best and the last are compared."""
_INCOHERENT = "rewarded, incoherent"
_DIVERGED = "diverged"


def incoherent(run: ComparedRun) -> float | None:
    """Share of rollouts with a wrong step among the rewarded ones."""
    return None if run.incoherence is None else run.incoherence.value


def diverged(run: ComparedRun) -> float:
    """1 where the train reward of the last tenth of a run is below half of its best tenth's, else 0."""
    parts = [part.mean() for part in np.array_split(run.reward, min(_PARTS, len(run.reward)))]
    return float(parts[-1] < max(parts) / 2)


_ARMS = {
    "grpo": {"advantage": "grpo"},
    "token critic": {"advantage": "token_critic"},
    "fast critic": {"advantage": "token_critic", "critic_learning_rate": 1e-2},
    "compensation": {"advantage": "compensation"},
    "re-allocation": {"advantage": "grpo", "sampling": "reallocated"},
    "negative on all-fail": {"advantage": "grpo_negative"},
    "dense reward": {"advantage": "grpo", "reward": "answer_probability"},
}
STUDY = Study(
    name="study_five",
    base={
        "task": "running-sums",
        "group_size": 4,
        "num_prompts": 16,
        "steps": _STEPS,
        "checkpoint_every": _STEPS,
        "heldout_prompts": 128,
    },
    arms=_ARMS,
    against={arm: "grpo" for arm in _ARMS if arm != "grpo"},
    claims=(
        Claim(arm="token critic", baseline="grpo", metric="drawdown", reported="instability"),
        Claim(arm="compensation", baseline="grpo", metric=_DIVERGED, reported="divergence", is_share=True),
        Claim(arm="re-allocation", baseline="grpo", metric=PASS_AT_1, reported="negligible", margin=0.05),
        Claim(arm="negative on all-fail", baseline="grpo", metric=PASS_AT_1, reported="positive"),
        Claim(arm="dense reward", baseline="grpo", metric=_INCOHERENT, reported="reward hacking"),
    ),
    metrics={
        PASS_AT_1: held_out(1),
        "pass@16": held_out(16),
        "drawdown": drawdown,
        _DIVERGED: diverged,
        "dead groups": dead_groups,
        _INCOHERENT: incoherent,
    },
    rate_of=dict.fromkeys(_ARMS, "grpo"),
    pilot_metrics={"pass@1 before": held_out_before},
    drawn=(PASS_AT_1, "drawdown", _INCOHERENT),
)


if __name__ == "__main__":
    raise SystemExit(run_study(STUDY))
