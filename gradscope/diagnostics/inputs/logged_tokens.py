"""Whether the tokens that were read back are those that the trainer counted.

TRL logs how many tokens it has seen and how long completions were on average. Prompts that were rendered with tools or
another template, and completions of which an environment wrote a part, do not have those counts; then a gradient of
them is not the trainer's, whatever its norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradscope.reason import Reason
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Rollout

if TYPE_CHECKING:
    from gradscope.gradients.model.batches import TokenSequence

_SEEN, _LENGTH, _TOOLS = "num_tokens", "completions/mean_length", "tools/"


def other_tokens(run: Run, step: int, sequences: Sequence[TokenSequence]) -> Reason | None:
    """Why some tokens are not those of the step, as the trainer's own counts tell it.

    Args:
        step: The step that sampled them.
        sequences: Its rollouts as they were read back, [R].

    Returns:
        The reason; None where the counts agree, or there are none.
    """
    logged = run.metrics.get(step, {})
    if run.source.format != "trl" or step in run.windows or step in run.repeats:
        return None
    inferred = any(sequence.inferred for sequence in sequences)
    completions, prompts = sum(sum(of.mask) for of in sequences), sum(len(of.prompt_ids) for of in sequences)
    if _LENGTH in logged and (counted := round(logged[_LENGTH] * len(sequences))) != completions:
        what = f"the trainer counted {counted} sampled tokens, and the log has {completions}"
        if inferred:
            return Reason("ids_inferred", f"{what}: completion ids were inferred from their text")
        return Reason("mask_unknown", f"{what}: an environment or a tool wrote the others")
    if any(name.startswith(_TOOLS) for name in logged) and not _logged_prompts(run, step):
        return Reason("prompt_unknown", "tools were offered, and their schemas, part of each prompt, are not on disk")
    before = 0.0 if step == 1 else run.metrics.get(step - 1, {}).get(_SEEN)
    if _SEEN not in logged or before is None or _logged_prompts(run, step):
        return None
    counted = round(logged[_SEEN] - before)
    if counted == prompts + completions:
        return None
    return Reason(
        "prompt_unknown",
        f"the trainer counted {counted - completions} tokens of prompts, and their text gives {prompts}: another chat "
        "template, tools, or a system prompt were part of them",
    )


def other_texts(rollouts: Sequence[Rollout], tokenizer: Any) -> tuple[int, ...]:
    """Rows whose text is another one than their logged ids say, by the tokenizer that reads most of the others back.

    Args:
        tokenizer: A tokenizer of transformers; None: nothing can be told.

    Returns:
        Rows of the log.
    """
    known = [rollout for rollout in rollouts if rollout.completion_ids and rollout.completion and rollout.mask is None]
    if tokenizer is None or not known:
        return ()
    other = tuple(rollout.row for rollout in known if not _reads_back(rollout, tokenizer))
    return other if 2 * len(other) <= len(known) else ()


def _reads_back(rollout: Rollout, tokenizer: Any) -> bool:
    texts = (tokenizer.decode(rollout.completion_ids, skip_special_tokens=skip) for skip in (True, False))
    return any(text.split() == rollout.completion.split() for text in texts)


def _logged_prompts(run: Run, step: int) -> bool:
    return all(rollout.prompt_ids is not None for group in run.groups_at(step) for rollout in group.rollouts)
