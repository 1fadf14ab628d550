"""How a parameter of a command, or a field of an option record, is asked for on a command line.

It is declared once, in an :class:`Option` next to the name: the command line makes its flags from these, and callers of
the package read the same words in the records (``ReadOptions``, ``EngineOptions``). A field without one is no flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from msgspec import Struct
from msgspec.structs import replace


class Option(Struct, frozen=True):
    """The flags of one name and its help."""

    help: str  # one sentence
    metavar: str | None = None  # placeholder of the value; None for a switch
    panel: str = "Measure"  # its panel of the help
    flags: tuple[str, ...] = ()  # as they are typed, the usual spelling first; empty: the name itself
    parse: Callable[[str], Any] | None = None  # text to value, where the type alone does not suffice
    shows_default: bool = True  # whether the help repeats the default
    at_least: int | None = None  # a smaller number is refused
    complete: Callable[[str], list[str]] | None = None  # a shell's completions for the beginning of a value
    names_of: Callable[[str], tuple[str, ...]] | None = None  # command -> the names that the option takes in it

    @property
    def parameter(self) -> str:
        """The name under which a command gets the value: that of its first flag."""
        return self.flags[0].partition("/")[0].removeprefix("--").replace("-", "_")


def options_of(declaration: type | Callable[..., object]) -> dict[str, Option]:
    """Field of a record, or parameter of a command, -> its option, in order; those without one are left out."""
    hints = get_type_hints(declaration, include_extras=True)
    return {
        name: option if option.flags else replace(option, flags=(f"--{name.replace('_', '-')}",))
        for name, hint in hints.items()
        for option in getattr(hint, "__metadata__", ())
        if isinstance(option, Option)
    }
