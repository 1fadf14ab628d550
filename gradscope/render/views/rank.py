"""The tables of `gradscope rank` over rollouts, groups, formulations and prompts. Letters: R rollouts, G group size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from gradscope.estimate import Estimate
from gradscope.render.views.view import Column, Selection, View, Word, digits, entry, first_of, last_of
from gradscope.render.words import FACTS, no_interval, plain
from gradscope.results import rank as results

MAX_SPECTRA = 24  # rows of a table of spectra, weights or steps; a longer one is cut, and says so
_MAX_PROMPTS = 5  # at either end of a ranking of prompts
_NAME = 13  # characters of a formulation's name, as many as leave room for the numbers in 80 columns
_TOLERANCE = 1e-6
"""Ranks of formulations that differ by one factor a group agree to nine digits, those of others hardly to three."""

_NULL_TITLES = {"unweighted": "scores", "shuffled": "shuf-\nfled", "gaussian": "unre-\nlated"}
"""Columns of the null models: the same matrix without a possible cause of the rank. ``signs`` is ``scores`` but for
rollouts of zero advantage, and is in the JSON."""
_LIKE = {
    "zero": "reinforce",
    "group_mean": "dr_grpo, which shrinks by (G-1)/G",
    "leave_one_out": "rloo",
    "shrinkage": "shrinkage",
    "optimal": "optimal_baseline, in hindsight",
    "optimal_leave_one_out": "none: the optimum of the others",
}
"""Baseline -> the formulation that has it."""
_SAME_VALUE = "too few groups have a gradient, or all have this very value"
_ONE_OTHER = "it rests on one other group, or all others have this very value"
_ONE_HELDOUT = "it rests on one held-out prompt, or all have this very value"

_Point = TypeVar("_Point", bound=results.RankCurvePoint | results.WeightRankPoint)


class CurveRow(NamedTuple):
    """One group size of a rank curve."""

    label: Word  # the formulation, in the first of its rows
    point: Any  # the last step that has groups of this size


def merge_same(points: Sequence[_Point]) -> list[tuple[tuple[str, ...], list[_Point]]]:
    """Rank curves with the names of all formulations that share them, in the order of first appearance."""
    curves: dict[str, list[_Point]] = {}
    for point in points:
        curves.setdefault(point.advantage, []).append(point)
    merged: list[tuple[tuple[str, ...], list[_Point]]] = []
    for name, curve in curves.items():
        for index, (names, shared) in enumerate(merged):
            if len(shared) == len(curve) and all(map(_is_same, shared, curve)):
                merged[index] = ((*names, name), shared)
                break
        else:
            merged.append(((name,), curve))
    return merged


def _is_same(first: _Point, second: _Point) -> bool:
    if (first.step, first.group_size, first.num_dead) != (second.step, second.group_size, second.num_dead):
        return False
    return _is_close(first.effective_rank, second.effective_rank) and (
        not isinstance(first, results.RankCurvePoint)
        or not isinstance(second, results.RankCurvePoint)
        # A rank is blind to signs, and a sum is not.
        or _is_close(first.summed_energy, second.summed_energy)
    )


def _is_close(first: Estimate, second: Estimate) -> bool:
    if first.value is None or second.value is None:
        return first.value is second.value
    return math.isclose(first.value, second.value, rel_tol=_TOLERANCE)


def curve_rows(points: Sequence[_Point]) -> list[CurveRow]:
    """A row for each group size of each formulation; formulations of the same curve share theirs and a footnote."""
    rows = []
    for (name, *equal), curve in merge_same(points):
        note = f"{', '.join(equal)}: the same, up to one factor a group" if equal else ""
        last = {point.group_size: point for point in curve}
        labels = [Word(plain(name), note=note), *[Word("")] * (len(last) - 1)]
        rows += [CurveRow(label, last[size]) for label, size in zip(labels, sorted(last), strict=True)]
    return rows


def num_live(point: Any) -> int:
    """Groups whose matrix is not zero."""
    live: int = point.num_groups - point.num_dead
    return live


def live_of_all(point: Any) -> str:
    """The same, and all of them."""
    return f"{num_live(point)}/{point.num_groups}"


def null_rank(name: str) -> Callable[[Any], Estimate | None]:
    """The effective rank of a point under a null model, where it was computed."""
    return lambda point: point.nulls[name].effective_rank if name in point.nulls else None


def _ranks_rows(points: Sequence[results.RankCurvePoint]) -> Selection:
    step = max(point.step for point in points)
    return Selection([(row, row.point.step == step) for row in curve_rows(points)], {"step": step})


def _ranks_columns(points: Sequence[results.RankCurvePoint]) -> list[Column]:
    step = max(point.step for point in points)

    def of_last(pick: Callable[[Any], Any], instead: Any = None) -> Callable[[Any], Any]:
        return lambda row: pick(row[0].point) if row[1] else instead(row[0].point) if callable(instead) else instead

    def no_group(point: results.RankCurvePoint) -> Estimate:
        return Estimate.undefined_because(f"no group of {point.group_size} at step {step}")

    return [
        Column("advantage", lambda row: row[0].label, limit=_NAME),
        Column("size", lambda row: str(row[0].point.group_size), "count"),
        Column("live", of_last(live_of_all, "0"), "count"),
        Column(
            "rank, step {step}",
            of_last(lambda point: point.effective_rank, no_group),
            "rank",
            interval_note=lambda row: no_interval(num_live(row[0].point)),
        ),
        *(Column(title, of_last(null_rank(name)), "rank") for name, title in _NULL_TITLES.items()),
        Column("ratio", of_last(lambda point: point.nulls["gaussian"].ratio if point.nulls else None), "share"),
        Column("sum", of_last(lambda point: point.summed_energy if point.nulls else None), "rank"),
    ]


def _interval_note(name: str) -> Callable[[Any], str]:
    """Why a number of a row's point has no interval."""
    return lambda row: no_interval(getattr(row.point, name).num_units)


