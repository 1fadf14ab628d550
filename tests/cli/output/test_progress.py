import sys

import pytest

from gradscope.cli.output import progress as output
from gradscope.cli.output.progress import progress_bar
from gradscope.progress import no_progress


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


def test_nobody_is_told_how_far_it_is_who_asked_for_quiet() -> None:
    with progress_bar(quiet=True) as progress:
        assert progress is no_progress


def test_a_terminal_shows_a_bar_and_is_clean_afterwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar(quiet=False) as progress:
        progress(1, 4, "[steps]")
    out, err = capsys.readouterr()
    assert out == ""
    assert "[steps]" in err
    assert "1/4" in err


def test_a_file_gets_a_line_from_time_to_time_with_what_is_left(
    seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar(quiet=False) as progress:
        for done in range(0, 101, 10):
            progress(done, 100, "MB read")
            seconds[0] += 10
        # other work begins, and nothing is known of its pace yet
        progress(0, 3, "steps")
        seconds[0] += 4000
        progress(1, 3, "steps")
        seconds[0] += 31
        progress(1, 7, "steps")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "about 80 s left: 20 of 100 MB read",
        "about 50 s left: 50 of 100 MB read",
        "about 20 s left: 80 of 100 MB read",
        "0 of 3 steps",
        "about 2 h 13 min left: 1 of 3 steps",
        "1 of 7 steps",
    ]


def test_minutes_are_told_as_such(seconds: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(quiet=False) as progress:
        progress(0, 10, "steps")
        seconds[0] += 60
        progress(1, 10, "steps")
    assert capsys.readouterr().err == "about 9 min left: 1 of 10 steps\n"


@pytest.mark.parametrize("total", [10_000, 100_000, 10**9])
def test_an_estimate_below_a_second_is_none(
    total: int, seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Work that has only begun, or is all but done, after a wait: neither is said to take no time."""
    with progress_bar(quiet=False) as progress:
        progress(0, total, "groups")
        seconds[0] += 60
        progress(total - 1, total, "groups")
    assert capsys.readouterr().err == f"{total - 1} of {total} groups\n"
