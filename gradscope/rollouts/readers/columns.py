"""Which column is what, where the names are usual; a name that was given always wins."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from gradscope.errors import UsageError
from gradscope.rollouts.readers.request import ColumnNames

USUAL: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "problem", "input", "query", "instruction"),
    "completion": ("completion", "response", "output", "solution", "generation", "answer_text"),
    "reward": ("reward", "score", "passed", "correct", "is_correct", "success", "acc", "accuracy"),
    "step": ("step", "global_step", "training_step", "iteration"),
    "group": ("group_id", "uid", "group", "group_index"),
    "prompt_id": ("prompt_id", "task_id", "problem_id", "question_id", "example_id", "doc_id"),
    "advantage": ("advantage", "advantages"),
}
"""Role -> column names, most telling first."""


def resolve_columns(present: Collection[str], given: ColumnNames) -> ColumnNames:
    """The columns of a log by role.

    Args:
        present: Names of the columns that the log has.
        given: Names that were given.

    Returns:
        A name per role; None where no column has it.

    Raises:
        UsageError: A given name is not there.
    """
    named = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    for role, name in named.items():
        if name is not None and name not in present:
            raise UsageError(
                f"There is no column {name!r} to take as {role.replace('_', ' ')}.",
                hint=f"The columns are {list_names(present)}.",
            )
    guessed = {role: next((name for name in names if name in present), None) for role, names in USUAL.items()}
    if given.prompt is not None:  # somebody who names the prompt means to tell prompts apart by it
        guessed["prompt_id"] = None
    if given.prompt is not None or given.prompt_id is not None:
        guessed["group"] = None
    return ColumnNames(**{role: named[role] or guessed[role] for role in USUAL})


def reward_columns(present: Iterable[str], main: str) -> tuple[str, ...]:
    """Further columns that are rewards by their name.

    Args:
        present: Names of the columns.
        main: The scalar reward's column.

    Returns:
        Columns named as a reward (``reward/x``, ``rewards/x``, ``reward_x``, ``x_reward``) or with another usual name.
    """
    usual = USUAL["reward"]
    return tuple(
        name
        for name in present
        if name == main
        or name in usual
        or name.startswith(("reward/", "rewards/", "reward_"))
        or name.endswith("_reward")
    )


def list_names(names: Iterable[str]) -> str:
    """Column names for a message.

    Args:
        names: The names.

    Returns:
        At most 20 of them, quoted.
    """
    quoted = [repr(name) for name in names]
    return ", ".join(quoted[:20]) + (f" and {len(quoted) - 20} more" if len(quoted) > 20 else "") if quoted else "none"
