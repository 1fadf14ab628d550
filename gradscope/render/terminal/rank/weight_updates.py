"""What training did to the weights, as tables. Letters: W_t weights after t updates."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gradscope.estimate import Estimate
from gradscope.render.terminal.layout import add_row, new_table
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import FACTS, Footnotes, Style, format_estimate
from gradscope.render.words.tensor_names import short_tensor
from gradscope.results.update import GradientAndUpdate, UpdateTrajectory, WeightUpdate

MOST_ROWS = 30
"""Of a table with a row a matrix."""


def trajectory_table(trajectories: Sequence[UpdateTrajectory], notes: Footnotes) -> Table:
    """All matrices together beside a random walk, a row a measure."""
    whole = trajectories[0]
    table = new_table([("all matrices together", "left"), ("measured", "right"), ("random walk", "right")])
    rows: tuple[tuple[str, Style, Estimate, Estimate], ...] = (
        ("effective rank of the checkpoints", "rank", whole.effective_rank, whole.walk_effective_rank),
        ("energy in one direction", "share", whole.top_energy, whole.walk_top_energy),
        ("energy on a straight line", "share", whole.linear_growth, whole.walk_linear_growth),
    )
    for name, style, measured, walk in rows:
        add_row(table, name, format_estimate(measured, notes, style), format_estimate(walk, notes, style))
    notes.remark(FACTS)
    return table


def gradients_and_updates_table(pairs: Sequence[GradientAndUpdate], notes: Footnotes) -> Table:
    """Each matrix's gradient at the last step with a later checkpoint, its change up to there, and the null."""
    step, first, last = pairs[-1].step, pairs[-1].first, pairs[-1].last
    titles = (
        *(f"step {step}", "rank of\ndL/dW", "in one\ndirection"),
        *(f"rank of\nW_{last} - W_{first}", "in one\ndirection", "unrelated\nrows"),
    )
    table = new_table([(title, "right" if column else "left") for column, title in enumerate(titles)])
    chosen = [one for one in pairs if one.step == step]
    for one in chosen[:MOST_ROWS]:
        add_row(
            table,
            cell(short_tensor(one.tensor), limit=18),
            format_estimate(one.gradient_rank, notes, "rank", interval=False),
            format_estimate(one.gradient_top_energy, notes, "share", interval=False),
            format_estimate(one.update_rank, notes, "rank", interval=False),
            format_estimate(one.update_top_energy, notes, "share", interval=False),
            format_estimate(one.gaussian, notes, "rank", interval=False),
        )
    notes.remark(FACTS)
    say_left(len(pairs) - min(len(chosen), MOST_ROWS), "pairs of a gradient and a change", notes)
    return table


def weight_updates_table(updates: Sequence[WeightUpdate], notes: Footnotes) -> Table:
    """The change of each matrix from the first checkpoint to the last, numbers beside their nulls."""
    first, last, chosen = first_to_last(updates)
    titles = (
        *(f"W_{last} - W_{first}", "size", "rank", "unre-\nlated", "in one\ndirection"),
        *("princi-\npal", "by\nchance", "changed\nin bf16"),
    )
    table = new_table([(title, "right" if column else "left") for column, title in enumerate(titles)])
    for update in chosen[:MOST_ROWS]:
        shares = (update.top_energy, update.principal_overlap, update.principal_null, update.bfloat16_changed)
        top, *others = (format_estimate(share, notes, "share", interval=False) for share in shares)
        add_row(
            table,
            cell(short_tensor(update.tensor), limit=18),
            format_estimate(update.update_size, notes, "share", interval=False),
            format_estimate(update.effective_rank, notes, "rank", interval=False),
            format_estimate(update.gaussian, notes, "rank", interval=False),
            top,
            *others,
        )
    notes.remark(FACTS)
    left = len(updates) - min(len(chosen), MOST_ROWS)
    say_left(left, "changes, between neighboring checkpoints among them,", notes)
    return table


def first_to_last(updates: Sequence[WeightUpdate]) -> tuple[int, int, list[WeightUpdate]]:
    """Updates of the first checkpoint and of the last, and the changes between these two."""
    first, last = min(update.first for update in updates), max(update.last for update in updates)
    return first, last, [update for update in updates if (update.first, update.last) == (first, last)]


def say_left(number: int, what: str, notes: Footnotes) -> None:
    """Remark what a table leaves to the files, if anything."""
    if number > 0:
        notes.remark(f"{number} more {what} are in the JSON and the CSV")
