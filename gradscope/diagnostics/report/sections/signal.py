"""What share of groups and tokens carries no gradient, which reward function makes the advantage, what is solved.

Is pass@k falling while pass@1 rises, and on which problems was coverage lost?
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from msgspec.structs import replace

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.passk.comparison import MARGIN, Samples
from gradscope.diagnostics.report.metrics_alone import dead_section, dead_severity
from gradscope.diagnostics.report.sections.inputs import Lengths, ReportInputs, Unavailable, along_line, missing_section
from gradscope.findings import degeneracy
from gradscope.findings.degeneracy_parts import (
    balance_sentence,
    conflict_advice,
    conflict_sentence,
    dead_environments,
    reward_findings,
    silent_sentence,
)
from gradscope.metrics.uncertainty.steps import trend
from gradscope.render.views.degeneracy import ENVIRONMENTS, REWARDS, prompts_view
from gradscope.render.views.view import Column, lines_over, table_of_cells, tabulate, view_table
from gradscope.results.degeneracy import DegeneracyReport, RewardFunction, StepDegeneracy
from gradscope.results.passk import PassAtKComparison, PassAtKReport
from gradscope.results.report import Chart, ReportSection, Series, SeriesKind, Severity
from gradscope.rollouts.groups import RewardTable, reward_table
from gradscope.say import counted, percent, points

MAX_PROMPTS = 200  # prompts that the page lists; a file of --output has all
_ENVIRONMENTS = "Each environment, data source or agent that rows name"
_ORDER: Sequence[Severity] = ("unknown", "fine", "look", "problem")
_BY_STEP = (
    Column("step", "step", "count"),
    Column("groups", "num_groups", "count"),
    Column("degenerate", "frac_reward_zero_std.value", "share"),
    Column("all fail", "frac_all_fail.value", "share"),
    Column("all pass", "frac_all_pass.value", "share"),
    Column("tied", "frac_tied.value", "share"),
    Column("pass rate", "pass_rate.value", "share"),
)
_HALF = 0.5


def signal_section(inputs: ReportInputs) -> ReportSection:
    """Degenerate groups: share and kinds, what they cost, the trend, and the series over steps."""
    report = inputs.degeneracy
    if isinstance(report, Unavailable):
        return missing_section("signal", report)
    answer = signal_answer(report, inputs.command("degeneracy"))
    # how rewards are scored matters less than that there is no gradient
    are_torn = inputs.lengths.num_torn > _OFTEN * report.num_groups and answer.severity != "problem"
    remarks = tuple(_repeats(inputs.lengths, report))[:: -1 if are_torn else 1]
    num_logged = len(inputs.run.judged_rewards)
    if (number := num_logged - report.num_groups) >= _OFTEN * num_logged and number:
        text = (
            f"{number:,} of {num_logged:,} groups lack a reward or have a single rollout: the others alone are judged."
        )
        remarks += ((text, "See why they have none, or what the trainer made of them."),)
    severity = max(answer.severity, "look" if remarks else "fine", key=_ORDER.index)
    first, *rest = answer.findings
    are_many = are_torn or inputs.lengths.num_repeats > _HALF * inputs.lengths.num_texts
    lead = answer.severity == "fine" or (
        are_many and not report.source.broken_rewards and not report.source.broken_advantages
    )
    sentences = [sentence for sentence, _ in remarks]
    ordered = (*sentences, first) if lead else (first, *sentences)
    next_step = remarks[0][1] if lead and remarks else answer.next_step
    return replace(answer, findings=(*ordered, *rest), severity=severity, next_step=next_step)


_GREEDY = "is the sampler greedy, or did the policy collapse?"
_OFTEN = 0.1  # share of completions, or of groups, from which on repeats, conflicts and gaps are reported


def _repeats(read: Lengths, report: DegeneracyReport) -> Iterator[tuple[str, str]]:
    if not degeneracy.copies_sentence(report) and read.num_repeats and read.num_repeats >= _OFTEN * read.num_texts:
        share = percent(read.num_repeats / read.num_texts)
        yield (
            f"{share} of completions are exact copies of another in their group, as are their gradients: {_GREEDY}",
            "Look at the temperature and at the entropy; if answers are so short that they repeat, use fewer rollouts.",
        )
    if read.num_torn:
        yield (
            f"In {counted(read.num_torn, 'group')} identical completions have different rewards: the reward depends on "
            "something other than the text.",
            "Score one completion twice, and see what differs.",
        )


def signal_answer(report: DegeneracyReport, command: str = "") -> ReportSection:
    """The same of groups that were counted already; ``command`` looks closer."""
    if report.source.kind == "metrics":
        return dead_section(report.metrics, report.source)
    entry = metric("frac_reward_zero_std")
    advice = degeneracy.dead_group_advice(report)
    caption = f"{counted(len(report.by_prompt), 'prompt')}, those never or always solved first, by number of rollouts"
    prompts = prompts_view(MAX_PROMPTS)
    findings = [text for text in report.findings if text != advice]
    leading = (
        *(report.source.broken_rewards, report.source.broken_advantages),
        *(report.is_in_conflict, report.doubled_steps, dead_environments(report)),
    )
    behind = 1 + sum(map(bool, leading))  # the trend is that of the share of dead groups
    findings[behind:behind] = _trend(report)
    moved = degeneracy.moved_sentence(report)
    index = next((index for index, text in enumerate(findings) if moved and text.endswith(moved)), 0)
    if index:  # of a share that moves its mean says little
        findings[index - 1 : index + 1] = [" ".join(findings[index - 1 : index + 1])]
    names = (
        *("frac_reward_zero_std", "frac_all_fail", "frac_all_pass", "frac_tied", "frac_reward_conflict"),
        *("iid_prediction", "jensen_gap"),
    )
    is_broken = report.source.broken_rewards or report.source.broken_advantages
    is_wrong = report.contradicts_rewards or is_broken or degeneracy.ends_dead(report)
    is_unusual = any(
        (
            *(report.has_other_baseline, report.looks_filtered, report.doubled_steps, dead_environments(report)),
            *(report.num_faint, report.num_pooled, report.frac_of_one_prompt),
            *(degeneracy.copies_sentence(report), degeneracy.sudden_sentence(report)),
        )
    )
    late, share = degeneracy.share_at_end(report), report.frac_reward_zero_std
    dies = late is not None and (late.value or 0.0) > (share.value or 0.0)
    origins = {"iid_prediction": f", p: {report.pass_rate_origin}"}
    return ReportSection(
        name="signal",
        findings=tuple(findings),
        severity=max(
            dead_severity(share, late),
            dead_severity(report.frac_reward_conflict),
            "problem" if is_wrong else "look" if is_unusual else "fine",
            key=_ORDER.index,
        ),
        is_standing=not (is_wrong or is_unusual or dies),
        meaning=entry.meaning,
        next_step=advice,
        command=command,
        charts=(_dead_chart(report.by_step),) if len(report.by_step) > 1 else (),
        tables=(
            *tabulate(
                f"The whole log: {report.num_groups:,} groups, intervals resample prompts",
                (
                    Column("what", "title"),
                    Column("share [95 % interval]", lambda entry: getattr(report, entry.name), "share"),
                    Column("formula", lambda entry: f"{entry.formula}{origins.get(entry.name, '')}"),
                ),
                [entry for entry in map(metric, names) if getattr(report, entry.name).is_defined],
            ),
            *view_table(ENVIRONMENTS, report, _ENVIRONMENTS),
            *view_table(prompts, report, caption),
            *(tabulate("Each step", _BY_STEP, report.by_step, by_step=True) if len(report.by_step) > 1 else ()),
        ),
    )


def _trend(report: DegeneracyReport) -> Iterator[str]:
    shares = list(zip(report.course.step, report.course.frac_reward_zero_std, strict=True))
    steps = [step for step, value in shares if value is not None]
    change = trend(steps, [value for _, value in shares if value is not None]).within(-1.0, 1.0)
    if len({value for _, value in shares}) > 1 and not degeneracy.moved_sentence(report):
        yield from along_line("the share", change, (steps[0], steps[-1]), points, " points")


def _dead_chart(steps: tuple[StepDegeneracy, ...]) -> Chart:
    kinds: tuple[SeriesKind, ...] = ("all_fail", "all_pass", "tied")
    shares = {kind: [getattr(row, f"frac_{kind}").value for row in steps] for kind in kinds}
    drawn: dict[tuple[str, SeriesKind | None], list[float | None]]
    drawn = {(kind.replace("_", " "), kind): values for kind, values in shares.items() if any(values)}
    if not drawn:  # without a threshold there are no kinds, only equal rewards
        drawn = {("equal rewards", None): [row.frac_reward_zero_std.value for row in steps]}
    return Chart(
        title="Share of groups without a gradient",
        kind="stack",
        places=tuple(row.step for row in steps),
        series=tuple(Series(name=name, values=tuple(values), kind=kind) for (name, kind), values in drawn.items()),
        y_label="share of groups",
        y_range=(0.0, 1.0),
    )


_FORMULA = f"squared advantage: {metric('by_reward.advantage_share').formula}; intervals resample prompts"


def rewards_section(inputs: ReportInputs) -> ReportSection:
    """Each reward function's share of the squared advantage, its ties, and its mean over steps."""
    report = inputs.degeneracy
    if isinstance(report, Unavailable):
        return missing_section("rewards", report)
    table = reward_table(inputs.run.groups)
    if not table.rewards:
        hint = "TRL writes one column a reward function with log_completions=True; give reward functions names."
        return missing_section("rewards", "The log has no reward per function.", hint)
    if not report.by_reward:
        only = f"There is one reward function, '{next(iter(table.rewards))}': it makes all of the advantage."
        return ReportSection(name="rewards", findings=(only,), severity="fine")
    functions = [function for function in report.by_reward if function.weight != 0]
    remarks = tuple(_function_remarks(report, functions, table))
    needs_look = bool(remarks) or not functions or (report.frac_reward_conflict.value or 0.0) >= _OFTEN
    severity: Severity = "look" if report.is_in_conflict or needs_look else "fine"
    if report.is_in_conflict and report.frac_reward_conflict.ends[0] > _HALF:
        severity = "problem"
    sentences, shares = [sentence for sentence, _ in remarks], _findings(report)
    steps = np.unique(table.step).tolist()
    means: dict[str, list[float | None]] = {}
    for name in [function.name for function in functions]:
        rewards = table.rewards[name]
        logged = table.mean_by_step(table.sums(np.nan_to_num(rewards)), table.sums(~np.isnan(rewards)))
        means[name] = [None if math.isnan(mean) else mean for mean in logged.values()]
    correlations = [
        (first.name, second.name, first.correlation[second.name])
        for first, second in combinations(functions, 2)
        if second.name in first.correlation
    ]
    return ReportSection(
        name="rewards",
        findings=(*shares, *sentences) if report.is_in_conflict else (*sentences, *shares),
        severity=severity,
        meaning=metric("by_reward.advantage_share").meaning,
        next_step=remarks[0][1] if remarks and not report.is_in_conflict else _next_step(report, functions),
        command=inputs.command("degeneracy", "--show", "rewards"),
        charts=lines_over(steps, "Mean of each reward function", means, y_label="mean reward"),
        tables=(
            *view_table(REWARDS, report, _FORMULA),
            *table_of_cells(
                f"Correlation within groups = {metric('by_reward.correlation').formula}",
                [("reward function", "text"), ("and", "text"), ("correlation", "gap")],
                correlations,
            ),
        ),
    )


