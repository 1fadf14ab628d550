"""The embedded model, rebuilt from nothing: a tiny Llama that imitates a sloppy calculator.

``python -m gradscope.training.tasks.warm_start OUT`` trains it, supervised, on running sums in which each carry is
forgotten with probability 1/2. The right branch is thus in the model at every carry, and reinforcement learning has
something to find. Two minutes on one thread; the same machine and library versions give the same bytes.
"""

from __future__ import annotations

import argparse
import string
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradscope.errors import OutputExistsError
from gradscope.progress import ProgressCallback, no_progress
from gradscope.training.libraries import single_thread
from gradscope.training.tasks import running_sums

PAD, EOS = "<pad>", "<eos>"
NUM_STEPS = 2000
_BATCH = 128
_SEED = 20260101
_LEARNING_RATE = 3e-3
_MAX_PROMPT_LENGTH = 2 * len(running_sums.LABELS) + 1


def build_tokenizer() -> Any:
    """A ``PreTrainedTokenizerFast`` with one token a character: digits, labels, ``=`` and ``#``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = [PAD, EOS, *string.digits, *running_sums.LABELS, "=", "#"]
    tokenizer = Tokenizer(models.WordLevel({character: i for i, character in enumerate(characters)}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=64,
    )


def build_model(vocab_size: int) -> Any:
    """The model before the warm start: Llama, 2 layers of width 64, untied embeddings, about 100 k parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            bos_token_id=None,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


def make_corpus(num_examples: int) -> list[tuple[str, str]]:
    """Pairs of a prompt of the training side and a sloppy completion."""
    draw = np.random.default_rng(_SEED)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < num_examples:
        operands = running_sums.draw_operands(draw, running_sums.draw_kind(draw))
        forgets = (draw.random(len(operands) - 1) < 0.5).tolist()
        if not running_sums.is_heldout(prompt := running_sums.format_prompt(operands)):
            pairs.append((prompt, running_sums.solve_sloppily(operands, forgets)))
    return pairs


def warm_start(folder: Path, *, num_steps: int = NUM_STEPS, progress: ProgressCallback = no_progress) -> Path:
    """Build tokenizer and model and train the model on the sloppy calculator; returns the folder, which must not exist.

    Raises:
        OutputExistsError: The folder exists.
    """
    import torch

    if folder.exists():
        raise OutputExistsError(f"{folder} exists already.", hint="Name a folder that does not exist.")
    with single_thread(), torch.random.fork_rng():
        torch.manual_seed(_SEED)
        tokenizer = build_tokenizer()
        model = build_model(len(tokenizer))
        pairs = make_corpus(num_steps * _BATCH // 4)
        # token ids, padded on the right, and labels that leave the prompt out
        encoded = torch.zeros(
            (2, len(pairs), _MAX_PROMPT_LENGTH + running_sums.MAX_COMPLETION_LENGTH), dtype=torch.long
        )
        encoded[1] = -100
        for row, (prompt, completion) in enumerate(pairs):
            ids = torch.tensor([*tokenizer(prompt + completion)["input_ids"], tokenizer.eos_token_id])
            encoded[0, row, : len(ids)] = ids
            encoded[1, row, len(prompt) : len(ids)] = ids[len(prompt) :]
        _fit(model, encoded, num_steps, progress)
    model.generation_config.update(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _fit(model: Any, encoded: Any, num_steps: int, progress: ProgressCallback) -> None:
    """AdamW with a one-cycle learning rate over shuffled batches; ends in evaluation mode."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=num_steps, pct_start=0.1)
    model.train()
    for step in range(num_steps):
        rows = torch.randint(0, encoded.shape[1], (_BATCH,))
        loss = model(input_ids=encoded[0, rows], labels=encoded[1, rows]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0:
            progress(step + 1, num_steps, f"updates (loss {loss.item():.4f})")
    model.eval()


def make_embedded_model(arguments: Sequence[str] | None = None) -> int:
    """The command ``python -m gradscope.training.tasks.warm_start OUT``; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gradscope.training.tasks.warm_start", description=__doc__.split("\n")[0]
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write; it must not exist")
    folder = parser.parse_args(arguments).out
    try:
        warm_start(folder, progress=lambda done, total, label: _tell(f"{done}/{total} {label}"))
    except OutputExistsError as error:
        _tell(f"error: {error.message}\nhint: {error.hint}")
        return 2
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(make_embedded_model())
