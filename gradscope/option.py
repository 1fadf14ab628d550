"""How a field of an option record is asked for on a command line: declared once, beside the field itself.

A record of options (``ReadOptions``, ``EngineOptions``) annotates each field with an :class:`Option`; the command line
makes its flags from these, and a person who calls the package reads the same words. Fields without one are not options
of the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """The flags of one field and what its help says."""

    flags: tuple[str, ...]
    """As they are typed, the usual spelling first."""
    help: str
    """One sentence."""
    panel: str
    """The panel of the help that it stands in."""
    metavar: str | None = None
    """What stands for the value; None for a switch."""
    parse: Callable[[str], Any] | None = None
    """Text to value, where the type alone does not tell."""
    shows_default: bool = True
    """Whether the help repeats the default."""
