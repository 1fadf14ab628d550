"""The model card that TRL writes beside its checkpoints: it names the version of TRL, which shapes some losses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gradscope.rollouts.run import TrainerSettings

_TRAINER = re.compile(r"^This model was trained with ([A-Za-z0-9 +-]{1,40}?)[,.]", re.MULTILINE)
_TAGS = re.compile(r"^tags:\n((?:- .{1,40}\n)+)", re.MULTILINE)
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
    # a subclass of GRPOTrainer inherits the sentence "trained with GRPO" and has a tag of its own, such as gmpo
    trainer, tags = _named(_TRAINER, run), (_named(_TAGS, run) or "").replace("- ", "").split("\n")
    own = [tag for tag in tags if tag and tag not in ("generated_from_trainer", "trl")]
    return own[0].upper() if trainer == "GRPO" and own and "grpo" not in own else trainer


def with_card(settings: TrainerSettings, run: Path) -> TrainerSettings:
    """The settings with version and trainer of the model card, unless they have them."""
    told = {VERSION: trl_version(run), TRAINER: trainer_of(run)}
    new = {name: value for name, value in told.items() if value is not None and name not in settings.values}
    return replace(settings, values={**settings.values, **new}) if new else settings
