"""Effective rank against the group size, for every matrix that "the gradient of a group" could mean.

One run with many rollouts a prompt, cut into sub-groups of R; only prompts that have a gradient at every R count, each
the same, so R is all that changes. Prints Markdown tables, each rank beside that of unrelated rows of the same norms.

    gradscope train --output many --group-size 32 --num-prompts 16 --steps 21 --checkpoint-every 20 \
        --heldout-prompts 16 --seed 0
    python benchmarks/rank_matrices.py many --step 1 --step 21
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from gradscope import RankOptions, measure_rank
from gradscope.estimate import Estimate
from gradscope.results.rank import RankCurvePoint, RankReport, RowKind, TokenRankPoint, WeightRankPoint

Point = RankCurvePoint | TokenRankPoint | WeightRankPoint
KINDS: tuple[RowKind, ...] = ("rollout", "weight", "hidden", "logit", "advantage", "token")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--step", type=int, action="append", required=True)
    parser.add_argument("--advantage", action="append", help="dr_grpo, sign and reinforce where none is named")
    parser.add_argument("--rows", action="append", choices=KINDS, help="kinds of rows; all but token by default")
    parser.add_argument("--group-size", type=int, action="append", help="2, 4, 8 and 16 where none is named")
    options = parser.parse_args()
    print("| step | matrix | advantage | R | prompts | rank | unrelated rows | ratio | two directions (unrelated) |")
    print("|---:|---|---|---:|---:|---|---:|---|---|")
    changes = []
    for kind in options.rows or KINDS[:-1]:
        report = measure_rank(
            options.run,
            steps=options.step,
            rows=kind,
            advantages=options.advantage or ("dr_grpo", "sign", "reinforce"),
            options=RankOptions(group_sizes=options.group_size or (2, 4, 8, 16), pair_groups=True),
        )
        for matrix, points in matrices(kind, report):
            for point in sorted(points, key=lambda p: (p.step, p.advantage, p.group_size)):
                print(line(matrix, point))
        changes += [change for change in report.size_changes if change.second == max_size(report)]
    print("\n| step | matrix | advantage | from R | to R | change of the rank, same prompts |")
    print("|---:|---|---|---:|---:|---|")
    for change in changes:
        if change.matrix in ("rollout", "token", "all weights") or "lm_head" in change.matrix:
            print(
                f"| {change.step} | {change.matrix} | {change.advantage} | {change.first} | {change.second} "
                f"| {spelled(change.difference, '+.2f')} |"
            )


def matrices(kind: RowKind, report: RankReport) -> Iterator[tuple[str, Sequence[Point]]]:
    """The matrices of one kind of rows, by name."""
    if kind == "weight":
        yield "dL/dW, mean over weights", [point for point in report.weight_curve if point.tensor is None]
        heads = [point for point in report.weight_curve if point.tensor and "lm_head" in point.tensor]
        yield "dL/dW, output head", heads
    names = {
        "rollout": "parameters",
        "hidden": "hidden state",
        "logit": "logits",
        "advantage": "advantages",
        "token": "",
    }
    if report.curve:
        yield f"rollouts, {names[kind]}", report.curve
    if report.token_curve:
        yield f"tokens, {names[kind] or 'parameters'}", report.token_curve


def line(matrix: str, point: Point) -> str:
    """One row of the table."""
    null = point.nulls.get("gaussian")
    cells = (
        point.step,
        matrix,
        point.advantage,
        point.group_size,
        point.effective_rank.num_units,
        spelled(point.effective_rank, ".2f"),
        "-" if null is None else spelled(null.effective_rank, ".2f", interval=False),
        "-" if null is None else spelled(null.ratio, ".2f"),
        f"{spelled(point.two_direction_energy, '.2f', interval=False)} "
        f"({'-' if null is None else spelled(null.two_direction_energy, '.2f', interval=False)})",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def spelled(estimate: Estimate, form: str, *, interval: bool = True) -> str:
    """A number, with its interval where it has one."""
    if estimate.value is None:
        return "-"
    ends = f" [{estimate.low:{form}}, {estimate.high:{form}}]" if interval and estimate.interval else ""
    return f"{estimate.value:{form}}{ends}"


def max_size(report: RankReport) -> int:
    """The largest group size that was compared."""
    return max((change.second for change in report.size_changes), default=0)


if __name__ == "__main__":
    main()