def _ungrouped_spectra(report: results.RankReport) -> list[results.GradientSpectrum]:
    return [spectrum for spectrum in report.spectra if spectrum.label.group_id is None]


def _step_spectra(spectra: Sequence[results.GradientSpectrum]) -> Selection:
    """Those of the full group size; of many, the last step's."""
    step, size = max((spectrum.label.step, spectrum.label.group_size) for spectrum in spectra)
    return _few_spectra([spectrum for spectrum in spectra if spectrum.label.group_size == size], spectra, step)


def _few_spectra(
    chosen: Sequence[results.GradientSpectrum], spectra: Sequence[results.GradientSpectrum], step: int
) -> Selection:
    if len(chosen) > MAX_SPECTRA:
        chosen = [spectrum for spectrum in chosen if spectrum.label.step == step][:MAX_SPECTRA]
    return first_of(chosen, spectra, len(chosen), "spectra")


def short_tensor(name: str | None) -> str:
    """A parameter's name without the words that all of them share: ``0.self_attn.q_proj``."""
    return (name or "").removeprefix("model.").removeprefix("layers.").removesuffix(".weight")


def _critical_batch(update: results.FormulationUpdate) -> str | Estimate:
    """The number of groups, or its least value by the interval of the signal to noise."""
    ratio = update.signal_to_noise
    if not update.critical_batch_size.is_defined and ratio.high is not None and ratio.high > 0:
        return f"at least {ratio.num_units / ratio.high:.3g}"
    return update.critical_batch_size


def _update_columns(updates: Sequence[results.FormulationUpdate]) -> list[Column]:
    last = last_of(updates).rows
    first = last[0].advantage
    return [
        Column("step {step}", "advantage", limit=_NAME),
        Column("norm", "update_norm", "norm"),
        Column("not\ncanceled", "cancellation", "share"),
        Column("signal\nto noise", "signal_to_noise", "rank", _SAME_VALUE),
        *(
            Column(f"cosine,\n{target}", entry("alignment", target), "rank")
            for target in dict.fromkeys(name for update in last for name in update.alignment)
        ),
        Column(f"cosine,\n{plain(first, limit=8)}", entry("cosines", first), "rank"),
    ]


