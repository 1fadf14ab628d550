"""Claims about rewards (dead groups, their origin and return, what training reaches) and about tokens."""

from __future__ import annotations

import math

import numpy as np

from gradscope.diagnostics.claims.evidence import (
    BY_SIDE,
    NO_TOKENS,
    Evidence,
    Judgement,
    all_hold,
    cannot_tell,
    in_range,
    on_side,
    rises,
)
from gradscope.estimate import Estimate
from gradscope.metrics.gram.part_sums import ratio_over_groups
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.outcomes.degeneracy import dead_persistence
from gradscope.metrics.outcomes.passk import pass_at_k
from gradscope.metrics.sampler import PROBABILITIES, UNDECIDED, UNLIKELY, TokenCell
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, ratios, unit_sums
from gradscope.results.verdicts import ClaimVerdict
from gradscope.say import counted, percent, points, with_interval

EXCESS = 0.01  # the least share of groups beyond the prediction that is called an excess
PERSISTENT = 0.05  # the least excess of dead groups after a dead one that is called persistence
SAME_SHARE = 0.02
"""A share of all-fail groups as near as this to that of a power of one rate is that of the power; so is one within a
quarter of the way from the power to a line."""
_SHORTEST_CURVE = 3  # sizes, of which one is in the middle
_FEW_PROMPTS = 10
"""With fewer no verdict: of 8 whose pass rate rises to one the interval left out 0 in 6.5 % of logs without
persistence, and of 8 that differ the curve of all-fail groups was called exponential in 5 to 12 %."""
HARD = 0.25
"""A task is hard where fewer rollouts pass. At 25 %, as at the second source's 7 %, one pass rate for all makes few
groups that all pass."""


def dead_beyond_prediction(evidence: Evidence) -> Judgement:
    """The share of dead groups minus that of independent flips of one coin."""
    report = evidence.degeneracy()
    gap, dead = report.jensen_gap, report.frac_reward_zero_std
    if gap.undefined is not None:
        return cannot_tell(gap.undefined)
    return Judgement(
        estimate=gap,
        verdict=rises(gap, 0.0, EXCESS),
        why=f"{with_interval(dead, percent)} of the groups are dead; one pass rate for all would give "
        f"{with_interval(report.iid_prediction, percent)}.",
    )


def excess_from_prompts(evidence: Evidence) -> Judgement:
    """Whether groups that differ within a step make more of the gap than a pass rate that moves between steps."""
    # The difference has to stay with the prompt, not with the visit as a judge's luck does.
    report = evidence.degeneracy()
    between, over_time = report.gap_decomposition.between_prompts, report.gap_decomposition.over_time
    if between.undefined is not None or over_time.undefined is not None:
        return cannot_tell(str(between.undefined or over_time.undefined))
    if report.jensen_gap.side_of_zero <= 0:
        return cannot_tell("It is not sure that there is an excess", estimate=between)
    prompts, visits = report.overdispersion.between_prompts, report.overdispersion.between_visits
    returns = prompts.is_defined and visits.is_defined
    origin = (
        f"where prompts return, {with_interval(prompts, 'z.3f')} of the variance of pass rates stays with the prompt "
        f"and {with_interval(visits, 'z.3f')} is of the visit"
        if returns
        else "no prompt returns, so what rollouts of a group share would look the same"
    )
    return Judgement(
        estimate=between,
        null=over_time,
        verdict=all_hold([_larger(between, over_time), _larger(prompts, visits) if returns else "cannot_tell"]),
        why=f"{with_interval(between, points)} points from groups that differ within a step, "
        f"{with_interval(over_time, points)} from a pass rate that moves between steps; {origin}.",
    )


def dead_groups_return(evidence: Evidence) -> Judgement:
    """Whether a prompt whose group was dead is dead at its next visit more often than one whose group was alive."""
    table = evidence.groups()
    dead = dead_persistence(table.step, table.prompt, table.dead, resampling=evidence.resampling)
    if dead.excess.undefined is not None:
        return cannot_tell(dead.excess.undefined)
    if dead.excess.num_units < _FEW_PROMPTS:
        return cannot_tell(f"Fewer than {_FEW_PROMPTS} prompts return beside others whose last group was unlike theirs")
    return Judgement(
        estimate=dead.excess,
        verdict=rises(dead.excess, 0.0, PERSISTENT),
        why=f"{with_interval(dead.after_dead, percent)} are dead again after a dead group, "
        f"{with_interval(dead.after_live, percent)} after a live one; the excess is that of returns at one step, over "
        f"{dead.num_returns} returns.",
    )


