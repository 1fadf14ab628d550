"""What a study puts on its page: the pilot, what its claims decide, and what is shown beside them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from study import LEVEL, PASS_AT_1, POWER, RATES, Cell, Claim, Judged, Runs, Study, fill_page, least_effect

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.paired import student_mean
from gradscope.training.grid import train_grid


def run_study(study: Study, arguments: Sequence[str] | None = None) -> int:
    """Train what is missing of a study or of its pilot, and put what came out on its page."""
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--output", type=Path, help="the folder of the runs; what is there goes on")
    source.add_argument("--from-seeds", type=Path, help="no runs: the numbers of a file that the study wrote")
    parser.add_argument("--pilot", action="store_true", help="the runs that choose learning rates and tell the spread")
    parser.add_argument("--quick", action="store_true", help="the smoke test")
    parser.add_argument("--show", action="store_true", help="train nothing")
    parser.add_argument("--jobs", type=int, help="runs at once")
    parser.add_argument("--page", type=Path, help="the page to put the tables into")
    parser.add_argument("--images", type=Path, help="the folder to put the figures into")
    options = parser.parse_args(arguments)
    part = "pilot" if options.pilot else "tables"
    begin, end = f"<!-- {part} of benchmarks/{study.name}.py -->", f"<!-- end of {part} -->"
    if options.page is not None and begin not in options.page.read_text(encoding="utf-8"):
        parser.error(f"{options.page} has no line {begin!r}")
    design = study.quick if options.quick else study
    if options.from_seeds is not None:
        runs = Runs.from_seeds(design, options.from_seeds)
    else:
        runs = _pilot(design, options) if options.pilot else _main(design, options)
    text = pilot_tables(runs) if options.pilot else tables(runs)
    print(text)
    if options.images is not None and not options.pilot and not runs.num_missing:
        options.images.mkdir(parents=True, exist_ok=True)
        from study_figures import draw  # every run's process imports this file

        draw(runs, options.images)
        for picture in options.images.glob(f"{study.name}_*.png"):  # the page shows the drawings
            picture.unlink()
    if options.page is not None:
        fill_page(options.page, begin, end, text)
        if not options.pilot and not runs.num_missing:
            (options.page.parent / _file(study)).write_text(runs.by_seed(), encoding="utf-8")
    return 0


def _pilot(study: Study, options: argparse.Namespace) -> Runs:
    """The pilot: first the runs that choose learning rates, then those that tell the spread at these."""
    folder = options.output / "pilot"
    _train(study, folder, study.choosing_cells, options)
    choosing = Runs.read(study, folder, study.choosing_cells, {})
    if choosing.num_missing:
        return choosing
    rates = choosing.best_rates()
    cells = tuple(dict.fromkeys((*study.choosing_cells, *study.spread_cells(rates))))
    _train(study, folder, cells, options)
    return Runs.read(study, folder, cells, rates)


def _main(study: Study, options: argparse.Namespace) -> Runs:
    """The study, at the learning rates of its pilot.

    Returns:
        The runs that are there.

    Raises:
        SystemExit: The pilot is not finished.
    """
    pilot = _pilot(study, argparse.Namespace(**{**vars(options), "show": True}))
    if pilot.num_missing:
        raise SystemExit(f"{pilot.num_missing} runs of the pilot are missing: run it first, with --pilot")
    cells = study.cells(pilot.rates)
    _train(study, options.output / "runs", cells, options)
    return Runs.read(study, options.output / "runs", cells, pilot.rates)


def _train(study: Study, folder: Path, cells: Sequence[Cell], options: argparse.Namespace) -> None:
    if not options.show:
        train_grid(
            [study.cell(folder, *cell) for cell in cells],
            num_processes=options.jobs,
            resume=True,
            on_cell=lambda run: print(f"wrote {run}", flush=True),
        )


def pilot_tables(runs: Runs) -> str:
    """What the pilot chooses, and what the plan can find."""
    study = runs.study
    shown, rates = list(study.pilot_metrics), list(RATES) if study.rate_of else []
    columns = [*(f"{PASS_AT_1} at {rate}" for rate in rates), *shown]
    lines = [f"| arm | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    for arm in dict.fromkeys(arm for arm, _, _ in runs.planned):
        means = {rate: student_mean(list(runs.values(arm, PASS_AT_1, rate).values())) for rate in rates}
        cells = [_chosen(rate, means[rate], runs.rates.get(arm)) for rate in rates]
        cells += [_mean(student_mean(list(runs.values(arm, metric).values()))) for metric in shown]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    parts = [
        f"{_finished(runs, 'of the pilot')} Means over {len(study.pilot_seeds)} seeds, ± half of the 95 % interval"
        + ("; the study's rate is bold." if rates else "."),
        "\n".join(lines),
    ]
    if runs.rates and not runs.num_missing:
        parts += [
            f"Power: what {len(study.seeds)} seeds decide in {POWER:.0%} of studies, at the pilot's spread and at the "
            f"level {LEVEL} / {len(study.claims)}.",
            _power(runs),
        ]
    return "\n\n".join(parts)


def tables(runs: Runs) -> str:
    """What is decided, what is shown beside it, and the means; only the number of runs until all are in."""
    if runs.num_missing:
        return f"{_finished(runs, 'of the study')} Nothing is tested before all are."
    study = runs.study
    return "\n\n".join(
        [
            "### What is decided",
            f"{len(study.claims)} {'tests' if len(study.claims) > 1 else 'test'}, {len(study.seeds)} seeds"
            + (f"; p-values are Holm's for all {len(study.claims)}." if len(study.claims) > 1 else "."),
            _decided(runs.judged),
            "Shown beside it: differences with Student's 95 % interval. They are not tested and decide nothing.",
            _differences(runs),
            "Means over seeds, ± half of the 95 % interval.",
            _means(runs),
            f"[The numbers of every arm and seed]({_file(study)}), from which all of this follows.",
        ]
    )


def _file(study: Study) -> str:
    """The name of the file of every arm and seed."""
    return f"{study.name}_by_seed.csv"


def _finished(runs: Runs, of: str) -> str:
    return f"{len(runs.by_cell)} of {len(runs.planned)} runs {of} are finished."


def _chosen(rate: str, mean: Estimate, chosen: str | None) -> str:
    return f"**{_mean(mean)}**" if rate == chosen and mean.value is not None else _mean(mean)


def _power(runs: Runs) -> str:
    study = runs.study
    lines = ["| claim | by | pairs of the pilot | SD of a difference | least |", "|---|---|--:|--:|---|"]
    for claim in study.claims:
        change = runs.changes(claim.arm, claim.baseline, claim.metric)
        spread = f"{change.std(ddof=1):.3f}" if len(change) > 1 else "—"
        least = least_effect(claim, change, len(study.seeds), len(study.claims))
        lines.append(f"| {_pair(claim)} | {claim.metric} | {len(change)} | {spread} | {_least(claim, least)} |")
    return "\n".join(lines)


def _least(claim: Claim, least: float | None) -> str:
    if least is None:
        return "—"
    return f"{least:.3f}" if claim.margin is None else f"equivalent within {least:.3f}; the margin is {claim.margin:g}"


def _pair(claim: Claim) -> str:
    return f"{claim.arm} - {claim.baseline}"


def _decided(judged: Sequence[Judged]) -> str:
    lines = [
        "| claim | reported | by | difference | p | least, at this spread | decided |",
        "|---|---|---|--:|--:|---|---|",
    ]
    for one in judged:
        cells = (
            _pair(one.claim),
            one.claim.reported,
            one.claim.metric,
            _difference(one.estimate),
            "—" if one.p_holm is None else f"{one.p_holm:.4f}" if one.p_holm >= 1e-4 else "< 0.0001",
            _least(one.claim, one.least),
            f"**{one.verdict}**" if one.verdict != "not decided" else one.verdict,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _differences(runs: Runs) -> str:
    metrics = list(runs.study.metrics)
    lines = [f"| arm - other | {' | '.join(metrics)} |", "|---|" + "--:|" * len(metrics)]
    for arm, other in runs.study.against.items():
        cells = [_difference(student_mean(runs.changes(arm, other, metric))) for metric in metrics]
        lines.append(f"| {arm} - {other} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _means(runs: Runs) -> str:
    metrics = list(runs.study.metrics)
    lines = [f"| arm | learning rate | {' | '.join(metrics)} |", "|---|--:|" + "--:|" * len(metrics)]
    for arm in runs.study.arms:
        cells = [_mean(student_mean(list(runs.values(arm, metric).values()))) for metric in metrics]
        lines.append(f"| {arm} | {runs.rates[arm]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(mean: Estimate) -> str:
    """A mean and half its interval's width."""
    if mean.value is None:
        return "—"
    half = "" if mean.high is None else f" ± {mean.high - mean.value:.3f}"
    return f"{mean.value:.3f}{half}"


def _difference(estimate: Estimate) -> str:
    """A difference with its interval."""
    if estimate.value is None or not np.isfinite(estimate.value):
        return "—"
    reach = "" if estimate.low is None else f" [{estimate.low:+.3f}, {estimate.high:+.3f}]"
    return f"{estimate.value:+.3f}{reach}"
