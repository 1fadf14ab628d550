"""Hints that fit the command that is running: an error deep inside does not know which options the command has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")
_NAMED = re.compile(r"gradscope ([a-z]+)")


def fitting_hint(hint: str, arguments: Sequence[str], options: Mapping[str, frozenset[str]]) -> str:
    """A hint that says whose its options are, where the running command does not have them.

    Args:
        hint: As the error gives it.
        arguments: The command line behind ``gradscope``.
        options: Command -> its options, of every command.

    Returns:
        The hint itself where the command, or a command that it names, has all its options; options of other programs
        are left alone.

    Example:
        >>> options = {"passk": frozenset({"--k"}), "compare": frozenset()}
        >>> fitting_hint("Use --k 1.", ["compare", "runs"], options)
        'Use --k 1. (--k is an option of `gradscope passk`, not of `gradscope compare`.)'
    """
    running = next((argument for argument in arguments if argument in options), None)
    if running is None:
        return hint
    there = options[running].union(*(options.get(name, frozenset()) for name in _NAMED.findall(hint)))
    for option in dict.fromkeys(_OPTION.findall(hint)):
        owners = [name for name, own in options.items() if option in own]
        if owners and option not in there:
            names = " and ".join(f"`gradscope {name}`" for name in owners[:2])
            hint = f"{hint} ({option} is an option of {names}, not of `gradscope {running}`.)"
    return hint
