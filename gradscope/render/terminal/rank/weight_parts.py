"""Singular values and directions of changed weights, adapters, steps of optimizers and kinds of modules, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args, get_type_hints

from rich.table import Table

from gradscope.render.terminal.answer import evenly
from gradscope.render.terminal.layout import Column, add_row, new_table
from gradscope.render.terminal.rank.weight_updates import MOST_ROWS, first_to_last, say_left
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import FACTS, UNDEFINED, Footnotes, format_estimate
from gradscope.render.words.tensor_names import short_tensor
from gradscope.results.update import AdapterState, ModuleShare, OptimizerStep, WeightUpdate

_MODULES = get_args(get_type_hints(ModuleShare)["module"])


def frames_table(updates: Sequence[WeightUpdate], notes: Footnotes) -> Table:
    """From the first checkpoint to the last: how far singular values drift and principal directions turn."""
    first, last, chosen = first_to_last(updates)
    columns: list[Column] = [
        (f"W_{last} against W_{first}", "left"),
        ("size", "right"),
        ("in singular\nvalues", "right"),
        ("unre-\nlated", "right"),
        ("degrees\nturned", "right"),
        ("unre-\nlated", "right"),
    ]
    table = new_table(columns)
    for update in chosen[:MOST_ROWS]:
        add_row(
            table,
            cell(short_tensor(update.tensor), limit=24),
            format_estimate(update.update_size, notes, "share", interval=False),
            format_estimate(update.spectrum_drift, notes, "share", interval=False),
            format_estimate(update.spectrum_drift_null, notes, "share", interval=False),
            format_estimate(update.principal_angle, notes, "rank", interval=False),
            format_estimate(update.principal_angle_null, notes, "rank", interval=False),
        )
    notes.remark(FACTS)
    say_left(len(updates) - min(len(chosen), MOST_ROWS), "changes", notes)
    return table


def adapters_table(states: Sequence[AdapterState], notes: Footnotes) -> Table:
    """The products of an adapter at its last checkpoint, beside those of unrelated factors."""
    last = max(state.num_updates for state in states)
    chosen = [state for state in states if state.num_updates == last]
    columns: list[Column] = [
        (f"after {last} updates", "left"),
        ("|A|", "right"),
        ("|B|", "right"),
        ("size", "right"),
        ("at\nmost", "right"),
        ("rank", "right"),
        ("unre-\nlated", "right"),
        ("|BA| over\n|B||A|", "right"),
        ("unre-\nlated", "right"),
    ]
    table = new_table(columns)
    for state in chosen[:MOST_ROWS]:
        add_row(
            table,
            cell(short_tensor(state.tensor), limit=20),
            format_estimate(state.a_norm, notes, "norm", interval=False),
            format_estimate(state.b_norm, notes, "norm", interval=False),
            format_estimate(state.product_size, notes, "share", interval=False),
            str(state.rank),
            format_estimate(state.effective_rank, notes, "rank", interval=False),
            format_estimate(state.unrelated_rank, notes, "rank", interval=False),
            format_estimate(state.alignment, notes, "share", interval=False),
            format_estimate(state.unrelated_alignment, notes, "share", interval=False),
        )
    notes.remark(FACTS)
    say_left(len(states) - min(len(chosen), MOST_ROWS), "products", notes)
    return table


def optimizers_table(steps: Sequence[OptimizerStep], notes: Footnotes) -> Table:
    """The first steps of fresh optimizers from the gradient of the last step, over all matrices."""
    last = max(one.step for one in steps)
    chosen = [one for one in steps if one.step == last and one.tensor is None]
    names = [one.optimizer for one in chosen]
    columns: list[Column] = [
        (f"from step {last}", "left"),
        *((f"cosine,\n{name}", "right") for name in names),
        ("rank, mean\nof matrices", "right"),
        ("moved\nin bf16", "right"),
    ]
    table = new_table(columns)
    for one in chosen:
        add_row(
            table,
            one.optimizer,
            *(
                format_estimate(one.cosines[name], notes, "rank", interval=False) if name in one.cosines else UNDEFINED
                for name in names
            ),
            format_estimate(one.effective_rank, notes, "rank", interval=False),
            format_estimate(one.bfloat16_moved, notes, "share", interval=False),
        )
    notes.remark(FACTS)
    say_left(len(steps) - len(chosen), "steps, of single matrices and of other gradients,", notes)
    return table


def modules_table(shares: Sequence[ModuleShare], notes: Footnotes) -> Table:
    """Which part of each step's squared gradient norm is in which kind of module, above that of the parameters."""
    steps = list(dict.fromkeys(share.step for share in shares))
    kinds = [kind for kind in _MODULES if any(share.module == kind for share in shares)]
    table = new_table([("step", "right"), *((kind.replace(" ", "\n"), "right") for kind in kinds)])
    for step in evenly(steps):
        of_step = {share.module: share for share in shares if share.step == step}
        add_row(
            table,
            str(step),
            *(
                format_estimate(of_step[kind].energy_share, notes, "share", interval=False)
                if kind in of_step
                else UNDEFINED
                for kind in kinds
            ),
        )
    last = {share.module: share.frac_parameters for share in shares if share.step == shares[-1].step}
    sizes = [
        format_estimate(last[kind], notes, "share", interval=False) if kind in last else UNDEFINED for kind in kinds
    ]
    add_row(table, "parameters", *sizes)
    notes.remark(FACTS)
    return table
