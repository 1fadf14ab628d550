"""Outcome rewards against rewards of single steps: docs/research/study_steps.md.

Run ``python benchmarks/study_steps.py --output DIR --page docs/research/study_steps.md --images docs/images``, first
with
``--pilot``; ``--quick`` is the smoke test. A study that is there goes on where it stopped, and no number on the page is
typed.
"""

from __future__ import annotations

from study import PASS_AT_1, Claim, Study, dead_groups, drawdown, held_out, held_out_before
from study_tables import run_study

_STEPS = 100

STUDY = Study(
    name="study_steps",
    base={
        "task": "running-sums",
        "group_size": 4,
        "num_prompts": 16,
        "steps": _STEPS,
        "checkpoint_every": _STEPS,
        "heldout_prompts": 128,
    },
    arms={
        "outcome": {"advantage": "dr_grpo"},
        "per step": {"advantage": "per_step"},
        "share of steps": {"task": "steps", "advantage": "dr_grpo"},
    },
    against={"per step": "outcome", "share of steps": "outcome"},
    claims=(Claim(arm="per step", baseline="outcome", metric=PASS_AT_1, reported="higher (five seeds, not decided)"),),
    metrics={PASS_AT_1: held_out(1), "pass@16": held_out(16), "dead groups": dead_groups, "drawdown": drawdown},
    rate_of={arm: arm for arm in ("outcome", "per step", "share of steps")},
    pilot_metrics={"pass@1 before": held_out_before},
    drawn=(PASS_AT_1, "pass@16", "dead groups"),
)


if __name__ == "__main__":
    raise SystemExit(run_study(STUDY))
