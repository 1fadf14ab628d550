"""Sentences about ranks, formulations and held-out answers, and the headline of `gradscope rank`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gradscope.advantages.registry import LOGGED
from gradscope.estimate import Estimate
from gradscope.findings.logged import logprob_findings
from gradscope.findings.spike import OTHER_GRADIENT
from gradscope.metrics.gram.alignment import REFERENCE
from gradscope.metrics.gram.geometry import meets_logged
from gradscope.metrics.uncertainty.intervals import difference_of
from gradscope.results import rank as results
from gradscope.results.rank import GradientSparsity
from gradscope.say import counted, interval, non_finite_word, percent, with_interval

_KINDS = {"rollout": "rollout rows", "token": "token rows", "all weights": "dL/dW, mean over weights,"}
"""Matrices whose change with the group size is reported -> their names in sentences."""


def rank_findings(
    curve: Sequence[results.RankCurvePoint],
    steps: Sequence[results.StepGeometry],
    spectra: Sequence[results.GradientSpectrum],
    comparisons: Sequence[results.RankComparison] = (),
) -> tuple[str, ...]:
    """Ranks by group size, over time and by formulation, dead groups, cancellation, and the trainer's own norm."""
    sentences = [*_by_size(curve), *time_findings(curve), *_compared(comparisons), *_dead_findings(curve)]
    values = [step.cancellation.value for step in steps if step.cancellation.value is not None]
    if values:
        mean = percent(sum(values) / len(values))
        sentences += [f"On average {mean} of the summed row norms survives in the step's gradient; the rest cancels."]
    sentences += _norm_findings(steps)
    if not curve and spectra:
        sentences.insert(0, _of_matrices(spectra))
    return tuple(sentences)


def _rank(estimate: Estimate) -> str:
    return with_interval(estimate, ".2f")


def _preferred_points(curve: Sequence[results.RankCurvePoint]) -> list[results.RankCurvePoint]:
    """The logged advantage where there is one, else the first that was asked for."""
    name = results.preferred([point.advantage for point in curve])
    return [point for point in curve if point.advantage == name]


def _last_point(curve: Sequence[results.RankCurvePoint]) -> results.RankCurvePoint | None:
    points = [point for point in _preferred_points(curve) if point.effective_rank.is_defined]
    return max(points, key=lambda point: (point.step, point.group_size), default=None)


def _by_size(curve: Sequence[results.RankCurvePoint]) -> Iterator[str]:
    """Effective rank with the number of rows: a low rank of a small group is no finding."""
    last = _last_point(curve)
    if last is None:
        return
    yield (
        f"At step {last.step} the gradient matrix of a live group has effective rank {_rank(last.effective_rank)} of "
        f"at most {last.group_size} rows (advantage {last.advantage}, mean over {last.num_groups - last.num_dead} live "
        "groups)."
    )
    value = last.effective_rank.value or 0.0
    for other in curve:  # a formulation stands in for logged advantages like its
        rank, same = other.given_prompts, (other.step, other.group_size) == (last.step, last.group_size)
        if same and rank.interval and math.isclose(rank.value or 0.0, value, rel_tol=1e-6):
            yield (
                f"Other rollouts of these very prompts would leave it within{interval(rank, '.2f')}; "
                "the interval above is for other prompts."
            )
            break
    scores, gaussian = last.nulls["unweighted"], last.nulls["gaussian"]
    rest = "; the rest is the policy's own geometry" if scores.difference.side_of_zero else ""
    yield (
        f"The score vectors of those groups alone, without advantages, have {_rank(scores.effective_rank)}, and "
        f"unrelated rows of the same norms {_rank(gaussian.effective_rank)}, of which the rank is "
        f"{_rank(gaussian.ratio)}; {_change_by_advantages(scores.difference)}{rest}."
    )
    energy, null = last.two_direction_energy, gaussian.two_direction_energy
    if last.group_size > 2 and energy.is_defined and null.is_defined:
        yield (
            f"Two directions hold {with_interval(energy, percent)} of a live group's energy; of unrelated rows of the "
            f"same norms they would hold {with_interval(null, percent)}."
        )
    yield from sharing_findings(last)


def _change_by_advantages(difference: Estimate) -> str:
    change = with_interval(difference, "+.2f")
    if difference.side_of_zero:
        return f"the advantages change that by {change}"
    if difference.interval:
        return f"what the advantages change ({change}) cannot be told from zero"
    if math.isclose(difference.value or 0.0, 0.0, abs_tol=1e-6):
        return "advantages of one size leave that as it is, whatever their signs"
    return "the groups are too few to say whether the advantages change that"


