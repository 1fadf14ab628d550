"""Options as a person spells them: old names, which work for one release with a note, and hints that fit the command.

An error deep inside does not know which options the running command has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_RENAMED = {
    **{(command, "--format"): "--reader" for command in ("degeneracy", "passk", "rank", "replay", "report")},
    ("rank", "--tokens"): "--max-tokens",
    ("report", "--tokens"): "--max-tokens",
    ("compare", "--only"): "--vary",
    ("check", "--rule"): "--decide-by",
}
"""Command and old flag -> new flag. In `check`, ``--format`` is the format of stdout, and stays."""


def with_new_names(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line with every old flag replaced, and one sentence for each that was."""
    command = next(iter(arguments), "")
    renamed, notes = list(arguments), []
    for index, word in enumerate(arguments):
        if word == "--":
            break
        old, equals, value = word.partition("=")
        new = _RENAMED.get((command, old))
        if new is not None:
            renamed[index] = f"{new}{equals}{value}"
            notes.append(f"{old} is now {new}; the next release drops the old spelling")
    return renamed, notes


_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")
_NAMED = re.compile(r"gradscope ([a-z]+)")


def fitting_hint(hint: str, arguments: Sequence[str], options: Mapping[str, frozenset[str]]) -> str:
    """A hint that says whose its options are, where neither the running command nor one that it names has them.

    >>> options = {"passk": frozenset({"--k"}), "compare": frozenset()}
    >>> fitting_hint("Use --k 1.", ["compare", "runs"], options)
    'Use --k 1. (--k is an option of `gradscope passk`, not of `gradscope compare`.)'
    """
    running = next((argument for argument in arguments if argument in options), None)
    if running is None:
        return hint
    available = options[running].union(*(options.get(name, frozenset()) for name in _NAMED.findall(hint)))
    elsewhere: dict[str, list[str]] = {}
    for option in dict.fromkeys(_OPTION.findall(hint)):
        owner = next((name for name, own in options.items() if option in own), None)
        if owner is not None and option not in available:
            elsewhere.setdefault(owner, []).append(option)
    for owner, foreign in elsewhere.items():
        are = "is an option" if len(foreign) == 1 else "are options"
        hint = f"{hint} ({', '.join(foreign)} {are} of `gradscope {owner}`, not of `gradscope {running}`.)"
    return hint
