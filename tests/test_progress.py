import io
import sys
import time
from pathlib import Path

import pytest

import gradscope
from gradscope.progress import NoticeCallback, ProgressCallback, no_notice, no_progress, part, reporter


def test_nobody_is_told_by_default(capsys: object) -> None:
    report: ProgressCallback = no_progress
    notice: NoticeCallback = no_notice
    report(1, 2, "steps")
    notice("Something happened.")
    assert capsys.readouterr() == ("", "")  # type: ignore[attr-defined]


def test_a_part_of_a_unit_moves_the_whole_and_never_back() -> None:
    reported: list[tuple[float, int, str]] = []
    report = part(lambda *words: reported.append(words), 1, 3, "steps, now step 4")
    for inner, of, label in ((16, 64, "rollouts"), (64, 64, "rollouts"), (1, 16, "groups"), (0, 0, "groups")):
        report(inner, of, label)
    assert [done for done, _, _ in reported] == [1.25, 1.99, 1.99, 1.99]
    assert {total for _, total, _ in reported} == {3}
    assert reported[2][2] == "steps, now step 4: 1 of 16 groups"


class Stream(io.StringIO):
    """A stderr that is, or is not, a terminal."""

    def __init__(self, *, live: bool) -> None:
        super().__init__()
        self.live = live

    def isatty(self) -> bool:
        return self.live


def reports_on(stream: Stream, monkeypatch: pytest.MonkeyPatch, seconds: float) -> str:
    """The text of three reports on a stderr, each so many seconds after the one before."""
    clock = iter(range(100))
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * seconds)
    report = reporter(True)
    for done in (1, 2, 3):
        report(done, 3, "steps")
    return stream.getvalue()


class NotebookStream(Stream):
    """A stderr of a notebook, which is no terminal."""

    __module__ = "ipykernel.iostream"


@pytest.mark.parametrize("stream", [Stream(live=True), NotebookStream(live=False)])
def test_true_writes_one_line_over_and_over_and_takes_it_away(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    text = reports_on(stream, monkeypatch, 1.0)
    first, second = "1 of 3 steps, 1 s", "2 of 3 steps, 2 s"
    assert text == f"\r{first}\r{second}\r{' ' * len(second)}\r"


def test_true_writes_a_line_now_and_then_into_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reports_on(Stream(live=False), monkeypatch, 1.0) == ""
    assert reports_on(Stream(live=False), monkeypatch, 20.0) == "2 of 3 steps, 40 s\n"


def test_a_public_function_takes_true(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text("prompt,step,reward\na,1,0\na,1,1\n")
    gradscope.measure_degeneracy(log, progress=True)
    assert "Traceback" not in capsys.readouterr().err
