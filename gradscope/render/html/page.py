"""A run's report as one HTML file: it opens from disk, asks for nothing, and the same result gives the same bytes.

The page forbids itself everything but its own style and its one script, which is named by its digest: markup that a
log smuggled in could not run even if the escaping failed.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from gradscope.render.html.browser import token_texts_of
from gradscope.render.html.environment import render
from gradscope.render.html.strip import strip_of
from gradscope.results.report import RunReport
from gradscope.version import __version__


def render_page(report: RunReport) -> str:
    """The page of one run, a complete HTML document."""
    unanswered = [section for section in report.by_severity if section.missing is not None]
    noun = "question" if len(unanswered) == 1 else "questions"
    return render_document(
        "report.html",
        title=report.name,
        report=report,
        facts=_facts(report),
        strip=strip_of(report),
        answered=[section for section in report.by_severity if section.missing is None],
        unanswered=unanswered,
        unanswered_title=f"{len(unanswered)} {noun} that this log cannot answer, and what to log",
        token_texts=token_texts_of(report),
    )


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
        *(
            f"{one.num_rows:,} rows set aside: {one.reason} (first at {one.first})"
            for one in source.quarantined.reasons
        ),
    )