def sharing_findings(point: results.RankCurvePoint) -> Iterator[str]:
    """Whether what rollouts share adds up or cancels, where that differs from chance."""
    shared, residual = point.shared_kept, point.residual_kept
    if side := _side_of_one(shared):
        rest = "" if residual.value is None else f", and {with_interval(residual, '.2f')} times on all others"
        yield (
            f"What the rollouts of a live group share {'adds up' if side > 0 else 'cancels'}: on directions of several "
            f"of them their sum has {with_interval(shared, '.2f')} times the energy of the rows{rest} (1 for random "
            "signs)."
        )


def _side_of_one(ratio: Estimate) -> int:
    return ratio.map(lambda value: value - 1.0).side_of_zero


def time_findings(curve: Sequence[results.RankCurvePoint]) -> Iterator[str]:
    """First against last step at one group size, and whether the intervals keep them apart."""
    points = [point for point in _preferred_points(curve) if point.effective_rank.interval is not None]
    size = max((point.group_size for point in points), default=0)
    points = sorted((point for point in points if point.group_size == size), key=lambda point: point.step)
    if len(points) > 1:
        first, last = points[0].effective_rank, points[-1].effective_rank
        difference = difference_of(first, last)
        change = f"the difference {_rank(difference)} may be zero, so these steps cannot be told apart"
        if difference.side_of_zero:
            change = f"it {'rose' if difference.side_of_zero > 0 else 'fell'} by {_rank(difference)}"
        yield (
            f"Between steps {points[0].step} and {points[-1].step} the effective rank went from {_rank(first)} to "
            f"{_rank(last)}: {change}."
        )


def size_findings(changes: Sequence[results.SizeChange]) -> tuple[str, ...]:
    """Whether the rank depends on the group size, on the same prompts, a sentence a kind; of weights their mean."""
    named: dict[str, results.SizeChange] = {}
    for change in changes:
        chosen = named.setdefault(change.matrix, change)
        if (change.step, change.second) > (chosen.step, chosen.second) and change.advantage == chosen.advantage:
            named[change.matrix] = change
    return tuple(
        f"On the same {change.difference.num_units} prompts at step {change.step} the rank of {_KINDS[matrix]} at "
        f"R = {change.second} is {with_interval(change.difference, '+.2f')} above that at R = {change.first} "
        f"(advantage {change.advantage})."
        for matrix, change in named.items()
        if change.difference.is_defined and matrix in _KINDS
    )


def _compared(comparisons: Sequence[results.RankComparison]) -> Iterator[str]:
    different = [c for c in comparisons if c.difference.side_of_zero != 0]
    similar = [c.second for c in comparisons if c.difference.value is not None and c not in different]
    if different:
        named = ", ".join(f"{c.second} ({c.difference.value:+.2f})" for c in different)
        yield (
            f"Paired by group, the rank under {different[0].first} differs from that under {named}, each at 95 %. A "
            "rank of rows sees how unequal the advantages are, never their signs."
        )
    if similar:
        yield (
            f"The ranks under {comparisons[0].first} and under {', '.join(similar)} cannot be told apart at step "
            f"{comparisons[0].step}."
        )


def _dead_findings(curve: Sequence[results.RankCurvePoint]) -> Iterator[str]:
    points = [point for point in _preferred_points(curve) if point.advantage == LOGGED]
    dead, total = sum(point.num_dead for point in points), sum(point.num_groups for point in points)
    if dead:
        yield f"{dead} of {total} groups have zero advantage throughout: their gradient is zero and has no rank."


def _norm_findings(steps: Sequence[results.StepGeometry]) -> Iterator[str]:
    """The engine's norm against the trainer's own: the spectra rest on it."""
    broken = [step for step in steps if step.logged_grad_norm is not None and not math.isfinite(step.logged_grad_norm)]
    pairs = [(s.grad_norm.value, s.logged_grad_norm) for s in steps if s.grad_norm.value and s.logged_grad_norm]
    if broken:
        first = broken[0]
        yield (
            f"At {len(broken)} of {len(steps)} steps the trainer logged no finite grad_norm, first at step "
            f"{first.step}: {non_finite_word(first.logged_grad_norm or 0.0)}."
        )
    elif pairs:
        worst = max(abs(value - logged) / logged for value, logged in pairs)
        ends = f"{worst:.1e} (relative) at {'this step' if len(pairs) == 1 else f'these {len(pairs)} steps'}"
        text = "The recomputed gradient norm differs from the trainer's logged grad_norm by"
        if worst > OTHER_GRADIENT:
            yield f"{text} up to {ends}: `gradscope replay` says whether precision explains it."
        else:
            yield f"{text} at most {ends}."
    elif steps:
        yield "The trainer logged no grad_norm at these steps, so the gradients are checked against nothing outside."


