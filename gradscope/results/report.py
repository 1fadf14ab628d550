"""The result of `gradscope report`: one section a question, each with sentences, charts and tables as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import force_setattr

from gradscope.estimate import Estimate
from gradscope.results.logged import LoggedPolicy
from gradscope.results.source import Source
from gradscope.shown import Shown

ColumnStyle = Literal["text", "share", "gap", "rank", "norm", "count"]
"""How the cells of a column are formatted: as text, or as a number of that kind."""
ChartKind = Literal["lines", "stack", "bars"]
SeriesKind = Literal["all_fail", "all_pass", "tied", "logged", "recomputed"]
"""Series with the same color in every figure, those of other commands included."""
Severity = Literal["problem", "look", "fine", "unknown"]
"""The urgency of an answer, the most urgent first. Where nothing can be wrong, an answer is fine."""
SEVERITIES: tuple[Severity, ...] = ("problem", "look", "fine", "unknown")
NumberStyle = Literal["share", "gap", "rank", "norm", "count"]  # the same for numbers
Cell = str | int | float | None | Estimate  # one cell; None where the log has nothing there


class ReportColumn(Struct, frozen=True, kw_only=True):
    """One column of a table."""

    title: str  # its head
    style: ColumnStyle = "text"  # how its cells read


class ReportTable(Struct, frozen=True, kw_only=True):
    """A table of a section."""

    caption: str  # its subject, with the formula where a number has one
    columns: tuple[ReportColumn, ...]  # from left to right
    rows: tuple[tuple[Cell, ...], ...]  # one cell a column
    by_step: bool = False
    """Whether each row is a step, its first cell: a page folds such a table, for its chart says the same."""
    folded_as: str = ""
    """The label of a folded table with details; empty: it is open."""


class Series(Struct, frozen=True, kw_only=True):
    """One line, or one kind of bar."""

    name: str  # its label
    values: Sequence[float | None]  # one a position; None where there is none
    kind: SeriesKind | None = None  # its kind, where that has a color of its own; None: the next color of the chart


class Chart(Struct, frozen=True, kw_only=True):
    """A figure of a section."""

    title: str  # its subject
    kind: ChartKind  # ``lines`` over steps, ``stack`` of shares over steps, or horizontal ``bars`` with a name each
    places: Sequence[float | str]  # steps, or the names of bars
    series: tuple[Series, ...]  # at least one; bars have exactly one
    x_label: str = "step"  # name of the positions; for bars of their length
    y_label: str = ""  # name of the values, with their unit where they have one; bars leave it empty
    y_range: tuple[float, float] | None = None  # fixed ends of the scale of values; None: those of the values


class ShadedToken(Struct, frozen=True, kw_only=True):
    """One token of a text that is read by its gradient."""

    text: str  # the token alone
    strength: float | None
    """Norm of its gradient over the largest of the section, in [0, 1]; None where it was not measured."""
    is_raised: bool  # whether the update makes it more likely
    note: str  # its numbers in words


class ShadedText(Struct, frozen=True, kw_only=True):
    """One rollout's completion, token by token."""

    title: str  # which rollout it is
    tokens: tuple[ShadedToken, ...]  # in order


QUESTIONS = {
    "signal": "How much of the batch carries a gradient?",
    "reward": "Does the reward rise?",
    "zero-loss": "Is a loss or gradient norm of zero healthy, a dead batch, or a bug?",
    "replay": "Does the log reproduce the trainer's own numbers?",
    "rank": "How many directions has a group's gradient?",
    "contributions": "Which rollouts and groups make up the gradient?",
    "tokens": "Which tokens carry the gradient?",
    "length": "Does length or truncation drive the update?",
    "rewards": "Which reward function makes the advantage?",
    "dilution": "How much of the gradient is KL, and how much do dead groups dilute live ones?",
    "agreement": "Do sampler and trainer log-probabilities agree?",
    "staleness": "How stale are the weights that sampled?",
    "entropy": "Is the policy losing its entropy?",
    "generation": "How many completions are cut off, and how long does generation take?",
    "coverage": "Is pass@k falling while pass@1 rises?",
    "formulations": "What would other advantages have done with the same rollouts?",
    "claims": "Which papers' claims does this run bear out?",
}
"""Section of a run's page -> its question, in the order of the page."""


