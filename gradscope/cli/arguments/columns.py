"""The columns that a person names on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradscope.rollouts.readers.parsing.request import ColumnNames


def column_names(
    prompt: str | None = None, reward: str | None = None, step: str | None = None, group: str | None = None
) -> ColumnNames | None:
    """The columns as the readers take them.

    Args:
        prompt: Column that names the prompt.
        reward: Column of rewards.
        step: Column of training steps.
        group: Column that names the group.

    Returns:
        The names; None where the person named none and the reader is to guess.
    """
    if prompt is None and reward is None and step is None and group is None:
        return None
    from gradscope.rollouts.readers.parsing.request import ColumnNames

    return ColumnNames(prompt=prompt, reward=reward, step=step, group=group)