def search_not_capacity(evidence: Evidence) -> Judgement:
    """Whether held-out prompts are solved with fewer samples, but no more of them are solved."""
    comparison = evidence.held_out().comparison
    defined = [row for row in comparison.rows if row.difference.is_defined] if comparison else []
    if comparison is None or not defined:
        return cannot_tell("No budget is within the samples of every prompt, before and after")
    verdicts: dict[str, ClaimVerdict] = {"search compression": "supported", "capacity expansion": "contradicted"}
    return Judgement(
        estimate=defined[-1].difference,
        verdict=verdicts.get(comparison.verdict, "cannot_tell"),
        why=f"{comparison.evidence[:1].upper()}{comparison.evidence[1:].rstrip('.')}; {comparison.verifier}.",
    )


def dead_groups_are_failures(evidence: Evidence) -> Judgement:
    """Whether more groups all fail than all pass, in a run whose task is hard."""
    report = evidence.degeneracy()
    failing, passing, rate = report.frac_all_fail, report.frac_all_pass, report.pass_rate
    if failing.undefined is not None or passing.undefined is not None:
        return cannot_tell(str(failing.undefined or passing.undefined))
    if rate.ends[1] >= HARD:
        return cannot_tell(
            f"It is said of hard tasks, and {with_interval(rate, percent)} of these rollouts pass, not certainly less "
            f"than {percent(HARD)}",
            estimate=failing,
        )
    return Judgement(
        estimate=failing,
        null=passing,
        verdict=_larger(failing, passing),
        why=f"All fail in {with_interval(failing, percent)} of the groups, all pass in "
        f"{with_interval(passing, percent)}.",
    )


