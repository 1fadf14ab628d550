"""Steps of a run that is still being written: a line each, under one head, to be read as they come."""

from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.render.words.numbers import UNDEFINED, Footnotes, format_estimate
from gradscope.results.degeneracy import StepDegeneracy

_WIDTHS = (7, 7, 20, 7, 7, 7, 7)
_TITLES = ("step", "groups", "degenerate [95 %]", "fail", "pass", "tied", "p")


def step_head() -> str:
    """The titles of the lines, as one line."""
    return _line(_TITLES)


def step_line(row: StepDegeneracy) -> str:
    """One step as one line; a dash stands for a number that is not defined."""
    shares = (row.frac_all_fail, row.frac_all_pass, row.frac_tied, row.pass_rate)
    cells = (_cell(share, interval=False) for share in shares)
    return _line((str(row.step), str(row.num_groups), _cell(row.frac_reward_zero_std, interval=True), *cells))


def _cell(share: Estimate, *, interval: bool) -> str:
    return UNDEFINED if share.value is None else format_estimate(share, Footnotes(), "share", interval=interval)


def _line(cells: tuple[str, ...]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