def _kind_rows(kinds: Sequence[results.KindUpdate]) -> Selection:
    """Without kinds of zero norm; a formulation is named in its first row."""
    last = last_of(kinds)
    active = [part for part in last.rows if part.norm.value != 0.0]
    above = [None, *(part.advantage for part in active)]
    return Selection([(part, part.advantage != name) for part, name in zip(active, above, strict=False)], last.facts)


def _kind_columns(kinds: Sequence[results.KindUpdate]) -> list[Column]:
    return [
        Column("step {step}", lambda row: row[0].advantage if row[1] else "", limit=14),
        Column("groups", lambda row: f"{row[0].num_groups} {row[0].kind.replace('_', '-')}"),
        Column("norm", lambda row: row[0].norm, "norm"),
        Column("cosine,\nupdate", lambda row: row[0].cosine, "rank"),
        *(
            Column(f"cosine,\n{target}", entry(lambda row: row[0].alignment, target), "rank", _SAME_VALUE)
            for target in dict.fromkeys(name for part in last_of(kinds).rows for name in part.alignment)
        ),
    ]


def _baseline_rows(baselines: Sequence[results.BaselineNoise]) -> Selection:
    """All computed steps together."""
    first = baselines[0]
    correlation = (Word("correlation of reward\nand squared norm"), first.reward_norm_correlation, "")
    return Selection([*((name, noise, _LIKE[name]) for name, noise in first.relative_noise.items()), correlation])


def _pair_columns(style: Any, interval_note: str) -> tuple[Column, ...]:
    return (
        Column("step {step}", "advantage", limit=_NAME),
        Column("pairs that hurt", "frac_hurt", "share", interval_note),
        Column("cosine", "cosine", style, interval_note),
        Column("transfer", "transfer", "rank", interval_note),
    )


def _ranking(field: str, title: str, style: Any, interval_note: str) -> View:
    """The prompts that help most, and those that hurt most."""

    def influences_of(report: results.RankReport) -> Sequence[Any]:
        influences = getattr(report, field)
        return influences if any(row.influence.is_defined for row in influences) else ()

    def ends(influences: Sequence[Any]) -> Selection:
        ranked = [row for row in last_of(influences).rows if row.influence.is_defined]
        ranked.sort(key=lambda row: -row.influence.value)
        if len(ranked) <= 2 * _MAX_PROMPTS:
            return Selection(ranked)
        left = f"{len(ranked) - 2 * _MAX_PROMPTS} more between them are in the files (--output)"
        return Selection([*ranked[:_MAX_PROMPTS], *ranked[-_MAX_PROMPTS:]], remarks=(left,))

    columns = (
        Column("group", "group_id", limit=28),
        Column("pass rate", "pass_rate", "share"),
        Column(title, "influence", style, interval_note),
    )
    return View(influences_of, columns, ends)


def _heldout_rows(steps: Sequence[Any]) -> Selection:
    last = last_of(steps)
    first = last.rows[0]
    remark = (
        f"Step {first.step}: groups with a gradient {first.num_groups} (advantage {first.advantage}), held-out prompts "
        f"{first.num_heldout}"
    )
    return Selection(last.rows, last.facts, (remark,))


