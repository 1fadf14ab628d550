"""What a pass@k report says in words, never more than its intervals carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gradscope.results.passk import PassAtKComparison, PassAtKTable
from gradscope.results.source import FIRST_ONLY
from gradscope.say import counted, with_interval


def passk_findings(
    tables: Sequence[PassAtKTable],
    comparisons: Sequence[PassAtKComparison],
    num_missing: Sequence[int],
    num_copies: Sequence[int] = (),
) -> tuple[str, ...]:
    """The sentences of a report, the verdict first: who is ahead, or what the file reaches.

    Then which samples are copies or not counted, what the gain is worth in samples, what is forecast, and each reach.
    Comparisons are of the first file with each other one.
    """
    reached = [_reach(table) for table in tables]
    has_several = len({table.source.path for table in tables}) > 1
    are_numbered = has_several and any(table.source.is_numbered for table in tables)
    return (
        *(map(reach_finding, comparisons) if comparisons else reached),
        *_first_only(tables),
        *(
            f"{table.name}: {number:,} samples are exact copies of another long text of their prompt. A sure policy "
            "may repeat itself; copies (a file joined twice, temperature 0) are not the independent samples of pass@k."
            for table, number in zip(tables, num_copies, strict=False)
            if number
        ),
        *([_NUMBERED] if comparisons and are_numbered else []),
        *(
            f"{table.name}: {number} samples have no reward and are not counted."
            for table, number in zip(tables, num_missing, strict=True)
            if number
        ),
        *dict.fromkeys(sentence for comparison in comparisons for sentence in _worth(comparison)),
        *(sentence for table in tables for sentence in _sample_notes(table, has_copies=any(num_copies))),
        *(reached if comparisons else ()),
    )


OTHERWISE = (
    "The files ask other questions under the same ids, by which they are paired: --prompt-column may name the text."
)
_NUMBERED = (
    "Numbers alone name the prompts: pairs are of one prompt only where all files ask the same in the same order."
)


def evaluation_findings(tables: Sequence[PassAtKTable]) -> tuple[str, ...]:
    """The contents of a folder of evaluations, those that are not whole, and those that could not be read."""
    pairs = [(table, table.evaluation) for table in tables if table.evaluation is not None]
    logs = {table.source.path: (table, evaluation) for table, evaluation in pairs}
    counts = [
        counted(len(values), noun)
        for noun in ("task", "model", "scorer")
        if (values := {getattr(evaluation, noun) for _, evaluation in pairs} - {""})
    ]
    unfinished = [(path, evaluation.unfinished) for path, (_, evaluation) in logs.items() if evaluation.unfinished]
    broken = [(path, table) for path, (table, _) in logs.items() if not table.num_prompts]
    short = f" {len(unfinished)} did not succeed." if unfinished else ""
    return (
        f"{len(logs)} evaluations: {', '.join(counts)}, none of them pooled.{short}",
        *(f"{Path(path).name}: the evaluation {state}." for path, state in unfinished),
        *_first_only(tables),
        *(f"{Path(path).name}: {table.rows[0].pass_at_k.undefined}." for path, table in broken),
    )


def _first_only(tables: Iterable[PassAtKTable]) -> Iterator[str]:
    return (f"{table.name}: {FIRST_ONLY}" for table in tables if FIRST_ONLY in table.source.missing)


_OPEN = "undecided whether it solves more or needs fewer samples"
_UNDECIDED: dict[tuple[int, int], str] = {
    (-1, -1): "neither wider nor sharper",
    (0, -1): "neither wider nor sharper",
    (-1, 0): "needs more samples; undecided whether it solves more",
    (1, -1): "needs fewer samples, and solves less at the largest budget",
}
"""Sides of zero of the differences at the smallest and the largest budget -> what they decide without a verdict."""


def reach_finding(comparison: PassAtKComparison) -> str:
    """The verdict on two policies with its evidence: the differences at the smallest and the largest budget."""
    common = counted(comparison.num_prompts, "prompt")
    unpaired = f", over {common} in both and without {comparison.num_unpaired:,} in one" * (comparison.num_unpaired > 0)
    pair = f"{comparison.second} against {comparison.first}{unpaired}"
    defined = [row for row in comparison.rows if row.difference.value is not None]
    if not defined:
        return f"{comparison.first} and {comparison.second} have no budget in common."
    single = f"{with_interval(defined[0].difference, '+.3f')} at k = {defined[0].k}; " if len(defined) == 1 else ""
    turn = "" if comparison.crossover_k is None else f"; the sign has turned at k = {comparison.crossover_k}"
    verdict: str = comparison.verdict
    if verdict == "undecided":
        ends = defined[0].difference.side_of_zero, defined[-1].difference.side_of_zero
        verdict = _UNDECIDED.get(ends if len(defined) > 1 else (0, 0), _OPEN)
    return f"{pair}: {single}{comparison.evidence}{turn}. Verdict: {verdict}."


def _reach(table: PassAtKTable) -> str:
    defined = [row for row in table.rows if row.pass_at_k.value is not None]
    if not defined:
        return f"{table.name}: no budget asked for is within the {table.num_samples[0]} samples of every prompt."
    ends = defined[:1] if len(defined) == 1 else [defined[0], defined[-1]]
    figures = " and ".join(f"pass@{row.k} = {with_interval(row.pass_at_k, '.3f')}" for row in ends)
    return f"{table.name}: {figures} over {counted(table.num_prompts, 'prompt')}."


def _sample_notes(table: PassAtKTable, *, has_copies: bool) -> Iterator[str]:
    """That more samples of a prompt change nothing, where five prompts pass and five fail; and the forecast."""
    last = [row for row in table.rows if row.k > 1 and row.pass_at_k.is_defined][-1:]
    share = next((row.pass_at_k.value or 0.0 for row in last if row.pass_at_k.value == row.pass_hat_k.value), 0.0)
    if not has_copies and min(share, 1 - share) * table.num_prompts >= 5:
        yield f"{table.name}: all samples of a prompt agree: are they copies (temperature 0)?"
    low, high = table.num_samples
    samples = f"{low}{f' to {high}' * (high > low)} samples"
    for forecast in [row for row in table.forecasts if row.pass_at_k.is_defined][-1:]:
        yield (
            f"{table.name}: pass@{forecast.k} is forecast at {with_interval(forecast.pass_at_k, '.3f')} from "
            f"{samples} a prompt; the value rests on the shape of the distribution of pass rates, the interval does "
            "not."
        )


def _worth(comparison: PassAtKComparison) -> Iterator[str]:
    row = comparison.rows[0]
    times = f"times the samples of {comparison.second} for the same pass@{row.k}"
    if row.compression_factor.is_defined:
        yield f"{comparison.first} needs {with_interval(row.compression_factor, '.2f')} {times}."
    elif row.compression_at_least is not None:
        yield f"{comparison.first} needs at least {row.compression_at_least:.2f} {times}; its own set no upper end."
    if comparison.verifier:
        yield f"{comparison.verifier[:1].upper()}{comparison.verifier[1:]}."
