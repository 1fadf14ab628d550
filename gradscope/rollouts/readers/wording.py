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