def _of_matrices(spectra: Sequence[results.GradientSpectrum]) -> str:
    ranked = [s for s in spectra if s.ranks.effective_rank.value is not None]
    if not ranked:
        return "Every gradient matrix is zero: no rank can be stated."
    low, high = (extreme(ranked, key=lambda s: s.ranks.effective_rank.value or 0.0) for extreme in (min, max))
    first, last = (spectrum.label.tensor or f"step {spectrum.label.step}" for spectrum in (low, high))
    return (
        f"Effective ranks run from {low.ranks.effective_rank.value:.2f} ({first}) to "
        f"{high.ranks.effective_rank.value:.2f} ({last})."
    )


_NEAR_FLOOR = 0.01  # share of sum s under the floor from which an effective rank, the entropy of s / sum s, is doubted


def reliability_findings(
    spectra: Sequence[results.GradientSpectrum], steps: Sequence[results.StepGeometry], engine: Mapping[str, object]
) -> tuple[str, ...]:
    """What reduced precision leaves in doubt, and how the sampler's log-probabilities fit: at most two sentences."""
    near_floor: tuple[str, ...] = ()
    is_reduced = engine.get("precision") == "reduced"
    defined = [spectrum for spectrum in spectra if is_reduced and spectrum.ranks.effective_rank.value is not None]
    pairs = [(np.asarray(spectrum.singular_values), spectrum.noise_floor) for spectrum in defined]
    below = [float(values[values <= floor].sum() / values.sum()) for values, floor in pairs]
    doubted = [share for share in below if share > _NEAR_FLOOR]
    if doubted:
        arithmetic = "TF32" if engine.get("tf32") else str(engine.get("dtype"))
        near_floor = (
            f"At {len(doubted)} of {len(defined)} spectra singular values lie under the noise floor of {arithmetic}, "
            f"up to {percent(max(doubted))} of their sum: before these effective ranks are believed, use --precision "
            "high.",
        )
    return (*near_floor, *logprob_findings(steps))


def sparsity_findings(by_step: Sequence[GradientSparsity]) -> tuple[str, ...]:
    """What the last step's numbers say, in at most one sentence."""
    last = [row for row in by_step if row.step == by_step[-1].step and row.small.value is not None]
    if not last:
        return ()
    if last[0].parts == "tokens":
        return (
            f"At step {last[0].step} {with_interval(last[0].small, percent)} of the tokens have a row below 1 % of the "
            f"largest, {with_interval(last[0].zero, percent)} exactly zero (Gini {last[0].gini.value:.2f}).",
        )
    even, uneven = (extreme(last, key=lambda row: row.gini.value or 0.0) for extreme in (min, max))
    return (
        f"At step {last[0].step} the entries of the weights' gradients are most even in {even.tensor} (Gini "
        f"{even.gini.value:.2f}, {with_interval(even.small, percent)} below 1 % of the largest) and least in "
        f"{uneven.tensor} ({uneven.gini.value:.2f}, {with_interval(uneven.small, percent)}).",
    )


