"""`gradscope explain`: the metric catalogue in words."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli.arguments.options import complete_metric, with_records
from gradscope.cli.output.streams import show, write_data
from gradscope.errors import UsageError
from gradscope.option import Option

EXAMPLES = (
    "gradscope explain",
    "gradscope explain effective_rank",
    "gradscope explain dead",
    "gradscope explain sign:c=0.5",
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


@with_records()
def explain(
    metric: MetricArgument = None,
    markdown: Annotated[bool, Option("Print the whole catalogue as Markdown tables.", panel="Output")] = False,
) -> None:
    """What a metric or an advantage formulation is: formula, range, direction, what moves it, source."""
    from gradscope.advantages.registry import formulation, is_formulation
    from gradscope.render.terminal.explain import catalog_markdown, essential_metrics, fact_page, metric_answer

    if markdown and metric is not None:
        raise UsageError(
            "--markdown prints the whole catalogue, not one metric.", hint="Leave out the name or --markdown."
        )
    if markdown:
        write_data(catalog_markdown())
    elif metric is not None and is_formulation(metric):
        entry = formulation(metric)
        rewards = "of 0 and 1 only" if entry.needs_binary else "any that are finite"
        facts = {"formula": entry.formula, "rewards": rewards, "source": entry.source}
        show(fact_page(f"Advantage formulation {metric}", "How rewards, r, become advantages.", facts))
    else:
        show(essential_metrics() if metric is None else metric_answer(metric))
