"""How readers count things for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    Args:
        number: How many.
        noun: The noun in the singular; its plural takes an s.

    Returns:
        The words.

    Example:
        >>> counted(1, "file"), counted(2, "file")
        ('1 file', '2 files')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def hidden_by(filter: str) -> str:
    """What to say where a trainer may have removed dead groups before it wrote the log.

    Args:
        filter: The trainer's filter, as a clause.

    Returns:
        A sentence for ``Source.missing``.

    Example:
        >>> hidden_by("dynamic_sample drops groups of equal rewards")
        'dynamic_sample drops groups of equal rewards; the share of dead groups in this log is then a lower bound.'
    """
    return f"{filter}; the share of dead groups in this log is then a lower bound."


TEXT_ONLY = "The log holds text without token ids: it serves degeneracy, passk and check, not rank or replay."
"""For ``Source.missing``."""
