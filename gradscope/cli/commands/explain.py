"""`gradscope explain`: the metric catalogue in words."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli.arguments.completion import complete_metric
from gradscope.cli.output.streams import show, write_data
from gradscope.errors import UsageError

EXAMPLES = (
    "gradscope explain",
    "gradscope explain effective_rank",
    "gradscope explain dead",
    "gradscope explain --markdown",
)
COMMON = ("--markdown",)

MetricArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[METRIC]",
        help="A metric's name, or words to search for; without one, ten to know first.",
        show_default=False,
        autocompletion=complete_metric,
    ),
]
MarkdownOption = Annotated[
    bool,
    typer.Option("--markdown", help="Print the whole catalogue as Markdown tables.", rich_help_panel="Output"),
]


def explain(metric: MetricArgument = None, markdown: MarkdownOption = False) -> None:
    """What a metric is: formula, range, direction, what moves it, where it is from."""
    from gradscope.render.terminal.explain import catalog_markdown, essential_metrics, metric_answer

    if markdown and metric is not None:
        raise UsageError(
            "--markdown prints the whole catalogue, not one metric.", hint="Leave out the name or --markdown."
        )
    if markdown:
        write_data(catalog_markdown())
    else:
        show(essential_metrics() if metric is None else metric_answer(metric))
