from __future__ import annotations

import inspect

from gradscope.progress import NoticeCallback, ProgressCallback, no_notice, no_progress, part


def test_nobody_is_told_by_default(capsys: object) -> None:
    report: ProgressCallback = no_progress
    notice: NoticeCallback = no_notice
    report(1, 2, "steps")
    notice("Something happened.")
    assert capsys.readouterr() == ("", "")  # type: ignore[attr-defined]


def test_a_report_is_done_total_and_label() -> None:
    assert list(inspect.signature(no_progress).parameters) == ["done", "total", "label"]
    assert list(inspect.signature(no_notice).parameters) == ["sentence"]


def test_a_part_of_a_unit_moves_the_whole_and_never_back() -> None:
    told: list[tuple[float, int, str]] = []
    report = part(lambda *words: told.append(words), 1, 3, "steps, now step 4")
    for inner, of, what in ((16, 64, "rollouts"), (64, 64, "rollouts"), (1, 16, "groups"), (0, 0, "groups")):
        report(inner, of, what)
    assert [done for done, _, _ in told] == [1.25, 1.99, 1.99, 1.99]
    assert {total for _, total, _ in told} == {3}
    assert told[2][2] == "steps, now step 4: 1 of 16 groups"
