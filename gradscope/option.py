"""How a field of an option record is asked for on a command line: declared once, beside the field itself.

A record of options (``ReadOptions``, ``EngineOptions``) annotates each field with an :class:`Option`; the command line
makes its flags from these, and a person who calls the package reads the same words. Fields without one are not options
of the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_type_hints


@dataclass(frozen=True, slots=True)
class Option:
    """The flags of one field and what its help says."""

    help: str  # one sentence
    metavar: str | None = None  # what stands for the value; None for a switch
    panel: str = "Measure"  # the panel of the help that it stands in
    flags: tuple[str, ...] = ()  # as they are typed, the usual spelling first; empty: the field's name
    parse: Callable[[str], Any] | None = None  # text to value, where the type alone does not tell
    shows_default: bool = True  # whether the help repeats the default
    complete: Callable[[str], list[str]] | None = None  # what a shell offers for the beginning of a value

    @property
    def parameter(self) -> str:
        """The name under which a command gets the value: that of its first flag."""
        return self.flags[0].partition("/")[0].removeprefix("--").replace("-", "_")


def options_of(record: type) -> dict[str, Option]:
    """Field -> its option, in the order of the record; fields without one are left out."""
    hints = get_type_hints(record, include_extras=True)
    return {
        name: option if option.flags else replace(option, flags=(f"--{name.replace('_', '-')}",))
        for name, hint in hints.items()
        for option in getattr(hint, "__metadata__", ())
        if isinstance(option, Option)
    }
