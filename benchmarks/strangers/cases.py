"""All runs: those of cases.yaml, which says how each differs from the common one, and combinations drawn by a seed."""

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.strangers import models, spoil, texts
from benchmarks.strangers.case import Case, Folders
from benchmarks.strangers.models import frozen_embeddings, frozen_first_layer, lora, of, peft_of
from benchmarks.strangers.texts import WORDS, TokenizerChoice, mostly_scored

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "twice": {"num_iterations": 2, "max_steps": 3, "learning_rate": 0.02},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "beta": {"beta": 0.3},
    "one_micro_batch": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
    "micro_batches_of_two": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    "bf16": {"bf16": True},
}
TEMPLATES = {
    "plain": texts.TEMPLATE,
    "other": texts.OTHER_TEMPLATE,
    "eos": texts.EOS_TEMPLATE,
    "keyword": texts.KEYWORD_TEMPLATE,
    "bos": texts.BOS_TEMPLATE,
    "tool": texts.TOOL_TEMPLATE,
}
TOKENIZERS = {
    "chat": TokenizerChoice(chat=True, saved_template=texts.TEMPLATE),
    "chat_eos": TokenizerChoice(chat=True, has_pad=False, saved_template=texts.EOS_TEMPLATE),
    "pad_is_eos": TokenizerChoice(has_pad=False),
    "tools": TokenizerChoice(chat=True, saved_template=texts.TOOL_TEMPLATE, schema=texts.PLAIN_RESPONSE),
}
ONE_TOKEN = tuple(f"w{number}" for number in range(3, 15))
PROMPTS: Mapping[str, tuple[Any, ...]] = {
    "one_token": ONE_TOKEN,
    "five_of_one_token": ONE_TOKEN[:5],
    "equal": ("w3 w4",) * 8,
    "forty": tuple(f"w{3 + n % 29} w{3 + n // 2}" for n in range(40)),
    "mixed_lengths": ("w3", " ".join(f"w{3 + number}" for number in range(20)), "w9 w10", "w11", "w12 w13 w14"),
    "shrinking": tuple(
        " ".join(f"w{3 + (i + j) % 29}" for j in range(length)) for i, length in enumerate((9, 8, 3, 2, 2, 1))
    ),
    "talks": tuple(
        [{"role": "system", "content": "w20 w21"}, {"role": "user", "content": text}]
        for text in ("w3 w4", "w5", "w6 w7 w8 w9", "w10 w11 w12", "w13 w14", "w30")
    ),
}
MORE_OF_THE_TRAINER: Mapping[str, Mapping[str, Any]] = {
    "tools": {"tools": [texts.double]},
    "masked_rollouts": {"rollout_func": texts.masked_rollouts(logs=False)},
    "masked_rollouts_logged": {"rollout_func": texts.masked_rollouts(logs=True)},
}
PARTLY = {
    "means": ("reward", "frac_reward_zero_std"),
    "means and advantages": ("reward", "frac_reward_zero_std", "advantage"),
}
DOCUMENT: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
OF_THAT_NAME = "of that name"


def _model(value: Any) -> Callable[[], Any]:
    if value == "llama, bf16":
        return lambda: of("llama")().bfloat16()
    return of(**(DOCUMENT["models"][value] if isinstance(value, str) else value))


def _adapter(value: Any) -> Callable[[], Any]:
    changes = dict(DOCUMENT["adapters"][value] if isinstance(value, str) else value)
    return peft_of(changes.pop("config"), **changes) if "config" in changes else lora(**changes)


def _arguments(value: Any) -> dict[str, Any]:
    parts = [
        ARGUMENTS[part] if isinstance(part, str) else part for part in (value if isinstance(value, list) else [value])
    ]
    return {name: setting for part in parts for name, setting in part.items()}


def _tokenizer(value: Any) -> TokenizerChoice:
    if isinstance(value, str):
        return TOKENIZERS[value]
    return TokenizerChoice(
        **{name: TEMPLATES[one] if name.endswith("template") else one for name, one in value.items()}
    )


def _rewards(values: list[Any]) -> tuple[Callable[..., Any], ...]:
    functions: list[Callable[..., Any]] = []
    for value in values:
        if isinstance(value, str):
            functions.append(getattr(texts, value))
        elif "graded" in value:
            functions.append(texts.graded(*value["graded"]))
        else:
            functions += texts.named_alike(*value["named_alike"])
    return tuple(functions)


def _prepare(value: Any) -> Callable[[Any, Folders], Any]:
    if isinstance(value, str):
        return getattr(models, value)  # type: ignore[no-any-return]
    changes, active = value["second_adapter"]
    return models.second_adapter(lora(**changes), active)


def _spoil(value: Any) -> Callable[[Folders], None]:
    if isinstance(value, dict):
        ((kind, file),) = value.items()
        return partial(getattr(spoil, kind), file)
    if value in spoil.TABLES:
        return partial(spoil.edit, spoil.TABLES[value])
    return getattr(spoil, value)  # type: ignore[no-any-return]


