"""A check in GitHub Actions: one workflow command a verdict on stdout, and a table for the job's summary.

The syntax is GitHub's: ``::error title=...::message``, with %, carriage return and newline escaped in the message, and
colon and comma too in the title (https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
"""

from __future__ import annotations

import html

from gradscope.render.words.escape import plain
from gradscope.render.words.labels import condition
from gradscope.render.words.numbers import UNDEFINED
from gradscope.results.verdicts import CheckReport, Verdict


def render_annotations(report: CheckReport) -> str:
    """A workflow command a verdict: ``error`` if it fails the check, ``warning`` if allowed, else ``notice``."""
    return "".join(_annotation(verdict) for verdict in report.verdicts)


def render_summary(report: CheckReport) -> str:
    """The verdicts as a table in Markdown, for the file that ``GITHUB_STEP_SUMMARY`` names."""
    lines = [
        f"### gradscope check: {report.outcome}",
        "",
        "| outcome | requirement | value | what it means |",
        "|---|---|---|---|",
    ]
    for verdict in report.verdicts:
        value = UNDEFINED if verdict.estimate.value is None else f"{verdict.estimate.value:.4g}"
        cells = (_word(verdict), condition(verdict), value, f"{verdict.meaning} {verdict.next_step}".strip())
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _annotation(verdict: Verdict) -> str:
    command = "notice" if verdict.outcome == "pass" else "warning" if verdict.allowed else "error"
    title = _message(f"{_word(verdict)} {condition(verdict)}").replace(":", "%3A").replace(",", "%2C")
    return f"::{command} title={title}::{_message(f'{verdict.meaning} {verdict.next_step}'.strip())}\n"


def _message(text: str) -> str:
    return plain(text).replace("%", "%25")


def _word(verdict: Verdict) -> str:
    return f"{verdict.outcome.upper()}{' (allowed)' if verdict.allowed else ''}"


def _cell(text: str) -> str:
    """Text that Markdown and HTML show as it stands."""
    safe = html.escape(plain(text), quote=False)
    return "".join(f"\\{character}" if character in "\\`*_[]|~" else character for character in safe)
