"""Keeping the weights that sampled: a folder that is whole or not there, as a run's ``checkpoints/checkpoint-N``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradscope.gradients.model.policy import padding_row
from gradscope.outside.plain_json import read_json
from gradscope.rollouts.checkpoint_folders import find_base, weights_at
from gradscope.rollouts.run import WeightsRef
from gradscope.rollouts.run_folder import checkpoint_path
from gradscope.training.protocols import Trainer
from gradscope.training.setup.checkpoints import complete_checkpoints, mark_complete, rewind
from gradscope.writing import atomic_write


def save_weights(trainer: Trainer, run: Path, num_updates: int) -> None:
    """Save the policy as it is after so many updates, without anything that only resuming needs.

    Every process calls it, for a sharded model is gathered by all; the main one writes.
    """
    folder = checkpoint_path(run, num_updates)
    aside = folder.with_name(f".{folder.name}.partial")
    trainer.save_model(str(aside), _internal_call=True)  # a call from outside would also push to the hub
    if not trainer.is_world_process_zero():
        return
    _name_padding(aside / "config.json", trainer.model)
    if folder.exists():
        shutil.rmtree(folder)
    aside.replace(folder)
    mark_complete(run, num_updates)


def is_sharded(trainer: Trainer) -> bool:
    """Whether no process need have the whole model: FSDP, DeepSpeed."""
    return trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled


def saves_shards(trainer: Trainer) -> bool:
    """Whether FSDP was told to save a piece a process, which is no model that anything here could load."""
    return trainer.is_fsdp_enabled and "FULL" not in str(trainer.accelerator.state.fsdp_plugin.state_dict_type)


@contextmanager
def gathered_weights(trainer: Trainer, run: Path) -> Iterator[WeightsRef | None]:
    """Have the weights of a sharded model in one place for a while. Every process calls it.

    Yields:
        Where the main process finds them; None where each process has the whole model.
    """
    if not is_sharded(trainer):
        yield None
        return
    folder = run / ".gathered.partial"
    trainer.save_model(str(folder), _internal_call=True)
    try:
        if trainer.is_world_process_zero():
            _name_padding(folder / "config.json", trainer.model)
            yield weights_at(folder, num_updates=0, base_of=lambda adapter: find_base(adapter, run))
        else:
            yield None
    finally:
        if trainer.is_world_process_zero():
            shutil.rmtree(folder, ignore_errors=True)


def forget_after(run: Path, num_updates: int) -> None:
    """Take away what was recorded after a checkpoint that the trainer goes on from."""
    for number in complete_checkpoints(run):
        if number > num_updates:
            shutil.rmtree(checkpoint_path(run, number))
    rewind(run, num_updates)


def _name_padding(config: Path, model: Any) -> None:
    """Name the padding token that the embedding was made with.

    TRL writes the tokenizer's into the model's configuration after loading it. PyTorch gives the embedding of the one
    named before no gradient, so whoever recomputes gradients has to know which that was.
    """
    if config.is_file():  # an adapter has none
        document = read_json(config)
        document.get("text_config", document)["pad_token_id"] = padding_row(model)
        atomic_write(config, json.dumps(document, indent=2, sort_keys=True) + "\n", force=True)
