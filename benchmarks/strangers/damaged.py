"""Folders with one damaged file, which must not silence the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.strangers.case import Case, Folders
from benchmarks.strangers.models import of


def save_other(folders: Folders) -> None:
    """Weights of the same shape that have nothing to do with the run."""
    of("llama", seed=77)().save_pretrained(folders.other)


def cut(name: str, share: float = 0.5) -> Callable[[Folders], None]:
    """The disk was full: one file of the run is cut off."""

    def spoil(folders: Folders) -> None:
        file = folders.run / name
        content = file.read_bytes()
        file.write_bytes(content[: int(len(content) * share)])

    return spoil


def lose(name: str) -> Callable[[Folders], None]:
    """One file of the run is gone."""

    def spoil(folders: Folders) -> None:
        (folders.run / name).unlink()

    return spoil


def damaged_cases() -> list[Case]:
    """What is missing is named, and every other step is judged."""
    common: dict[str, Any] = {"axis": "damaged", "args": {"max_steps": 3}}
    second: dict[str, Any] = {**common, "at": {2: "cannot"}, "word": "checkpoint-1|damaged"}
    return [
        Case(name="weights cut off", spoil=cut("checkpoint-1/model.safetensors"), **second),
        Case(name="weights lost", spoil=lose("checkpoint-1/model.safetensors"), **{**second, "word": "lacks"}),
        Case(name="config lost", spoil=lose("checkpoint-1/config.json"), **second),
        Case(name="config cut off", spoil=cut("checkpoint-1/config.json"), **second),
        Case(name="state of an early checkpoint cut off", spoil=cut("checkpoint-1/trainer_state.json"), **common),
        Case(
            name="state of the last checkpoint cut off",
            spoil=cut("checkpoint-3/trainer_state.json"),
            **common,
            at={3: "cannot"},
            word="checkpoint-3|trainer_state|no grad_norm",
            rank="match",
            partly=("reward", "frac_reward_zero_std"),
        ),
        Case(name="optimizer cut off", spoil=cut("checkpoint-1/optimizer.pt"), **common),
        Case(
            name="completions cut off",
            spoil=cut("completions/completions_00002.parquet"),
            **common,
            unjudged=(2,),
        ),
        Case(name="tokenizer of a checkpoint lost", spoil=lose("checkpoint-2/tokenizer.json"), **common),
    ]