def all_fail_is_exponential(evidence: Evidence) -> Judgement:
    """Whether the share of all-fail groups falls with N as one q^N does, and not along a line."""
    # The share at N is the mean over groups of C(n - c, N) / C(n, N), without bias up to the smallest group. A power
    # has the geometric mean of its ends in the middle of a range, a line their arithmetic mean; prompts that differ
    # have less than either (Cauchy and Schwarz).
    table = evidence.groups()
    if table.num_passing is None:
        return cannot_tell("No success threshold is known")
    last = int(table.size.min())
    last -= 1 - last % 2  # so that a whole number lies in the middle
    if last < _SHORTEST_CURVE:
        return cannot_tell(f"A curve needs groups of {_SHORTEST_CURVE} or more, the smallest has {table.size.min()}")
    sizes = (1, last // 2 + 1, last)
    fails = 1 - np.column_stack([pass_at_k(table.size, table.num_passing, size) for size in sizes])

    def curve(sums: Array) -> Array:
        shares = ratios(sums)
        first, middle, end = shares[..., 0], shares[..., 1], shares[..., 2]
        power = np.sqrt(np.clip(first * end, 0.0, None))
        return np.stack([middle - power, (first + end) / 2 - power, first, middle, end], axis=-1)

    bend, line, *shares = bootstrap_statistics(
        curve,
        unit_sums(fails.T, table.prompt, len(fails)),
        bounds=([-1.0, 0.0, 0.0, 0.0, 0.0], 1.0),
        resampling=evidence.resampling,
    )
    values = [f"{with_interval(share, percent)} at N = {size}" for share, size in zip(shares, sizes, strict=True)]
    listed = ", ".join(values)
    margin = max(SAME_SHARE, (line.value or 0.0) / 4)
    verdict = in_range(bend, -margin, margin) if bend.num_units >= _FEW_PROMPTS else "cannot_tell"
    if verdict != "contradicted" and line.ends[0] <= 2 * SAME_SHARE:
        return cannot_tell(f"A power and a line are nearly one over these N: all-fail groups {listed}", estimate=bend)
    return Judgement(
        estimate=bend,
        null=line,
        verdict=verdict,
        why=f"All-fail groups {listed} of {counted(bend.num_units, 'prompt')}; below a power the share falls more "
        "slowly at the end, as it does where prompts differ.",
    )


def _larger(estimate: Estimate, other: Estimate) -> ClaimVerdict:
    """Whether one number is larger, by intervals that do not meet."""
    if estimate.interval is None or other.interval is None:
        return "cannot_tell"
    if estimate.ends[0] > max(other.ends[1], 0.0):
        return "supported"
    return "contradicted" if estimate.ends[1] < other.ends[0] else "cannot_tell"


def likely_are_rewarded(evidence: Evidence) -> Judgement:
    """Whether log-probabilities and advantages vary together."""
    weighed = evidence.weighed_tokens()
    if not weighed:
        return cannot_tell(NO_TOKENS)
    tokens = [step.tokens for step in weighed.values()]
    from gradscope.diagnostics.rank.tokens import advantage_covariance

    covariance = advantage_covariance(tokens)
    return Judgement(
        estimate=covariance,
        verdict=on_side(covariance),
        why=f"Over {sum(len(step.groups) for step in tokens):,} tokens of {covariance.num_units} groups, each beside "
        "the means of its own step.",
        steps=tuple(weighed),
    )


def changes_as_predicted(evidence: Evidence) -> Judgement:
    """Whether the entropy at the steps' own tokens fell by the next checkpoint where their covariance is positive."""
    # The change is that of the weights on disk, whatever optimizer made them.
    followed = evidence.followed_tokens()
    tokens, changes = zip(*followed.values(), strict=True)
    from gradscope.diagnostics.rank.tokens import advantage_covariance, mean_over_tokens

    covariance = advantage_covariance(tokens)
    change = mean_over_tokens(tokens, [token_change.entropies for token_change in changes])
    updates = sum(token_change.last - token_change.first for token_change in changes)
    return Judgement(
        estimate=change,
        verdict=BY_SIDE[-covariance.side_of_zero * change.side_of_zero],
        why=f"The covariance of log p and advantage is {with_interval(covariance, '+.3g')} over the tokens of these "
        f"steps, which are {len(followed)} of the {updates} between the checkpoints.",
        steps=tuple(followed),
    )


MAJORITY = 0.5  # the share of the energy from which on some tokens have most of it


def has_most_energy(kind: TokenCell, evidence: Evidence) -> Judgement:
    """Whether tokens of one kind have most of the energy, the summed squared norms of the tokens' gradients."""
    # The null is their share of the tokens: that of the energy if all gradients had one size.
    energies = [row for row in evidence.gradients("token").energies if row.kind == kind]
    steps = tuple(row.step for row in energies)
    if not energies:
        return cannot_tell(NO_TOKENS)
    share, token_share = (
        ratio_over_groups(
            np.concatenate([getattr(row, name) for row in energies]),
            np.concatenate([getattr(row, f"all_{name}") for row in energies]),
        )
        for name in ("energy", "tokens")
    )
    if not sum(float(row.energy.sum()) for row in energies):
        return cannot_tell(f"No token {_NAMES[kind]} has a gradient", estimate=share, steps=steps)
    return Judgement(
        estimate=share,
        null=token_share,
        verdict=in_range(share, MAJORITY, 1.0),
        why=f"Such tokens are {percent(token_share.value or 0.0)} of those with an advantage, in {share.num_units} "
        f"groups at {counted(len(steps), 'step')}; groups weigh as much as they have energy.",
        steps=steps,
    )


def moves_with_advantage(evidence: Evidence) -> Judgement:
    """Whether training moved tokens of like probability apart the way their advantages ask."""
    followed = evidence.followed_tokens()
    steps, (tokens, changes) = tuple(followed), zip(*followed.values(), strict=True)
    from gradscope.diagnostics.rank.tokens import matched_change

    matched = matched_change(tokens, changes)
    if matched.undefined is not None:
        return cannot_tell(matched.undefined, steps=steps)
    return Judgement(
        estimate=matched,
        verdict=in_range(matched, 0.0, math.inf),
        why=f"From the weights before each step to the next on disk, over {sum(len(step.groups) for step in tokens):,} "
        f"tokens of {matched.num_units} groups; updates on other prompts lie between the two.",
        steps=steps,
    )


_NAMES = {UNDECIDED: "of the top fifth by entropy", UNLIKELY: f"of probability below {PROBABILITIES[1]:g}"}
