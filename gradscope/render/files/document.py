"""A result object in its JSON envelope: which schema, which inputs, which definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradscope.catalog.lookup import CATALOG, definitions
from gradscope.results.check import CheckReport
from gradscope.results.compare import Comparison
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.envelope import build_document
from gradscope.results.passk import PassAtKReport
from gradscope.results.rank import RankReport
from gradscope.results.replay import ReplayReport
from gradscope.results.report import RunIndex, RunReport
from gradscope.results.source import Source

Report = CheckReport | Comparison | DegeneracyReport | PassAtKReport | RankReport | ReplayReport | RunIndex | RunReport

_COMMANDS: Mapping[type, str] = {
    CheckReport: "check",
    Comparison: "compare",
    DegeneracyReport: "degeneracy",
    PassAtKReport: "passk",
    RankReport: "rank",
    ReplayReport: "replay",
    RunIndex: "report_index",
    RunReport: "report",
}


def command_of(result: Report) -> str:
    """The command that finds such a result.

    Args:
        result: What a command found.

    Returns:
        Its name, which is also the schema's and the files'.
    """
    return _COMMANDS[type(result)]


def sources_of(result: Report) -> tuple[Source, ...]:
    """The inputs of a result.

    Args:
        result: What a command found.

    Returns:
        One source per input, in the order given.
    """
    if isinstance(result, PassAtKReport):
        return tuple(table.source for table in result.tables)
    return (result.source,)


def notes_of(result: Report) -> tuple[str, ...]:
    """What a reader of a result should know of its gradients.

    Args:
        result: What a command found.

    Returns:
        Sentences; none where no gradient was computed.
    """
    noted = result.engine.get("notes") if isinstance(result, RankReport | ReplayReport) else None
    return tuple(map(str, noted)) if isinstance(noted, list) else ()


def document_of(result: Report) -> dict[str, Any]:
    """A result in its envelope.

    Args:
        result: What a command found.

    Returns:
        The document that ``--json`` prints and ``--output`` writes.
    """
    command = command_of(result)
    files = [file for source in sources_of(result) for file in source.files]
    return build_document(command, result, files=dict.fromkeys(files), definitions=_definitions(result, command))


def _definitions(result: Report, command: str) -> dict[str, str]:
    """The formula of every metric that the command computes; for a check, of those that it required."""
    if isinstance(result, CheckReport):
        names = dict.fromkeys(verdict.metric for verdict in result.verdicts)
        return {name: CATALOG[name].formula for name in names if name in CATALOG}
    if isinstance(result, Comparison):
        own = [entry.name for entry in CATALOG.values() if entry.command == command]
        return definitions(*dict.fromkeys((*result.metrics, *own)))
    if isinstance(result, RunIndex):
        return definitions("frac_reward_zero_std")
    return {entry.name: entry.formula for entry in CATALOG.values() if entry.command == command}