class ReportSection(Struct, frozen=True, kw_only=True):
    """One question that a run's log answers, or the reason why it does not."""

    name: str  # its anchor in the page
    question: str = ""  # the question, as practitioners ask it; empty: the one of :data:`QUESTIONS`
    findings: tuple[str, ...] = ()
    """The meaning of the numbers, the most important sentence first; empty where data are missing."""
    meaning: str = ""  # the interpretation
    next_step: str = ""  # advice
    command: str = ""  # the command that looks closer, as a person would type it; empty where there is none
    missing: str | None = None  # why there is no answer, and how to log the data for one
    severity: Severity = "unknown"
    """The urgency of the answer; unknown where there is none, or where the log does not decide it."""
    is_standing: bool = False  # whether it is so of all steps alike, and comes after what happened at one
    charts: tuple[Chart, ...] = ()  # the figures
    texts: tuple[ShadedText, ...] = ()  # completions whose tokens are shaded by their gradient
    tables: tuple[ReportTable, ...] = ()  # the tables

    def __post_init__(self) -> None:
        """Ask the question of the page's section of that name, where no other is asked."""
        if not self.question:
            force_setattr(self, "question", QUESTIONS[self.name])

    @property
    def headline(self) -> str:
        """The one sentence for a list of sections: the first finding, or the missing data."""
        return self.findings[0] if self.findings else self.missing or ""


class KeyNumber(Struct, frozen=True, kw_only=True):
    """One of the numbers that a run is known by, with its course."""

    name: str  # the section that it is of, its anchor in the page
    title: str  # its name for people
    value: Estimate  # the number
    style: NumberStyle  # how it reads
    note: str = ""  # its comparison or subject; the reason where the value is undefined
    then: Estimate | None = None  # a second number that belongs to it, as pass@k to pass@1
    places: Sequence[int] = ()  # the steps of its course
    course: Sequence[float | None] = ()  # its value at each of them


class ReadRollout(Struct, frozen=True, kw_only=True):
    """One rollout to be read."""

    sample: int  # its index in its group, from 0
    reward: float | None  # its reward
    advantage: float | None  # its advantage
    share: float | None  # its part of its step's gradient along that gradient; None where that was not recomputed
    completion: str  # its text; of a long one the beginning and the end


class ReadGroup(Struct, frozen=True, kw_only=True):
    """One group to be read."""

    step: int  # its step
    group_id: str
    kind: str
    """``all fail``, ``all pass``, ``tied``, ``side reward`` where it alone differs, ``mixed``, or ``not known`` where a
    reward is missing."""
    prompt: str  # the text of its prompt, as of completions
    rollouts: tuple[ReadRollout, ...]  # in the order of the log


class RunReport(Shown, Struct, frozen=True, kw_only=True):
    """One run on one page."""

    source: Source
    name: str  # what the page calls it
    sections: tuple[ReportSection, ...]  # one a question, in the order of reading
    recomputed: tuple[int, ...]  # steps whose gradients were recomputed
    strip: tuple[KeyNumber, ...] = ()  # the numbers on top, in one order for every run
    rollouts: tuple[ReadGroup, ...] = ()  # groups to be read, by step and then as logged
    logged: LoggedPolicy = field(default_factory=LoggedPolicy)  # its policy from the log alone

    @property
    def by_severity(self) -> tuple[ReportSection, ...]:
        """The sections by urgency: problems first, unanswered ones last, else in their own order.

        What happened at some step comes before what is so of all. Of the undecided ones pass@k comes first: it is a
        number, and the others say that they have none. Where the reward goes comes before what is fine, though it may
        be undecided: it is what a run is for.
        """

        def rank(section: ReportSection) -> tuple[bool, int, bool, bool]:
            is_first = section.severity == "unknown" and section.name == "coverage"
            is_reward = section.severity == "unknown" and section.name == "reward"
            urgency = SEVERITIES.index("fine" if is_reward else section.severity)
            return section.missing is not None, urgency, section.is_standing, not (is_first or is_reward)

        return tuple(sorted(self.sections, key=rank))


class RunSummary(Struct, frozen=True, kw_only=True):
    """One run of the folder, from its log alone."""

    name: str  # its path below the folder
    command: str  # the command that reports on it
    steps: tuple[int, ...]  # its steps, ascending
    num_rollouts: int  # rollouts in its log
    frac_reward_zero_std: Estimate  # share of groups whose rewards are all equal
    reward: Estimate  # mean reward over the log; a fact about it, without an interval
    reward_change: Estimate  # change of the mean reward along its line, first to last step
    reward_by_step: tuple[float | None, ...]  # mean reward of each step
    degenerate_by_step: tuple[float | None, ...]  # share of degenerate groups of each step
    grad_norm_by_step: tuple[float | None, ...]  # gradient norm of each step, as the trainer logged it


class RunIndex(Shown, Struct, frozen=True, kw_only=True):
    """The runs of a folder."""

    source: Source  # the folder
    name: str  # what the page calls it
    runs: tuple[RunSummary, ...]  # in order of their names
    left_out: tuple[tuple[str, str], ...]  # name of a run that cannot be read, and why
    findings: tuple[str, ...]  # the meaning of the numbers, in sentences
    sections: tuple[ReportSection, ...] = ()
    """The runs side by side, where they are few enough for one chart."""