def _function_remarks(
    report: DegeneracyReport, functions: list[RewardFunction], table: RewardTable
) -> Iterator[tuple[str, str]]:
    if silent := report.silent_functions:
        yield silent_sentence(silent), f"Read completions that '{silent[0]}' should pay, and see why not."
    if balance := balance_sentence(report):
        yield balance, f"Change the weights (reward_weights in TRL): '{report.prompts.reward}' should make most of it."
    for name in [row.name for row in functions if row.frac_tied.value == 1 and row.name not in silent]:
        yield f"'{name}' is tied in every group: it adds no gradient.", "See whether it can tell completions apart."
    for name, values in table.rewards.items():
        num_missing = table.sums(np.isnan(values))
        num_torn = int(np.sum((num_missing > 0) & (num_missing < table.size)))
        if num_torn >= _OFTEN * len(table):
            yield (
                f"'{name}' is missing for some rollouts of {num_torn:,} of {len(table):,} groups, and not for others.",
                "See why it failed there: TRL counts a missing reward as 0 next to those of the others.",
            )


def _findings(report: DegeneracyReport) -> Iterator[str]:
    conflict = () if report.reward_conflict is None else (conflict_sentence(report.reward_conflict),)
    shares = reward_findings(report)
    yield from (*shares, *conflict) if report.is_in_conflict else (*conflict, *shares)  # which the page begins with
    if not any(row.advantage_share.is_defined or row.difference_share.is_defined for row in report.by_reward):
        yield f"What each makes is not known: {report.by_reward[0].difference_share.undefined}."
    unweighted = [row.name for row in report.by_reward if row.weight == 0 and row.frac_tied.value != 1]
    if unweighted:
        yield f"Logged with the reward and no part of it: {', '.join(unweighted)}."


