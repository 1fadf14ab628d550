"""Updates of formulations and the noise of baselines as tables. Letters: K Gram of score vectors."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.layout import Column, add_row, new_table
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.numbers import FACTS, IN_THE_FILES, UNDEFINED, Footnotes, format_estimate
from gradscope.results.rank import BaselineNoise, FormulationUpdate, KindUpdate

_LIKE = {
    "zero": "reinforce",
    "group_mean": "dr_grpo, which shrinks by (G-1)/G",
    "leave_one_out": "rloo",
    "shrinkage": "shrinkage",
    "optimal": "optimal_baseline, in hindsight",
    "optimal_leave_one_out": "none: the optimum of the others",
}
"""Baseline -> the formulation that has it."""
_HEADS = ("cosine of groups", "noise within prompts", "critical batch, prompts")
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


def noise_table(updates: Sequence[FormulationUpdate], notes: Footnotes) -> Table:
    """Of the last step: how far groups agree, what the noise is of, and the batch at which it equals the signal."""
    step = max(update.step for update in updates)
    table = new_table([(f"step {step}", "left"), *((head, "left") for head in _HEADS)])
    for update in (update for update in updates if update.step == step):
        add_row(
            table,
            cell(update.advantage, limit=14),
            format_estimate(update.group_cosine, notes, "rank", alone=_ALONE),
            format_estimate(update.noise_within, notes, "rank", alone=_ALONE),
            _critical_batch(update, notes),
        )
    return table


def _critical_batch(update: FormulationUpdate, notes: Footnotes) -> str | Text:
    """The number of groups, or the least that there can be, of which the interval of the signal to noise tells."""
    ratio = update.signal_to_noise
    if not update.critical_batch_size.is_defined and ratio.high is not None and ratio.high > 0:
        return f"at least {ratio.num_units / ratio.high:.3g}"
    return format_estimate(update.critical_batch_size, notes, "norm", alone=_ALONE)


def kinds_table(kinds: Sequence[KindUpdate], notes: Footnotes) -> Table:
    """What each kind of group gives to the updates of the last step, where it gives anything."""
    step = max(part.step for part in kinds)
    given = [part for part in kinds if part.step == step and part.norm.value != 0.0]
    targets = list(dict.fromkeys(name for part in kinds if part.step == step for name in part.alignment))
    table = new_table(
        [
            (f"step {step}", "left"),
            ("groups", "left"),
            ("norm", "right"),
            ("cosine,\nupdate", "right"),
            *((f"cosine,\n{target}", "left") for target in targets),
        ]
    )
    above = None
    for part in given:
        add_row(
            table,
            cell(part.advantage, limit=14) if part.advantage != above else "",
            f"{part.num_groups} {part.kind.replace('_', '-')}",
            format_estimate(part.norm, notes, "norm", interval=False),
            format_estimate(part.cosine, notes, "rank", interval=False),
            *(format_estimate(part.alignment[target], notes, "rank", alone=_ALONE) for target in targets),
        )
        above = part.advantage
    notes.remark(FACTS)
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
