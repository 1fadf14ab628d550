"""Which figures show which result."""

from __future__ import annotations

from functools import singledispatch

from matplotlib.figure import Figure

from gradscope.render.figures.compare import draw_comparison
from gradscope.render.figures.degeneracy import draw_degeneracy
from gradscope.render.figures.passk import draw_pass_at_k
from gradscope.render.figures.rank.rank import draw_rank
from gradscope.render.figures.replay import draw_replay
from gradscope.render.figures.style import figure_style
from gradscope.results.compare import Comparison
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.passk import PassAtKReport
from gradscope.results.rank import RankReport
from gradscope.results.replay import ReplayReport


def draw_figures(result: object) -> dict[str, Figure]:
    """The figures of a result.

    Args:
        result: What a command found.

    Returns:
        File stem -> figure; empty where a result has nothing to draw.
    """
    with figure_style():
        return _draw(result)


@singledispatch
def _draw(result: object) -> dict[str, Figure]:
    return {}


_draw.register(Comparison)(draw_comparison)
_draw.register(DegeneracyReport)(draw_degeneracy)
_draw.register(PassAtKReport)(draw_pass_at_k)
_draw.register(RankReport)(draw_rank)
_draw.register(ReplayReport)(draw_replay)
