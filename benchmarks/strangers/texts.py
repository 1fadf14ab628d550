"""Tokenizers of words, ragged prompts of them, rollouts of an environment, and reward functions that look at ids."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

VOCAB = 32
EOS = 1
SPECIAL = ("<pad>", "<eos>", "<unk>")
TEMPLATE = "{% for m in messages %}w5 {{ m['content'] }} w6 {% endfor %}{% if add_generation_prompt %}w7{% endif %}"
OTHER_TEMPLATE = (
    "{% for m in messages %}w8 w9 {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w10 w11{% endif %}"
)
EOS_TEMPLATE = (
    "{% for m in messages %}w5 {{ m['content'] }} <eos> {% endfor %}{% if add_generation_prompt %}w7{% endif %}"
)
KEYWORD_TEMPLATE = TEMPLATE.replace("w7{% endif", "w7{% if thinking %} w12 w13{% endif %}{% endif")
BOS_TEMPLATE = "w4 " + KEYWORD_TEMPLATE
TOOL_TEMPLATE = (
    "{% if tools %}{% for t in tools %}w14 w15 {{ 'w16' if t['function']['name'] == 'double' else 'w17' }} "
    "{% endfor %}{% endif %}{% for m in messages %}w5 {{ m['content'] }}{% for c in m.tool_calls or [] %} "
    "{{ c.function.name }} {{ c.function.arguments }}{% endfor %} w6 {% endfor %}"
    "{% if add_generation_prompt %}w7{% endif %}"
)
PLAIN_RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "w7",
    "fields": {"content": {"close_pattern": r"<eos>\s*$", "content": "text"}},
}


class TokenizerChoice(Struct, frozen=True, kw_only=True):
    """How the words of a run become ids."""

    size: int = VOCAB  # words of the tokenizer
    of_qwen2: bool = False  # whether it is a small one of Qwen2's own class, of letters; else of words
    has_pad: bool = True  # whether it has a padding token; else TRL takes EOS
    bos: bool = False  # whether every text begins with the word w4
    saved_template: str | None = None  # the chat template that is saved beside the base model
    script_template: str | None = None  # the chat template that the script sets afterwards
    chat: bool = False  # whether prompts are conversations
    schema: Mapping[str, Any] = {}  # how responses are parsed, which TRL's tools need


WORDS = TokenizerChoice()


def build_tokenizer(choice: TokenizerChoice) -> Any:
    """The tokenizer as it is saved beside the base model."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

    if choice.of_qwen2:
        letters = {one: number for number, one in enumerate([*SPECIAL, "w", "Ġ", "Ġw", *"0123456789abcdefghijklmnop"])}
        named = {"unk_token": "<unk>", "eos_token": "<eos>", "pad_token": "<pad>"}
        return Qwen2Tokenizer(vocab=letters, merges=[("Ġ", "w")], **named)
    words = [*SPECIAL, *(f"w{number}" for number in range(3, choice.size))]
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>"} if choice.has_pad else {}
    if choice.bos:
        special["bos_token"] = "w4"
        core.post_processor = processors.TemplateProcessing(single="w4 $A", special_tokens=[("w4", 4)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>", **special)
    if choice.saved_template:
        tokenizer.chat_template = choice.saved_template
    if choice.schema:
        tokenizer.response_template = dict(choice.schema)
    return tokenizer


def prompts(choice: TokenizerChoice) -> list[Any]:
    """Sixteen prompts of two to seven words."""
    texts = [" ".join(f"w{3 + (7 * i + 5 * j) % 29}" for j in range(2 + i % 6)) for i in range(16)]
    return [[{"role": "user", "content": text}] for text in texts] if choice.chat else list(texts)


def by_ids(completion_ids: Sequence[Sequence[int]], log_extra: Callable[..., None], **_: Any) -> list[float]:
    """A number that depends on the ids, which it logs."""
    log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
    return scores(completion_ids)


def scores(completion_ids: Sequence[Sequence[int]]) -> list[float]:
    """0, 0.5 or 1."""
    return [sum(ids) % 3 / 2 for ids in completion_ids]


def unlogged(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """A number that depends on the ids, which nobody logs."""
    return scores(completion_ids)


def by_length(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """How many tokens there are."""
    return [len(ids) / 10 for ids in completion_ids]


def sometimes_none(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float | None]:
    """None for a part of the completions."""
    return [None if sum(ids) % 4 == 0 else float(ids[0] % 2) for ids in completion_ids]


def mostly_scored(
    completion_ids: Sequence[Sequence[int]], log_extra: Callable[..., None], **_: Any
) -> list[float | None]:
    """None for a part of the completions, which are then not scored at all."""
    log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
    return [None if sum(ids) % 4 == 0 else float(sum(ids) % 3) for ids in completion_ids]


def always_none(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[None]:
    """A function that never applies."""
    return [None for _ in completion_ids]


def constant(completion_ids: Sequence[Sequence[int]], log_extra: Callable[..., None], **_: Any) -> list[float]:
    """The same for all: no group has a gradient."""
    log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
    return [1.0 for _ in completion_ids]


def half_dead(completion_ids: Sequence[Sequence[int]], log_extra: Callable[..., None], **_: Any) -> list[float]:
    """The first group's are all the same."""
    log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
    return [1.0 if place < 4 else score for place, score in enumerate(scores(completion_ids))]


def named_alike(*weights: float) -> tuple[Callable[..., Any], ...]:
    """Reward functions of one name, as a factory makes them; the first logs the ids."""

    def build(place: int, weight: float) -> Callable[..., Any]:
        def reward(completion_ids: Sequence[Sequence[int]], log_extra: Callable[..., None], **_: Any) -> list[float]:
            if place == 0:
                log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
            return [weight * ((sum(ids) + place) % (3 + place)) for ids in completion_ids]

        return reward

    return tuple(build(place, weight) for place, weight in enumerate(weights))


def graded(value: float, share: int = 0) -> Callable[..., Any]:
    """A judge that gives the same grade to all, but for every ``share``-th group."""

    def judge(completion_ids: Sequence[Sequence[int]], log_extra: Callable[..., None], **_: Any) -> list[float]:
        log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
        live = [bool(share) and place // 4 % share == share - 1 for place in range(len(completion_ids))]
        return [score if alive else value for score, alive in zip(scores(completion_ids), live, strict=True)]

    return judge


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
