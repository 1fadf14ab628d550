"""Tokenizers of words, ragged prompts of them, rollouts of an environment, and reward functions that look at ids."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from msgspec import Struct

VOCAB = 32
EOS = 1
Ids = Sequence[Sequence[int]]  # a row a completion
SPECIAL = ("<pad>", "<eos>", "<unk>")
_PLAIN = "{% for m in messages %}w5 {{ m['content'] }} w6 {% endfor %}{% if add_generation_prompt %}w7{% endif %}"
_KEYWORD = _PLAIN.replace("w7{% endif", "w7{% if thinking %} w12 w13{% endif %}{% endif")
TEMPLATES = {
    "plain": _PLAIN,
    "other": _PLAIN.replace("w5", "w8 w9").replace(" w6", "").replace("w7", "w10 w11"),
    "eos": _PLAIN.replace("w6", "<eos>"),
    "keyword": _KEYWORD,
    "bos": f"w4 {_KEYWORD}",
    "tool": (
        "{% if tools %}{% for t in tools %}w14 w15 {{ 'w16' if t['function']['name'] == 'double' else 'w17' }} "
        "{% endfor %}{% endif %}{% for m in messages %}w5 {{ m['content'] }}{% for c in m.tool_calls or [] %} "
        "{{ c.function.name }} {{ c.function.arguments }}{% endfor %} w6 {% endfor %}"
        "{% if add_generation_prompt %}w7{% endif %}"
    ),
}
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
    saved_template: str = ""  # which of the chat templates is saved beside the base model
    script_template: str = ""  # which of them the script sets afterwards
    chat: bool = False  # whether prompts are conversations
    parses: bool = False  # whether it parses responses, which TRL's tools need


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
        tokenizer.chat_template = TEMPLATES[choice.saved_template]
    if choice.parses:
        tokenizer.response_template = dict(PLAIN_RESPONSE)
    return tokenizer


def prompts(choice: TokenizerChoice) -> list[Any]:
    """Sixteen prompts of two to seven words."""
    texts = [" ".join(f"w{3 + (7 * i + 5 * j) % 29}" for j in range(2 + i % 6)) for i in range(16)]
    return [[{"role": "user", "content": text}] for text in texts] if choice.chat else list(texts)


def logged(score: Callable[[Ids], list[Any]]) -> Callable[..., list[Any]]:
    """A reward function of the same name that looks at the ids and logs them."""

    @wraps(score)
    def reward(completion_ids: Ids, log_extra: Callable[..., None], **_: Any) -> list[Any]:
        log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
        return score(completion_ids)

    return reward


def scores(completion_ids: Ids) -> list[float]:
    """0, 0.5 or 1."""
    return [sum(ids) % 3 / 2 for ids in completion_ids]


@logged
def by_ids(completion_ids: Ids) -> list[float]:
    """A number that depends on the ids."""
    return scores(completion_ids)


def unlogged(completion_ids: Ids, **_: Any) -> list[float]:
    """The same number, but nobody logs the ids."""
    return scores(completion_ids)


def by_length(completion_ids: Ids, **_: Any) -> list[float]:
    """How many tokens there are."""
    return [len(ids) / 10 for ids in completion_ids]


def sometimes_none(completion_ids: Ids, **_: Any) -> list[float | None]:
    """None for a part of the completions."""
    return [None if sum(ids) % 4 == 0 else float(ids[0] % 2) for ids in completion_ids]


@logged
def mostly_scored(completion_ids: Ids) -> list[float | None]:
    """None for a part of the completions, which are then not scored at all."""
    return [None if sum(ids) % 4 == 0 else float(sum(ids) % 3) for ids in completion_ids]


def always_none(completion_ids: Ids, **_: Any) -> list[None]:
    """A function that never applies."""
    return [None for _ in completion_ids]


def named_alike(*weights: float) -> tuple[Callable[..., Any], ...]:
    """Reward functions of one name, as a factory makes them; the first logs the ids."""

    def build(place: int, weight: float) -> Callable[..., Any]:
        def reward(completion_ids: Ids, **_: Any) -> list[float]:
            return [weight * ((sum(ids) + place) % (3 + place)) for ids in completion_ids]

        return reward if place else logged(reward)

    return tuple(build(place, weight) for place, weight in enumerate(weights))


def graded(value: float, share: int = 0) -> Callable[..., Any]:
    """A judge that gives the same grade to all, but for every ``share``-th group."""

    @logged
    def judge(completion_ids: Ids) -> list[float]:
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


def with_mask(completion_mask: Ids, log_extra: Callable[..., None], **columns: Any) -> list[float]:
    """Logs ids and the mask that the rollout function returned."""
    log_extra("completion_mask", [list(map(int, mask)) for mask in completion_mask])
    return by_ids(log_extra=log_extra, **columns)


def with_prompts(prompts: Sequence[Any], log_extra: Callable[..., None], **columns: Any) -> list[float]:
    """Logs ids of completions and of prompts, which it renders as the trainer does: the schema of the tool first."""
    words = [prompt[-1]["content"].split() for prompt in prompts]
    log_extra("prompt_ids", [[14, 15, 16, 5, *(int(word[1:]) for word in asked), 6, 7] for asked in words])
    return by_ids(log_extra=log_extra, **columns)
