"""Tiny models of other kinds than the embedded one, and what short runs are made of and hold."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.groups import Rollout
from gradscope.rollouts.run_folder import checkpoint_path
from gradscope.rollouts.store import read_steps
from gradscope.training.config import TrainConfig
from tests.rollouts.readers.lines import write_lines
from tests.trained import SHORT, made_once

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def short_config(output: Path, **settings: Any) -> TrainConfig:
    """The configuration of a run of three steps, with other settings."""
    return TrainConfig.from_json(SHORT | settings | {"output": str(output)})


def rollouts_at(run: Path, step: int) -> list[Rollout]:
    """The rollouts of a step, in the order of their rows."""
    return [rollout for group in read_steps(run) if group.step == step for rollout in group.rollouts]


def model_before(run: Path, step: int, **options: Any) -> Any:
    """The model of the checkpoint that a step started from."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint_path(run, step - 1), **options)


def build_tokenizer(texts: list[str], *, eos: bool = True, pad: bool = True, chat: bool = True) -> Any:
    """A byte-level BPE tokenizer of 300 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<eos>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    names = {name: f"<{name[:3]}>" for name, is_named in (("eos_token", eos), ("pad_token", pad)) if is_named}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def save_model(
    folder: Path, *, kind: str = "llama", positions: int = 512, vocab_size: int = 300, **tokenizer: Any
) -> Path:
    """A model folder with random weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    from tests.gradients.models import tiny_experts

    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "gpt2":
            sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": positions}
            model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, bos_token_id=1, eos_token_id=1, **sizes))
        elif kind == "experts":
            model = tiny_experts("qwen3_moe", vocab_size=vocab_size, positions=positions)
        else:
            shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
            model = LlamaForCausalLM(
                LlamaConfig(vocab_size=vocab_size, max_position_embeddings=positions, eos_token_id=1, **shape)
            )
    model.save_pretrained(folder)
    build_tokenizer(["How many apples are 2 and 3 apples? #### 5"], **tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with byte-level BPE and a chat template."""
    return made_once(tmp_path_factory, "models/chat", save_model)


@pytest.fixture(scope="session")
def experts_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 mixture of experts."""
    return made_once(tmp_path_factory, "models/experts", partial(save_model, kind="experts"))


@pytest.fixture(scope="session")
def gpt2_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 (learned positions, Conv1D) without padding token and chat template."""
    return made_once(tmp_path_factory, "models/gpt2", partial(save_model, kind="gpt2", pad=False, chat=False))


@pytest.fixture
def gsm8k_file(tmp_path: Path) -> Path:
    """Eight questions of GSM8K's form."""
    rows = [
        {"question": f"How many apples are {n} and {n + 1} apples?", "answer": f"{n}+{n + 1}=<<x>>\n#### {2 * n + 1}"}
        for n in range(8)
    ]
    return write_lines(tmp_path / "train.jsonl", *rows)
