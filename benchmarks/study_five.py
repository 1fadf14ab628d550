"""Five changes to GRPO, one at a time: docs/study_five.md.

A learned token-level critic, probability compensation, re-allocation of the budget, a negative advantage for groups
without a success, and a dense reward. Run ``python benchmarks/study_five.py --output DIR --page docs/study_five.md
--images docs/images``; ``--quick`` is the smoke test. A study that is there goes on where it stopped, and no number on
the page is typed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from study import (
    Results,
    Study,
    dead_groups,
    differences_and_means,
    drawdown,
    held_out,
    run_study,
)

from gradscope.diagnostics.compare.runs import ComparedRun
from gradscope.rollouts.store import read_steps

_GROUP_SIZE = 4
_LATE = 10
"""Steps at the end of a run that its late success is taken from."""
_RATES = {"3e-4": 3e-4, "1e-3": 1e-3}


def late_success(run: ComparedRun) -> float:
    """Share of right answers at the end of training, on the first half of each group."""
    # Re-allocation draws that half before it decides anything: a fair sample of the policy under every arm.
    steps = int(run.settings["steps"])
    groups = [group for group in read_steps(run.path) if group.step > steps - _LATE]
    half = _GROUP_SIZE // 2
    return float(np.mean([r.rewards["answer"] == 1.0 for group in groups for r in group.rollouts[:half]]))


def incoherent(run: ComparedRun) -> float | None:
    """Share of rollouts with a wrong step among the rewarded ones; None for a task whose steps are not graded."""
    return None if run.incoherence is None else run.incoherence.value


STUDY = Study(
    name="study_five",
    base={"steps": 40, "group_size": _GROUP_SIZE, "num_prompts": 16, "checkpoint_every": 40},
    blocks={"running-sums": {"task": "running-sums"}, "starved": {"task": "starved"}},
    arms={
        "grpo": {"advantage": "grpo"},
        "token critic": {"advantage": "token_critic"},
        "fast critic": {"advantage": "token_critic", "critic_learning_rate": 1e-2},
        "compensation": {"advantage": "compensation"},
        "clipped compensation": {"advantage": "compensation_clipped"},
        "re-allocation": {"advantage": "grpo", "sampling": "reallocated"},
        "negative on all-fail": {"advantage": "grpo_negative"},
        "dense reward": {"advantage": "grpo", "reward": "answer_probability"},
    },
    only=dict.fromkeys(("token critic", "fast critic", "clipped compensation", "dense reward"), ("running-sums",)),
    conditions={name: {"learning_rate": rate} for name, rate in _RATES.items()},
    metrics={
        "pass@1": held_out(1),
        "pass@16": held_out(16),
        "late success": late_success,
        "drawdown": drawdown,
        "dead groups": dead_groups,
        "rewarded, incoherent": incoherent,
    },
)


def render(results: Results) -> str:
    """The tables of the page."""
    return "\n\n".join(differences_and_means(results, against="GRPO", place_title="task, learning rate"))


def draw(results: Results, folder: Path) -> None:
    """The figures of the page."""
    from study_figures import draw_forest  # every run's process imports this file

    _, *arms = results.study.arms
    draw_forest(results, folder / "study_five_forest", arms=arms, metrics=("pass@1", "pass@16", "late success"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study."""
    return run_study(STUDY, render, draw, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
