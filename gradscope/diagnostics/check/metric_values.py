"""The value of a required metric: the catalogue says which command's result holds it, at which path.

Each result is made once, and only when a requirement needs it. Metrics of logs never load torch: only those of
gradients import the gradient engine. Where a result has the number at several steps or in several rows, the last step,
the largest group and one kind of token are meant.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradscope.catalog.entry import Metric
from gradscope.catalog.lookup import CATALOG, budget_of, catalog_name, range_of
from gradscope.diagnostics.check.requirements import Needed, Selector, aggregate_steps, coverage_gap, split_metric
from gradscope.diagnostics.degeneracy.group_rewards import DegeneracyOptions
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.degeneracy.reward_functions import judged_groups
from gradscope.diagnostics.inputs.steps import usable_steps
from gradscope.diagnostics.logged.policy import PARTS, absence_of
from gradscope.diagnostics.logged.tokens import logged_part
from gradscope.diagnostics.passk import measure as passk
from gradscope.diagnostics.passk.comparison import Samples
from gradscope.diagnostics.spike.measure import logged_series, metrics_at, outstanding_step
from gradscope.errors import GradscopeError, MissingDependencyError
from gradscope.estimate import Estimate
from gradscope.findings.degeneracy import dead_group_advice
from gradscope.findings.degeneracy_parts import conflict_advice
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.outcomes.degeneracy import share_columns
from gradscope.metrics.outcomes.passk import pass_at_k, pass_hat_k
from gradscope.metrics.sampler import TokenCell
from gradscope.metrics.uncertainty.bootstrap import cluster_numbers, deviations_within, unit_sums
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling
from gradscope.results.degeneracy import DegeneracyCourse, DegeneracyReport, StepDegeneracy
from gradscope.results.rank import CorrectionEffect, TokenKind
from gradscope.results.verdicts import BaselineMetric
from gradscope.rollouts.groups import groups_of_steps
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.run import Run
from gradscope.say import non_finite_word

if TYPE_CHECKING:
    from gradscope.results.norms import ReplayReport, StepReplay
    from gradscope.results.rank import RankReport
    from gradscope.results.source import RowKind


_SHARES = ("frac_reward_zero_std", "frac_all_pass", "frac_all_fail", "pass_rate")  # as `share_columns` has them


def _group_means(
    run: Run, name: str, *, reward: str | None, threshold: float | None
) -> tuple[dict[str, float], dict[int, float]]:
    """A metric of each prompt, and how far the groups of each step are above their prompts; none for other metrics."""
    if not run.groups or name not in (*_SHARES, "frac_tied"):
        return {}, {}
    chosen, table = judged_groups(run, threshold, reward)
    columns = dict(zip(_SHARES, share_columns(table), strict=False))  # only dead groups where passing is not known
    columns["frac_tied"] = table.dead * (table.num_passing is None)
    if name not in columns:
        return {}, {}
    groups, values = chosen.table, columns[name].astype(np.float64)
    means = unit_sums([values], groups.prompt, len(values))
    first = dict.fromkeys(groups.prompt.tolist())
    by_prompt = {groups.prompts[row]: float(total / count) for row, (total, count) in zip(first, means, strict=True)}
    # the mean of a prompt holds a part of each of its groups; one that does not return deviates from all prompts
    num_visits = np.bincount(groups.prompt)[groups.prompt]
    scale = num_visits / np.maximum(num_visits - 1, 1)
    deviations = deviations_within(values, cluster_numbers(groups.prompt)) * scale
    deviations = np.where(num_visits > 1, deviations, values - values.mean())
    return by_prompt, groups.mean_by_step(deviations, np.ones(len(values)))


_STEP_FIELDS = frozenset(StepDegeneracy.__struct_fields__)
_SERIES_FIELDS = frozenset(DegeneracyCourse.__struct_fields__) & set(CATALOG)
_GROUP_FIELDS = _STEP_FIELDS | {"relative_gap", "gap_decomposition", "frac_reward_conflict"}
"""Parts of a degeneracy report that a selection of steps has too: its groups are measured together."""

_DEAD_GROUP_METRICS = ("frac_reward_zero_std", "frac_all_pass", "frac_all_fail", "frac_tied", "jensen_gap")


class MetricValue(BaselineMetric, frozen=True, kw_only=True):
    """A metric's value on a run, with whole prompt ids."""

    subject: str  # what exactly it is a value of, in words
    hint: str = ""  # where there is none: what would help
    advice: str = ""  # what the run's numbers say to try, a sentence; empty where they say nothing

    @classmethod
    def unknown(cls, reason: str, subject: str, hint: str = "") -> MetricValue:
        """No value, for a reason without its period."""
        return cls(estimate=Estimate.undefined_because(reason), subject=subject, hint=hint)


