"""All runs: those of cases.yaml, which says how each differs from the common one, and combinations drawn by a seed."""

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from benchmarks.strangers import models, spoil, texts
from benchmarks.strangers.case import Case
from benchmarks.strangers.texts import TokenizerChoice

DOCUMENT: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
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


def _from(table: str, value: Any) -> Any:
    """What has that name in a table of the document; what is no name is itself."""
    return DOCUMENT[table][value] if isinstance(value, str) else value


def _arguments(value: Any) -> dict[str, Any]:
    """A bundle's, some of one's own, or those of a list of both, of which later ones win."""
    parts = map(_arguments, value) if isinstance(value, list) else [_from("arguments", value)]
    return {name: setting for part in parts for name, setting in part.items()}


def _tokenizer(value: Any) -> TokenizerChoice:
    return TokenizerChoice(**_from("tokenizers", value))


def _named(module: ModuleType, value: Any) -> Any:
    """A function of a module by its name, or what one makes of some arguments, as in ``{graded: [0.5]}``."""
    if isinstance(value, str):
        return getattr(module, value)
    ((name, arguments),) = value.items()
    return getattr(module, name)(*arguments)


def _rewards(values: list[Any]) -> tuple[Callable[..., Any], ...]:
    made = (_named(texts, value) for value in values)
    return tuple(function for one in made for function in (one if isinstance(one, tuple) else (one,)))


def _spoil(value: Any) -> Callable[[Any], None]:
    """By the name of a function, by a list of it and its arguments, or by the name of a falsehood of a table."""
    name, *more = value if isinstance(value, list) else ("edit", value) if value in spoil.TABLES else (value,)
    return partial(getattr(spoil, name), *more)


READ: Mapping[str, Callable[[Any], Any]] = {
    "model": partial(_from, "models"),
    "peft": partial(_from, "adapters"),
    "partly": lambda name: tuple(DOCUMENT["partly"][name]),
    "args": _arguments,
    "tokenizer": _tokenizer,
    "rewards": _rewards,
    "prompts": PROMPTS.__getitem__,
    "prepare": partial(_named, models),
    "trainer": MORE_OF_THE_TRAINER.__getitem__,
    "spoil": _spoil,
}


def declared_cases() -> list[Case]:
    """Those of cases.yaml."""
    cases = []
    for section in DOCUMENT["sections"]:
        for name, own in section["cases"].items():
            fields = {**section["common"], **own}
            if fields.get("model") == "of that name":
                fields["model"] = name
            values = {field: READ[field](value) if field in READ else value for field, value in fields.items()}
            cases.append(Case(name=name, **values))
    return cases


NUM_SEEDED = 40
FAMILIES = (
    *("llama", "qwen3", "gpt2", "opt", "gpt_neox", "gemma2, soft caps", "cohere", "granite"),
    *("llama, dynamic scaling, beyond", "phi3, longrope, beyond", "mamba2", "falcon_h1", "gpt_neo", "bloom"),
    *("mixtral, router loss", "llama, tied"),
)
WITHOUT_ADAPTER = ("gpt2", "mamba2", "falcon_h1")  # PEFT has none of its adapters on all of their linear layers
LOSSES: tuple[Any, ...] = (
    *({}, {"loss_type": "grpo"}, {"loss_type": "dr_grpo"}, {"loss_type": "cispo"}, {"loss_type": "sapo"}),
    *({"loss_type": "luspo", "importance_sampling_level": "sequence"}, {"loss_type": "vespo"}, "gspo"),
)
ADAPTERS: tuple[Mapping[str, Any] | None, ...] = (
    None,
    None,
    {"target_modules": "all-linear"},
    {"target_modules": "all-linear", "use_rslora": True},
    {"config": "LoHaConfig", "r": 2, "target_modules": "all-linear"},
)
MORE: tuple[Any, ...] = (
    {},
    {"mask_truncated_completions": True},
    {"temperature": 0.5},
    {"pad_to_multiple_of": 8},
    {"gradient_checkpointing": True},
    {"max_grad_norm": 1e-3, "warmup_steps": 1},
    {"scale_rewards": "batch"},
    "micro_batches_of_two",
    {"num_generations": 2},
    ["one_micro_batch", {"top_entropy_quantile": 0.6}],
    ["one_micro_batch", {"entropy_coef": 0.1}],
    {"optim": "adafactor"},
    {"cast_lm_head_to_fp32": True},
)
TOKENIZATIONS = ({}, {}, "chat", "chat_eos", {"bos": True})


def drawn_case(seed: int) -> Case:
    """A combination that nobody chose: settings drawn from every axis."""
    draw = random.Random(seed)
    family, adapter = draw.choice(FAMILIES), draw.choice(ADAPTERS)
    adapter = None if family in WITHOUT_ADAPTER else adapter
    dtype, bf16 = draw.choice((("float32", False), ("float32", False), ("float32", True), ("bfloat16", True)))
    bundles = [draw.choice(some) for some in (LOSSES, ({}, {"beta": 0.2}), ({}, "twice"), MORE)]
    arguments = _arguments([*bundles, {"bf16": bf16}])
    if arguments.get("cast_lm_head_to_fp32") and family not in ("llama", "qwen3"):
        arguments["cast_lm_head_to_fp32"] = False
    freeze = None if adapter else draw.choice((None, None, models.frozen_embeddings, models.frozen_first_layer))
    if freeze is models.frozen_first_layer and family not in ("llama", "qwen3", "llama, tied"):
        freeze = None
    exact = not bf16 and (family != "mixtral, router loss" or arguments.get("gradient_accumulation_steps") == 1)
    return Case(
        name=f"{seed:02} {family}",
        axis="seeded",
        model=DOCUMENT["models"][family],
        dtype=dtype,
        peft=adapter,
        prepare=freeze,
        args=arguments,
        tokenizer=_tokenizer(draw.choice(TOKENIZATIONS)),
        rewards=draw.choice(((), (), (texts.mostly_scored,))),
        saved="trainer" if adapter else draw.choice(("model", "trainer")),
        expect="match" if exact else "match_within",
        rank="match" if dtype == "float32" else "as replay",
    )


CASES = [*declared_cases(), *map(drawn_case, range(NUM_SEEDED))]
