"""Is a low-rank update made of low-rank gradients? Both from the same checkpoints, matrix by matrix, with their nulls.

Run `python benchmarks/update_claims.py RUN [RUN ...]`. It prints the Markdown tables of docs/research/update_*.csv:
the gradient
dL/dW of the step after each checkpoint, the change of the weights from there to the next checkpoint, the trajectory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gradscope import measure_rank
from gradscope.results.rank import RankReport
from gradscope.results.update import WeightUpdate


def main(paths: Sequence[str]) -> None:
    """Print the tables, one run after the other."""
    for path in paths:
        updates = measure_rank(path, rows="update")
        print_trajectory(path, updates)
        print_matrices(updates, measure_rank(path, rows="weight"))


def print_trajectory(path: str, report: RankReport) -> None:
    """All matrices together, beside a random walk."""
    whole = report.trajectories[0]
    times = ", ".join(str(time) for time in whole.num_updates)
    print(f"### {path}: W_t - W_0 at t = {times}, all matrices together\n")
    print("| | measured | random walk |\n|---|---:|---:|")
    rows = (
        ("effective rank of the checkpoints", whole.effective_rank, whole.walk_effective_rank),
        ("energy in one direction", whole.top_energy, whole.walk_top_energy),
        ("energy on a straight line", whole.linear_growth, whole.walk_linear_growth),
    )
    for name, measured, walk in rows:
        print(f"| {name} | {measured.value:.3f} | {walk.value:.3f} |")
    print()


def print_matrices(updates: RankReport, gradients: RankReport) -> None:
    """Means over the matrices of the model: the gradient after a checkpoint, and the change up to the next one."""
    print("Means over matrices. `gradient`: dL/dW of the first step after the checkpoint; `change`: W_b - W_a.\n")
    print("| a to b | gradient: effective rank | s1^2 share | change: effective rank | s1^2 share |", end="")
    print(" Gaussian matrix | principal | random | changed in bfloat16 |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    first = min(update.first for update in updates.updates)
    times = sorted({first, *(update.last for update in updates.updates)})
    for before, after in dict.fromkeys([*pairwise(times), (first, times[-1])]):
        chosen = [update for update in updates.updates if (update.first, update.last) == (before, after)]
        print(
            f"| {before} to {after} | {gradient_after(gradients, before)} | {mean(chosen, 'effective_rank'):.1f} | ",
            end="",
        )
        print(f"{mean(chosen, 'top_energy'):.3f} | {mean(chosen, 'gaussian'):.1f} | ", end="")
        shares = [mean(chosen, name) for name in ("principal_overlap", "principal_null", "bfloat16_changed")]
        print(" | ".join(f"{share:.3f}" for share in shares), "|")
    print()


def gradient_after(gradients: RankReport, num_updates: int) -> str:
    """Effective rank and share of the largest direction of the gradient of the next step."""
    at_step = [spectrum for spectrum in gradients.spectra if spectrum.label.step == num_updates + 1]
    spectra = [spectrum for spectrum in at_step if spectrum.ranks.effective_rank.value is not None]
    ranks = [spectrum.ranks.effective_rank.value or 0.0 for spectrum in spectra]
    tops = [s.singular_values[0] ** 2 / np.sum(np.square(s.singular_values)) for s in spectra]
    return f"{np.mean(ranks):.1f} | {np.mean(tops):.3f}" if spectra else "- | -"


def mean(updates: Sequence[WeightUpdate], name: str) -> float:
    """The mean of a number over matrices that have it."""
    values = [getattr(update, name).value for update in updates]
    return float(np.mean([value for value in values if value is not None]))


if __name__ == "__main__":
    main(sys.argv[1:])
