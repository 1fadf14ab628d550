"""How readers count things for people."""

from __future__ import annotations

from gradscope.results.source import LOWER_BOUND


def counted(number: int, noun: str) -> str:
    """A number with its noun, whose plural takes an s.

    Returns:
        The words.

    Example:
        >>> counted(1, "file"), counted(2, "file")
        ('1 file', '2 files')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def hidden_by(filter: str) -> str:
    """A sentence for ``Source.missing`` where a trainer's filter may have removed dead groups before it wrote the log.

    Returns:
        The filter, a clause, with what follows from it.

    Example:
        >>> hidden_by("dynamic_sample drops groups of equal rewards")
        'dynamic_sample drops groups of equal rewards; the share of dead groups in this log is then a lower bound.'
    """
    return f"{filter}; {LOWER_BOUND}"


TEXT_ONLY = "The log holds text without token ids: it serves degeneracy, passk and check, not rank or replay."
"""For ``Source.missing``."""

SEVERAL = (
    "Some rollouts are several sequences (branches of a trace, outputs of a session): the reward of each counts once, "
    "and the tokens of all its sequences."
)
"""For ``Source.inferred``."""
