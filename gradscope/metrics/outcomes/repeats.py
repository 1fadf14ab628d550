"""How much of a completion repeats itself. Shapes: T tokens or words of a completion."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

NGRAM = 4
"""Length of the runs that are counted, as in the source: shorter ones repeat in any text."""


def repeated_ngrams(items: Sequence[Hashable], *, length: int = NGRAM) -> float | None:
    """Share of the runs of a few items that stood there before: 1 - distinct runs / runs (seq-rep-n, 1908.04319).

    Args:
        items: Token ids, or words, [T].
        length: Items of a run.

    Returns:
        A number from 0 (no run twice) to almost 1 (one run over and over); None where there is no run.

    Example:
        >>> repeated_ngrams("a b c d a b c d".split()), repeated_ngrams("a b c d e f g h".split())
        (0.19999999999999996, 0.0)
    """
    runs = [tuple(items[at : at + length]) for at in range(len(items) - length + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else None
