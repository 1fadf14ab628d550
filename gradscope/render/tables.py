"""Which table shows which result."""

from __future__ import annotations

from functools import singledispatch

from rich.console import Group

from gradscope.render.terminal.check import check_table
from gradscope.render.terminal.compare import compare_table
from gradscope.render.terminal.degeneracy import degeneracy_table
from gradscope.render.terminal.passk import pass_at_k_table
from gradscope.render.terminal.rank.rank import rank_table
from gradscope.render.terminal.replay import replay_table
from gradscope.render.terminal.report import report_table
from gradscope.render.terminal.report_index import report_index_table
from gradscope.results.check import CheckReport
from gradscope.results.compare import Comparison
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.passk import PassAtKReport
from gradscope.results.rank import RankReport
from gradscope.results.replay import ReplayReport
from gradscope.results.report import RunIndex, RunReport


@singledispatch
def render_table(result: object) -> Group:
    """A result for a terminal, right at 80 columns.

    Args:
        result: What a command found.

    Returns:
        What rich prints.

    Raises:
        TypeError: No table shows this type: a caller's bug.
    """
    raise TypeError(f"no table shows a {type(result).__name__}")


render_table.register(CheckReport)(check_table)
render_table.register(Comparison)(compare_table)
render_table.register(DegeneracyReport)(degeneracy_table)
render_table.register(PassAtKReport)(pass_at_k_table)
render_table.register(RankReport)(rank_table)
render_table.register(ReplayReport)(replay_table)
render_table.register(RunReport)(report_table)
render_table.register(RunIndex)(report_index_table)
