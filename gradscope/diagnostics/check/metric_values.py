"""Where the value of a required metric comes from; each report is made once, and only when a requirement needs it.

Metrics of logs never load torch: only the branch of gradient metrics imports the gradient engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gradscope.catalog.lookup import CATALOG, budget_of, catalog_name
from gradscope.diagnostics.check.by_prompt import group_metric_by_prompt
from gradscope.diagnostics.check.step_selectors import Selector, aggregate_steps, split_metric
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.passk.measure import pass_at_k_of_samples
from gradscope.diagnostics.passk.samples import Samples, read_samples, sample_files, samples_of_run
from gradscope.errors import GradscopeError
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.outcomes.passk import pass_at_k, pass_hat_k
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.results.rank import RankReport

_DEGENERACY = (
    "frac_reward_zero_std",
    "frac_all_pass",
    "frac_all_fail",
    "frac_tied",
    "pass_rate",
    "iid_prediction",
    "jensen_gap",
)
_GAP_PARTS = {"gap_between_prompts": "between_prompts", "gap_over_time": "over_time"}
_SIGNAL = ("starvation", "overdispersion", "pass_rates")
"""Parts of a degeneracy report, whose numbers are named by their path."""
_CURVE = ("effective_rank", "stable_rank", "participation_ratio")
_GEOMETRY = ("grad_norm", "cancellation", "class_subspace_energy")
_REPLAY = {"replay_grad_norm_error": "grad_norm", "replay_advantage_error": "advantage"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """A metric's value on a run."""

    estimate: Estimate
    """The value, or why there is none."""
    what: str
    """What exactly it is a value of, in words."""
    hint: str = ""
    """Where there is none: what would help."""
    prompts: Mapping[str, float] = field(default_factory=dict)
    """Prompt id -> the metric on that prompt alone; empty where it is not a mean over prompts."""


