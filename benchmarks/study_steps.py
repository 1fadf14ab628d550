"""Outcome rewards against rewards of single steps: accuracy, and the rank of both gradients on the same rollouts.

Run ``python benchmarks/study_steps.py --output DIR --page docs/study_steps.md --images docs/images``; ``--quick`` is
the smoke test. A study that is there goes on where it stopped, and no number on the page is typed.
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
    format_mean,
    held_out,
    run_study,
)

from gradscope import measure_rank
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.uncertainty.paired import student_mean
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
    lines = ["| G | rows | step | by step rewards | by the outcome | difference |", "|--:|---|--:|--:|--:|--:|"]
    for block, settings in results.study.blocks.items():
        for rows in _ROWS:
            found: dict[int, list[tuple[float, float]]] = {}
            for run in results.runs((block, condition), _STEPWISE):
                for step, pair in _ranks_by_step(run.path, rows, int(settings["group_size"])).items():
                    found.setdefault(step, []).append(pair)
            for step, pairs in sorted(found.items()):
                stepwise, outcome = np.array(pairs).T
                means = (student_mean(values) for values in (stepwise, outcome, stepwise - outcome))
                cells = " | ".join(format_mean(mean) for mean in means)
                lines.append(f"| {settings['group_size']} | {rows} | {step} | {cells} |")
    return "\n".join(lines)


def _ranks_by_step(run: Path, rows: RowKind, group_size: int) -> dict[int, tuple[float, float]]:
    """Step -> mean effective rank by step rewards and by the outcome, over the groups that live under both."""
    report = measure_rank(
        run, rows=rows, advantages=("logged", "dr_grpo"), group_sizes=(group_size,), engine=EngineOptions(device="cpu")
    )
    ranks: dict[tuple[int, str], dict[str, float]] = {}
    for spectrum in report.spectra:
        if spectrum.label.group_id is not None and spectrum.ranks.effective_rank.value is not None:
            of_group = ranks.setdefault((spectrum.label.step, spectrum.label.group_id), {})
            of_group[spectrum.label.advantage] = spectrum.ranks.effective_rank.value
    pairs: dict[int, list[tuple[float, float]]] = {}
    for (step, _), of_group in ranks.items():
        if len(of_group) == 2:
            pairs.setdefault(step, []).append((of_group["logged"], of_group["dr_grpo"]))
    return {step: tuple(np.mean(both, axis=0).tolist()) for step, both in pairs.items()}


def render(results: Results) -> str:
    """The tables of the page."""
    between = (
        "### Effective rank of a group's gradient, exp H(s / sum s), rows not centered",
        "Of the runs trained by step rewards: mean over the groups that live under both advantages, then over "
        "seeds, ± half of the 95 % interval over seeds.",
        ranks(results),
    )
    return "\n\n".join(
        differences_and_means(
            results, against="the outcome's reward", place_title="group size, learning rate", between=between
        )
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