def needs_only_rewards(name: str) -> bool:
    """Whether a metric is had from the rewards of a log, or from what the trainer logged."""
    entry = CATALOG.get(name.partition("@")[0])
    return entry is None or entry.command in ("degeneracy", "passk", "spike")


Method = TypeVar("Method", bound=Callable[..., Any])


def computed_once(method: Method) -> Method:
    """Let a method of :class:`MetricValues` compute once for the same arguments; an error is then raised again."""

    @wraps(method)
    def remembered(self: MetricValues, *arguments: object) -> Any:
        name = " ".join([method.__name__, *map(str, arguments)])
        if name not in self.cache:
            try:
                self.cache[name] = method(self, *arguments)
            except GradscopeError as error:
                self.cache[name] = error
        if isinstance(self.cache[name], GradscopeError):
            raise self.cache[name]
        return self.cache[name]

    return cast(Method, remembered)


class MetricValues(Struct, kw_only=True):
    """The metrics of one run, computed when asked for."""

    run: Run
    success_threshold: float | None = None  # a rollout passes when its reward reaches this
    reward: str | None = None  # one reward function by name, for the metrics of groups
    resampling: Resampling = RESAMPLING  # how often, and from which seed
    read: ReadOptions | None = None  # how to read the run once more, for its gradients
    engine: EngineOptions = field(default_factory=EngineOptions)  # how to compute gradients
    cache: dict[str, Any] = {}  # what was computed, or the error that it ended in

    def names(self) -> list[str]:
        """Every name that a requirement on this run may use: catalogue names, then what was logged."""
        return list(
            dict.fromkeys([*CATALOG, *["reward"] * bool(self.run.groups), *sorted(self.run.step_metrics.columns)])
        )

    def value(self, name: str) -> MetricValue:
        """One metric by its name, which ``@`` and a selector of steps may follow; undefined with the reason."""
        metric, selector = split_metric(name)
        try:
            return self._value(metric) if selector is None else self._selected(metric, selector, name)
        except MissingDependencyError:
            raise  # of what is not installed no run is to blame
        except GradscopeError as error:
            return MetricValue.unknown(error.message.rstrip("."), name, error.hint or "")

    def _value(self, name: str) -> MetricValue:
        """From the log where possible, rewards of groups before the trainer's own numbers; gradients last."""
        entry = CATALOG.get(name)
        if self._is_logged_metric(name) and _degeneracy_part(name):
            return self._selected(name, Selector(steps="all", aggregate="mean"), name)
        if entry is not None and entry.path and entry.command == "degeneracy":
            is_whole = name == "frac_set_aside"
            gap = None if is_whole else self._gap(name, self.run.updates, self.run.every_step, "most")
            return gap or self._from_groups(entry)
        if budget_of(name) is not None:
            return self._pass_at_k(name)
        series = self._series(name, ()) if name == "reward" or name in self.run.step_metrics.columns else None
        if series:
            step, value = max(series.items())
            unknown = _not_finite(name, {step: value}) or self._gap(name, series, self.run.every_step, "last")
            origin = "as the trainer logged it" if name in self.run.step_metrics.columns else "of its rollouts"
            subject = f"{name} at step {step}, {origin}"
            return unknown or MetricValue(estimate=Estimate.exact(value), subject=subject)
        if entry is not None and entry.path:
            makers = {"replay": self._replay, "report": self._from_log, "spike": self._deviation}
            return makers.get(entry.command, self._gradient)(entry)
        hint = "Name the budget: pass@8." if name in ("pass_at_k", "pass_hat_k") else _explain_hint(name)
        return MetricValue.unknown(f"{name} is not one number of a run", name, hint)

    def _selected(self, metric: str, selector: Selector, name: str) -> MetricValue:
        """A metric of some steps: their rollouts together for a mean, else their numbers joined."""
        entry = CATALOG.get(metric)
        is_replayed = entry is not None and entry.command == "replay"
        all_steps = self.run.steps if is_replayed else self.run.every_step
        steps = selector.choose(all_steps)
        if all_steps and not steps:
            return MetricValue.unknown(f"the run has no such step, it has {_span(all_steps)}", name)
        chosen_steps = set(steps)
        is_per_group = not self._is_logged_metric(metric) and (
            _degeneracy_part(metric) in _GROUP_FIELDS or _policy_part(metric)
        )
        if is_per_group and selector.aggregate == "mean" and not chosen_steps.isdisjoint(self.run.steps):
            chosen = replace(
                self.run,
                groups=groups_of_steps(self.run.groups, steps),
                metrics={step: values for step, values in self.run.metrics.items() if step in chosen_steps},
                repeats={step: sampled for step, sampled in self.run.repeats.items() if step in chosen_steps},
            )
            value = replace(self, run=chosen, cache={}).value(metric)
            return replace(value, subject=f"{value.subject} in {_span(steps, selector.steps)}")
        unknown = self._unknown_in_log(metric, steps, selector) if _policy_part(metric) else None
        if unknown is not None:
            return unknown
        series = self._series(metric, steps)
        if series is None:
            return MetricValue.unknown(f"{metric} is not known of each step", name, f"Leave the selector out: {metric}")
        values = {step: value for step, value in series.items() if step in chosen_steps}
        decisive = dict(list(values.items())[-1:]) if selector.aggregate == "last" else values
        broken = _not_finite(metric, decisive)
        if broken is not None:
            return broken
        must_have: Needed = "last" if selector.aggregate == "last" else "most" if is_per_group else "all"
        gap = None if is_replayed else self._gap(metric, series, steps, must_have)
        if gap is not None:
            return gap
        estimate = aggregate_steps(values, selector)
        if entry is not None:
            low, high = range_of(metric)
            is_change = selector.aggregate == "trend"
            estimate = estimate.within(low - high if is_change else low, high - low if is_change else high)
        aggregate = f"{selector.aggregate} " * (len(decisive) > 1)
        subject = f"{aggregate}{metric} of {_span(tuple(decisive), selector.steps)}" if values else metric
        joined = values if selector.aggregate in ("mean", "trend") else {}
        return MetricValue(estimate=estimate, subject=subject, hint=_explain_hint(metric), course=joined)

    def _is_logged_metric(self, name: str) -> bool:
        """Whether the log holds metrics and no rollouts, and the metric is one of them."""
        return self.run.source.kind == "metrics" and name in self.run.step_metrics.columns

    def _gap(self, name: str, logged: Iterable[int], steps: Sequence[int], must_have: Needed) -> MetricValue | None:
        """The undefined value of a metric that is missing at some of the steps asked for; None where it covers them."""
        present = set(logged)
        repeated = {step for step, sampled in self.run.repeats.items() if sampled in present}
        reason = coverage_gap(sorted(present | repeated), steps, self.run.windows, must_have)
        if reason is None:
            return None
        hint = f"Give the whole log, or name steps that have it: {name}@5-20 is of steps 5 to 20."
        return MetricValue.unknown(f"it {reason}", name, hint)

    def _series(self, metric: str, steps: Sequence[int]) -> dict[int, float] | None:
        """The metric at each step that has it, recomputed ones at the chosen steps; None for no number of a step."""
        entry = CATALOG.get(metric)
        if self._is_logged_metric(metric):
            return self.run.step_metrics.by_step(metric)
        elif metric in _SERIES_FIELDS:
            degeneracy = self.degeneracy().course
            rows = dict(zip(degeneracy.step, getattr(degeneracy, metric), strict=True))
        elif _degeneracy_part(metric) in _STEP_FIELDS:
            rows = {row.step: getattr(row, metric).value for row in self.degeneracy().by_step}
        elif _policy_part(metric):
            rows = {step: estimate.value for step, estimate in self._log_series(metric).items()}
        elif entry is not None and entry.command == "replay":
            rows = {step.step: _replayed(step, entry) for step in self.replay(tuple(steps)).steps}
        elif metric in self.run.step_metrics.columns:
            return self.run.step_metrics.by_step(metric)
        elif metric == "reward" and self.run.groups:
            return self.run.judged_rewards.mean_reward_by_step()
        else:
            return None
        return {step: value for step, value in rows.items() if value is not None}

    @computed_once
    def degeneracy(self) -> DegeneracyReport:
        """Groups without a gradient, over the whole log."""
        return degeneracy_of_run(
            self.run,
            success_threshold=self.success_threshold,
            reward=self.reward,
            options=DegeneracyOptions(resampling=self.resampling),
        )

    def _from_groups(self, entry: Metric) -> MetricValue:
        report = self.degeneracy()
        prompts, deviations = _group_means(self.run, entry.name, reward=self.reward, threshold=self.success_threshold)
        return MetricValue(
            estimate=number_at(report, entry.path),
            subject=f"{entry.name} of {report.num_groups} groups" if self.run.groups else entry.name,
            hint=_explain_hint(entry.name),
            advice=_advice(entry.name, report),
            prompts=prompts,
            deviations=deviations,
        )

    @computed_once
    def log_part(self, name: str) -> Any:
        """One part of what the log says of its policy."""
        return logged_part(PARTS[name], self.run, self.resampling)

    def _log_series(self, metric: str) -> dict[int, Estimate]:
        name = CATALOG[metric].path.rpartition(".")[2]
        return {row.step: getattr(row, name) for row in self.log_part(_policy_part(metric)).by_step}

    def _unknown_in_log(self, metric: str, steps: Sequence[int], selector: Selector) -> MetricValue | None:
        """Why the chosen steps lack the metric: a single step without a number makes it undefined."""
        series = self._log_series(metric)
        if not series:
            return self._from_log(CATALOG[metric])
        chosen = sorted(series.keys() & steps)
        for step in chosen[-1:] if selector.aggregate == "last" else chosen:
            if series[step].undefined:
                return MetricValue.unknown(f"{series[step].undefined} (step {step})", metric, _explain_hint(metric))
        return None

    def _from_log(self, entry: Metric) -> MetricValue:
        name = _policy_part(entry.name)
        part = self.log_part(name)
        if part.overall is None:
            reason, hint = absence_of(name, part)
            return MetricValue.unknown(reason, entry.name, hint)
        estimate = number_at(part.overall, entry.path.rpartition(".")[2])
        value = MetricValue(estimate=estimate, subject=f"{entry.name} of the log", hint=_explain_hint(entry.name))
        return self._gap(entry.name, self._log_series(entry.name), self.run.every_step, "most") or value

    def _pass_at_k(self, name: str) -> MetricValue:
        samples, budget = self.latest_samples(), budget_of(name) or 1
        row = passk.pass_at_k_of_samples([samples], ks=[budget], resampling=self.resampling).tables[0].rows[0]
        is_any = catalog_name(name) == "pass_at_k"
        estimate, formula = (row.pass_at_k, pass_at_k) if is_any else (row.pass_hat_k, pass_hat_k)
        hint = "Ask for a smaller k, or draw more samples a prompt."
        prompts: dict[str, float] = {}
        if estimate.is_defined:
            values = formula(samples.num_samples, samples.num_correct, budget).tolist()
            prompts = dict(zip(samples.prompts, values, strict=True))
        return MetricValue(estimate=estimate, subject=f"{name} of {samples.name}", hint=hint, prompts=prompts)

    @computed_once
    def latest_samples(self) -> Samples:
        """The last samples of held-out prompts in the run folder, else the rollouts of the log."""
        *_, last = passk.sample_files(self.run.path)
        if last == self.run.path:
            return passk.samples_of_run(self.run, name=last.name, success_threshold=self.success_threshold)
        return passk.read_samples(last, success_threshold=self.success_threshold)

    def _gradient(self, entry: Metric) -> MetricValue:
        rows: RowKind = "token" if is_token_metric(entry) else "rollout"
        estimate, subject = rank_number(self.rank(rows), entry)
        return MetricValue(estimate=estimate, subject=subject, hint=_explain_hint(entry.name))

    @computed_once
    def rank(self, rows: RowKind) -> RankReport:
        """One kind of matrix under the logged advantages, at the last step whose weights are on disk."""
        from gradscope.diagnostics.rank.measure import measure_rank

        return measure_rank(
            self.run.path,
            steps=self._last_step(),
            rows=rows,
            advantages=("logged",),
            read=self.read,
            engine=self.engine,
        )

    def _deviation(self, entry: Metric) -> MetricValue:
        """From the log alone; a number that is not finite is reported as such, wherever it was logged."""
        estimate, subject = furthest_deviation(self.run)
        name, series = next(iter(logged_series(self.run).items()))
        gap = self._gap(name, series, self.run.every_step, "all") if estimate.is_defined else None
        return gap or MetricValue(
            estimate=estimate, subject=subject, hint=_explain_hint(entry.name), is_not_finite=not estimate.is_defined
        )

    @computed_once
    def replay(self, steps: tuple[int, ...] | None) -> ReplayReport:
        """The replay of some steps; None: of all."""
        from gradscope.diagnostics.replay.measure import replay_run

        return replay_run(self.run.path, steps=steps, read=self.read, engine=self.engine)

    def _replay(self, entry: Metric) -> MetricValue:
        if entry.path == entry.name:
            report = self.replay(None)
            subject = f"{entry.name} of a replay that says {report.headline}"
            return MetricValue(estimate=number_at(report, entry.path), subject=subject, hint=_explain_hint(entry.name))
        last = self.replay(self._last_step()).steps[-1]
        subject, quantity = f"{entry.name} at step {last.step}", entry.path.rpartition(".")[2]
        error = _replayed(last, entry)
        if error is not None:
            return MetricValue(estimate=Estimate.exact(error), subject=subject)
        causes = [replayed.cause for replayed in last.quantities if replayed.name == quantity and replayed.cause]
        cause = next(iter(causes), last.cause) or f"{quantity} could not be recomputed"
        return MetricValue.unknown(cause, subject, _explain_hint(entry.name))

    def _last_step(self) -> tuple[int, ...] | None:
        return usable_steps(self.run, self.run.updates)[-1:] or None


