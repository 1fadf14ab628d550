"""Sparsity below the rollout as a table: of a step's tokens, or of the entries of each weight's gradient."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gradscope.render.terminal.layout import add_row, new_table
from gradscope.render.terminal.sparkline import sparkline
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import FACTS, Footnotes, format_estimate
from gradscope.render.words.tensor_names import short_tensor
from gradscope.results.ranks.tokens import GradientSparsity

_MOST_ROWS = 24


def sparsity_table(sparsities: Sequence[GradientSparsity], notes: Footnotes) -> Table:
    """Zero and small parts, Hoyer and Gini: of tokens a row a step; of weights a row a matrix at the last step."""
    of_tokens = sparsities[0].parts == "tokens"
    first = ("step", "tokens", "measured") if of_tokens else (f"step {sparsities[-1].step}: entries of", "number")
    titles = (*first, "zero", "small", "Hoyer", "Gini", *(() if of_tokens else ("Gini by step",)))
    words = {"Gini by step"} if of_tokens else {"Gini by step", first[0]}
    table = new_table([(title, "left" if title in words else "right") for title in titles])
    shown = [one for one in sparsities if of_tokens or one.step == sparsities[-1].step]
    for one in shown[-_MOST_ROWS:] if of_tokens else shown[:_MOST_ROWS]:
        head = (str(one.step), f"{one.num_parts:,}", f"{one.frac_seen:.0%}")
        measures = (one.zero, one.small, one.hoyer, one.gini)
        course = [other.gini.value for other in sparsities if other.tensor == one.tensor]
        add_row(
            table,
            *(head if of_tokens else (cell(short_tensor(one.tensor or ""), limit=24), f"{one.num_parts:,}")),
            *(format_estimate(measure, notes, "share", interval=False) for measure in measures),
            *(() if of_tokens else (sparkline(course, low=0.0, high=1.0, width=6),)),
        )
    notes.remark(FACTS)
    if len(shown) > _MOST_ROWS:
        notes.remark(f"{len(shown) - _MOST_ROWS} more lines of sparsity are in the JSON and the CSV")
    return table
