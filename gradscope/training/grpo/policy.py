"""The policy to train: its model and tokenizer, checked for what sampling needs before any time is spent.

Handled rather than refused: a tokenizer without a padding token pads with its end of sequence, and one without a chat
template gets its prompts as plain text. Refused: no end of sequence, a tokenizer that does not fit the model, prompts
that do not fit its positions. Weights are read from safetensors only and code from model folders is never run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.gradients.model.checkpoint import require_hub
from gradscope.training.protocols import Tokenizer
from gradscope.training.setup.config import EMBEDDED_MODEL, TrainConfig
from gradscope.training.tasks.task import Problem

EMBEDDED_FOLDER = Path(__file__).parent.parent / "embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPolicy:
    """A model that is ready to be trained, and its tokenizer."""

    model: Any
    """A ``PreTrainedModel``."""
    tokenizer: Tokenizer
    """It pads on the left."""
    chat: bool
    """Whether prompts are put as messages through the tokenizer's chat template."""
    notes: tuple[str, ...] = ()
    """How what the tokenizer lacks was made up for, one sentence each, for the manifest."""

    def messages(self, problem: Problem) -> list[dict[str, str]] | None:
        """A prompt as a conversation, one message of the user; None where prompts are plain text."""
        return [{"role": "user", "content": problem.prompt}] if self.chat else None

    def encode(self, problem: Problem) -> list[int]:
        """A prompt as token ids, special tokens included, in the way that TRL encodes it."""
        messages = self.messages(problem)
        if messages is None:
            return list(self.tokenizer(text=problem.prompt)["input_ids"])
        encoded = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return list(encoded["input_ids"])

    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a completion: the tokenizer's own and those that the model declares."""
        declared = self.model.generation_config.eos_token_id
        more = [] if declared is None else [declared] if isinstance(declared, int) else declared
        return frozenset([self.tokenizer.eos_token_id, *more])


def model_folder(name: str) -> str:
    """Where a model is: the packaged folder for ``embedded``, else the name itself, a folder or a hub id."""
    return str(EMBEDDED_FOLDER) if name == EMBEDDED_MODEL else name


def load_trained_policy(name: str, *, dtype: str, chat: bool) -> TrainedPolicy:
    """Read a model and its tokenizer, to the CPU.

    Args:
        name: ``embedded``, a model folder, or a hub id.
        dtype: ``float32`` or ``bfloat16``, of the weights.
        chat: Whether the task's prompts go through a chat template where there is one.

    Returns:
        The policy.

    Raises:
        InputError: The folder cannot be used for training, with the reason.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder(name)
    if (Path(folder) / "adapter_config.json").is_file():
        raise InputError(
            f"{name} is an adapter; a run starts from a whole model.",
            hint="Name the base model, with --lora-rank for a new adapter.",
        )
    require_hub(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left", trust_remote_code=False)
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"The model {name!r} cannot be read: {reason}",
            hint="Name a folder with config.json, tokenizer.json and whole model.safetensors, or a hub id.",
        ) from error
    _check(name, model, tokenizer, sorted(report["missing_keys"]))
    notes = []
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        notes.append("The tokenizer has no padding token; its end of sequence pads.")
    if chat and tokenizer.chat_template is None:
        chat = False
        notes.append("The tokenizer has no chat template; prompts are put as plain text.")
    return TrainedPolicy(model=model, tokenizer=tokenizer, chat=chat, notes=tuple(notes))


def load_saved_policy(policy: TrainedPolicy, config: TrainConfig, folder: Path, device: Any) -> TrainedPolicy:
    """A policy with the weights of one of its run's checkpoints, whole in this process alone.

    Args:
        policy: The policy as the run has it, whose model may be sharded.
        config: The run's configuration.
        folder: The checkpoint's folder, of a whole model or of an adapter.
        device: Where it goes.

    Returns:
        The policy.
    """
    from peft import PeftModel

    if config.lora_rank is None:
        model = load_trained_policy(str(folder), dtype="float32", chat=policy.chat).model
    else:
        base = load_trained_policy(config.model, dtype=weights_dtype(config), chat=policy.chat).model
        model = PeftModel.from_pretrained(base, folder)
    return replace(policy, model=model.to(device))


def weights_dtype(config: TrainConfig) -> str:
    """What a model is loaded in: float32 where it is trained; only the frozen base of an adapter may be half."""
    return "bfloat16" if config.dtype == "bfloat16" and config.lora_rank is not None else "float32"


def check_prompts(policy: TrainedPolicy, problems: Sequence[Problem], max_completion_length: int) -> None:
    """Refuse prompts that the model cannot read, or that leave no room for a completion of so many tokens.

    Raises:
        InputError: A prompt has characters that the tokenizer does not know, or does not fit the model's positions.
    """
    positions = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    padding = policy.tokenizer.pad_token_id
    for problem in problems:
        ids = policy.encode(problem)
        if padding in ids and padding not in policy.eos_ids():
            raise InputError(
                f"The prompt {problem.prompt_id} has characters that the model's tokenizer does not know.",
                hint="Name another model (--model): the embedded one reads running sums only.",
            )
        if positions is not None and len(ids) + max_completion_length > positions:
            raise InputError(
                f"The prompt {problem.prompt_id} has {len(ids)} tokens; with {max_completion_length} of a completion "
                f"it does not fit the model's {positions} positions.",
                hint="Lower --max-completion-length, or remove the prompt.",
            )


def _check(name: str, model: Any, tokenizer: Any, missing: Sequence[str]) -> None:
    if missing:
        raise InputError(
            f"The folder of {name!r} lacks {len(missing)} of the model's weights, {missing[0]} among them; they would "
            "start at random.",
            hint="Use a folder that a model was saved to, with its own config.json.",
        )
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"The tokenizer of {name!r} has no end-of-sequence token, so no completion would ever end.",
            hint='Set "eos_token" in its tokenizer_config.json.',
        )
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise InputError(
            f"The tokenizer of {name!r} has {len(tokenizer)} tokens and the model embeds {rows}: they do not belong "
            "together.",
            hint="Use the tokenizer that was saved with the model.",
        )