def _next_step(report: DegeneracyReport, functions: list[RewardFunction]) -> str:
    if report.reward_conflict is not None:
        return conflict_advice(report.reward_conflict)
    if report.frac_reward_conflict.undefined and len(functions) > 1:
        return f"Whether side rewards decide groups is undefined: {report.frac_reward_conflict.undefined}."
    return "If one makes more of the gradient than it should, change its weight (reward_weights in TRL)."


MAX_PROBLEMS = 25  # problems listed by name; the finding counts all of them
_PAIRED = (
    Column("k", "k", "count"),
    Column("difference", "difference", "gap"),
    Column("first ahead", "first_wins", "count"),
    Column("second ahead", "second_wins", "count"),
    Column("ties", "ties", "count"),
)


def coverage_section(inputs: ReportInputs) -> ReportSection:
    """pass@k before and after, the paired difference, and the problems that only the first samples solve."""
    report = inputs.passk
    if isinstance(report, Unavailable):
        return missing_section("coverage", report)
    return coverage_answer(report, inputs.samples)


def coverage_answer(report: PassAtKReport, samples: tuple[Samples, ...] = ()) -> ReportSection:
    """The same for an existing estimate; only the samples themselves show which problems were lost."""
    comparison, lost = report.comparison, _lost(samples)
    problems: tuple[str, ...] = ()
    tables = tabulate(
        f"pass@k = {metric('pass_at_k').formula}; pass^k = {metric('pass_hat_k').formula}",
        (
            Column("samples", lambda row: row[0].name),
            Column("k", lambda row: row[1].k, "count"),
            Column("pass@k", lambda row: row[1].pass_at_k, "share"),
            Column("pass^k", lambda row: row[1].pass_hat_k, "share"),
        ),
        [(table, row) for table in report.tables for row in table.rows],
    )
    if comparison is not None:
        tables += tabulate(f"{comparison.second} minus {comparison.first}, paired by prompt", _PAIRED, comparison.rows)
    if comparison is not None and samples:
        problems = (
            f"Of {comparison.num_prompts} prompts the samples of {comparison.first} alone solved {len(lost)}, those of "
            f"{comparison.second} alone {comparison.solved.second_only}.",
        )
    if lost:
        shown = f", the first {MAX_PROBLEMS}" if len(lost) > MAX_PROBLEMS else ""
        titles = ("problem", samples[0].name, samples[1].name)
        caption = (
            f"Problems of which {titles[1]} has a correct sample and {titles[2]} none ({len(lost)}{shown}), also by "
            "chance where few were correct; correct samples in each"
        )
        tables += table_of_cells(caption, [(title, "text") for title in titles], lost[:MAX_PROBLEMS])
    severity, advice = _verdict(comparison)
    budgets = tuple(sorted({row.k for table in report.tables for row in table.rows}))
    curves = [(table.name, {row.k: row.pass_at_k.value for row in table.rows}) for table in report.tables]
    return ReportSection(
        name="coverage",
        findings=(*report.findings, *problems),
        severity=severity,
        meaning=metric("pass_at_k").meaning,
        next_step=advice,
        charts=(
            Chart(
                title="pass@k",
                kind="lines",
                places=budgets,
                series=tuple(Series(name=name, values=tuple(map(values.get, budgets))) for name, values in curves),
                x_label="k",
                y_label="share of prompts solved",
                y_range=(0.0, 1.0),
            ),
        ),
        tables=tables,
    )


