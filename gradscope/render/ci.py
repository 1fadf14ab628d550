"""A check for CI servers: workflow commands and a summary for GitHub Actions, JUnit XML for the others.

GitHub's syntax is ``::error title=...::message``, with %, carriage return and newline escaped in the message, and colon
and comma too in the title (https://docs.github.com/actions/reference/workflow-commands-for-github-actions). In JUnit a
requirement is a ``testcase``: a failed one holds a ``failure``, an undecided one an ``error``, and one that may be
undecided a ``skipped``. Written for the schema of Jenkins' xUnit plugin (junit-10.xsd).
"""

from __future__ import annotations

import html
from xml.etree import ElementTree

from gradscope.render.words import UNDEFINED, condition, plain
from gradscope.results.verdicts import CheckReport, Verdict


def render_annotations(report: CheckReport) -> str:
    """A workflow command a verdict: ``error`` if it fails the check, ``warning`` if allowed, else ``notice``."""
    lines = []
    for verdict in report.verdicts:
        command = "notice" if verdict.outcome == "pass" else "warning" if verdict.allowed else "error"
        title = _message(f"{_word(verdict)} {condition(verdict)}").replace(":", "%3A").replace(",", "%2C")
        lines.append(f"::{command} title={title}::{_message(f'{verdict.meaning} {verdict.next_step}'.strip())}\n")
    return "".join(lines)


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


def _message(text: str) -> str:
    return plain(text).replace("%", "%25")


def _word(verdict: Verdict) -> str:
    return f"{verdict.outcome.upper()}{' (allowed)' if verdict.allowed else ''}"


def _cell(text: str) -> str:
    """Text escaped for Markdown and HTML."""
    safe = html.escape(plain(text), quote=False)
    return "".join(f"\\{character}" if character in "\\`*_[]|~" else character for character in safe)


def render_junit(report: CheckReport) -> str:
    """The verdicts as XML with a final newline; control characters, which XML cannot hold, are spelled out."""
    elements = {"pass": None, "fail": "failure", "unknown": "error"}
    kinds = ["skipped" if verdict.allowed else elements[verdict.outcome] for verdict in report.verdicts]
    counts = {
        "tests": str(len(kinds)),
        "failures": str(kinds.count("failure")),
        "errors": str(kinds.count("error")),
        "skipped": str(kinds.count("skipped")),
    }
    suite = ElementTree.Element("testsuite", {"name": "gradscope check", **counts})
    for verdict, kind in zip(report.verdicts, kinds, strict=True):
        case = {"classname": plain(report.source.path), "name": plain(condition(verdict))}
        element = ElementTree.SubElement(suite, "testcase", case)
        if kind is not None:
            detail = ElementTree.SubElement(element, kind, {"type": verdict.outcome, "message": plain(verdict.meaning)})
            detail.text = plain(verdict.next_step)
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'
