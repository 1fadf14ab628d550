"""Recomputed gradients: their directions, which rollouts make them, and what other advantages would.

The rank is that of each group's rollout rows under the logged advantages, averaged over the live groups of a step. The
gradient of another formulation is arithmetic on the Gram matrix K of score vectors, so nothing is trained or sampled
again; the KL part is left out, since it does not depend on the advantage.

Shapes: R rollouts of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import FORMULATIONS, GRAM_FORMULATIONS, LOGGED
from gradscope.catalog.lookup import metric
from gradscope.diagnostics.rank.formulations import in_order, measure_formulations, measure_interference, measure_kinds
from gradscope.diagnostics.rank.rollout_spectra import AdvantagedStep
from gradscope.diagnostics.rank.rows import StepRows, advantages_of, step_rows, sub_groups
from gradscope.diagnostics.report.sections.inputs import ReportInputs, excerpt, missing_section
from gradscope.errors import GradscopeError
from gradscope.estimate import Estimate
from gradscope.findings.rank import rank_verdict, sharing_findings, time_findings
from gradscope.metrics.gram import geometry
from gradscope.render.views.rank import null_rank, num_live
from gradscope.render.views.view import Column, entry, lines_over, named_bars, table_of_cells, tabulate
from gradscope.results.rank import RankCurvePoint
from gradscope.results.report import Cell, ColumnStyle, ReportSection, ReportTable, Severity
from gradscope.rollouts.run import Run
from gradscope.say import counted, percent

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram


_NULLS = {"gaussian": "unrelated rows", "unweighted": "scores alone", "shuffled": "dealt anew"}
"""What a rank is read against, as tables and charts call it."""
_DRAWN_NULLS = ("gaussian", "unweighted")
_FEW = 0.5  # half of what unrelated rows span: from there on twice the rollouts of a prompt would add few directions


def rank_section(inputs: ReportInputs) -> ReportSection:
    """The rank of a group at each recomputed step, with that of unrelated rows, of the scores alone and the ceiling."""
    points = [point for point in inputs.curve if point.effective_rank.is_defined]
    if not points:
        return missing_section("rank", inputs.no_grams)
    steps = ",".join(str(gram.step) for gram in inputs.grams)
    return directions_answer(points, inputs.command("rank", "--step", steps))


def directions_answer(points: Sequence[RankCurvePoint], command: str = "") -> ReportSection:
    """The same of ranks that were computed already, at least one and all defined; ``command`` looks closer."""
    severity, advice = _verdict(points[-1])
    size = max(point.group_size for point in points)
    drawn = [point for point in points if point.group_size == size]
    nulls = {_NULLS[name]: [point.nulls[name].effective_rank.value for point in drawn] for name in _DRAWN_NULLS}
    return ReportSection(
        name="rank",
        findings=(rank_verdict(points), *time_findings(points), *sharing_findings(points[-1])),
        severity=severity,
        meaning=metric("effective_rank").meaning,
        next_step=advice,
        command=command,
        charts=lines_over(
            [point.step for point in drawn],
            f"Effective rank of a group's gradient, of at most {size}",
            {"as trained": [point.effective_rank.value for point in drawn]}
            | nulls
            | {"ceiling": [float(size)] * len(drawn)},
            y_label="directions",
            y_range=(0.0, float(size)),
        ),
        tables=tabulate(
            "Mean over the live groups of a step; intervals resample groups. "
            f"rank = {metric('effective_rank').formula}. Unrelated rows: as many random rows of the same norms; "
            "scores alone: the same rollouts without their advantages; dealt anew: the advantages shuffled within the "
            "group",
            (
                Column("step", "step", "count"),
                Column("live groups", num_live, "count"),
                Column("rank", "effective_rank", "rank"),
                Column("at most", "group_size", "count"),
                *(Column(title, null_rank(name), "rank") for name, title in _NULLS.items()),
                Column("of unrelated", lambda point: point.nulls["gaussian"].ratio, "share"),
            ),
            points,
        ),
    )


def rank_points(grams: Iterable[StepGram]) -> tuple[RankCurvePoint, ...]:
    """The ranks of each step that has logged advantages, a point for each size of its groups."""
    return tuple(
        point
        for gram in grams
        if gram.policy_gram is not None
        for point in AdvantagedStep.split(step_rows(gram), LOGGED, None).part_spectra(None)[1]
    )


def _verdict(point: RankCurvePoint) -> tuple[Severity, str]:
    ratio = point.nulls["gaussian"].ratio
    if ratio.is_defined and ratio.ends[1] < _FEW:
        return "look", (
            "The rollouts of a group pull nearly the same way: more rollouts of a prompt add little. More prompts a "
            "step, a higher temperature or harder prompts add directions."
        )
    severity: Severity = "fine" if ratio.is_defined else "unknown"
    if point.nulls["unweighted"].difference.side_of_zero < 0:
        return severity, "The advantages take directions away: see below what others would have left."
    return severity, "Nothing to do: the rollouts of a group do not all pull nearly the same way."


Array = NDArray[np.float64]

NUM_TOP = 10  # rollouts shown with their text
_UNREWARDED = Estimate.undefined_because("a reward is missing")
_NO_COSINE = Estimate.undefined_because("its gradient is zero")
_LARGE_SHARE = 0.25  # one rollout with a quarter of a step's gradient decides its direction about as much as all others


def contributions_section(inputs: ReportInputs) -> ReportSection:
    """Shares of the gradient: a row a step, and the rollouts with the largest part of the largest gradient."""
    if not inputs.live:
        return missing_section("contributions", inputs.no_grams)
    gram, matrix = next(pair for pair in inputs.live if pair[0].step == inputs.largest_step)
    shares = geometry.projection_shares(matrix)
    held, survives = geometry.top_share(matrix).value or 0.0, geometry.cancellation(matrix).value or 0.0
    order = np.argsort(-np.abs(shares), kind="stable")
    top, largest = int(np.argmax(shares)), float(np.abs(shares).max())
    if largest < _LARGE_SHARE:
        advice = f"No single one carries more than {percent(largest)} of the gradient."
    else:
        advice = f"One carries {percent(largest)}: clipping the norm (max_grad_norm) or a larger batch evens it out."
    return ReportSection(
        name="contributions",
        findings=(
            f"At step {gram.step}, the largest gradient recomputed, the top tenth of {len(shares)} rollouts holds "
            f"{percent(held)} of the summed gradient norms, and {percent(survives)} of that sum survives in the step's "
            "gradient.",
            f"The largest single part is sample {gram.samples[top]} of group {gram.group_ids[top]}: "
            f"{percent(shares[top])} of the gradient along its own direction; {(shares < 0).sum()} rollouts pull "
            "against it.",
        ),
        severity="look" if largest >= _LARGE_SHARE else "fine",
        meaning=f"{metric('projection_share').meaning} Cancellation is {metric('cancellation').meaning}",
        next_step=f"Read the rollouts below: is this what the reward should teach? {advice}",
        command=inputs.command("rank", "--step", str(gram.step)),
        charts=named_bars(
            f"Parts of the gradient of step {gram.step}, the 20 largest rollouts",
            "share",
            {f"{gram.group_ids[index]} #{gram.samples[index]}": float(shares[index]) for index in order[:20]},
            x_label="share along the gradient",
        ),
        tables=(
            *tabulate(
                f"Each recomputed step. top tenth = {metric('top_share').formula}; "
                f"cancellation = {metric('cancellation').formula}",
                (
                    Column("step", lambda pair: pair[0].step, "count"),
                    Column("rollouts", lambda pair: len(pair[1]), "count"),
                    Column("with gradient", lambda pair: int((np.diag(pair[1]) > 0).sum()), "count"),
                    Column("norm", lambda pair: geometry.batch_norm(pair[1]), "norm"),
                    Column("top tenth", lambda pair: geometry.top_share(pair[1]), "share"),
                    Column("cancellation", lambda pair: geometry.cancellation(pair[1]), "share"),
                ),
                inputs.live,
            ),
            *_by_group(gram, matrix, shares),
            *_top(inputs.run, gram, matrix, shares, order[:NUM_TOP]),
        ),
    )


def _by_group(gram: StepGram, matrix: Array, shares: Array) -> tuple[ReportTable, ...]:
    ids = np.array(gram.group_ids)
    rows: list[tuple[float, tuple[Cell, ...]]] = []
    for group_id in dict.fromkeys(gram.group_ids):
        index = np.flatnonzero(ids == group_id)
        inner, rewards, share = matrix[np.ix_(index, index)], gram.rewards[index], float(shares[index].sum())
        if np.trace(inner) > 0:
            mean = _UNREWARDED if np.isnan(rewards).any() else float(rewards.mean())
            rows.append((share, (group_id, mean, share, geometry.batch_norm(inner), geometry.cancellation(inner))))
    return table_of_cells(
        f"Live groups of step {gram.step}; share = {metric('projection_share').formula}, summed over the group",
        [("group", "text"), ("mean reward", "share"), ("share", "gap"), ("norm", "norm"), ("cancellation", "share")],
        (row for _, row in sorted(rows, key=lambda pair: -abs(pair[0]))),
    )


def _top(run: Run, gram: StepGram, matrix: Array, shares: Array, largest: NDArray[np.intp]) -> tuple[ReportTable, ...]:
    cosine, norms = geometry.cosines_to_sum(matrix), geometry.row_norms(matrix)
    rollouts = {(r.group_id, r.sample): r for group in run.groups_at(gram.step) for r in group.rollouts}
    return tabulate(
        f"The {len(largest)} rollouts with the largest part of step {gram.step}; "
        f"cosine = {metric('cosine_to_sum').formula}",
        (
            Column("rollout", lambda row: f"{row[1].group_id} #{row[1].sample}"),
            Column("reward", lambda row: row[1].reward, "norm"),
            Column("advantage", lambda row: row[1].advantage, "norm"),
            Column("share", lambda row: float(shares[row[0]]), "gap"),
            Column("cosine", lambda row: float(cosine[row[0]]) if norms[row[0]] > 0 else _NO_COSINE, "gap"),
            Column("prompt", lambda row: excerpt(row[1].prompt)),
            Column("completion", lambda row: excerpt(row[1].completion)),
        ),
        [(index, rollouts[gram.group_ids[index], gram.samples[index]]) for index in largest],
    )


_STEP_NULLS = {"shuffled": "null: shuffled", "unweighted": "null: scores alone"}
"""The null models shown with a rank, and the titles of their columns."""

_NOISE: dict[str, ColumnStyle] = {"group_cosine": "gap", "signal_to_noise": "gap", "critical_batch_size": "norm"}
"""How far groups agree under the logged advantage, and how many would make the update mostly signal."""
_SAME = 0.99  # a cosine of eight degrees


def formulations_section(inputs: ReportInputs) -> ReportSection:
    """Norm, cosine, rank with its nulls and dead share of every formulation, means over the recomputed steps."""
    if not inputs.grams:
        return missing_section("formulations", inputs.no_grams)
    steps = [step_rows(gram) for gram in inputs.grams]
    names = (LOGGED, *FORMULATIONS, *GRAM_FORMULATIONS)
    rows: dict[str, list[Estimate]] = {name: [] for name in names}
    for name in names:
        for column in zip(*(_measure(step, name) for step in steps), strict=True):
            values = [estimate.value for estimate in column if estimate.value is not None]
            mean = Estimate.exact(float(np.mean(values)), num_units=len(values)) if values else column[0]
            rows[name].append(mean)
    cosines = {name: cosine.value for name, (_, cosine, *_) in rows.items() if cosine.value is not None}
    findings, next_step = _beside_the_logged(cosines, len(rows) - 1, len(steps))
    return ReportSection(
        name="formulations",
        findings=(findings,),
        severity="fine",
        meaning=metric("update_cosine").meaning,
        next_step=next_step,
        command=inputs.command("rank", "--advantage", "all"),
        charts=named_bars("Cosine with the logged update", "cosine", cosines, x_label="cosine"),
        tables=(
            *table_of_cells(
                f"Means over step {', '.join(str(step.step) for step in steps)}, without the KL part; update cosine = "
                f"{metric('update_cosine').formula}; effective rank of the whole step = "
                f"{metric('effective_rank').formula}. Beside it the rank that the same live rollouts have with their "
                "advantages dealt anew within each group, and with none: a rank near these is not the formulation's "
                "doing",
                [
                    *(("advantage", "text"), ("gradient norm", "norm")),
                    *(("update cosine", "gap"), ("effective rank", "rank")),
                    *((title, "rank") for title in _STEP_NULLS.values()),
                    ("dead groups", "share"),
                ],
                ((name, *values) for name, values in rows.items()),
            ),
            *tabulate(
                "; ".join(f"{metric(name).title} = {metric(name).formula}" for name in _NOISE),
                (
                    Column("step", "step", "count"),
                    *(Column(metric(name).title, name, style) for name, style in _NOISE.items()),
                ),
                [update for step in steps for update in measure_formulations(step, (LOGGED,))],
            ),
            *_kinds_table(steps[-1], names),
            *_interference_table(steps[-1], names),
        ),
    )


def _measure(rows: StepRows, name: str) -> tuple[Estimate, ...]:
    """Norm, cosine with the logged update, effective rank, its null models and dead share of one step."""
    try:
        by_group = advantages_of(rows, sub_groups(rows, None), name)
    except GradscopeError as error:
        reason = error.message.rstrip(".").replace(f" '{name}'", " such")  # one for all that have the same
        return (Estimate.undefined_because(reason),) * (4 + len(_STEP_NULLS))
    weights = in_order(rows, by_group)
    cosine = Estimate.undefined_because("the log has no advantage per rollout")
    if rows.advantages is not None:
        cosine = geometry.cosine_of_updates(rows.gram, weights, rows.advantages)
    matrix = rows.policy_gram if name == LOGGED else None  # where tokens have their own advantages there are no weights
    matrix = geometry.gradient_gram(rows.gram, weights) if matrix is None else matrix
    spectrum = AdvantagedStep.split(rows, name, None).step_spectrum(False, with_nulls=True)
    return (
        Estimate.exact(geometry.batch_norm(matrix)),
        cosine,
        spectrum.ranks.effective_rank,
        *(spectrum.nulls[null] for null in _STEP_NULLS),
        Estimate.exact(sum(not np.any(values) for values in by_group) / len(by_group)),
    )


def _beside_the_logged(cosines: Mapping[str, float], num_formulations: int, num_steps: int) -> tuple[str, str]:
    steps, cosines = counted(num_steps, "step"), {name: cosines[name] for name in cosines if name != LOGGED}
    if not cosines:
        return (
            f"The gradients of {num_formulations} formulations were formed at {steps}; see the table.",
            "Log advantages (log_completions=True in TRL): without them there is no update to compare with.",
        )
    near, far = max(cosines, key=cosines.__getitem__), min(cosines, key=cosines.__getitem__)
    same = [name for name, value in cosines.items() if value >= _SAME]
    other = sorted((value, name) for name, value in cosines.items() if value < _SAME)
    advice = f"The logged update at another step size (cosine from {_SAME} on): {', '.join(same) or 'none'}."
    if other:
        advice += f" A run would differ most under {', '.join(name for _, name in other[:3])}."
    return (
        f"On the same rollouts of {steps}, {far} would have gone farthest from the logged update (cosine "
        f"{cosines[far]:.3f}), {near} nearest to it ({cosines[near]:.3f}).",
        advice,
    )


def _kinds_table(rows: StepRows, names: Sequence[str]) -> tuple[ReportTable, ...]:
    """What each kind of group gives to the updates of the last step, where it gives anything."""
    parts = [part for part in measure_kinds(rows, names) if part.norm.value != 0.0]
    if not parts:
        return ()
    caption = (
        f"Step {rows.step} by kind of group: {metric('kinds.norm').formula}, its cosine with the whole update, and its "
        f"alignment with pass@k = {metric('kinds.alignment.pass@k').formula}"
    )
    columns = (
        Column("advantage", "advantage"),
        Column("groups", lambda part: part.kind.replace("_", "-")),
        Column("number", "num_groups", "count"),
        Column("norm", "norm", "norm"),
        Column("cosine, update", "cosine", "gap"),
        *(Column(f"cosine, {target}", entry("alignment", target), "gap") for target in parts[0].alignment),
    )
    return tabulate(caption, columns, parts)


def _interference_table(rows: StepRows, names: Sequence[str]) -> tuple[ReportTable, ...]:
    """What the prompts of the last step do to each other's correct answers, where that is defined."""
    interference, _ = measure_interference(rows, names)
    defined = [row for row in interference if row.transfer.is_defined or row.frac_hurt.is_defined]
    caption = (
        f"Step {rows.step} between prompts: pairs that hurt = {metric('interference.frac_hurt').formula}; "
        f"transfer = {metric('interference.transfer').formula}"
    )
    columns = (
        Column("advantage", "advantage"),
        Column("pairs that hurt", "frac_hurt", "share"),
        Column("cosine", "cosine", "gap"),
        Column("transfer", "transfer", "gap"),
    )
    return tabulate(caption, columns, defined)