def _lost(samples: tuple[Samples, ...]) -> list[tuple[str, str, str]]:
    """Problems with a correct sample in the first file and none in the second, with both counts."""
    if len(samples) < 2:
        return []
    before, after = (
        dict(zip(file.prompts, zip(file.num_correct.tolist(), file.num_samples.tolist(), strict=True), strict=True))
        for file in samples[:2]
    )
    return [
        (prompt, f"{correct}/{number}", f"0/{after[prompt][1]}")
        for prompt, (correct, number) in before.items()
        if correct > 0 and prompt in after and after[prompt][0] == 0
    ]


def _verdict(comparison: PassAtKComparison | None) -> tuple[Severity, str]:
    """Whether coverage surely falls at the largest k; samples of one time have no direction."""
    if comparison is None:
        return "unknown", (
            "Sample the same prompts before and after training, and pass both files with --samples: one file alone has "
            "no direction."
        )
    differences = [row.difference for row in comparison.rows if row.difference.value is not None]
    if len(differences) > 1 and differences[-1].side_of_zero < 0:
        return "problem", (
            "Coverage fell at the largest k: train with more exploration (temperature, entropy, larger groups) or on "
            "harder prompts, and stop before pass@1 saturates."
        )
    excluded = bool(differences) and differences[-1].interval is not None and differences[-1].ends[0] > -MARGIN
    return "fine" if excluded else "unknown", (
        f"No loss of coverage is certain at the largest k, and one of {MARGIN:g} is "
        f"{'excluded' if excluded else 'possible'}; more prompts or samples would narrow the interval."
    )
