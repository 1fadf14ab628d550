"""The strip of numbers on top of a page: each as the tables print it, with its course as a small line."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from gradscope.render.html.scale import Scale, place, widened
from gradscope.render.html.windows import points_of, windows_of
from gradscope.render.words.key_numbers import key_number_words
from gradscope.results.report import Chart, KeyNumber, RunReport, Series, Severity

_WIDTH, _HEIGHT = 120.0, 28.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StripItem:
    """One number as the page shows it."""

    anchor: str
    """The section that has the rest."""
    title: str
    """What it is."""
    text: str
    """The number, or a dash."""
    interval: str
    """Its interval; empty where it has none."""
    note: str
    """What it is held against, or why it is not known."""
    severity: Severity
    """That of its section."""
    line: Markup
    """Its course; empty where it has none."""


def strip_of(report: RunReport) -> tuple[StripItem, ...]:
    """The numbers of a report, each with the severity of the section that it is of."""
    severities = {section.name: section.severity for section in report.sections}
    return tuple(_item(number, severities.get(number.name, "unknown")) for number in report.strip)


def _item(number: KeyNumber, severity: Severity) -> StripItem:
    texts, intervals = zip(*key_number_words(number), strict=True)
    return StripItem(
        anchor=number.name,
        title=number.title,
        text=" → ".join(texts).replace(" %", "\N{NO-BREAK SPACE}%"),
        interval=" → ".join(filter(None, intervals)),
        note=number.note if number.value.undefined is None else number.value.undefined,
        severity=severity if number.value.is_defined else "unknown",
        line=_line(number),
    )


def _line(number: KeyNumber) -> Markup:
    if sum(value is not None and math.isfinite(value) for value in number.course) < 2:
        return Markup("")
    chart = Chart(title="", kind="lines", places=number.places, series=(Series(name="", values=number.course),))
    windows = windows_of(chart)
    points = points_of(number.course, windows)
    known = [point.value for point in points if point is not None]
    low, high = (0.0, 1.0) if number.style == "share" else widened(known)
    across = Scale(low=windows[0].low, high=windows[-1].high, start=2.0, end=_WIDTH - 2.0)
    up = Scale(low=low, high=high, start=_HEIGHT - 2.0, end=2.0)
    drawn = [(window, point) for window, point in zip(windows, points, strict=True) if point is not None]
    places = [f"{place(across(window.middle))},{place(up(point.value))}" for window, point in drawn]
    return Markup(
        '<svg class="spark" viewBox="0 0 {:g} {:g}" preserveAspectRatio="none" aria-hidden="true">'
        '<polyline class="line s0" points="{}"/></svg>'
    ).format(_WIDTH, _HEIGHT, " ".join(places))
