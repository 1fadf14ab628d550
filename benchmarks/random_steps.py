"""What is timed: steps of a Qwen3 with random weights whose rollouts are random ids."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

Ids = tuple[int, ...]
DEFAULTS = {"vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 8192}


def random_policy(sizes: dict[str, Any], trained: str, dtype: str, device: Any) -> Any:
    """A policy on a device from the start, all of it trained or, of ``lora``, rank 16 on every linear layer."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from gradscope.gradients.model.policy import MeasuredPolicy, coarsest_dtype

    torch.manual_seed(0)
    config = Qwen3Config(**{**DEFAULTS, **sizes})
    with torch.device(device):
        model: Any = Qwen3ForCausalLM._from_config(config, dtype=getattr(torch, dtype)).eval()
        if trained == "lora":
            adapter = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = get_peft_model(model, adapter).eval()
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "lora_B" in name:  # a fresh adapter's is zero, and so is half of its gradient
                        parameter.normal_(std=0.01)
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return MeasuredPolicy(
        model=model,
        tokenizer=None,
        trainable=trainable,
        kind="adapter" if trained == "lora" else "full",
        device=next(iter(trainable.values())).device,
        dtype=coarsest_dtype(model),
    )


def random_step(policy: Any, completions: Sequence[int], prompt: int, group_size: int) -> Any:
    """A step ready to measure: rollouts of so many tokens each, those of a group behind one prompt."""
    from gradscope.gradients.plan.objective import Objective
    from gradscope.gradients.plan.prepared_step import prepare_step

    rng, vocab = np.random.default_rng(0), policy.vocab_size

    def ids(number: int) -> Ids:
        return tuple(rng.integers(0, vocab, number).tolist())

    rollouts: list[tuple[Ids, Ids, float]] = []
    for first in range(0, len(completions), group_size):
        shared = ids(prompt)
        rollouts += [(shared, ids(number), float(rng.normal())) for number in completions[first : first + group_size]]
    return prepare_step(policy, groups_of(rollouts, group_size), Objective(loss_type="dapo"))


def groups_of(rollouts: Sequence[tuple[Ids, Ids, float | None]], size: int) -> list[Any]:
    """Prompts, completions and advantages as the groups of a log."""
    from gradscope.rollouts.groups import Rollout, RolloutGroup

    return [
        RolloutGroup(
            step=1,
            group_id=f"g{first}",
            prompt_id=f"p{first}",
            rollouts=tuple(
                Rollout(
                    group_id=f"g{first}",
                    sample=sample,
                    row=first + sample,
                    prompt="",
                    completion="",
                    prompt_ids=prompt,
                    completion_ids=completion,
                    reward=float(sample % 2),
                    advantage=advantage,
                )
                for sample, (prompt, completion, advantage) in enumerate(rollouts[first : first + size])
            ),
        )
        for first in range(0, len(rollouts), size)
    ]


def product_flops(policy: Any, tokens: int, predicted: int) -> float:
    """Operations of a plain pass in linear layers: forward, backward, and gradients of what is trained.

    Args:
        tokens: That run through the layers.
        predicted: Those of them that the output layer sees.
    """
    import torch

    trained = {id(parameter) for parameter in policy.trainable.values()}
    flops = 0.0
    for layer in (module for module in policy.model.modules() if isinstance(module, torch.nn.Linear)):
        positions = predicted if layer.out_features == policy.vocab_size else tokens
        flops += 2.0 * (3 if id(layer.weight) in trained else 2) * positions * layer.weight.numel()
    return flops
