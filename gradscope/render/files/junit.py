"""A check as JUnit XML, which Jenkins, GitLab and most CI servers show as test results.

One ``testcase`` a requirement: a failed one holds a ``failure``, one that could not be decided an ``error``, and one
that may be undecided a ``skipped``. Written for the schema of Jenkins' xUnit plugin (junit-10.xsd).
"""

from __future__ import annotations

from xml.etree import ElementTree

from gradscope.render.words.escape import plain
from gradscope.render.words.labels import condition
from gradscope.results.verdicts import CheckReport, Verdict


def render_junit(report: CheckReport) -> str:
    """The verdicts as XML with a final newline; control characters, which XML cannot hold, are spelled out."""
    kinds = [_kind(verdict) for verdict in report.verdicts]
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


def _kind(verdict: Verdict) -> str | None:
    if verdict.allowed:
        return "skipped"
    return {"pass": None, "fail": "failure", "unknown": "error"}[verdict.outcome]