def update_findings(
    updates: Sequence[results.FormulationUpdate], baselines: Sequence[results.BaselineNoise]
) -> tuple[str, ...]:
    """At most three sentences on updates, and on the noise under each baseline, all steps together first."""
    sentences = []
    name = results.preferred([update.advantage for update in updates])
    values = [update.signal_to_noise.value for update in updates if update.advantage == name]
    if ratios := sorted(ratio for ratio in values if ratio is not None):
        sentences.append(
            f"The expected update under {name} exceeds its own noise (signal to noise above 1) at "
            f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)} steps; median {ratios[len(ratios) // 2]:z.2f}."
        )
    step = max((update.step for update in updates), default=None)
    deviating: dict[str, list[str]] = {}  # target -> formulations whose expected update surely leaves its gradient
    for update in updates:
        for target, cosine in update.alignment.items():
            if update.step == step and cosine.high is not None and cosine.high < _ALIGNED:
                deviating.setdefault(target, []).append(f"{update.advantage} ({cosine.value:.2f})")
    sentences += [
        f"At step {step} the expected update does not follow the gradient of {target} under {', '.join(names)}."
        for target, names in deviating.items()
    ]
    return (*sentences, *_baseline(baselines))


def _baseline(baselines: Sequence[results.BaselineNoise]) -> list[str]:
    """The least noisy baseline that does not use its own rollout, where it differs from leave-one-out."""
    if not baselines:
        return []
    total = baselines[0]
    usable = {n: r for n, r in total.relative_noise.items() if n not in _SEES_ITS_REWARD and _side_of_one(r)}
    optimum = (
        f"The optimal baseline of a mixed group is {total.optimal_baseline.value:.2f} on average, at a mean reward of "
        f"{total.pass_rate:.2f}"
        if total.optimal_baseline.value is not None
        else "No group shows an optimal baseline"
    )
    if not usable:
        return [f"{optimum}; no baseline can be told from {REFERENCE} by the noise of its gradient."]
    best = min(usable, key=lambda name: usable[name].value or 0.0)
    change = (usable[best].value or 0.0) - 1
    noise = f"{percent(abs(change))} {'less' if change < 0 else 'more'} gradient noise than {REFERENCE}"
    ratio = with_interval(usable[best], ".2f")
    return [f"{optimum}; of the baselines that differ measurably, {best} has {noise} (ratio {ratio})."]


_ALIGNED = 0.9  # a cosine whose interval lies below this is called another direction
_SEES_ITS_REWARD = ("group_mean", "optimal")
"""Baselines that see the rollout that they are for; their noise is no fair comparison."""


def heldout_findings(steps: Sequence[results.HeldoutTransfer]) -> tuple[str, ...]:
    """Of the last step under the first advantage, where an interval lies on one side of zero; else nothing."""
    first = max(steps, key=lambda row: row.step, default=None)
    if first is None or first.frac_hurt.value is None:
        return ()
    answers = f"correct answers of the {first.num_heldout} held-out prompts"
    if side := first.transfer.side_of_zero:
        carries = (
            f"Step {first.step} {'raises' if side > 0 else 'lowers'} the {answers} by "
            f"{with_interval(first.transfer, '.2f')} of what it does to the answers that it was trained on"
        )
    elif side := first.cosine.side_of_zero:
        carries = (
            f"The prompts of step {first.step}, each counted alike, point {'towards' if side > 0 else 'away from'} the "
            f"{answers}: mean cosine {with_interval(first.cosine, '.3f')}"
        )
    else:
        return ()
    return (
        f"{carries}; {percent(first.frac_hurt.value)} of the pairs of a training and a held-out prompt hurt (advantage "
        f"{first.advantage}, to first order).",
    )


def interference_findings(steps: Sequence[results.Interference]) -> tuple[str, ...]:
    """Of the last step under the first advantage, where its interval lies on one side of zero; else nothing."""
    first = max(steps, key=lambda row: row.step, default=None)
    if first is None or first.frac_hurt.value is None or not (side := first.transfer.side_of_zero):
        return ()
    does = "undo a part of" if side < 0 else "add to"
    return (
        f"At step {first.step} the gradients of the other prompts {does} what a prompt's own does for its correct "
        f"answers: transfer {with_interval(first.transfer, '.2f')}, and {percent(first.frac_hurt.value)} of the pairs "
        f"of prompts hurt (advantage {first.advantage}, to first order).",
    )


MAX_FINDINGS = 3  # in addition to the verdict; more than three are not read


def rank_headline(report: results.RankReport) -> tuple[str, ...]:
    """The verdict of a report in one or two sentences, then at most three of its most telling findings.

    Rows other than rollouts by all parameters have one subject, and their findings keep their order, after problems.
    Findings about held-out samples come before those that every report has. Empty without findings.
    """
    if report.rows != "rollout" or not report.curve:
        first, rest = report.findings[:1], report.findings[1:]
        ordered = dict.fromkeys((*first, *_problems(report), *rest)) if first else {}
        return tuple(ordered)[: 1 + MAX_FINDINGS]
    findings = [
        *_problems(report),
        *heldout_findings(report.heldout),
        *_dead_findings(report.curve),
        *time_findings(report.curve),
        *update_findings(report.formulations, ()),
    ]
    return (rank_verdict(report.curve), *findings[:MAX_FINDINGS])


def rank_verdict(curve: Sequence[results.RankCurvePoint]) -> str:
    """The rank of the last step with its ceilings, and whether advantages or policy determine it."""
    last = _last_point(curve)
    if last is None:
        return "No group of these steps has a gradient under the advantage, so there is no rank."
    live, scores = last.num_groups - last.num_dead, last.nulls["unweighted"]
    return (
        f"At step {last.step} a group's gradient spans {with_interval(last.effective_rank, '.2f')} of at most "
        f"{last.group_size} directions, {with_interval(last.nulls['gaussian'].ratio, '.2f')} of what unrelated rows of "
        f"the same norms would span (advantage {last.advantage}, {counted(live, 'live group')}). Without advantages "
        f"the same rollouts span {scores.effective_rank.value:.2f}; {_change_by_advantages(scores.difference)}."
    )


def _problems(report: results.RankReport) -> list[str]:
    misfits = [step for step in report.steps if (step.logprob_difference and step.logprob_difference.frac_beyond)]
    pairs = [(step.grad_norm.value, step.logged_grad_norm) for step in report.steps]
    all_match = all(
        norm is not None and logged is not None and math.isfinite(logged) and meets_logged(norm, logged)
        for norm, logged in pairs
    )
    norms = () if all_match else _norm_findings(report.steps)
    return [*norms, *reliability_findings(report.spectra, misfits, report.engine)]
