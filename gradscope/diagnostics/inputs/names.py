"""The names that can be typed where an option takes one of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gradscope.advantages.formulation import is_in_file
from gradscope.advantages.registry import ALL_FORMULATIONS
from gradscope.rollouts.readers.detect import FORMATS


def _advantage_names() -> tuple[str, ...]:
    """Every advantage formulation."""
    return tuple(ALL_FORMULATIONS)


def is_code(advantage: str) -> bool:
    """Whether an advantage is named as a function in a file, which runs where it is used."""
    return is_in_file(advantage)


def _reader_names() -> tuple[str, ...]:
    """Every reader, in the order in which they are asked."""
    return tuple(reader.name for reader in FORMATS)


NAMES: Mapping[str, Callable[[], tuple[str, ...]]] = {"--advantage": _advantage_names, "--reader": _reader_names}
"""Option -> what it takes."""
