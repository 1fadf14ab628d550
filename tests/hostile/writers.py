"""The commands that write, and how each is made again after it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

TRAIN = (
    *("train", "--output", "run", "--quiet", "--steps", "3", "--num-prompts", "2", "--group-size", "2"),
    *("--checkpoint-every", "1", "--heldout-prompts", "2", "--heldout-samples", "2", "--max-completion-length", "8"),
)
LOG = [
    {"step": step, "prompt_id": f"p{prompt}", "reward": float((prompt * sample + step) % 2), "completion": "x" * sample}
    for step in (1, 2, 3)
    for prompt in range(4)
    for sample in range(4)
]
_TRACK = ("--track", "pass_rate", "--baseline", "base.json", "--update-baseline")


@dataclass(frozen=True)
class Writer:
    """A command that writes, and how the same is made after it was interrupted."""

    name: str
    arguments: tuple[str, ...]
    place: str
    """What it writes, from its folder."""
    again: Callable[[Path], tuple[str, ...]] = lambda place: ("--force",) if place.exists() else ()
    """What the same command takes in addition where it was interrupted."""


def _to_resume(place: Path) -> tuple[str, ...]:
    return ("--resume",) if (place / "manifest.json").exists() else ()


_SEVERAL = ("report", "log.jsonl", "other.jsonl", "--output", "page.html", "--quiet")
_FIGURES = ("report", "log.jsonl", "--no-gradients", "--output", "out/page.html", "--figures", "out/charts", "--quiet")
WRITERS = (
    Writer("degeneracy --output", ("degeneracy", "log.jsonl", "--output", "out", "--quiet"), "out"),
    Writer("passk --output", ("passk", "samples.jsonl", "--output", "out", "--quiet"), "out"),
    Writer("report", ("report", "log.jsonl", "--no-gradients", "--output", "page.html", "--quiet"), "page.html"),
    Writer("check --update-baseline", ("check", "log.jsonl", *_TRACK, "--quiet"), "base.json"),
    Writer("train", TRAIN, "run", _to_resume),
    Writer("train --lora-rank", (*TRAIN, "--lora-rank", "2"), "run", _to_resume),
    Writer("rank --output", ("rank", "run", "--step", "1,2", "--output", "out", "--quiet"), "out"),
    Writer("replay --output", ("replay", "run", "--step", "1,2", "--output", "out", "--quiet"), "out"),
    Writer("claims --output", ("claims", "log.jsonl", "--no-gradients", "--output", "out", "--quiet"), "out"),
    Writer("compare --output", ("compare", "log.jsonl", "other.jsonl", "--output", "out", "--quiet"), "out"),
    Writer("report of several", _SEVERAL, "page.html"),
    Writer("report --figures", _FIGURES, "out"),
)


def preload(names: Sequence[str]) -> None:
    """Import what the commands import late, so that a fork need not."""
    modules = ["cli.app", "render.figures.style", "render.html.page"]
    modules += [f"diagnostics.{name}.measure" for name in ("report", "check", "claims", "compare")]
    if not names or any(name.startswith(("rank", "replay", "train")) for name in names):
        modules += ["diagnostics.rank.measure", "training.run_training"]
    for module in modules:
        import_module(f"gradscope.{module}")
