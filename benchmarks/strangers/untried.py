"""Kinds of runs that were tried last: what a run meets between its steps, beside its loss, and on its disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.strangers.architectures import MODELS, ONE_MICRO_BATCH
from benchmarks.strangers.case import Case, Folders
from benchmarks.strangers.combined import BETA, MEANS, MIXED_LENGTHS
from benchmarks.strangers.folders import LORA, lora
from benchmarks.strangers.losses import GSPO, TWICE
from benchmarks.strangers.spoiled import edit
from benchmarks.strangers.texts import CHAT, masked_rollouts, with_mask
from benchmarks.strangers.words import by_length, scores

AXIS = "untried"
NTK = {"model": MODELS["llama, dynamic scaling, beyond"], "prompts": MIXED_LENGTHS}
SHRINKING = tuple(
    " ".join(f"w{3 + (i + j) % 29}" for j in range(length)) for i, length in enumerate((9, 8, 3, 2, 2, 1))
)
EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2}


def trainer_of(name: str, module: str = "trl") -> Callable[[], tuple[Any, Any]]:
    """Another of TRL's trainers and its arguments' class."""

    def load() -> tuple[Any, Any]:
        from importlib import import_module

        found = import_module(module)
        return getattr(found, f"{name}Trainer"), getattr(found, f"{name}Config")

    return load


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


def second_adapter(kind: Callable[[], Any], active: str) -> Callable[[Any, Folders], Any]:
    """A model with two adapters, of which one is trained."""

    def prepare(model: Any, folders: Folders) -> Any:
        from peft import get_peft_model

        adapted = get_peft_model(model, lora()())
        adapted.add_adapter("second", kind())
        adapted.set_adapter(active)
        return adapted

    return prepare


def alora(*tokens: int) -> Callable[[], Any]:
    """An adapter that acts from its invocation tokens on."""
    return lora(**{**LORA, "alora_invocation_tokens": list(tokens)})


def rows(change: Callable[[Any], Any]) -> Callable[[Folders], None]:
    """A change of the rows of step 1."""

    def spoil(folders: Folders) -> None:
        import pandas as pd  # type: ignore[import-untyped]

        change(pd.read_parquet(folders.completions(1))).to_parquet(folders.completions(1))

    return spoil


def texts_exchanged(table: Any) -> None:
    """The texts of two rollouts, their ids left where they were."""
    low, high = table["advantage"].idxmin(), table["advantage"].idxmax()
    first, second = table["completion"][low], table["completion"][high]
    table.at[low, "completion"], table.at[high, "completion"] = second, first


def without_log(folders: Folders) -> None:
    """The norm went to a dashboard alone."""
    for file in folders.run.rglob("trainer_state.json"):
        state = json.loads(file.read_text())
        state["log_history"] = []
        file.write_text(json.dumps(state))


def _exchanged(table: Any) -> Any:
    order = list(range(len(table)))
    order[0], order[-1] = order[-1], order[0]
    return table.iloc[order].reset_index(drop=True)


def _resumed() -> Mapping[str, Mapping[str, Any]]:
    four: Mapping[str, Any] = {"max_steps": 4}
    return {
        "resumed, lora": {"args": four, "peft": lora(), "saved": "trainer"},
        "resumed, two iterations": {"args": {**four, "num_iterations": 2}},
        "resumed, accumulation of 4": {
            "args": {**four, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
        },
        "resumed, chat, warm-up": {"args": {**four, "warmup_steps": 3}, "tokenizer": CHAT},
        "resumed, logging_steps = 2": {"args": {**four, "logging_steps": 2}, "partly": MEANS},
        "resumed, gspo, beta": {"args": {**four, **GSPO, **BETA}},
        "resumed, no W0": {"args": four, "saved": "nothing", "at": {1: "cannot"}, "word": "--initial"},
    }


def _in_bf16() -> Mapping[str, Mapping[str, Any]]:
    return {
        "bf16, resumed": {"args": {"bf16": True, "max_steps": 4}, "stops_after": 2},
        "bf16, dynamic rope, shrinking": {**NTK, "prompts": SHRINKING, "args": {"bf16": True, "max_steps": 3}},
        "dynamic rope, shrinking, beta": {**NTK, "prompts": SHRINKING, "args": {"max_steps": 3, **BETA}},
        "bf16, two adapters": {
            "prepare": second_adapter(lora(), "default"),
            "saved": "trainer",
            "args": {"bf16": True},
        },
        "bf16, names alike": {
            "rewards": named_alike(1.0, 0.5),
            "args": {"bf16": True},
            "partly": (*MEANS, "advantage"),
        },
    }


def _exact() -> Mapping[str, Mapping[str, Any]]:
    alike = {"partly": (*MEANS, "advantage")}
    return {
        "evaluated on start and at the end": {
            "args": {"eval_strategy": "steps", "eval_steps": 5, "eval_on_start": True},
            "at": {2: "cannot"},
            "word": "not in the report",
            "oracle": False,
        },
        "torch.compile": {"args": {"torch_compile": True, "torch_compile_backend": "eager"}},
        "torch.compile, lora": {
            "args": {"torch_compile": True, "torch_compile_backend": "eager"},
            "peft": lora(),
            "saved": "trainer",
        },
        "two adapters": {"prepare": second_adapter(lora(), "default"), "saved": "trainer"},
        "two adapters, the second active": {
            "prepare": second_adapter(lora(r=2), "second"),
            "saved": "trainer",
            "oracle": False,
        },
        "two adapters, of two scales": {
            "prepare": second_adapter(lora(r=5, use_rslora=True), "default"),
            "saved": "trainer",
        },
        "two adapters, two iterations": {
            "prepare": second_adapter(lora(r=2), "default"),
            "saved": "trainer",
            "args": TWICE,
        },
        "mask of an environment, gspo": {**_masked(), "args": GSPO},
        "mask of an environment, beta": {**_masked(), "args": BETA},
        "mask of an environment, two iterations": {**_masked(), "args": TWICE},
        "names alike": {"rewards": named_alike(1.0, 0.5), **alike},
        "names alike, three": {"rewards": named_alike(1.0, 0.5, -0.3), **alike},
        "names alike, weights": {"rewards": named_alike(1.0, 0.5), "args": {"reward_weights": [0.2, 2.0]}, **alike},
        "names alike, scale none": {"rewards": named_alike(1.0, 0.5), "args": {"scale_rewards": "none"}, **alike},
        "names alike, and another": {"rewards": (*named_alike(1.0, 0.5), by_length), **alike},
        "dynamic rope, shrinking": {**NTK, "prompts": SHRINKING, "args": {"max_steps": 4}},
        "dynamic rope, shrinking, two iterations": {**NTK, "prompts": SHRINKING, "args": {**TWICE, "max_steps": 4}},
        "dynamic rope, mixed, lora": {**NTK, "peft": lora(), "saved": "trainer", "args": {"max_steps": 4}},
        "pissa, beta, four steps": {
            "peft": lora(init_lora_weights="pissa"),
            "saved": "trainer",
            "args": {**BETA, "max_steps": 4},
        },
        "pissa, all linear, beta, two iterations": {
            "peft": lora(init_lora_weights="pissa", target_modules="all-linear"),
            "saved": "trainer",
            "args": {**TWICE, **BETA, "max_steps": 4},
        },
        "olora, beta, four steps": {
            "peft": lora(init_lora_weights="olora"),
            "saved": "trainer",
            "args": {**BETA, "max_steps": 4},
        },
        "dora, pissa, beta": {
            "peft": lora(init_lora_weights="pissa", use_dora=True),
            "saved": "trainer",
            "args": {**BETA, "max_steps": 3},
        },
        "aLoRA, its tokens in some prompts": {"peft": alora(5), "saved": "trainer"},
        "top entropy, of equal prompts": {
            "prompts": ("w3 w4",) * 8,
            "args": {"top_entropy_quantile": 0.5, **ONE_MICRO_BATCH},
        },
        "top entropy of a fifth, gspo": {"args": {"top_entropy_quantile": 0.2, **GSPO, **ONE_MICRO_BATCH}},
    }


def _masked() -> dict[str, Any]:
    return {"trainer": {"rollout_func": masked_rollouts(logs=True)}, "rewards": (with_mask,)}


def _cannot() -> Mapping[str, Mapping[str, Any]]:
    later = {"unjudged": (2,)}
    return {
        "NEFTune": {"args": {"neftune_noise_alpha": 5.0}, "word": "neftune|noise"},
        "NEFTune, lora": {
            "args": {"neftune_noise_alpha": 5.0},
            "peft": lora(),
            "saved": "trainer",
            "word": "neftune|noise",
        },
        "RLOO": {
            "trainer_class": trainer_of("RLOO"),
            "args": {"num_generations": 4},
            "rewards": (lambda completion_ids, **_: scores(completion_ids),),
            "word": "rloo",
        },
        "GMPO": {"trainer_class": trainer_of("GMPO", "trl.experimental.gmpo"), "word": "gmpo"},
        "GMPO, lora": {
            "trainer_class": trainer_of("GMPO", "trl.experimental.gmpo"),
            "peft": lora(),
            "saved": "trainer",
            "word": "gmpo",
        },
        "the norm on a dashboard alone": {"spoil": without_log, "word": "logged", "partly": (*MEANS, "advantage")},
        "a lost row": {"spoil": rows(lambda table: table.drop(index=3)), "word": "not in the report", **later},
        "a doubled row": {
            "spoil": rows(lambda table: table.iloc[[0, 0, *range(1, len(table))]]),
            "word": "not in the report",
            **later,
        },
        "two lost rows, lora": {
            "spoil": rows(lambda table: table.iloc[1:-1]),
            "peft": lora(),
            "saved": "trainer",
            "word": "not in the report",
            **later,
        },
        "evaluated at every step": {"args": EVALUATED, "word": "evaluation|not in the report", "partly": MEANS},
        "evaluated at every step, beta": {
            "args": {**EVALUATED, **BETA},
            "word": "evaluation|not in the report",
            "partly": MEANS,
        },
        "float16 under a scaled loss": {"args": {"fp16": True}, "word": "float16|fp16"},
    }


def _others() -> list[Case]:
    """What is neither exact nor refused."""
    no_gradient: dict[str, Any] = {"axis": AXIS, "expect": "no_gradient", "rank": "any"}
    wrong: dict[str, Any] = {"axis": AXIS, "expect": "mismatch", "oracle": False, "unjudged": (2,)}
    rounding: dict[str, Any] = {"axis": AXIS, "rank": "any", "partly": MEANS}
    return [
        Case(name="aLoRA, its tokens nowhere", peft=alora(30, 31), saved="trainer", oracle=False, **no_gradient),
        Case(name="all grades equal, sums exact", rewards=(graded(0.5),), **no_gradient),
        Case(name="all grades equal, lora", rewards=(graded(1.0),), peft=lora(), saved="trainer", **no_gradient),
        Case(name="grades of .41666 by rounding", rewards=(graded(0.41666, 2),), **rounding),
        Case(
            name="grades of .41666 by rounding, groups of eight",
            rewards=(graded(0.41666, 4),),
            args={"num_generations": 8},
            **rounding,
        ),
        Case(
            name="grades of .7 by rounding, scale batch",
            rewards=(graded(0.7, 2),),
            args={"scale_rewards": "batch"},
            **rounding,
        ),
        Case(
            name="grades of .1 by rounding, lora", rewards=(graded(0.1, 2),), peft=lora(), saved="trainer", **rounding
        ),
        Case(name="texts of two rollouts exchanged", spoil=edit(texts_exchanged), **wrong),
        Case(
            name="texts of two rollouts exchanged, lora",
            spoil=edit(texts_exchanged),
            peft=lora(),
            saved="trainer",
            **wrong,
        ),
        Case(name="rows of two groups exchanged", spoil=rows(_exchanged), **wrong),
        Case(
            name="names alike, an advantage edited",
            rewards=named_alike(1.0, 0.5),
            spoil=edit(lambda table: table.__setitem__("advantage", table["advantage"] * 1.5)),
            **wrong,
        ),
    ]


def untried_cases() -> list[Case]:
    """All of them."""
    within: dict[str, Any] = {"axis": AXIS, "expect": "match_within", "rank": "match"}
    cannot: dict[str, Any] = {"axis": AXIS, "expect": "cannot", "oracle": False, "rank": "any"}
    return [
        *(Case(name=name, axis=AXIS, stops_after=2, **case) for name, case in _resumed().items()),
        *(Case(name=name, axis=AXIS, **case) for name, case in _exact().items()),
        *(Case(name=name, **within, **case) for name, case in _in_bf16().items()),
        *(Case(name=name, **{**cannot, **case}) for name, case in _cannot().items()),
        *_others(),
    ]
