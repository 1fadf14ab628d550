"""Sentences about parts of degeneracy: reward functions, environments and the trainer's own share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gradscope.findings.logged import SAME_SHARE
from gradscope.metrics.uncertainty.intervals import bonferroni, difference_of
from gradscope.results import degeneracy as results
from gradscope.say import counted, number, percent, with_interval


def conflict_findings(conflict: results.RewardConflict | None) -> tuple[str, ...]:
    """That a main reward has no say where others decide, and what to do; nothing where there is no such group."""
    return () if conflict is None else (conflict_sentence(conflict), conflict_advice(conflict))


def conflict_sentence(conflict: results.RewardConflict) -> str:
    """That a main reward has no say where others decide."""
    share = conflict.advantage_share.value
    weight = "" if share is None else f", which hold {percent(share)} of all squared advantages"
    text = f"{with_interval(conflict.frac_groups, percent)} of the groups"
    text = (
        f"'{conflict.deciding}' alone decides {text}"
        if conflict.is_alone
        else f"Side rewards decide {text}, most of all '{conflict.deciding}'"
    )
    return f"{text}: '{conflict.main}' is tied in these {conflict.num_groups:,}{weight}."


def conflicts_of_runs(runs: Sequence[results.SideRewards]) -> Iterator[str]:
    """The caveats of a comparison of dead groups: those that side rewards decide, and gains that are none."""
    improved = {run.run: text for run in runs if (text := _no_gain(runs[0], run))}
    yield from improved.values()
    for run in runs:
        if run.conflict is not None and run.run not in improved:
            yield f"In {run.run} {conflict_sentence(run.conflict)}"


def _no_gain(first: results.SideRewards, second: results.SideRewards) -> str:
    """That a run has fewer dead groups than another only because side rewards decide them; empty where it has not."""
    conflict, before = second.conflict, first.conflict
    shares = [run.frac_main_differs for run in (first, second)]
    dead = [run.frac_reward_zero_std.value or 0.0 for run in (first, second)]
    decided, decided_before = (0.0 if run is None else run.frac_groups.value or 0.0 for run in (conflict, before))
    if conflict is None or decided <= decided_before or dead[1] >= dead[0]:
        return ""
    if any(share.value is None for share in shares) or difference_of(*shares).side_of_zero > 0:
        return ""
    return (
        f"{second.run} has fewer groups without a gradient than {first.run} ({percent(dead[1])} for "
        f"{percent(dead[0])}), which shows no improvement: '{conflict.deciding}' decides "
        f"{percent(decided)} of them, and '{conflict.main}' differs in "
        f"{with_interval(shares[1], percent)}, in {first.run} in {with_interval(shares[0], percent)}."
    )


def conflict_advice(conflict: results.RewardConflict) -> str:
    """What to do about groups that side rewards decide."""
    side_rewards = f"'{conflict.deciding}'" if conflict.is_alone else "side rewards"
    weight = f"ive {side_rewards} no weight where '{conflict.main}' is tied."
    left = conflict.difference_share.value
    if not conflict.remedy or left is None:
        return f"G{weight}"
    return f"Try {conflict.remedy}: these groups then have {percent(left)} of all squared advantages. Or g{weight}"


def reward_findings(report: results.DegeneracyReport) -> tuple[str, ...]:
    """How often each reward function is tied and what it makes of the advantage; nothing for a single one."""
    rows = [row for row in report.by_reward if row.weight != 0]
    rescuable = [
        f"'{row.name}' differs within {row.num_rescuable} groups that '{report.reward}' leaves equal: with a weight "
        "for it they would have a gradient, its own."
        for row in report.by_reward
        if row.num_rescuable
    ]
    if len(rows) < 2:
        return tuple(rescuable)
    words = []
    for row in sorted(rows, key=lambda row: row.frac_tied.value or 0.0):
        tied, makes = row.frac_tied.value, ""
        for share, kind in ((row.difference_share, "reward differences"), (row.advantage_share, "advantage")):
            if share.value is not None:
                makes = f" and makes {percent(share.value)} of the squared {kind}"
        words.append(
            f"'{row.name}' is {'missing in some' if tied is None else f'tied in {percent(tied)} of'} groups{makes}"
        )
    undone = " (a negative share undoes what the others make)" * any(" and makes -" in text for text in words)
    sentences = [f"By reward function: {'; '.join(words)}{undone}."]
    if any(row.advantage_share.is_defined for row in rows):
        sentences.append(f"Shares of the squared advantage are of {report.advantages_of}.")
    single = [f"'{row.name}' in {row.num_alone:,}" for row in rows if row.num_alone]
    if single and report.reward_conflict is None:
        sentences.append(f"Alone in telling rollouts of a group apart: {', '.join(single)} groups.")
    return (*sentences, *rescuable)


def silent_sentence(names: Sequence[str]) -> str:
    """That reward functions are 0 throughout; empty where none is."""
    if not names:
        return ""
    listed = " and ".join(f"'{name}'" for name in names)
    return f"{listed} never pay{'s' if len(names) == 1 else ''}: 0 for every rollout."


def balance_sentence(report: results.DegeneracyReport) -> str:
    """That side rewards make most of the advantage, or undo what the main one makes; empty where neither is sure."""
    side_functions = {row.name: row for row in report.by_reward if row.weight}
    main = side_functions.pop(report.prompts.reward, None)
    if main is None or not side_functions or report.is_in_conflict:
        return ""
    kind = "advantage_share" if main.advantage_share.is_defined else "difference_share"
    share_of_main, shares = getattr(main, kind), {name: getattr(row, kind) for name, row in side_functions.items()}
    if not all(share.is_defined for share in (share_of_main, *shares.values())):
        return ""
    total = f"the squared {'advantage' if kind == 'advantage_share' else 'reward differences'}"
    largest, smallest = (extreme(shares, key=lambda name: shares[name].ends) for extreme in (max, min))
    if share_of_main.ends[1] < _MAJORITY < shares[largest].ends[0]:
        return (
            f"'{largest}' makes {with_interval(shares[largest], percent)} of {total}, and '{main.name}' "
            f"{percent(share_of_main.value or 0.0)}: that is what is learned."
        )
    correlation = main.correlation.get(smallest)
    if shares[smallest].ends[1] < -_MAJORITY and correlation is not None and correlation.is_defined:
        correlated = f"correlation {with_interval(correlation, '+.2f')} within groups"
        return f"'{smallest}' takes back what '{main.name}' pays ({correlated}): most of the two cancels."
    return ""


_MAJORITY = 0.5  # more than all else together


def dead_environments(report: results.DegeneracyReport) -> list[results.EnvironmentDegeneracy]:
    """Those of which surely most groups are dead, where that is not so of all environments; those that fail first."""
    rows = report.by_environment
    dead = [row for row in rows if bonferroni(row.frac_reward_zero_std, len(rows)).ends[0] > _MAJORITY]
    dead.sort(key=lambda row: ((row.pass_rate.value or 0.0) > _MAJORITY, -(row.frac_reward_zero_std.value or 0.0)))
    return dead if len(dead) < len(rows) else []


def environment_sentence(report: results.DegeneracyReport) -> str:
    """In which environment most groups are dead; empty where there is none, or where all are such."""
    dead = dead_environments(report)
    if not dead:
        return ""

    def num_dead(rows: Sequence[results.EnvironmentDegeneracy]) -> str:
        number = sum((row.frac_reward_zero_std.value or 0.0) * row.num_groups for row in rows)
        return f"{number:,.0f} of {sum(row.num_groups for row in rows):,}"

    rate = dead[0].pass_rate.value
    passing = "" if rate is None else f" (pass rate {percent(rate)})"
    similar = f", as have most in {counted(len(dead) - 1, 'more environment')}" if dead[1:] else ""
    rest = num_dead([row for row in report.by_environment if row not in dead])
    text = f"In '{dead[0].environment}' {num_dead(dead[:1])} groups have no gradient{passing}{similar}"
    return f"{text}; elsewhere {rest}."


def environments_finding(report: results.DegeneracyReport) -> str:
    """The pooled environments that pass least and most; empty where their intervals, widened for all of them, meet."""
    defined = [row for row in report.by_environment if row.pass_rate.is_defined]
    rated = sorted((bonferroni(row.pass_rate, len(defined)).ends, row.environment, row.pass_rate) for row in defined)
    if not rated or rated[0][0][1] >= rated[-1][0][0]:
        return ""
    low, high = (f"{with_interval(rate, percent)} in '{name}'" for _, name, rate in (rated[0], rated[-1]))
    return f"The log pools {len(rated)} environments, which pass from {low} to {high}: judge each by its own row."


def disagreement(series: results.DegeneracyCourse, num_levels: int) -> tuple[str, str]:
    """A problem where the trainer's own share differs, and else a closing remark that it is the same."""
    compared = [
        (step, logged, share)
        for step, logged, share in zip(series.step, series.logged, series.frac_reward_zero_std, strict=True)
        if logged is not None and share is not None
    ]
    different = [row for row in compared if not abs(row[1] - row[2]) <= SAME_SHARE]  # NaN differs
    if not compared:
        return "", ""
    if not different:
        return "", f"The trainer's own frac_reward_zero_std is the same at each of the {len(compared)} steps compared."
    step, logged, share = different[0]
    reason = _shift(series) or _why_different(share - logged, num_levels)
    return (
        f"At {len(different)} of {len(compared)} steps the trainer logged another frac_reward_zero_std, first at step "
        f"{step}: {number(logged, '.4f')}, here {share:.4f}. {reason}"
    ), ""