def _span(steps: Sequence[int], selected: str = "") -> str:
    """Ascending steps by their ends, or as they were listed."""
    if steps[0] == steps[-1]:
        return f"step {steps[0]}"
    return f"steps {selected if ',' in selected else f'{steps[0]} to {steps[-1]}'}"


def _replayed(step: StepReplay, entry: Metric) -> float | None:
    if entry.path == entry.name:
        return {"match": 0.0, "mismatch": 1.0}.get(step.verdict)
    return step.relative_error.get(entry.path.rpartition(".")[2])


def _not_finite(name: str, values: Mapping[int, float]) -> MetricValue | None:
    """The undefined value of a metric logged as NaN or infinity at any of these steps; None where all are finite."""
    broken = [step for step, value in values.items() if not math.isfinite(value)]
    if not broken:
        return None
    rest = f", and no finite number at {len(broken) - 1} more of these steps" if len(broken) > 1 else ""
    reason = f"it is {non_finite_word(values[broken[0]])} at step {broken[0]}{rest}"
    return replace(MetricValue.unknown(reason, name, "Look at that step in the trainer's own log."), is_not_finite=True)


def _advice(name: str, report: DegeneracyReport) -> str:
    if name == "frac_reward_conflict" and report.reward_conflict is not None:
        return conflict_advice(report.reward_conflict)
    return dead_group_advice(report) if name in _DEAD_GROUP_METRICS else ""


