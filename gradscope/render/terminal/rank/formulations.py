"""Updates of formulations and the noise of baselines as tables. Letters: K Gram of score vectors."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.layout import Column, add_row, new_table
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.numbers import FACTS, IN_THE_FILES, UNDEFINED, Footnotes, format_estimate
from gradscope.results.rank import BaselineNoise, FormulationUpdate

_LIKE = {
    "zero": "reinforce",
    "group_mean": "dr_grpo, which shrinks by (G-1)/G",
    "leave_one_out": "rloo",
    "shrinkage": "shrinkage",
    "optimal": "optimal_baseline, in hindsight",
    "optimal_leave_one_out": "none: the optimum of the others",
}
"""Baseline -> the formulation that has it."""
_ALONE = "too few groups have a gradient, or all have this very value"


def updates_table(updates: Sequence[FormulationUpdate], notes: Footnotes) -> Table:
    """Updates of the last step: size, cancellation, signal to noise, cosines with the first and with pass@k."""
    step = max(update.step for update in updates)
    last = [update for update in updates if update.step == step]
    targets = list(dict.fromkeys(name for update in last for name in update.alignment))
    columns: list[Column] = [
        (f"step {step}", "left"),
        ("norm", "right"),
        ("not\ncanceled", "right"),
        ("signal\nto noise", "left"),
        *((f"cosine,\n{target}", "right") for target in targets),
        (f"cosine,\n{plain(last[0].advantage, limit=8)}", "right"),
    ]
    table = new_table(columns)
    for update in last:
        with_first = update.cosines.get(last[0].advantage)
        add_row(
            table,
            cell(update.advantage, limit=13),
            format_estimate(update.update_norm, notes, "norm", interval=False),
            format_estimate(update.cancellation, notes, "share", interval=False),
            format_estimate(update.signal_to_noise, notes, "rank", alone=_ALONE),
            *(
                format_estimate(update.alignment[target], notes, "rank", interval=False)
                if target in update.alignment
                else UNDEFINED
                for target in targets
            ),
            UNDEFINED if with_first is None else format_estimate(with_first, notes, "rank", interval=False),
        )
    notes.remark(FACTS)
    notes.remark(IN_THE_FILES)
    return table


def baselines_table(baselines: Sequence[BaselineNoise], notes: Footnotes) -> Table:
    """The noise of the gradient under each baseline relative to leave-one-out, all computed steps together."""
    table = new_table([("baseline", "left"), ("noise", "left"), ("the baseline of", "left")])
    for name, noise in baselines[0].relative_noise.items():
        add_row(table, name, format_estimate(noise, notes, "rank", alone=_ALONE), _LIKE[name])
    correlation = baselines[0].reward_norm_correlation
    add_row(
        table,
        Text("correlation of reward\nand squared norm"),
        format_estimate(correlation, notes, "rank", alone=_ALONE),
        "",
    )
    return table