READ: Mapping[str, Callable[[Any], Any]] = {
    "model": _model,
    "peft": _adapter,
    "args": _arguments,
    "tokenizer": _tokenizer,
    "rewards": _rewards,
    "prompts": PROMPTS.__getitem__,
    "prepare": _prepare,
    "trainer": MORE_OF_THE_TRAINER.__getitem__,
    "trainer_class": lambda value: models.trainer_of(*value),
    "spoil": _spoil,
    "partly": PARTLY.__getitem__,
    "unjudged": tuple,
}


def declared_cases() -> list[Case]:
    """Those of cases.yaml."""
    cases = []
    for section in DOCUMENT["sections"]:
        for name, own in section["cases"].items():
            fields = {**section["common"], **own}
            if fields.get("model") == OF_THAT_NAME:
                fields["model"] = name
            cases.append(
                Case(name=name, **{field: READ.get(field, _as_it_is)(value) for field, value in fields.items()})
            )
    return cases


def _as_it_is(value: Any) -> Any:
    return value


NUM_SEEDED = 40
FAMILIES = (
    *("llama", "qwen3", "gpt2", "opt", "gpt_neox", "gemma2, soft caps", "cohere", "granite"),
    *("llama, dynamic scaling, beyond", "phi3, longrope, beyond", "mamba2", "falcon_h1", "gpt_neo", "bloom"),
    *("mixtral with router loss", "tied llama"),
)
OTHERWISE_NAMED = {"mixtral with router loss": "mixtral, router loss", "tied llama": "llama, tied"}
WITHOUT_ADAPTER = ("gpt2", "mamba2", "falcon_h1")  # PEFT has none of its adapters on all of their linear layers
LOSSES: tuple[Mapping[str, Any], ...] = (
    *({}, {"loss_type": "grpo"}, {"loss_type": "dr_grpo"}, {"loss_type": "cispo"}, {"loss_type": "sapo"}),
    *({"loss_type": "luspo", "importance_sampling_level": "sequence"}, {"loss_type": "vespo"}, ARGUMENTS["gspo"]),
)
ADAPTERS: tuple[Callable[[], Any] | None, ...] = (
    None,
    None,
    lora(target_modules="all-linear"),
    lora(target_modules="all-linear", use_rslora=True),
    peft_of("LoHaConfig", r=2, target_modules="all-linear"),
)
MORE: tuple[Mapping[str, Any], ...] = (
    {},
    {"mask_truncated_completions": True},
    {"temperature": 0.5},
    {"pad_to_multiple_of": 8},
    {"gradient_checkpointing": True},
    {"max_grad_norm": 1e-3, "warmup_steps": 1},
    {"scale_rewards": "batch"},
    ARGUMENTS["micro_batches_of_two"],
    {"num_generations": 2},
    {"top_entropy_quantile": 0.6, **ARGUMENTS["one_micro_batch"]},
    {"entropy_coef": 0.1, **ARGUMENTS["one_micro_batch"]},
    {"optim": "adafactor"},
    {"cast_lm_head_to_fp32": True},
)
TOKENIZATIONS = (WORDS, WORDS, TOKENIZERS["chat"], TOKENIZERS["chat_eos"], TokenizerChoice(bos=True))


def drawn_case(seed: int) -> Case:
    """A combination that nobody chose: settings drawn from every axis."""
    draw = random.Random(seed)
    family, adapter = draw.choice(FAMILIES), draw.choice(ADAPTERS)
    adapter = None if family in WITHOUT_ADAPTER else adapter
    dtype, bf16 = draw.choice((("float32", False), ("float32", False), ("float32", True), ("bfloat16", True)))
    arguments = {
        **draw.choice(LOSSES),
        **draw.choice(({}, {"beta": 0.2})),
        **draw.choice(({}, ARGUMENTS["twice"])),
        **draw.choice(MORE),
        "bf16": bf16,
    }
    if arguments.get("cast_lm_head_to_fp32") and family not in ("llama", "qwen3"):
        arguments["cast_lm_head_to_fp32"] = False
    freeze = None if adapter else draw.choice((None, None, frozen_embeddings, frozen_first_layer))
    if freeze is frozen_first_layer and family not in ("llama", "qwen3", "tied llama"):
        freeze = None
    exact = not bf16 and (family != "mixtral with router loss" or arguments.get("gradient_accumulation_steps") == 1)
    return Case(
        name=f"{seed:02} {family}",
        axis="seeded",
        model=_model(OTHERWISE_NAMED.get(family, family)),
        dtype=dtype,
        peft=adapter,
        prepare=freeze,
        args=arguments,
        tokenizer=draw.choice(TOKENIZATIONS),
        rewards=draw.choice(((), (), (mostly_scored,))),
        saved="trainer" if adapter else draw.choice(("model", "trainer")),
        expect="match" if exact else "match_within",
        rank="match" if dtype == "float32" else "as replay",
    )


CASES = [*declared_cases(), *map(drawn_case, range(NUM_SEEDED))]
