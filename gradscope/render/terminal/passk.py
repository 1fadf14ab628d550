"""pass@k: the verdict, one file by k or several side by side. Letters: n samples of a prompt, k the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradscope.estimate import Estimate
from gradscope.render.terminal.answer import SCREEN_ROWS, Answer, Blocks
from gradscope.render.terminal.layout import draw_table, losses
from gradscope.render.views.view import Column, digits
from gradscope.render.words import IN_THE_FILES, Footnotes, cell, format_estimate, format_number, plain
from gradscope.results import passk as results
from gradscope.say import counted, evenly, names_apart, num_shared

_WIDTH = 82  # letters of a row, with the two behind its last column
_MIN_NAME = 6
_NAME = 12  # letters of a name beside two shares and a lead, where these need the room
_MAX_FILES = 3  # files with a column each; of more the smallest and the largest budget have one


def pass_at_k_table(report: results.PassAtKReport, show: Sequence[str] = ()) -> Group:
    """The verdict, pass@k by budget, at most three findings; ``show`` adds tables."""
    return Answer(
        command="passk",
        headline=report.findings or ("No file has samples to count.",),
        table=_answer(report),
        facts=[*([] if _are_evaluations(report) else _facts(report.tables)), *losses(report.sources)],
        findings=report.findings[1:],
        views={"files": lambda notes: _files(report, notes), "pairs": lambda notes: _pairs(report, notes)},
    ).screen(show)


def _are_evaluations(report: results.PassAtKReport) -> bool:
    return any(table.evaluation for table in report.tables)


def _files(report: results.PassAtKReport, notes: Footnotes) -> Blocks:
    if _are_evaluations(report):
        if len(report.tables) > SCREEN_ROWS:
            yield _by_evaluation(report.tables, notes)
    elif len(report.tables) > 1 or len(report.tables[0].rows) > SCREEN_ROWS:
        yield from (_budgets(table, notes, table.rows) for table in report.tables)


def _pairs(report: results.PassAtKReport, notes: Footnotes) -> Blocks:
    for comparison in (report.comparison, *report.further_comparisons):
        if comparison is None:
            continue
        first, second = _distinct_names([comparison.first, comparison.second], 14)
        columns = (
            Column("k", digits("k"), "count"),
            Column(f"{second} - {first}", "difference", "gap", ""),
            Column("ahead", digits("second_wins"), "count"),
            Column("behind", digits("first_wins"), "count"),
            Column("ties", digits("ties"), "count"),
            Column("compression\nfactor", _compression, "rank", ""),
        )
        yield draw_table(columns, comparison.rows, notes)
        solved, (first, second) = comparison.solved, map(plain, (comparison.first, comparison.second))
        unpaired = f" In one file only: {comparison.num_unpaired}." if comparison.num_unpaired else ""
        yield Text(
            f"Prompts with a correct sample, of {comparison.num_prompts} paired: both {solved.both}, only {first} "
            f"{solved.first_only}, only {second} {solved.second_only}, neither {solved.neither}.{unpaired}"
        )


def _answer(report: results.PassAtKReport) -> Blocks:
    notes = Footnotes()
    if _are_evaluations(report):
        yield cell("[95 % interval over prompts]")
        yield _by_evaluation(report.tables, notes, SCREEN_ROWS)
        if len(report.tables) > SCREEN_ROWS:
            yield cell(f"The first {SCREEN_ROWS} of {len(report.tables)} rows.")
    elif len(report.tables) == 1:
        yield cell("[95 % interval over prompts]")
        (table,) = report.tables
        yield _budgets(table, notes, evenly(table.rows, SCREEN_ROWS), named=False)
    else:
        yield cell("pass@k [95 % interval over prompts]")
        yield (_by_budget if len(report.tables) <= _MAX_FILES else _by_file)(report, notes)
    yield from map(cell, notes.lines())


def _by_budget(report: results.PassAtKReport, notes: Footnotes) -> Table:
    """A row a budget, a column a file; for two files also their difference."""
    tables, compared = report.tables, report.comparison
    names = _distinct_names([table.name for table in tables], 21)
    columns = [
        Column("k", itemgetter(0), "count"),
        *(Column(name, itemgetter(index), "share", "") for index, name in enumerate(names, start=1)),
    ]
    differences = {}
    if compared is not None and len(tables) == 2:
        differences = {row.k: row.difference for row in compared.rows}
        columns.append(Column("difference", itemgetter(-1), "gap", ""))
    rows = (
        (str(same_k[0].k), *(row.pass_at_k for row in same_k), differences.get(same_k[0].k))
        for same_k in evenly(list(zip(*(table.rows for table in tables), strict=True)), SCREEN_ROWS)
    )
    return draw_table(columns, rows, notes)


def _by_evaluation(tables: Sequence[results.PassAtKTable], notes: Footnotes, num_rows: int | None = None) -> Table:
    """A row a task, model and scorer; a column for each of these only where they differ, of the file if they do not."""
    every = [(table, table.evaluation) for table in tables if table.evaluation is not None]
    evaluated = every[:num_rows]
    rows = [_scores(table, entry, notes) for table, entry in evaluated]
    titles = ("n", "pass@1", "pass@k", "mean")
    widths = [max(len(row[index]) for row in rows) for index in range(len(titles))]
    filled = [index for index, width in enumerate(widths) if width]
    named = {name: [getattr(entry, name) for _, entry in evaluated] for name in ("task", "model", "scorer")}
    # owners of models and tasks come before a slash, filters and versions at the end
    named = {name: [plain(text.rpartition("/")[2]) for text in texts] for name, texts in named.items()}
    if _num_distinct(named) < len(evaluated):
        paths = [table.source.path for table, _ in evaluated]
        named["file"] = names_apart([path.rpartition("/")[2] for path in paths], paths)
    named = {
        name: texts
        for name, texts in named.items()
        if name == "file" or len({getattr(entry, name) for _, entry in every}) > 1  # also in rows that are not shown
    }
    room = _WIDTH - sum(widths[index] + 2 for index in filled)
    for name in reversed(list(named)):
        rest = {column: texts for column, texts in named.items() if column != name}
        if sum(max(map(len, texts)) + 2 for texts in named.values()) > room and _num_distinct(rest) == len(evaluated):
            named = rest
    fitting = [max(map(len, texts)) for texts in named.values()]
    while sum(fitting) > room - 2 * len(fitting) and max(fitting) > _MIN_NAME:  # the longest names give way first
        fitting[fitting.index(max(fitting))] -= 1
    cells = [
        *(_distinct_names(texts, width) for texts, width in zip(named.values(), fitting, strict=True)),
        *([row[index] for row in rows] for index in filled),
    ]
    columns = [
        Column(title, itemgetter(index)) for index, title in enumerate([*named, *(titles[index] for index in filled)])
    ]
    if len(filled) > 2:
        notes.remark(IN_THE_FILES)
    return draw_table(columns, zip(*cells, strict=True), notes)


def _num_distinct(columns: Mapping[str, Sequence[str]]) -> int:
    return len(set(zip(*columns.values(), strict=True)))


def _scores(table: results.PassAtKTable, evaluation: results.Evaluation, notes: Footnotes) -> tuple[str, str, str, str]:
    """Samples, pass@1, pass@k where there are several samples, and the mean where it is unknown which of them pass."""
    fewest, largest = table.num_samples
    samples = f" x {fewest}" if fewest == largest else f" x {fewest}-{largest}"
    size = f"{table.num_prompts:,}{samples if largest > 1 else ''}"
    if evaluation.unfinished:
        size += notes.number(f"the evaluation {evaluation.unfinished}")
    first, *rest = [row for row in table.rows if row.pass_at_k.value is not None] or table.rows
    last = f"{rest[-1].pass_at_k.value:.3f} k = {rest[-1].k}" if rest else ""
    mean = None if first.pass_at_k.is_defined else evaluation.mean_score.value
    scored = "" if mean is None else format_number(mean, "share")
    return size, format_estimate(first.pass_at_k, notes, "share"), last, scored


def _distinct_names(names: Sequence[str], width: int) -> list[str]:
    """Names in so much room each, around what tells them apart where long ones begin and end alike."""
    names = [plain(name) for name in names]
    if len({_shortened(name, width) for name in names}) < len(set(names)):
        start = num_shared(names)
        end = num_shared([name[:start:-1] for name in names])
        room = max(width - 2 - max(len(name) - start - end for name in names), 0)
        start, end = max(start - (room + 1) // 2, 0), max(end - room // 2, 0)
        names = [f"{'…' * (start > 0)}{name[start : len(name) - end]}{'…' * (end > 0)}" for name in names]
    return [_shortened(name, width) for name in names]


def _shortened(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: (width - 1) // 2]}…{name[len(name) - width // 2 :]}"


def _by_file(report: results.PassAtKReport, notes: Footnotes) -> Table:
    """A row a file at the smallest and the largest budget within all, with the others' lead over the first."""
    budgets = range(len(report.tables[0].rows))
    last = max(
        (
            index
            for index in budgets
            if all(comparison.rows[index].pass_at_k.is_defined for comparison in report.tables)
        ),
        default=-1,
    )
    low, high = (report.tables[0].rows[index].k for index in (0, last))
    smallest = Column(f"k = {low}", lambda row: row[0].rows[0].pass_at_k, "share", "")
    columns = [
        Column("file", itemgetter(2), limit=_NAME),
        *([smallest] if low < high else []),
        Column(f"k = {high}", lambda row: row[0].rows[last].pass_at_k, "share", ""),
        Column(f"ahead of the first\nat k = {high}", itemgetter(1), "gap", ""),
    ]
    compared = (comparison for comparison in (report.comparison, *report.further_comparisons) if comparison is not None)
    leads = {comparison.second: row.difference for comparison in compared for row in comparison.rows if row.k == high}
    names = [table.name for table in report.tables]
    if len({plain(name, limit=_NAME) for name in names}) < len(names):
        names = _distinct_names(names, _NAME)
    rows = [(table, leads.get(table.name, ""), name) for table, name in zip(report.tables, names, strict=True)]
    return draw_table(columns, rows, notes)


