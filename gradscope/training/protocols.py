"""The parts of transformers and TRL that training and the recorder use, whose own types mypy does not follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """A ``PreTrainedTokenizerBase``."""

    eos_token_id: int
    pad_token_id: int

    def __call__(self, text: str, **options: Any) -> Mapping[str, Any]:
        """Encode a text; ``input_ids`` are its ids."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> Mapping[str, Any]:
        """Encode a conversation, likewise."""

    def pad(self, encoded_inputs: Mapping[str, Any], **options: Any) -> Any:
        """Bring encoded texts to one length."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of some ids."""

    def batch_decode(self, sequences: Any, *, skip_special_tokens: bool) -> list[str]:
        """The texts of several rows of ids."""

    def save_pretrained(self, save_directory: Any) -> Any:
        """Write its files."""


class TrainerArguments(Protocol):
    """A ``GRPOConfig``."""

    output_dir: str
    seed: int
    scale_rewards: str | bool
    use_vllm: bool
    gradient_accumulation_steps: int
    steps_per_generation: int
    num_iterations: int

    def to_dict(self) -> dict[str, Any]:
        """Argument -> value."""


class Trainer(Protocol):
    """A ``GRPOTrainer``."""

    args: TrainerArguments
    model: Any
    ref_model: Any
    processing_class: Any
    accelerator: Any
    is_fsdp_enabled: bool
    is_deepspeed_enabled: bool

    def save_model(self, output_dir: str, _internal_call: bool) -> None:
        """Write the model's files; every process calls it, the main one writes."""

    def is_world_process_zero(self) -> bool:
        """Whether this process is the main one."""
