"""TRL's version, where a loss depends on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TrlVersion:
    """A version, or that none is known.

    Args:
        numbers: Major, minor and so on; empty where the version is not known.
    """

    numbers: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: Any) -> TrlVersion:
        """A version as TRL writes it into a model card.

        Returns:
            Its major and minor number; what is no version counts as not known.

        Example:
            >>> TrlVersion.parse("1.9.0.dev0").is_before(1, 10)
            True
        """
        found = re.match(r"([0-9]+)\.([0-9]+)", str(text or ""))
        return cls(tuple(map(int, found.groups())) if found else ())

    @property
    def known(self) -> bool:
        """Whether there is one."""
        return bool(self.numbers)

    def is_before(self, *numbers: int) -> bool:
        """Whether it is known and older than another; a version that is not known counts as new."""
        return self.known and self.numbers < numbers


UNKNOWN = TrlVersion()
"""Where nothing tells the version."""

VERSION_HINT = 'Give TRL\'s version with --run-config: {"trl_version": "1.16.0", ...}.'
"""What to do where a loss depends on a version that is not known."""