def _shift(series: results.DegeneracyCourse) -> str:
    """That the trainer's shares are those of the step before or after; empty where they are not."""
    for name, logged, shares in (
        ("before", series.logged[1:], series.frac_reward_zero_std[:-1]),
        ("after", series.logged[:-1], series.frac_reward_zero_std[1:]),
    ):
        pairs = [(a, b) for a, b in zip(logged, shares, strict=True) if a is not None and b is not None]
        if len({share for _, share in pairs}) > 2 and all(abs(a - b) <= SAME_SHARE for a, b in pairs):
            return f"They are those of the rollouts one step {name}: the trainer counts its steps differently."
    return ""


def _why_different(excess: float, num_levels: int) -> str:
    if not math.isfinite(excess):
        return "No batch of rollouts has such a share: the trainer's own number is broken."
    if excess > 0 and num_levels > 2:
        return (
            "Here a group is dead when its rewards lie within 1e-8. A trainer that tests the standard deviation in "
            f"float32 misses groups of equal fractional rewards, whose std is not exactly zero{_BATCHES}."
        )
    return (
        "The log may lack rows of the groups that differed, the trainer's groups may have another size, its scalar may "
        f"be another sum of rewards, or its metrics another run's{_BATCHES if excess > 0 else ''}."
    )


_BATCHES = "; with scale_rewards = 'batch' or normalize_then_sum TRL tests the batch, not groups (--run-config tells)"
