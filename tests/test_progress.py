from __future__ import annotations

import inspect

from gradscope.progress import NoticeCallback, ProgressCallback, no_notice, no_progress


def test_nobody_is_told_by_default(capsys: object) -> None:
    report: ProgressCallback = no_progress
    notice: NoticeCallback = no_notice
    report(1, 2, "steps")
    notice("Something happened.")
    assert capsys.readouterr() == ("", "")  # type: ignore[attr-defined]


def test_a_report_is_done_total_and_label() -> None:
    assert list(inspect.signature(no_progress).parameters) == ["done", "total", "label"]
    assert list(inspect.signature(no_notice).parameters) == ["sentence"]
