"""What metrics, pairs of cells and requirements are called where room is short."""

from __future__ import annotations

from gradscope.catalog.lookup import budget_of, metric
from gradscope.render.words.escape import plain
from gradscope.results.compare import ComparedCell, ComparedPair, Comparison
from gradscope.results.verdicts import Verdict

_LIMIT = 35
"""Characters of a line: as many as leave room for the numbers in 80 columns."""
_NAME = 20


def metric_title(name: str) -> str:
    """A metric's name in tables and figures.

    Returns:
        Its title; the budget of ``pass@<k>`` stays in it.

    Example:
        >>> metric_title("pass@16"), metric_title("train_reward")
        ('pass@16', 'mean train reward')
    """
    return name if budget_of(name) is not None else metric(name).title


def pair_label(pair: ComparedPair, comparison: Comparison) -> str:
    """A pair by what differs.

    Returns:
        ``sign - grpo``, and below it ``at learning_rate 0.0002`` where more than the formulation varies; logs that tell
        no setting, and two cells that differ in several things, by their names.
    """
    cells = {cell.name: cell for cell in comparison.cells}
    first, second = cells[pair.first], cells[pair.second]
    if pair.changed == "advantage":
        names = plain(second.advantage, limit=_NAME), plain(first.advantage, limit=_NAME)
        head, common = " - ".join(names), _settings(first)
    elif pair.changed == "run":
        head, common = " - ".join(", ".join(cell.runs) for cell in (second, first)), _settings(first, without="run")
    elif ", " in pair.changed:
        return f"{plain(second.name, limit=_LIMIT - 2)} -\n  {plain(first.name, limit=_LIMIT - 2)}"
    else:
        head = f"{pair.changed} {second.settings[pair.changed]} - {first.settings[pair.changed]}"
        common = ", ".join(part for part in (first.advantage, _settings(first, without=pair.changed)) if part)
    lines = [plain(head, limit=_LIMIT), *([plain(f"  at {common}", limit=_LIMIT)] if common else [])]
    return "\n".join(lines)


def _settings(cell: ComparedCell, *, without: str = "") -> str:
    return ", ".join(
        f"{name} {value}" for name, value in cell.settings.items() if name != without and value is not None
    )


def condition(verdict: Verdict) -> str:
    """The requirement as a line: ``frac_reward_zero_std <= 0.5``, or ``pass@8 against the baseline``."""
    if verdict.change is not None:
        return f"{verdict.metric} against the baseline"
    return f"{verdict.metric} {verdict.op} {verdict.limit:g}"
