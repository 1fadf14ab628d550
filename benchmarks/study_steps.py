"""Outcome rewards against rewards of single steps: accuracy, and the rank of both gradients on the same rollouts.

Run ``python benchmarks/study_steps.py --output DIR --page docs/study_steps.md --images docs/images``; ``--quick`` is
the smoke test. A study that is there goes on where it stopped, and no number on the page is typed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from study import (
    Results,
    Study,
    count_tests,
    dead_groups,
    drawdown,
    format_mean,
    held_out,
    run_study,
    table_of_differences,
    table_of_means,
)

from gradscope import measure_rank
from gradscope.metrics.paired import student_mean
from gradscope.results.rank import RowKind

_MIDDLE_RATE = "3e-4"
_RATES = {"1e-4": 1e-4, _MIDDLE_RATE: 3e-4, "1e-3": 1e-3}
_STEPWISE = "per step"
_ROWS: Sequence[RowKind] = ("rollout", "token")

STUDY = Study(
    name="study_steps",
    base={"steps": 40, "checkpoint_every": 10},
    blocks={f"G={size}": {"group_size": size, "num_prompts": 64 // size} for size in (4, 8)},
    arms={
        "outcome": {"task": "running-sums", "advantage": "dr_grpo"},
        "share of steps": {"task": "steps", "advantage": "dr_grpo"},
        _STEPWISE: {"task": "running-sums", "advantage": "per_step"},
    },
    conditions={
        **{name: {"learning_rate": rate} for name, rate in _RATES.items()},
        f"{_MIDDLE_RATE} matched": {"learning_rate": _RATES[_MIDDLE_RATE], "match_grad_norm": 1.0},
    },
    metrics={"pass@1": held_out(1), "pass@16": held_out(16), "dead groups": dead_groups, "drawdown": drawdown},
)


def ranks(results: Results) -> str:
    """Effective rank of a group's gradient rows, by step rewards and by the outcome, on the same rollouts."""
    condition = _MIDDLE_RATE if _MIDDLE_RATE in results.study.conditions else next(iter(results.study.conditions))
    lines = ["| G | rows | step | by step rewards | by the outcome | seeds |", "|--:|---|--:|--:|--:|--:|"]
    for block, settings in results.study.blocks.items():
        for rows in _ROWS:
            found: dict[tuple[int, str], list[float]] = {}
            for run in results.runs((block, condition), _STEPWISE):
                for step, advantage, rank in _curve(run.path, rows, int(settings["group_size"])):
                    found.setdefault((step, advantage), []).append(rank)
            for step in sorted({step for step, _ in found}):
                means = [found.get((step, advantage), []) for advantage in ("logged", "dr_grpo")]
                cells = " | ".join(format_mean(student_mean(mean)) for mean in means)
                lines.append(f"| {settings['group_size']} | {rows} | {step} | {cells} | {len(means[0])} |")
    return "\n".join(lines)


def _curve(run: Path, rows: RowKind, group_size: int) -> list[tuple[int, str, float]]:
    """Step, advantage and mean effective rank of the live groups, where there are any."""
    report = measure_rank(run, rows=rows, advantages=("logged", "dr_grpo"), group_sizes=(group_size,), device="cpu")
    points = report.curve if rows == "rollout" else report.token_curve
    return [
        (point.step, point.advantage, point.effective_rank.value)
        for point in points
        if point.effective_rank.value is not None
    ]


def render(results: Results) -> str:
    """The tables of the page."""
    place = "group size, learning rate"
    return "\n\n".join(
        [
            "### Differences from the outcome's reward",
            count_tests(results) + " Decided ones are bold.",
            table_of_differences(results, place),
            "### Effective rank of a group's gradient, exp H(s / sum s), rows not centered",
            "Mean over the groups that are live, then over seeds, ± half of the 95 % interval over seeds.",
            ranks(results),
            "### Means over seeds, ± half of the 95 % interval",
            table_of_means(results, place),
        ]
    )


def draw(results: Results, folder: Path) -> None:
    """The figures of the page."""
    from study_figures import draw_forest, draw_rates  # every run's process imports this file

    rates = {name: rate for name, rate in _RATES.items() if name in results.study.conditions}
    draw_rates(results, folder / "study_steps_pass1", metric="pass@1", rates=rates)
    draw_forest(results, folder / "study_steps_forest", arms=(_STEPWISE,), metrics=("pass@1", "pass@16", "dead groups"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study."""
    return run_study(STUDY, render, draw, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