def _degeneracy_part(name: str) -> str:
    """The part of a degeneracy report that holds a metric; empty for a metric of another command."""
    entry = CATALOG.get(name)
    return entry.path.partition(".")[0] if entry is not None and entry.command == "degeneracy" else ""


def is_per_step(name: str) -> bool:
    """Whether a metric of all groups, without a selector, is one of the groups of some steps as well."""
    return _degeneracy_part(catalog_name(name)) in _STEP_FIELDS


def _policy_part(name: str) -> str:
    """The part of what a log says of its policy that holds a metric; empty for any other metric."""
    entry = CATALOG.get(name)
    return entry.path.split(".")[1] if entry is not None and entry.path.startswith("logged.") else ""


def _explain_hint(name: str) -> str:
    return f"See what it is: gradscope explain {name}"


_TABLES: Mapping[str, str] = {
    "token_kinds": "energy",
    "corrections": "corrections",
    "entropy_changes": "entropy",
    "token_kl": "kl",
    "logprob_changes": "logprobs",
}
"""Field of a report whose rows are tokens -> its table, as the report names what it lacks."""
_KIND = TokenCell(entropy="top_fifth")  # the kind of token that a requirement means
_CORRECTION = "tis"  # the correction that it means


def is_token_metric(entry: Metric) -> bool:
    """Whether a gradient metric takes a report whose rows are tokens."""
    return entry.path.partition(".")[0] in _TABLES


