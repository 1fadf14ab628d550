"""A run's report as one HTML file: it opens from disk, asks for nothing, and the same result gives the same bytes.

The page forbids itself everything but its own style and its one script, which is named by its digest: markup that a
log smuggled in could not run even if the escaping failed.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from gradscope.render.html.chart import render_chart
from gradscope.render.html.escape import text
from gradscope.render.html.shaded import render_shaded
from gradscope.render.html.table import render_table
from gradscope.results.report import ReportSection, RunReport
from gradscope.version import __version__


def render_page(report: RunReport) -> str:
    """The page of one run.

    Args:
        report: Everything that was found.

    Returns:
        A complete HTML document.
    """
    overview = "".join(
        f'<li><a href="#{section.name}">{text(section.question)}</a><span>{text(section.headline)}</span></li>'
        for section in report.sections
    )
    body = (
        f"<header><h1>{text(report.name)}</h1>{_facts(report)}</header>"
        f'<nav aria-label="Questions"><h2>In short</h2><ol>{overview}</ol></nav>'
        f"<main>{''.join(_section(section) for section in report.sections)}</main>"
    )
    return document(f"{report.name}: gradscope report", body)


def document(title: str, body: str) -> str:
    """The frame around a page.

    Args:
        title: Its title, not yet escaped.
        body: Its content, escaped.

    Returns:
        A complete HTML document with style and script inside.
    """
    script, style = _asset("page.js"), _asset("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{text(title)}</title><style>{style}</style></head>\n'
        f"<body>{body}<footer><p>gradscope {__version__}. Intervals are 95 %. What a number means: "
        f"<code>gradscope explain METRIC</code></p></footer>\n<script>{script}</script></body></html>\n"
    )


@cache
def _asset(name: str) -> str:
    return (files("gradscope.render.html") / name).read_text(encoding="utf-8")


def _facts(report: RunReport) -> str:
    source = report.source
    steps = ", ".join(map(str, report.recomputed))
    facts = [
        f"{source.path}: {source.recognized}",
        f"{source.num_rows:,} rows used, {source.quarantined.num_rows:,} set aside",
        f"Gradients recomputed at step {steps}." if steps else "No gradient was recomputed.",
        *source.inferred,
        *source.missing,
        *(
            f"{one.num_rows:,} rows set aside: {one.reason} (first at {one.first})"
            for one in source.quarantined.reasons
        ),
    ]
    return f'<ul class="facts">{"".join(f"<li>{text(fact)}</li>" for fact in facts)}</ul>'


def _section(section: ReportSection) -> str:
    head = f'<section id="{section.name}"><h2>{text(section.question)}</h2>'
    if section.missing is not None:
        return f'{head}<p class="missing"><strong>Not in this log.</strong> {text(section.missing)}</p></section>'
    more = "".join(f"<li>{text(finding)}</li>" for finding in section.findings[1:])
    command = f"<code>{text(section.command)}</code>" if section.command else ""
    texts = render_shaded(section.texts)
    tables = "".join(
        render_table(table, f"{section.name}-table-{number}") for number, table in enumerate(section.tables, start=1)
    )
    charts = "".join(
        render_chart(chart, f"{section.name}-{number}") for number, chart in enumerate(section.charts, start=1)
    )
    return (
        f'{head}<p class="finding">{text(section.headline)}</p>{f"<ul class=more>{more}</ul>" if more else ""}'
        f"<dl><dt>What it means</dt><dd>{text(section.meaning)}</dd>"
        f"<dt>What to try next</dt><dd>{text(section.next_step)}{command}</dd></dl>"
        f"{charts}{texts}{tables}</section>"
    )
