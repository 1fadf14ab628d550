"""Sign against GRPO and Dr.GRPO by task, group size and learning rate, with norms matched: docs/study_sign.md.

Run ``python benchmarks/study_sign.py --output DIR --page docs/study_sign.md --images docs/images``; ``--quick`` is the
smoke test. A study that is there goes on where it stopped, and no number on the page is typed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from study import (
    Difference,
    Results,
    Study,
    correct,
    count_tests,
    dead_groups,
    differences_and_means,
    held_out,
    run_study,
    table_of_differences,
    train_reward,
)

from gradscope.diagnostics.compare.runs import ComparedRun
from gradscope.metrics.outcomes.passk import pass_at_k
from gradscope.rollouts.run_folder import heldout_path
from gradscope.training.tasks.sum_variants import is_rare

_ROLLOUTS = 64
"""Rollouts of a step, whatever the group size."""
_MIDDLE_RATE = "3e-4"
_RATES = {"1e-4": 1e-4, _MIDDLE_RATE: 3e-4, "1e-3": 1e-3}


def rare_pass_at_16(run: ComparedRun) -> float | None:
    """Pass@16 on the prompts of ``conflict`` that want another answer; None for the other tasks."""
    if run.settings["task"] != "conflict":
        return None
    correct: dict[str, list[bool]] = {}
    file = heldout_path(run.path, "after")
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if is_rare(row["prompt"]):
            correct.setdefault(row["prompt_id"], []).append(row["correct"])
    counts = np.array([sum(samples) for samples in correct.values()])
    return float(pass_at_k(16, counts, 16).mean())


STUDY = Study(
    name="study_sign",
    base={"steps": 40, "checkpoint_every": 40},
    blocks={
        f"{task} G={size}": {
            "task": task,
            "group_size": size,
            "num_prompts": _ROLLOUTS // size,
            "heldout_prompts": 128 if task == "conflict" else 64,
        }
        for task in ("running-sums", "conflict", "starved")
        for size in (2, 4, 8)
    },
    arms={name: {"advantage": name} for name in ("dr_grpo", "grpo", "sign")},
    conditions={
        **{name: {"learning_rate": rate} for name, rate in _RATES.items()},
        f"{_MIDDLE_RATE} matched": {"learning_rate": _RATES[_MIDDLE_RATE], "match_grad_norm": 1.0},
    },
    metrics={
        "pass@1": held_out(1),
        "pass@16": held_out(16),
        "pass@16, rare": rare_pass_at_16,
        "train reward": train_reward,
        "dead groups": dead_groups,
    },
)


def pooled(results: Results) -> tuple[Difference, ...]:
    """Differences averaged over the group sizes within each seed, which says more than each size alone."""
    _, *arms = results.study.arms
    tasks: dict[str, list[str]] = {}
    for block, settings in results.study.blocks.items():
        tasks.setdefault(settings["task"], []).append(block)
    return correct(
        {
            ((task, condition), arm, metric): np.mean(
                [results.changes((block, condition), arm, metric) for block in blocks], axis=0
            )
            for task, blocks in tasks.items()
            for condition in results.study.conditions
            for arm in arms
            for metric in results.study.metrics
        }
    )


def render(results: Results) -> str:
    """The tables of the page."""
    place, over_sizes = "task, learning rate", pooled(results)
    return "\n\n".join(
        [
            "### Differences from Dr.GRPO, mean over the group sizes",
            count_tests(results, over_sizes) + " They are a family of their own. Decided ones are bold.",
            table_of_differences(results, place, over_sizes),
            *differences_and_means(results, against="Dr.GRPO", place_title=place),
        ]
    )


def draw(results: Results, folder: Path) -> None:
    """The figures of the page."""
    from study_figures import draw_forest, draw_rates, draw_steps  # every run's process imports this file

    rates = {name: rate for name, rate in _RATES.items() if name in results.study.conditions}
    *_, shown = [name for name in rates if name in ("1e-4", _MIDDLE_RATE)]
    draw_steps(results, folder / "study_sign_dead", series="dead groups", condition=shown)
    draw_rates(results, folder / "study_sign_pass16", metric="pass@16", rates=rates)
    draw_rates(results, folder / "study_sign_reward", metric="train reward", rates=rates)
    draw_forest(
        results, folder / "study_sign_forest", arms=("sign",), metrics=("pass@16", "train reward", "dead groups")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study."""
    return run_study(STUDY, render, draw, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