def _facts(tables: Sequence[results.PassAtKTable]) -> list[str]:
    """How many prompts and samples each file has, in one line of those that have as many."""
    names: dict[str, list[str]] = {}
    for table in tables:
        fewest, largest = table.num_samples
        samples = str(fewest) if fewest == largest else f"{fewest} to {largest}"
        size = f"{counted(table.num_prompts, 'prompt')}, {samples} sample{'s' * (largest > 1)} each"
        names.setdefault(size, []).append(table.name)
    if len(names) == 1:
        return list(names)
    if len(tables) <= _MAX_FILES:
        return [f"{', '.join(labels)}: {size}" for size, labels in names.items()]
    shown = {
        size: f"{', '.join(labels[:2])}{f' and {len(labels) - 2} more' * (len(labels) > 2)}"
        for size, labels in names.items()
    }
    return [f"{size}: {labels}" for size, labels in shown.items()]


def _budgets(
    table: results.PassAtKTable, notes: Footnotes, rows: Sequence[results.PassAtK], *, named: bool = True
) -> Table:
    """The budgets of one file; forecasts in a column of their own, where a budget exceeds the samples."""
    columns = [
        Column("k", digits("k"), "count"),
        Column(f"pass@k of\n{plain(table.name, limit=24)}" if named else "pass@k", "pass_at_k", "share", ""),
        Column("pass^k, all k correct", "pass_hat_k", "share", ""),
    ]
    forecasts = {row.k: row.pass_at_k for row in table.forecasts}
    if forecasts:
        columns.append(Column("pass@k,\nforecast", lambda row: forecasts.get(row.k, ""), "share", ""))
    return draw_table(columns, rows, notes)


def _compression(row: results.PassAtKDifference) -> str | Estimate:
    if row.compression_at_least is not None:
        return f"> {format_number(row.compression_at_least, 'rank')}"
    return row.compression_factor
