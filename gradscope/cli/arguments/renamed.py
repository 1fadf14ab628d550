"""Old spellings of options: they work for one release, with a note, and then this file goes."""

from __future__ import annotations

from collections.abc import Sequence

_RENAMED = {
    **{(command, "--format"): "--reader" for command in ("degeneracy", "passk", "rank", "replay", "report")},
    ("rank", "--tokens"): "--max-tokens",
    ("report", "--tokens"): "--max-tokens",
    ("compare", "--only"): "--vary",
    ("check", "--rule"): "--decide-by",
}
"""Command and old flag -> new flag. In `check`, ``--format`` is what stdout shows, and stays."""


def with_new_names(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line in today's spelling.

    Args:
        arguments: The command and what follows it.

    Returns:
        The same command line with every old flag replaced, and one sentence for each that was.

    Example:
        >>> with_new_names(["rank", "run", "--tokens=64"])
        (['rank', 'run', '--max-tokens=64'], ['--tokens is now --max-tokens; the next release drops the old spelling'])
    """
    command = next(iter(arguments), "")
    renamed, notes = list(arguments), []
    for place, word in enumerate(arguments):
        if word == "--":
            break
        old, equals, value = word.partition("=")
        new = _RENAMED.get((command, old))
        if new is not None:
            renamed[place] = f"{new}{equals}{value}"
            notes.append(f"{old} is now {new}; the next release drops the old spelling")
    return renamed, notes
