"""`gradscope explain`: the metric catalogue in words."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli.output.streams import show

EXAMPLES = ("gradscope explain", "gradscope explain effective_rank", "gradscope explain pass@4")

MetricArgument = Annotated[
    str | None,
    typer.Argument(metavar="[METRIC]", help="A metric's name; without one, all are listed.", show_default=False),
]


def explain(metric: MetricArgument = None) -> None:
    """What a metric is: formula, range, direction, what moves it, where it is from."""
    from gradscope.render.terminal.explain import metric_list, metric_page

    show(metric_list() if metric is None else metric_page(metric))
