"""Sign against GRPO and Dr.GRPO: a grid with a learning-rate sweep, compared in pairs, for docs/study_sign.md.

Run ``python benchmarks/study_sign.py --output DIR``; ``--quick`` is the smoke test. A grid that is there goes on where
it stopped. ``--page FILE`` puts the tables between the page's two markers, so that no number is typed.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from gradscope import compare_runs
from gradscope.results.compare import ComparedCell, ComparedPair, Comparison
from gradscope.training.config import TrainConfig
from gradscope.training.grid import make_cells, train_grid

BEGIN, END = "<!-- tables of benchmarks/study_sign.py -->", "<!-- end of tables -->"
ADVANTAGES = ("dr_grpo", "grpo", "sign")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, compare, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder of the grid")
    parser.add_argument("--quick", action="store_true", help="two seeds, one learning rate, ten steps")
    parser.add_argument("--task", default="running-sums", help="the task")
    parser.add_argument("--jobs", type=int, help="cells at once")
    parser.add_argument("--page", type=Path, help="the page to put the tables into")
    options = parser.parse_args(arguments)
    if options.page is not None and BEGIN not in options.page.read_text(encoding="utf-8"):
        parser.error(f"{options.page} has no line {BEGIN!r}")
    cells = _quick(options.output) if options.quick else _whole(options.output, options.task)
    train_grid(cells, num_processes=options.jobs, resume=True, on_cell=lambda run: print(f"wrote {run}", flush=True))
    tables = render(compare_runs(options.output))
    print(tables)
    if options.page is not None:
        _put(options.page, tables)
    return 0


def _quick(output: Path) -> tuple[TrainConfig, ...]:
    base = TrainConfig(
        output=str(output), steps=10, group_size=4, num_prompts=8, heldout_prompts=16, checkpoint_every=10
    )
    return make_cells(base, advantages=ADVANTAGES, seeds=(0, 1))


def _whole(output: Path, task: str) -> tuple[TrainConfig, ...]:
    base = TrainConfig(output=str(output), steps=40, group_size=4, checkpoint_every=40)
    base = TrainConfig.from_json(dataclasses.asdict(base) | {"task": task})
    return make_cells(base, advantages=ADVANTAGES, learning_rates=(1e-4, 3e-4, 1e-3), seeds=range(5))


def render(comparison: Comparison) -> str:
    """Means by cell, differences by pair, and the sentences, in Markdown."""
    metrics = comparison.metrics
    lines = ["| cell | seeds | " + " | ".join(metrics) + " |", "|---|--:|" + "--:|" * len(metrics)]
    lines += [_means(cell, metrics) for cell in comparison.cells]
    lines += [
        "",
        "| metric | second - first | at | difference | p | p, Holm | p, sign flips |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    lines += [_pair(pair, comparison) for pair in comparison.pairs if pair.changed == "advantage"]
    lines += ["", *(f"- {sentence}" for sentence in comparison.findings)]
    return "\n".join(lines)


def _means(cell: ComparedCell, metrics: Sequence[str]) -> str:
    estimates = [cell.metrics[name] for name in metrics]
    numbers = [
        f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" if e.low is not None else f"{e.value:.3f}" for e in estimates
    ]
    return f"| {cell.name} | {len(cell.seeds)} | " + " | ".join(numbers) + " |"


def _pair(pair: ComparedPair, comparison: Comparison) -> str:
    cells = {cell.name: cell for cell in comparison.cells}
    first, second = cells[pair.first], cells[pair.second]
    common = ", ".join(f"{name} {value}" for name, value in first.settings.items())
    change = pair.difference
    reach = f" [{change.low:+.3f}, {change.high:+.3f}]" if change.low is not None else ""
    p_values = [pair.p_value, pair.p_holm, pair.sign_flip_p_value]
    numbers = ["" if p is None else f"{p:.2g}" for p in p_values]
    change_text = f"{change.value:+.3f}{reach}" if change.value is not None else f"undefined: {change.undefined}"
    return (
        f"| {pair.metric} | {second.advantage} - {first.advantage} | {common} | {change_text} | {' | '.join(numbers)} |"
    )


def _put(page: Path, tables: str) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