@dataclass(slots=True, kw_only=True)
class MetricValues:
    """The metrics of one run, computed when asked for."""

    run: Run
    """The run."""
    success_threshold: float | None = None
    """A rollout passes when its reward reaches this."""
    reward: str | None = None
    """One reward function by name, for the metrics of groups."""
    bootstrap: dict[str, Any] = field(default_factory=dict)
    """``seed`` and ``num_resamples``."""
    read: ReadOptions | None = None
    """How to read the run once more, for its gradients."""
    engine: EngineOptions | None = None
    """How to compute gradient metrics."""
    made: dict[str, Any] = field(default_factory=dict)
    """Reports that were made, or the errors that they ended in."""

    def names(self) -> list[str]:
        """Every name that a requirement on this run may use.

        Returns:
            Catalogue names, then what the trainer logged.
        """
        logged = sorted({name for values in self.run.metrics.values() for name in values})
        return list(dict.fromkeys([*CATALOG, *logged]))

    def value(self, name: str) -> MetricValue:
        """One metric.

        Args:
            name: One of :meth:`names`, or ``pass@<k>`` or ``pass^<k>``; ``@`` and a selector of steps may follow.

        Returns:
            Its value; undefined, with the reason, where it cannot be had.
        """
        metric, selector = split_metric(name)
        try:
            return self._value(metric) if selector is None else self._selected(metric, selector, name)
        except GradscopeError as error:
            reason = error.message.rstrip(".")
            return MetricValue(estimate=Estimate.because(reason), what=name, hint=error.hint or "")

    def _value(self, name: str) -> MetricValue:
        if name in _DEGENERACY or name in _GAP_PARTS:
            return self._degeneracy(name)
        if name.partition(".")[0] in _SIGNAL:
            report = self._degeneracy_report()
            what = f"{name} of {report.num_groups} groups"
            return MetricValue(estimate=attrgetter(name)(report), what=what, hint=_see(name))
        if budget_of(name) is not None:
            return self._pass_at_k(name)
        if any(name in values for values in self.run.metrics.values()):
            return self._logged(name)
        if name in _REPLAY:
            return self._replay(name)
        if name in _CURVE or name in _GEOMETRY or name.startswith("sparsity."):
            return self._gradient(name)
        reason = f"{name} is not one number of a run"
        hint = "Name the budget: pass@8." if name in ("pass_at_k", "pass_hat_k") else _see(name)
        return MetricValue(estimate=Estimate.because(reason), what=name, hint=hint)

    def _selected(self, metric: str, selector: Selector, name: str) -> MetricValue:
        """A metric of some steps: their rollouts together for a mean, else their numbers joined."""
        steps = selector.choose(self.run.steps)
        of_groups = metric in _DEGENERACY or metric in _GAP_PARTS
        if of_groups and steps and selector.aggregate == "mean":
            chosen = replace(self.run, groups=tuple(group for group in self.run.groups if group.step in set(steps)))
            value = replace(self, run=chosen, made={}).value(metric)
            return replace(value, what=f"{value.what} in steps {steps[0]} to {steps[-1]}")
        values = self._by_step(metric, steps)
        if values is None:
            reason = f"{metric} is not a number of each step"
            return MetricValue(estimate=Estimate.because(reason), what=name, hint=f"Leave the selector out: {metric}")
        words = "" if len(values) < 2 else f" of steps {min(values)} to {max(values)}"
        estimate = aggregate_steps(values, selector)
        return MetricValue(estimate=estimate, what=f"{selector.aggregate} {metric}{words}", hint=_see(metric))

    def _by_step(self, metric: str, steps: Sequence[int]) -> dict[int, float] | None:
        """The metric at each of these steps that has it; None where it is not a number of each step."""
        if metric in _DEGENERACY:
            rows = {row.step: getattr(row, metric).value for row in self._degeneracy_report().by_step}
        elif any(metric in values for values in self.run.metrics.values()):
            rows = {step: self.run.metrics.get(step, {}).get(metric) for step in steps}
        else:
            return None
        return {step: value for step in steps if (value := rows.get(step)) is not None}

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self.made:
            try:
                self.made[key] = make()
            except GradscopeError as error:
                self.made[key] = error
        if isinstance(self.made[key], GradscopeError):
            raise self.made[key]
        return self.made[key]

    def _degeneracy_report(self) -> DegeneracyReport:
        report: DegeneracyReport = self._once(
            "degeneracy",
            lambda: degeneracy_of_run(
                self.run, success_threshold=self.success_threshold, reward=self.reward, **self.bootstrap
            ),
        )
        return report

    def _degeneracy(self, name: str) -> MetricValue:
        report = self._degeneracy_report()
        part = _GAP_PARTS.get(name)
        estimate: Estimate = getattr(report, name) if part is None else getattr(report.gap_decomposition, part)
        prompts = group_metric_by_prompt(self.run, name, reward=self.reward, threshold=report.success_threshold)
        return MetricValue(
            estimate=estimate, what=f"{name} of {report.num_groups} groups", hint=_see(name), prompts=prompts
        )

    def _pass_at_k(self, name: str) -> MetricValue:
        samples: Samples = self._once("samples", self._samples)
        budget = budget_of(name) or 1
        row = pass_at_k_of_samples([samples], ks=[budget], **self.bootstrap).tables[0].rows[0]
        estimate = row.pass_at_k if catalog_name(name) == "pass_at_k" else row.pass_hat_k
        hint = "Ask for a smaller k, or draw more samples a prompt."
        prompts: dict[str, float] = {}
        if estimate.is_defined:
            formula = pass_at_k if catalog_name(name) == "pass_at_k" else pass_hat_k
            each = formula(samples.num_samples, samples.num_correct, budget).tolist()
            prompts = dict(zip(samples.prompts, each, strict=True))
        return MetricValue(estimate=estimate, what=f"{name} of {samples.name}", hint=hint, prompts=prompts)

    def _samples(self) -> Samples:
        *_, last = sample_files(self.run.path)
        if last == self.run.path:
            return samples_of_run(self.run, name=last.name, success_threshold=self.success_threshold)
        return read_samples(last, success_threshold=self.success_threshold)

    def _logged(self, name: str) -> MetricValue:
        step = max(step for step, values in self.run.metrics.items() if name in values)
        estimate = Estimate.exact(self.run.metrics[step][name])
        return MetricValue(estimate=estimate, what=f"{name} as the trainer logged it at step {step}")

    def _gradient(self, name: str) -> MetricValue:
        report: RankReport = self._once("rank", self._rank)
        last = report.steps[-1]
        what = f"{name} at step {last.step}"
        if name in _CURVE:
            points = [point for point in report.curve if point.step == last.step and point.advantage == "logged"]
            if not points:
                return MetricValue(estimate=Estimate.because("no group has a spectrum"), what=what, hint=_see(name))
            largest = max(points, key=lambda point: point.group_size)
            return MetricValue(
                estimate=getattr(largest, name), what=f"{what}, G = {largest.group_size}", hint=_see(name)
            )
        if name in _GEOMETRY:
            return MetricValue(estimate=getattr(last, name), what=what, hint=_see(name))
        return MetricValue(estimate=last.sparsity[name.removeprefix("sparsity.")], what=what, hint=_see(name))

    def _rank(self) -> RankReport:
        from gradscope.diagnostics.rank.measure import measure_rank

        return measure_rank(
            self.run.path, steps=self._last_step(), advantages=("logged",), read=self.read, engine=self.engine
        )

    def _replay(self, name: str) -> MetricValue:
        from gradscope.diagnostics.replay.measure import replay_run

        report = self._once(
            "replay", lambda: replay_run(self.run.path, steps=self._last_step(), read=self.read, engine=self.engine)
        )
        last = report.steps[-1]
        what, key = f"{name} at step {last.step}", _REPLAY[name]
        if key not in last.relative_error:
            causes = [quantity.cause for quantity in last.quantities if quantity.name == key and quantity.cause]
            cause = next(iter(causes), last.cause) or f"{key} could not be recomputed"
            return MetricValue(estimate=Estimate.because(cause), what=what, hint=_see(name))
        return MetricValue(estimate=Estimate.exact(last.relative_error[key]), what=what)

    def _last_step(self) -> tuple[int, ...] | None:
        usable = [step for step in self.run.steps if self.run.weights_before(step) and step not in self.run.notes]
        return tuple(usable[-1:]) or None


def _see(name: str) -> str:
    return f"See what it is: gradscope explain {name}"
