"""How prompts and completions became ids: templates, tools, environments, padding tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.strangers.case import Case
from benchmarks.strangers.models import of
from benchmarks.strangers.words import (
    EOS_TEMPLATE,
    KEYWORD_TEMPLATE,
    OTHER_TEMPLATE,
    PLAIN_RESPONSE,
    TEMPLATE,
    TOOL_TEMPLATE,
    WORDS,
    TokenizerChoice,
    by_ids,
    scores,
    unlogged,
)

CHAT = TokenizerChoice(chat=True, saved_template=TEMPLATE)
PAD_IS_EOS = TokenizerChoice(has_pad=False)
NO_KEYS: dict[str, Any] = {"num_key_value_heads": None, "head_dim": None}


def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: The number.

    Returns:
        Its double.
    """
    return 2 * number


def masked_rollouts(*, logs: bool) -> Callable[..., dict[str, Any]]:
    """A rollout function whose completions hold two tokens of an environment, which the loss leaves out."""

    def roll(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        ids = trainer.processing_class(text=list(prompts))["input_ids"]
        drawn, _ = trainer._generate_single_turn(ids, None, {}, trainer.num_generations)
        completions = [[*one[:2], 20, 21, *one[2:6]] for one in drawn]
        masks = [[1] * len(one[:2]) + [0, 0] + [1] * len(one[2:6]) for one in drawn]
        found = {"prompt_ids": ids, "completion_ids": completions, "logprobs": None, "env_mask": masks}
        return {**found, "completion_mask": masks} if logs else found

    return roll


def with_mask(
    completion_ids: Sequence[Sequence[int]], completion_mask: Sequence[Any], log_extra: Callable[..., None], **_: Any
) -> list[float]:
    """Logs ids and the mask that the rollout function returned."""
    log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
    log_extra("completion_mask", [list(map(int, mask)) for mask in completion_mask])
    return scores(completion_ids)


def with_prompts(
    prompts: Sequence[Any], completion_ids: Sequence[Sequence[int]], log_extra: Callable[..., None], **_: Any
) -> list[float]:
    """Logs ids of completions and of prompts, which it renders as the trainer does: the schema of the tool first."""
    log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
    log_extra("prompt_ids", [[14, 15, 16, 5, *_numbers(prompt[-1]["content"]), 6, 7] for prompt in prompts])
    return scores(completion_ids)


def _numbers(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def with_tools() -> dict[str, Any]:
    """A chat with one tool, whose schema stands before the conversation."""
    tokenizer = replace(CHAT, saved_template=TOOL_TEMPLATE, schema=PLAIN_RESPONSE)
    return {"tokenizer": tokenizer, "trainer": {"tools": [double]}}


def text_cases() -> list[Case]:
    """Tokenization."""
    chat_eos = replace(CHAT, has_pad=False, saved_template=EOS_TEMPLATE)
    return [
        Case(name="chat", axis="text", tokenizer=CHAT),
        Case(name="chat, template set in the script", axis="text", tokenizer=_scripted(None)),
        Case(name="chat, template changed in the script", axis="text", tokenizer=_scripted(OTHER_TEMPLATE)),
        Case(
            name="chat, template changed in the script, W0 by the trainer",
            axis="text",
            tokenizer=_scripted(OTHER_TEMPLATE),
            saved="trainer",
        ),
        Case(
            name="chat, chat_template_kwargs",
            axis="text",
            tokenizer=replace(CHAT, saved_template=KEYWORD_TEMPLATE),
            args={"chat_template_kwargs": {"thinking": True}},
        ),
        Case(
            name="tools",
            axis="text",
            **with_tools(),
            expect="cannot",
            word="tool",
            oracle=False,
        ),
        Case(
            name="tools, prompt_ids logged",
            axis="text",
            **with_tools(),
            rewards=(with_prompts,),
        ),
        Case(
            name="rollout_func with env_mask",
            axis="text",
            trainer={"rollout_func": masked_rollouts(logs=False)},
            expect="cannot",
            word="mask|environment",
            oracle=False,
            rank="any",
        ),
        Case(
            name="rollout_func with env_mask, mask logged",
            axis="text",
            trainer={"rollout_func": masked_rollouts(logs=True)},
            rewards=(with_mask,),
        ),
        *_of_padding(chat_eos),
        Case(name="tokenizer larger than the vocabulary", axis="text", tokenizer=replace(WORDS, size=40)),
        Case(name="tokenizer of another class than the model's", axis="text", model=of("qwen2", head_dim=None)),
        Case(
            name="text only",
            axis="text",
            rewards=(unlogged,),
            expect="cannot",
            word="inferred",
            oracle=False,
            rank="any",
        ),
        Case(
            name="text only, no --run-config",
            axis="text",
            rewards=(unlogged,),
            run_config=False,
            expect="cannot",
            oracle=False,
            rank="any",
        ),
        Case(name="no --run-config, defaults", axis="text", run_config=False),
        Case(
            name="no --run-config, another loss",
            axis="text",
            run_config=False,
            args={"loss_type": "grpo"},
            expect="cannot",
            word="--run-config",
            oracle=False,
            rank="any",
        ),
        Case(name="two functions, one logs ids", axis="text", rewards=(unlogged, by_ids)),
    ]


def _scripted(saved: str | None) -> TokenizerChoice:
    """A template of the script, beside the one that the base model has."""
    return TokenizerChoice(chat=True, saved_template=saved, script_template=TEMPLATE)


def _of_padding(chat_eos: TokenizerChoice) -> list[Case]:
    """Padding by EOS, which prompts then hold too: its embedding has a gradient or has none."""
    cases = [
        Case(name="pad = eos", axis="text", tokenizer=PAD_IS_EOS),
        Case(name="pad = eos, chat", axis="text", tokenizer=chat_eos),
        Case(name="pad = eos, chat, W0 by the trainer", axis="text", tokenizer=chat_eos, saved="trainer"),
    ]
    families = {
        "gpt_neox": of("gpt_neox", **NO_KEYS),
        "gptj": of("gptj", **NO_KEYS, intermediate_size=None, n_inner=48, rotary_dim=4),
        "mpt": of("mpt", **NO_KEYS, intermediate_size=None, d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
        "mamba": of("mamba", **NO_KEYS, intermediate_size=None, state_size=4, time_step_rank=4),
    }
    for kind, model in families.items():
        for saved in ("model", "trainer"):
            cases.append(
                Case(
                    name=f"pad = eos, chat, {kind}, W0 by the {saved}",
                    axis="text",
                    tokenizer=chat_eos,
                    model=model,
                    saved=saved,
                )
            )
    return cases
