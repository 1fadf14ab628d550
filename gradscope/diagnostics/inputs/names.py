"""The names that can be typed where an option takes one of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gradscope.advantages.formulation import is_in_file
from gradscope.advantages.registry import ALL_FORMULATIONS
from gradscope.rollouts.readers.detect import FORMATS


def is_code(advantage: str) -> bool:
    """Whether an advantage is named as a function in a file, which runs where it is used."""
    return is_in_file(advantage)


NAMES: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "--advantage": lambda: tuple(ALL_FORMULATIONS),
    "--reader": lambda: tuple(reader.name for reader in FORMATS),
}
"""Option -> what it takes, readers in the order in which they are asked."""
