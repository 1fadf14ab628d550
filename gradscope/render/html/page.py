"""A run's report as one HTML file: it opens from disk, asks for nothing, and the same result gives the same bytes.

The page forbids itself everything but its own style and its one script, which is named by its digest: markup that a
log smuggled in could not run even if the escaping failed. Two rules hold for every expression of every template, so
that none can be forgotten: characters that could act on a terminal or reorder text are spelled out, and
characters of markup are escaped. Only what code returns as ``Markup``, such as a drawing, passes as it is.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Struct
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.render.html import chart as charts
from gradscope.render.html.chart import point_of
from gradscope.render.views.view import Column, tabulate
from gradscope.render.words import Footnotes, format_estimate, format_number, key_number_words, plain
from gradscope.results import report as results
from gradscope.results.report import Cell, ReportColumn, ReportTable
from gradscope.version import __version__


def render_page(report: results.RunReport) -> str:
    """The page of one run, a complete HTML document."""
    source, steps = report.source, ", ".join(map(str, report.recomputed))
    facts = (
        f"{source.path}: {source.recognized}",
        f"{source.num_rows:,} rows used, {source.quarantined.num_rows:,} set aside",
        f"Gradients recomputed at step {steps}." if steps else "No gradient was recomputed.",
        *(f"Not read: {sentence}" for sentence in source.quarantined.lost),
        *(f"{reason.counted} set aside: {reason.reason} ({reason.where})" for reason in source.quarantined.reasons),
    )
    notes = (*source.inferred, *source.missing)
    return render_document(
        "report.html",
        title=report.name,
        report=report,
        facts=(*facts, *(notes if len(notes) == 1 else ())),
        folded=notes if len(notes) > 1 else (),
        strip=strip_of(report),
        token_texts=token_texts_of(report),
        to_read=to_read_of(report.rollouts),
        **_answers(report.by_severity),
    )


def render_fragment(sections: Sequence[results.ReportSection], strip: Strip = ()) -> str:
    """Sections, in their order, as a ``<div>`` for another page: their style affects nothing outside."""
    template = _environment().get_template("fragment.html")
    return template.render(style=_nested_style(), strip=strip, **_answers(sections))


def _answers(sections: Sequence[results.ReportSection]) -> dict[str, object]:
    unanswered = [section for section in sections if section.missing is not None]
    noun = "question" if len(unanswered) == 1 else "questions"
    return {
        "answered": [section for section in sections if section.missing is None],
        "unanswered": unanswered,
        "unanswered_title": f"{len(unanswered)} {noun} that this log cannot answer, and what to log",
    }


@cache
def _nested_style() -> Markup:
    """The page's style within one element: rules of the page are rules of that element."""
    nested = re.sub(r"(^|[{}]\s*)(?::root|html|body)(?= \{)", r"\1&", str(_asset("page.css")))
    body = "& { margin: 0; padding: .5rem 1rem; } & > section:first-of-type { border: 0; margin: 0; padding: 0; }"
    return Markup(f".gradscope {{\n{nested}{body}\n}}")


