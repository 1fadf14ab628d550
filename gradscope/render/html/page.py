"""A run's report as one HTML file: it opens from disk, asks for nothing, and the same result gives the same bytes.

The page forbids itself everything but its own style and its one script, which is named by its digest: markup that a
log smuggled in could not run even if the escaping failed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from gradscope.render.html.browser import token_texts_of
from gradscope.render.html.environment import render
from gradscope.render.html.strip import StripItem, strip_of
from gradscope.results.report import ReportSection, RunReport
from gradscope.version import __version__


def render_page(report: RunReport) -> str:
    """The page of one run, a complete HTML document."""
    return render_document(
        "report.html",
        title=report.name,
        report=report,
        facts=_facts(report),
        strip=strip_of(report),
        token_texts=token_texts_of(report),
        **_answers(report.by_severity),
    )


def render_fragment(sections: Sequence[ReportSection], strip: Sequence[StripItem] = ()) -> str:
    """Sections as a part of somebody else's page, a notebook's: their style reaches nothing outside, no script runs.

    Args:
        sections: In the order of reading.
        strip: Numbers on top.

    Returns:
        One ``<div>``.
    """
    return render("fragment.html", style=_nested_style(), strip=strip, **_answers(sections))


def _answers(sections: Sequence[ReportSection]) -> dict[str, object]:
    unanswered = [section for section in sections if section.missing is not None]
    noun = "question" if len(unanswered) == 1 else "questions"
    return {
        "answered": [section for section in sections if section.missing is None],
        "unanswered": unanswered,
        "unanswered_title": f"{len(unanswered)} {noun} that this log cannot answer, and what to log",
    }


@cache
def _nested_style() -> Markup:
    """The page's style within one element: what it says of the whole page is said of that element."""
    nested = re.sub(r"(^|[{}]\s*)(?::root|html|body)(?= \{)", r"\1&", str(_asset("page.css")))
    own = "& { margin: 0; padding: .5rem 1rem; } & > section:first-of-type { border: 0; margin: 0; padding: 0; }"
    return Markup(f".gradscope {{\n{nested}{own}\n}}")


def render_document(template: str, *, title: str, **context: object) -> str:
    """A page in its frame, with style and script inside and a policy that allows nothing else.

    Args:
        template: What stands in the frame.
        title: Of the page, from a log.
        **context: What the template shows.

    Returns:
        A complete HTML document.
    """
    script, style = _asset("page.js"), _asset("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = Markup(
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    )
    return render(template, title=title, policy=policy, script=script, style=style, version=__version__, **context)


@cache
def _asset(name: str) -> Markup:
    return Markup((files("gradscope.render.html") / name).read_text(encoding="utf-8"))


def _facts(report: RunReport) -> tuple[str, ...]:
    source = report.source
    steps = ", ".join(map(str, report.recomputed))
    return (
        f"{source.path}: {source.recognized}",
        f"{source.num_rows:,} rows used, {source.quarantined.num_rows:,} set aside",
        f"Gradients recomputed at step {steps}." if steps else "No gradient was recomputed.",
        *source.inferred,
        *source.missing,
        *(f"Not read: {sentence}" for sentence in source.quarantined.lost),
        *(f"{one.counted} set aside: {one.reason} ({one.where})" for one in source.quarantined.reasons),
    )