def look_closer(entry: Metric, path: str) -> str:
    """The command that has more about a metric of a run."""
    rows = " --rows token" if is_token_metric(entry) else ""
    return f"gradscope {entry.command} {shlex.quote(path)}{rows}"


def rank_number(report: RankReport, entry: Metric) -> tuple[Estimate, str]:
    """A metric of gradients at the last step of a report, and its subject in words."""
    last, (table, _, path) = report.steps[-1], entry.path.partition(".")
    kind = {"token_kinds": " of the top fifth by entropy", "corrections": f" of {_CORRECTION}"}.get(table, "")
    subject = f"{entry.name}{kind} at step {last.step}"
    if is_token_metric(entry):
        rows = [row for row in getattr(report, table) if row.step == last.step and _is_catalog_row(row)]
        reason = report.missing_parts.get(_TABLES[table], "no token of the step is of that kind")
        return number_at(rows[0], path) if rows else Estimate.undefined_because(reason), subject
    if table == "steps":
        return number_at(last, path), subject
    points = [point for point in report.curve if point.step == last.step and point.advantage == "logged"]
    if not points:
        return Estimate.undefined_because("no group has a spectrum"), subject
    largest = max(points, key=lambda point: point.group_size)
    return number_at(largest, path), f"{subject}, G = {largest.group_size}"