def render_document(template: str, *, title: str, **context: object) -> str:
    """A page in its frame, with style and script inside and a policy that allows nothing else."""
    script, style = _asset("page.js"), _asset("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = Markup(
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    page = _environment().get_template(template)
    return page.render(title=title, policy=policy, script=script, style=style, version=__version__, **context)


@cache
def _asset(name: str) -> Markup:
    return Markup((files("gradscope.render.html") / name).read_text(encoding="utf-8"))


Strip = Sequence[tuple[results.KeyNumber, results.Severity]]


def strip_of(report: results.RunReport) -> Strip:
    """The numbers of a report, each with the severity of the section that it is of."""
    severities = {section.name: section.severity for section in report.sections}
    return [
        (number, severities.get(number.name, "unknown") if number.value.is_defined else "unknown")
        for number in report.strip
    ]


def spark_of(number: results.KeyNumber) -> str:
    """The points of a number's course in a drawing of 120 by 28; empty where it has no course."""
    if sum(value is not None and math.isfinite(value) for value in number.course) < 2:
        return ""
    chart = results.Chart(
        title="", kind="lines", places=number.places, series=(results.Series(name="", values=number.course),)
    )
    windows = charts.windows_of(chart)
    points = charts.points_of(number.course, windows)
    low, high = (0.0, 1.0) if number.style == "share" else charts.widened([point.value for point in points if point])
    to_x = charts.Scale(low=windows[0].low, high=windows[-1].high, start=2.0, end=118.0)
    to_y = charts.Scale(low=low, high=high, start=26.0, end=2.0)
    drawn = [(window.middle, point.value) for window, point in zip(windows, points, strict=True) if point is not None]
    return charts.coordinates(drawn, to_x, to_y)


def token_texts_of(report: results.RunReport) -> dict[tuple[str, int], str]:
    """Which rollouts are shown token by token, and the ids of these texts in the page."""
    shown = {
        text.title: f"{section.name}-text-{number}"
        for section in report.sections
        for number, text in enumerate(section.texts, start=1)
    }
    rollouts = ((group.group_id, rollout.sample) for group in report.rollouts for rollout in group.rollouts)
    return {key: shown[title] for key in rollouts if (title := f"{key[0]} #{key[1]}") in shown}


_LABELS = {
    "agreement": "sampler and trainer",
    "claims": "papers' claims",
    "contributions": "shares of rollouts",
    "courses": "lengths, entropy, KL",
    "coverage": "pass@k",
    "dilution": "KL and dilution",
    "formulations": "other advantages",
    "generation": "completions cut off",
    "norm": "gradient norm",
    "signal": "groups without a gradient",
    "zero-loss": "losses of zero",
}
"""Section -> its title, where that is not its name."""
MAX_FINDINGS = 4  # besides its first sentence three are read; the others fold


def shows_something(chart: results.Chart) -> bool:
    """Whether a chart has a number; in a stack one that is not zero, for else its frame is empty."""
    values = [value for series in chart.series for value in series.values if value is not None]
    return any(values) if chart.kind == "stack" else bool(values)


_DEAD = ("all fail", "all pass", "tied")
_NOTHING = 1e-9  # a smaller part of the most is rounding


def to_read_of(groups: Sequence[results.ReadGroup]) -> list[tuple[str, results.ReadGroup]]:
    """Three groups that show what a run learns from: a dead one, a live one, one that a side reward decides.

    Each with a caption, its outstanding rollouts first; of a kind the one with the largest part of
    the gradient, else the last. None where there are groups of one kind only, which the list of all shows as well.
    """
    kinds = (
        (_DEAD, "Dead: its rewards are equal, so relative to the group's mean no rollout has an advantage."),
        (("mixed",), "Live: its rewards differ, and so do the advantages of its rollouts."),
        (("side reward",), "Decided by a side reward: the main one is tied, and another makes every advantage."),
    )
    chosen = []
    for names, words in kinds:
        of_kind = [group for group in groups if group.kind in names]
        if of_kind:
            best = max(of_kind, key=lambda group: (float(share_of_group(group) or 0), group.step))
            pulls = _pulls(best)
            order = sorted(best.rollouts, key=lambda rollout: -abs(pulls.get(rollout.sample, 0.0)))
            chosen.append((words, replace(best, rollouts=tuple(order))))
    return chosen if len(chosen) > 1 else []


def _pulls(group: results.ReadGroup) -> dict[int, float]:
    """The advantage of each rollout, and where none is logged how far its reward is above the group's mean."""
    logged = {rollout.sample: rollout.advantage for rollout in group.rollouts if rollout.advantage is not None}
    if logged or group.kind in _DEAD:
        return logged
    rewards = {rollout.sample: rollout.reward for rollout in group.rollouts if rollout.reward is not None}
    mean = sum(rewards.values()) / len(rewards) if rewards else 0.0
    return {sample: reward - mean for sample, reward in rewards.items()}


def advantage_shades(group: results.ReadGroup) -> list[str]:
    """The classes of its rollouts' texts: raised or lowered, and how far relative to the group's largest."""
    pulls = _pulls(group)
    largest = max(map(abs, pulls.values()), default=0.0)
    shades = []
    for rollout in group.rollouts:
        pull = pulls.get(rollout.sample, 0.0)
        is_shaded = math.isfinite(largest + pull) and abs(pull) > _NOTHING * largest
        shades.append(f" {'up' if pull > 0 else 'down'} h{1 + (abs(pull) > largest / 2)}" if is_shaded else "")
    return shades


def share_of_group(group: results.ReadGroup) -> str:
    """A group's sort key: the largest part of the gradient that a rollout of it has; empty where none is known."""
    shares = [abs(rollout.share) for rollout in group.rollouts if rollout.share is not None]
    return f"{max(shares):.4g}" if shares else ""


NUM_SHADES = 8  # strengths in the style sheet, classes ``h1`` to ``h8``; ``h0`` is no gradient


def shade_of(token: results.ShadedToken) -> str:
    """The classes of a token in the style sheet: its direction and its shade."""
    if token.strength is None:
        return "unseen"
    shade = min(NUM_SHADES, 1 + int(token.strength * NUM_SHADES)) if token.strength > 0 else 0
    return f"{'up' if token.is_raised else 'down'} h{shade}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gradscope.render.html"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else plain(str(value)),  # visible, on one line
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "advantage_shades": advantage_shades,
        "bars_of": charts.bars_of,
        "drawing_of": charts.drawing_of,
        "kind_of_series": charts.kind_of_series,
        "format_number": format_number,
        "key_number_words": key_number_words,
        "label": lambda name: _LABELS.get(name, name),
        "most_findings": MAX_FINDINGS,
        "num_shades": NUM_SHADES,
        "page_table": page_table,
        "shade_of": shade_of,
        "shows_something": shows_something,
        "share_of_group": share_of_group,
        "spark_of": spark_of,
    }
    environment.filters |= {
        "at": charts.rounded,
        "lines": _lines,
        # line breaks shown and made: the token that ends a line has its own gradient
        "broken_lines": lambda text: _lines(text.replace("\n", "↵\n")),
    }
    return environment


