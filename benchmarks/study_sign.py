"""Sign against the baseline of its own source, where starvation is: docs/research/study_sign.md.

Run ``python benchmarks/study_sign.py --output DIR --page docs/research/study_sign.md --images docs/images``, first with
``--pilot``; ``--quick`` is the smoke test. A study that is there goes on where it stopped, and no number on the page is
typed.
"""

from __future__ import annotations

import numpy as np
from study import PASS_AT_1, Claim, Study, dead_groups, held_out, held_out_before
from study_tables import run_study

from gradscope.diagnostics.compare.runs import ComparedRun
from gradscope.rollouts.store import read_steps

_SIZE, _PROMPTS, _STEPS = 4, 8, 200
_FIRST = 20
"""Steps at the beginning of a run that tell which regime it starts in."""
_LAST = 50
"""Steps at its end."""
_FREE = ("grpo", "sign", "negative on all-fail")
"""The arms whose gradients are not scaled."""


def first_reward(run: ComparedRun) -> float:
    """Pass rate of the first steps."""
    return float(run.reward[:_FIRST].mean())


def first_dead(run: ComparedRun) -> float:
    """Share of dead groups of the first steps."""
    return float(run.degenerate[:_FIRST].mean())


def first_all_fail(run: ComparedRun) -> float:
    """Share of all-fail groups among the dead ones of the first steps."""
    groups = [group for group in read_steps(run.path) if group.step <= _FIRST]
    totals = [sum(rollout.rewards["answer"] for rollout in group.rollouts) for group in groups]
    dead = [total for total in totals if total in (0.0, _SIZE)]
    return float(np.mean([total == 0.0 for total in dead])) if dead else 0.0


def last_dead(run: ComparedRun) -> float:
    """Share of dead groups of the last steps."""
    return float(run.degenerate[-_LAST:].mean())


STUDY = Study(
    name="study_sign",
    base={
        "task": "running-sums",
        "temperature": 3.0,
        "loss_type": "dr_grpo",
        "group_size": _SIZE,
        "num_prompts": _PROMPTS,
        "steps": _STEPS,
        "checkpoint_every": _STEPS,
        "heldout_prompts": 128,
    },
    arms={
        "grpo": {"advantage": "grpo"},
        "sign": {"advantage": "sign"},
        "negative on all-fail": {"advantage": "grpo_negative"},
        "grpo, norm matched": {"advantage": "grpo", "match_grad_norm": 1.0},
        "sign, norm matched": {"advantage": "sign", "match_grad_norm": 1.0},
    },
    against={"sign": "grpo", "negative on all-fail": "grpo", "sign, norm matched": "grpo, norm matched"},
    claims=(Claim(arm="sign", baseline="grpo", metric=PASS_AT_1, reported="higher"),),
    metrics={
        PASS_AT_1: held_out(1),
        "pass@16": held_out(16),
        "dead groups": dead_groups,
        "dead, last 50 steps": last_dead,
    },
    rate_of={arm: arm for arm in _FREE} | {"grpo, norm matched": "grpo", "sign, norm matched": "sign"},
    pilot_metrics={
        "pass@1 before": held_out_before,
        "pass rate, first 20 steps": first_reward,
        "dead, first 20": first_dead,
        "all-fail among them": first_all_fail,
    },
    drawn=(PASS_AT_1, "pass@16", "dead, last 50 steps"),
    drawn_over_steps=_FREE,
)


if __name__ == "__main__":
    raise SystemExit(run_study(STUDY))
