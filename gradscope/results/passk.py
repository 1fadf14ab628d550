"""The result of `gradscope passk`. Letters: n samples of a prompt, c of them correct, k the budget."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gradscope.estimate import Estimate
from gradscope.results.source import Source, merged
from gradscope.shown import Shown


class PassAtK(Struct, frozen=True, kw_only=True):
    """One row of a table."""

    k: int  # the budget
    pass_at_k: Estimate  # chance that at least one of k samples is correct: mean over prompts of 1 - C(n-c,k)/C(n,k)
    pass_hat_k: Estimate  # chance that all k samples are correct (pass^k): mean over prompts of C(c,k)/C(n,k)


class PassAtKForecast(PassAtK, frozen=True, kw_only=True):
    """A budget beyond the samples, its values from the fitted shape of pass rates, their intervals for any shape."""

    method: Literal["forecast"] = "forecast"  # not an unbiased estimate: those end at the number of samples


class Evaluation(Struct, frozen=True, kw_only=True):
    """The evaluation of a table: several are distinguished by task, model and scorer, and never pooled."""

    task: str  # the task; where it is unknown, the file's name
    model: str  # the model; empty where it is unknown
    scorer: str  # whose score it is: a scorer, or a metric after a filter; ``reward`` where a sample has one score
    unfinished: str
    """How the evaluation ended and how many of its samples there are, where it did not succeed; else empty."""
    mean_score: Estimate
    """Mean score over samples, also where nothing says which of them pass; interval by resampling prompts."""


class PassAtKTable(Struct, frozen=True, kw_only=True):
    """pass@k of one file of samples."""

    name: str  # the file's name, or the name of the policy within it
    source: Source  # where the samples came from
    num_prompts: int  # prompts used
    num_samples: tuple[int, int]  # fewest and most samples of a prompt
    rows: tuple[PassAtK, ...]  # by k
    forecasts: tuple[PassAtKForecast, ...] = ()
    """One per budget asked for that exceeds the samples of a prompt; the row of that budget stays undefined."""
    evaluation: Evaluation | None = None  # whose samples they are, where a folder holds several evaluations; else None


class PassAtKDifference(Struct, frozen=True, kw_only=True):
    """Second minus first, paired by prompt."""

    k: int  # the budget
    difference: Estimate  # pass@k of the second minus pass@k of the first, interval by resampling prompts
    first_wins: int  # prompts on which the first has the higher estimate
    second_wins: int  # prompts on which the second has the higher estimate
    ties: int  # prompts on which they are equal
    compression_factor: Estimate
    """The least m with which pass@(m k) of the first reaches pass@k of the second; undefined, with the reason, where
    the first's samples end before."""
    compression_at_least: float | None
    """Where m is undefined for that reason: its lower bound, with 97.5 % confidence."""


class Solved(Struct, frozen=True, kw_only=True):
    """On how many prompts each policy has at least one correct sample."""

    both: int  # prompts solved by both
    first_only: int  # prompts that only the first solves
    second_only: int  # prompts that only the second solves
    neither: int  # prompts that none solves


class PassAtKComparison(Struct, frozen=True, kw_only=True):
    """Two files of samples of the same prompts."""

    first: str  # name of the first
    second: str  # name of the second
    num_prompts: int  # prompts that both have; the others are left out
    num_unpaired: int  # prompts that only one of them has
    rows: tuple[PassAtKDifference, ...]  # by k
    crossover_k: int | None
    """The smallest k whose difference lies, interval and all, on the other side of zero than that at the smallest k;
    None where there is none: the sign of two equal policies changes in a third of samples."""
    solved: Solved  # prompts with at least one correct sample
    frac_won: Estimate  # mean over prompts of the gain at the largest k, losses counted as 0
    frac_lost: Estimate  # mean over prompts of the loss at the largest k, gains counted as 0
    least_sharpening: float | None
    """No best of m of the first explains the second's newly solved prompts for m up to this, with 95 % confidence; None
    where not even m = 1 is refuted."""
    verdict: Literal["capacity expansion", "search compression", "no headroom", "undecided"]
    """``capacity expansion``: the second solves prompts that no plausible sharpening of the first would, and more at
    the largest k; ``search compression``: it gains at the smallest k and solves hardly another prompt at the largest,
    though the first left some unsolved; ``no headroom``: it left next to none; ``undecided``: neither is shown."""
    evidence: str  # the evidence of the verdict, in words
    verifier: str  # the effect of false positives of the verifier, in words; empty without a budget in common


class PassAtKReport(Shown, Struct, frozen=True, kw_only=True):
    """pass@k tables, and the comparison of the first two (each further file is compared with the first)."""

    tables: tuple[PassAtKTable, ...]
    """One per file; of a folder of evaluations one per log and scorer, which are not compared."""
    comparison: PassAtKComparison | None  # first against second file; None for one file
    # of the policies of one file only those with a prompt of the first's are compared with it
    further_comparisons: tuple[PassAtKComparison, ...] = ()  # first against third, fourth, ...
    findings: tuple[str, ...] = ()  # the meaning of the numbers, in sentences

    @property
    def sources(self) -> tuple[Source, ...]:
        """The inputs: a source a file, or one of all evaluations together."""
        sources = tuple({table.source.path: table.source for table in self.tables}.values())
        return (merged(sources),) if any(table.evaluation for table in self.tables) else sources
