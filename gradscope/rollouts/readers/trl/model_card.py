"""The model card that TRL writes beside its checkpoints: it names the version of TRL, which shapes some losses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gradscope.rollouts.run import TrainerSettings

_TRAINER = re.compile(r"^This model was trained with ([A-Za-z0-9 +-]{1,40}?)[,.]", re.MULTILINE)
_VERSION = re.compile(r"^- TRL: (\S+)$", re.MULTILINE)
VERSION = "trl_version"
"""The setting that holds it."""
TRAINER = "trl_trainer"
"""The setting that holds the name of the trainer, such as ``GRPO``."""


def trl_version(run: Path) -> str | None:
    """The version that a run's card names, its own or that of a checkpoint; None where none does."""
    return _named(_VERSION, run)


def _named(pattern: re.Pattern[str], run: Path) -> str | None:
    for card in (run / "README.md", *sorted(run.glob("checkpoint-*/README.md"))):
        found = pattern.search(card.read_text(encoding="utf-8", errors="replace")) if card.is_file() else None
        if found:
            return found[1]
    return None


def trainer_of(run: Path) -> str | None:
    """The trainer that a run's card names, such as ``GRPO``; None where there is no card, or it names none."""
    return _named(_TRAINER, run)


def with_card(settings: TrainerSettings, run: Path) -> TrainerSettings:
    """The settings with version and trainer of the model card, unless they have them."""
    told = {VERSION: trl_version(run), TRAINER: trainer_of(run)}
    new = {name: value for name, value in told.items() if value is not None and name not in settings.values}
    return replace(settings, values={**settings.values, **new}) if new else settings
