"""Sign where starvation comes from difficulty, at equal learning rates: docs/research/study_starvation.md.

Run ``python benchmarks/study_starvation.py --output DIR``, first with ``--pilot``, and ``--page`` and ``--images`` as
on the page; ``--quick`` is the smoke test. A study that is there goes on where it stopped.
"""

from __future__ import annotations

from study import PASS_AT_1, RATES, Claim, Study, dead_groups, drawdown, held_out, held_out_before
from study_tables import run_study

from gradscope.diagnostics.compare.runs import ComparedRun
from gradscope.rollouts.store import read_step_rollouts, step_files

_STEPS = 16
_FIRST = 5
_PROMPTS = {2: 16, 4: 8}
"""Group size -> prompts of a step, 32 rollouts in each."""
_CHANGES = {
    "grpo": {"advantage": "grpo"},
    "sign": {"advantage": "sign"},
    "negative": {"advantage": "grpo_negative"},
    "re-allocation": {"advantage": "grpo", "sampling": "reallocated"},
}
_CELLS = [
    (change, size, rate)
    for size in _PROMPTS
    for rate in RATES
    for change in _CHANGES
    if size == 4 or change != "re-allocation"  # half of a group of two is no group
]


def _arm(change: str, size: int, rate: str) -> str:
    return f"{change} G={size} {rate}"


def _all_fail(run: ComparedRun, steps: slice) -> float:
    groups = [group for file in step_files(run.path)[steps] for group in read_step_rollouts(file)]
    return sum(not any(rollout.reward for rollout in group.rollouts) for group in groups) / len(groups)


def all_fail(run: ComparedRun) -> float:
    """Share of all-fail groups over the whole run."""
    return _all_fail(run, slice(None))


def first_all_fail(run: ComparedRun) -> float:
    """Share of all-fail groups of the first steps."""
    return _all_fail(run, slice(_FIRST))


STUDY = Study(
    name="study_starvation",
    base={
        "task": "bimodal",
        "train_prompts": 128,
        "steps": _STEPS,
        "checkpoint_every": _STEPS,
        "heldout_prompts": 64,
        "heldout_samples": 8,
    },
    arms={
        _arm(change, size, rate): {**_CHANGES[change], "group_size": size, "num_prompts": _PROMPTS[size]}
        for change, size, rate in _CELLS
    },
    against={_arm(change, size, rate): _arm("grpo", size, rate) for change, size, rate in _CELLS if change != "grpo"},
    claims=tuple(
        Claim(
            arm=_arm(change, size, rate),
            baseline=_arm("grpo", size, rate),
            metric=PASS_AT_1,
            reported="higher" if change == "sign" else "negligible",
            margin=None if change == "sign" else 0.05,
        )
        for change, size, rate in _CELLS
        if change in ("sign", "re-allocation")
    ),
    metrics={
        PASS_AT_1: held_out(1),
        "pass@8": held_out(8),
        "all-fail groups": all_fail,
        "dead groups": dead_groups,
        "drawdown": drawdown,
    },
    planned_rates={_arm(change, size, rate): rate for change, size, rate in _CELLS},
    pilot_metrics={
        "pass@1 before": held_out_before,
        f"all-fail, first {_FIRST} steps": first_all_fail,
        "all-fail, whole run": all_fail,
        "pass@1 after": held_out(1),
    },
    pilot_seeds=(2, 3),
    drawn=(PASS_AT_1, "all-fail groups"),
)


if __name__ == "__main__":
    raise SystemExit(run_study(STUDY))