ROLLOUT_VIEWS: Mapping[str, View | tuple[View, ...]] = {
    "formulations": View("curve", _ranks_columns, _ranks_rows),
    "channels": View(
        "curve",
        (
            Column("step {step}", "label", limit=_NAME),
            Column("size", digits("point.group_size"), "count"),
            Column("shared\ndirec-\ntions", "point.shared_directions", "rank"),
            Column("their\nenergy", "point.shared_energy", "share"),
            Column("kept of what\nis shared", "point.shared_kept", "rank", _interval_note("shared_kept")),
            Column("kept of\nthe rest", "point.residual_kept", "rank", _interval_note("residual_kept")),
        ),
        lambda points: Selection(curve_rows(last_of(points).rows), last_of(points).facts),
        ("Kept: the energy of the sum over that of the rows; 1 for rows of random signs, less where they cancel",),
    ),
    "spectra": View(
        lambda report: () if report.rows == "weight" else _ungrouped_spectra(report),
        (
            Column("step", digits("label.step"), "count"),
            Column("advantage", "label.advantage", limit=_NAME),
            Column("effective", "ranks.effective_rank", "rank"),
            Column("stable", "ranks.stable_rank", "rank"),
            Column("participation\nratio", "ranks.participation_ratio", "rank"),
            *(Column(title, entry("nulls", name), "rank") for name, title in _NULL_TITLES.items()),
        ),
        _step_spectra,
        (FACTS,),
    ),
    "geometry": View(
        "steps",
        (
            Column("step", digits("step"), "count"),
            Column("weights", lambda step: step.weights.rstrip("/").rsplit("/", 1)[-1], limit=14),
            Column("gradient\nnorm", "grad_norm", "norm"),
            Column("logged", "logged_grad_norm", "norm"),
            Column("not\ncanceled", "cancellation", "share"),
            Column("class\nmeans", "class_subspace_energy", "share"),
            Column("dead\ngroups", entry("sparsity", "zero_groups"), "share"),
            Column("small\nrows", entry("sparsity", "small_rows"), "share"),
            Column("Gini", entry("sparsity", "gini"), "share"),
        ),
        lambda steps: Selection(steps[-MAX_SPECTRA:]),
        (FACTS,),
    ),
    "signal": (
        View("formulations", _update_columns, last_of, (FACTS,)),
        View(
            "formulations",
            (
                Column("step {step}", "advantage", limit=14),
                Column("cosine of groups", "group_cosine", "rank", _SAME_VALUE),
                Column("noise within prompts", "noise_within", "rank", _SAME_VALUE),
                Column("critical batch, prompts", _critical_batch, "norm", _SAME_VALUE),
            ),
            last_of,
        ),
    ),
    "kinds": View("kinds", _kind_columns, _kind_rows, (FACTS,)),
    "interference": (
        View("interference", _pair_columns("rank", _ONE_OTHER), last_of),
        _ranking("influences", "influence on the others", "rank", _ONE_OTHER),
    ),
    "heldout": (
        View("heldout", _pair_columns("share", _ONE_HELDOUT), _heldout_rows),
        _ranking("heldout_influences", "influence on held-out prompts", "share", _ONE_HELDOUT),
    ),
    "baselines": View(
        "baselines",
        (
            Column("baseline", lambda row: row[0]),
            Column("noise", lambda row: row[1], "rank", _SAME_VALUE),
            Column("the baseline of", lambda row: row[2]),
        ),
        _baseline_rows,
    ),
}
"""Name of ``--show`` -> its tables, each drawn where the result has such records."""

MATRIX_SPECTRA = View(
    lambda report: _ungrouped_spectra(report) if report.rows == "weight" else (),
    (
        Column("step", digits("label.step"), "count"),
        Column("tensor", lambda spectrum: short_tensor(spectrum.label.tensor), limit=22),
        Column("shape", lambda spectrum: "{:,} x {:,}".format(*spectrum.label.shape)),
        Column("effec-\ntive", "ranks.effective_rank", "rank"),
        Column(_NULL_TITLES["gaussian"], entry("nulls", "gaussian"), "rank"),
        Column("stable", "ranks.stable_rank", "rank"),
        Column("partici-\npation", "ranks.participation_ratio", "rank"),
        Column("99 % of\nenergy", "ranks.energy_rank_99", "count"),
    ),
    lambda spectra: _few_spectra(spectra, spectra, max(spectrum.label.step for spectrum in spectra)),
    (FACTS,),
)
"""One row a weight matrix."""