def _lines(text: str) -> Markup:
    """A text whose line breaks stay, where the page shows it with ``white-space: pre-wrap``."""
    return Markup("\n").join(plain(line) for line in text.split("\n"))


_CURVES = {
    "reward_by_step": "mean reward",
    "degenerate_by_step": "groups without a gradient",
    "grad_norm_by_step": "gradient norm, as logged",
}


def render_index(index: results.RunIndex) -> str:
    """The page of a folder of runs, a complete HTML document."""
    scales = {}
    for name in _CURVES:
        values = [value for run in index.runs for value in getattr(run, name) if value is not None]
        scales[name] = charts.widened(list(filter(math.isfinite, values)) or [0.0, 1.0])
    scales["degenerate_by_step"] = (0.0, 1.0)
    cards = []
    for run in index.runs:
        curves = {name: getattr(run, name) for name in _CURVES}
        charts_of_run = {
            name: results.Chart(
                title=_CURVES[name],
                kind="lines",
                places=run.steps,
                series=(results.Series(name=_CURVES[name], values=values),),
                y_range=scales[name],
            )
            for name, values in curves.items()
            if any(value is not None for value in values)  # a log may lack one
        }
        cards.append((run, charts_of_run))
    (table,) = tabulate(
        "Change of the reward: along the least-squares line from the first to the last step. "
        "No gradient: share of groups with equal rewards",
        (
            Column("run", "name"),
            Column("steps", lambda run: len(run.steps), "count"),
            Column("rollouts", lambda run: run.num_rollouts or None, "count"),  # none of metrics alone
            Column("mean reward", "reward", "norm"),
            Column("its change", "reward_change", "gap"),
            Column("no gradient", "frac_reward_zero_std", "share"),
        ),
        index.runs,
    )
    return render_document("index.html", title=index.name, index=index, table=table, cards=cards)


MAX_ROWS = 100  # rows of a table over steps; the JSON document has all of them
_LONG, _PROSE = 30, 60  # a longer text gets a wide cell, so that it is no column of single words


class PageCell(Struct, frozen=True, kw_only=True):
    """One cell as the page shows it."""

    kind: str  # its classes in the style sheet
    text: str  # its text, in lines
    sort: str | None = None  # the unrounded number that it sorts by; None where it has none


class PageTable(Struct, frozen=True, kw_only=True):
    """The content of a table."""

    caption: str  # the text above it
    columns: tuple[ReportColumn, ...]  # its head
    rows: tuple[tuple[PageCell, ...], ...]  # one cell a column
    notes: tuple[str, ...]  # why numbers are undefined, numbered as their cells are


def page_table(table: ReportTable) -> PageTable:
    """The cells of a table in words, and the reasons for undefined numbers."""
    table, notes = windowed_table(table), Footnotes()
    rows = tuple(
        tuple(_cell(cell, column, notes) for cell, column in zip(row, table.columns, strict=True)) for row in table.rows
    )
    return PageTable(caption=table.caption, columns=table.columns, rows=rows, notes=notes.lines())


def _cell(cell: Cell, column: ReportColumn, notes: Footnotes) -> PageCell:
    if cell is None:
        return PageCell(kind="text" if column.style == "text" else "number", text="")
    if isinstance(cell, str) or column.style == "text":
        size = len(str(cell))
        kind = "text long prose" if size > _PROSE else "text long" if size > _LONG else "text"
        return PageCell(kind=kind, text=str(cell))
    if isinstance(cell, Estimate):
        sort = None if cell.value is None else repr(cell.value)
        return PageCell(kind="number", text=format_estimate(cell, notes, column.style), sort=sort)
    return PageCell(kind="number", text=format_number(float(cell), column.style), sort=repr(float(cell)))


def windowed_table(table: ReportTable) -> ReportTable:
    """A table over steps with few enough rows to be read: itself, or one whose rows are windows of as many steps each.

    The first column names them, numbers are means (of estimates, of their values), and words have their counts.
    """
    width = math.ceil(len(table.rows) / MAX_ROWS)
    if not table.by_step or width < 2:
        return table
    parts = [table.rows[start : start + width] for start in range(0, len(table.rows), width)]
    first, *rest = table.columns
    return replace(
        table,
        caption=f"{table.caption}. Each row is {width} steps: means of numbers, counts of words; --json has every step",
        columns=(replace(first, style="text"), *rest),
        rows=tuple((f"{part[0][0]}-{part[-1][0]}", *_together(part)) for part in parts),
    )


def _together(rows: Sequence[tuple[Cell, ...]]) -> Iterator[Cell]:
    for cells in list(zip(*rows, strict=True))[1:]:
        present = [cell for cell in cells if cell is not None]
        words = [cell for cell in present if isinstance(cell, str)]
        if words:
            counted = Counter(words).most_common()
            yield words[0] if len(counted) == 1 else ", ".join(f"{word} {number}" for word, number in counted)
            continue
        numbers = [cell.value if isinstance(cell, Estimate) else cell for cell in present]
        point = point_of([number for number in numbers if isinstance(number, float | int)])
        yield None if point is None else point.value
