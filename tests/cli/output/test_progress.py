from __future__ import annotations

import sys

import pytest

from gradscope.cli.output.progress import progress_bar
from gradscope.progress import no_progress


@pytest.mark.parametrize("quiet", [False, True])
def test_nobody_is_told_how_far_it_is_where_nobody_watches(quiet: bool) -> None:
    with progress_bar(quiet=quiet) as progress:
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
