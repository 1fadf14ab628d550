"""One rollout as token ids, and the padded row that a trainer put it into.

Shapes: T tokens of a completion.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The padded row that a trainer put a sequence into, for models that see the padding around it."""

    prompt_width: int
    """Tokens of the padded prompt; the padding comes first."""
    completion_width: int
    """Tokens of the padded completion; the padding comes last."""
    padding_id: int
    """The token that fills it."""

    @property
    def width(self) -> int:
        """Tokens of the whole row."""
        return self.prompt_width + self.completion_width


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """One rollout as the trainer's forward pass saw it."""

    group_id: str
    """The rollout's group."""
    sample: int
    """Index within the group."""
    prompt_ids: tuple[int, ...]
    """At least one token: the first completion token is predicted from it."""
    completion_ids: tuple[int, ...]
    """The sampled tokens, end-of-sequence included, [T]."""
    mask: tuple[bool, ...]
    """Which completion tokens count in the loss, [T]."""
    inferred: bool
    """Whether the completion's ids were re-tokenized from its text. A prompt's are not in doubt: the trainer made them
    from the same text with the same tokenizer."""
    frame: Frame | None = None
    """The trainer's padding; None where the model's output does not depend on it."""

    @property
    def length(self) -> int:
        """Tokens that a forward pass has to take: prompt and completion, with the padding that belongs to them."""
        return self.num_tokens if self.frame is None else self.frame.width

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def start(self) -> int:
        """Padding before the first token."""
        return 0 if self.frame is None else self.frame.prompt_width - len(self.prompt_ids)