def _is_catalog_row(row: object) -> bool:
    if isinstance(row, TokenKind):
        return (row.sign, row.probability, row.entropy) == (_KIND.sign, _KIND.probability, _KIND.entropy)
    return not isinstance(row, CorrectionEffect) or row.correction == _CORRECTION


def furthest_deviation(run: Run) -> tuple[Estimate, str]:
    """How far the step that `gradscope spike` would choose stands out, and by which number, in words."""
    logged = logged_series(run)
    step, num_searched = outstanding_step(logged)
    metrics = metrics_at(logged, step, num_chosen_from=num_searched)
    broken = next((metric for metric in metrics if not metric.value.is_defined), None)
    if broken is not None:
        return broken.deviation, f"deviation of {broken.name} at step {step}"
    first = max((metric for metric in metrics if metric.deviation.is_defined), key=lambda metric: metric.is_unusual)
    chance = f"chance reaches {first.by_chance.value or 0.0:.1f} in one run of twenty"
    return first.deviation, f"deviation of {first.name} at step {step} ({chance})"


def number_at(record: Any, path: str) -> Estimate:
    """The number at a path of fields, and of keys where a field is a mapping."""
    for name in path.split("."):
        record = record[name] if isinstance(record, Mapping) else getattr(record, name)
    estimate: Estimate = record
    return estimate
