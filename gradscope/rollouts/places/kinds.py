"""Which files of a run are copied at once, which when they are asked for, and which never."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Literal

_READ = (
    *(".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".eval"),
    *(".yaml", ".yml", ".toml", ".md", ".parquet.sha256"),
)
"""Endings of logs, also before ``.gz`` and ``.zst``, and of the configurations and checksums beside them."""
_READ_NAMES = re.compile(r"(^|/)(events\.out\.tfevents\.[^/]*|rollout_data/[^/]*\.pt)$")
"""Further logs: TensorBoard's, and slime's."""
_WEIGHTS = re.compile(r"(\.safetensors|\.jinja|^tokenizer\.(json|model)|^vocab\.(json|txt)|^merges\.txt)$")
"""What only a command that loads the model opens."""
_NEVER = (".pkl", ".pickle", ".dp", ".bin", ".safetensors", ".wandb", ".db")
"""Endings of files that are of no use even where one is named by itself: an error says what to name instead."""
_AWAITED = ".awaited"


def when_copied(name: str) -> Literal["now", "awaited", "never"]:
    """When a file below a run is copied: ``now``, ``awaited`` (weights, tokenizers) or, but for its name, ``never``."""
    path = PurePosixPath(name)
    if _WEIGHTS.search(path.name):
        return "awaited"
    plain = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    return "now" if plain.endswith(_READ) or _READ_NAMES.search(name) else "never"


def is_of_use(name: str) -> bool:
    """Whether a file that was named by itself is copied: any but those known to be no logs."""
    return not name.lower().endswith(_NEVER)


def awaited_mark(file: Path) -> Path:
    """The empty file that stands for one which is copied when it is asked for."""
    return file.with_name(file.name + _AWAITED)


def is_awaited(file: Path) -> bool:
    """Whether a file is not here yet, but can be had."""
    return awaited_mark(file).is_file()


def awaited_in(folder: Path) -> tuple[Path, ...]:
    """The files of a folder that can be had."""
    return tuple(mark.with_name(mark.name.removesuffix(_AWAITED)) for mark in sorted(folder.glob(f"*{_AWAITED}")))
