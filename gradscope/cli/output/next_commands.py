"""The commands that a person may paste next, below the answer of the one that ran."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from gradscope.cli.output.streams import show_command, show_line
from gradscope.machine.processes import num_processes

_SWITCHES = frozenset({"--json", "--force", "--follow", "--update-baseline"})
_WITH_VALUE = frozenset({"--output", "-o", "--show", "--every", "--idle"})
"""What the next command has no use for: it prints, once, and it does not replace files."""


def typed_again(typed: Sequence[str]) -> list[str]:
    """The arguments typed behind a command that decide what is computed: no files, no JSON, no tables."""
    kept: list[str] = []
    words = iter(typed)
    for word in words:
        name, has_value, _ = word.partition("=")
        if name in _WITH_VALUE:
            if not has_value:
                next(words, None)
        elif word not in _SWITCHES and not (word.startswith("-o") and not word.startswith("--")):
            kept.append(word)
    return kept


def of_same_run(context: typer.Context, command: str) -> list[str]:
    """Another command on the same run, with those of the options typed that it has too."""
    other = context.find_root().command.commands[command]  # type: ignore[attr-defined]
    shared = {word for one in other.params for word in one.opts}
    has_value = {word: not getattr(one, "is_flag", True) for one in context.command.params for word in one.opts}
    again: list[str] = []
    words = iter(typed_again(context.meta["typed"]))
    for word in words:
        name, equals, _ = word.partition("=")
        taken = [word, *([next(words, "")] if has_value.get(name) and not equals else [])]
        if not word.startswith("-") or name in shared:
            again += taken
    return [command, *again]


def show_next(*commands: Sequence[str], apart: bool = True) -> None:
    """Print commands to paste, the words behind ``gradscope`` each; of several processes none, they have a launcher."""
    if num_processes() == 1:
        if apart:
            show_line("")
        for words in commands:
            show_command(["gradscope", *words])
