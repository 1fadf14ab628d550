"""Steps measured by several processes, or by one: ``python -m tests.gradients.engines.cases FOLDER``."""

import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import IA3Config
from torch import distributed
from transformers import LlamaConfig, LlamaForCausalLM

from gradscope.errors import GradscopeError
from gradscope.gradients.engines.exchange import add_slowly
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.model import head as head_module
from gradscope.gradients.model.head import plain_head
from gradscope.gradients.model.policy import MeasuredPolicy, load_measured_policy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.processes import all_reduce_sum, connected_index, connected_processes
from gradscope.gradients.trained.norms import TrainerArithmetic, tensor_squares, trained_norms, unchanged
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run import WeightsRef
from tests.gradients.adapters import KINDS, adapt_with, adapted, adapted_experts
from tests.gradients.heads import Largest, model_of
from tests.gradients.models import DAPO, changed, measured_step, tiny_groups, tiny_model

WITH_KL = Objective(loss_type="dapo", beta=0.1, use_bias_correction_kl=False)
HOT = Objective(loss_type="dapo", temperature=1.7)
WITH_ENTROPY = Objective(loss_type="dapo", entropy_coef=0.1, temperature=0.7)
ADAPTERS = ("embedding, tied", "head", "dora", "saved head", "head, tied")
LONG = {
    **{"vocab_size": 256, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32},
}
"""A Llama without biases, wide enough that its matrices are most of what is sent."""
MANY_WORDS = {**LONG, "vocab_size": 2048, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 128}
"""A Llama of whose tensors logits would be the largest by far."""
LLAMAS = {"long": LONG, "many words": MANY_WORDS}
COMPLETION = 80  # tokens of a completion of the model of many words
UNEVEN = {"model": "qwen3_gqa_norms", "groups": (1, 3), "batch_tokens": 1}
"""A case of which one of two processes has more batches than the other."""
CASES: dict[str, dict[str, Any]] = {
    "gpt2_tied_conv1d": {"model": "gpt2_tied_conv1d"},
    "tied, small batches": {"model": "qwen3_gqa_norms", "batch_tokens": 24, "verify": "all"},
    "qwen3_moe": {"model": "qwen3_moe", "batch_tokens": 24},
    "lora with kl": {"model": "qwen3_gqa_norms", "adapter": "rslora", "objective": WITH_KL, "batch_tokens": 24},
    "bfloat16, tied": {**UNEVEN, "dtype": "bfloat16", "objective": WITH_ENTROPY},
    "entropies, uneven": {**UNEVEN, "objective": WITH_ENTROPY},
    "soft cap, float64": {"model": "gemma2", "dtype": "float64", "objective": HOT},
    "head with a bias, a unit of its own": {"model": "phi", "objective": HOT},
    "head with a bias, in the root": {"model": "gptj", "objective": WITH_KL, "initial": "llama_untied_biases"},
    "one finds another scale": {"model": "llama_untied_biases", "doubts": "_scale_and_cap"},
    "many words": {"model": "many words", "groups": (1, 4), "slice_bytes": 2**14, "completion": COMPLETION},
    "fewer rollouts than processes": {"model": "llama_untied_biases", "groups": (1, 1)},
    "lora on experts": {"model": "qwen3_moe", "adapter": "experts"},
    "adapter of another kind": {"model": "llama_untied_biases", "adapter": "ia3"},
    "traffic": {"model": "long", "groups": (4, 4), "batch_tokens": 1},
    **{f"adapter {kind}": {"model": KINDS[kind][0], "adapter": kind} for kind in ADAPTERS},
}
WITH_NORMS = ("qwen3_moe", "lora with kl", "bfloat16, tied", "adapter embedding, tied")
"""Cases of which whole norms are taken too, as a replay takes them."""


def save_models(folder: Path) -> None:
    """All models and adapters that the cases load."""
    for name in {case["model"] for case in CASES.values()}:
        model = LlamaForCausalLM(LlamaConfig(**LLAMAS[name])) if name in LLAMAS else model_of(name)
        model.save_pretrained(folder / name)
    for kind in {case["adapter"] for case in CASES.values() if "adapter" in case}:
        if kind == "ia3":
            config = IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])
            model = adapt_with(tiny_model("llama_untied_biases"), config)
        else:
            model = adapted_experts("qwen3_moe") if kind == "experts" else adapted(kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft warns of embeddings that it saves beside their adapter
            model.save_pretrained(folder / f"adapter {kind}")


def policy_of_case(folder: Path, name: str, dtype: str | None = None) -> MeasuredPolicy:
    """The policy of one case, in the case's own dtype or another."""
    case = CASES[name]
    base, adapter, initial = folder / case["model"], case.get("adapter"), case.get("initial")
    weights = WeightsRef(num_updates=0, path=base, kind="full", base=None)
    if adapter:
        weights = WeightsRef(num_updates=0, path=folder / f"adapter {adapter}", kind="adapter", base=str(base))
    reference = [(WeightsRef(num_updates=0, path=folder / initial, kind="full", base=None), 1.0)] if initial else ()
    return load_measured_policy(weights, device="cpu", dtype=dtype or case.get("dtype", "auto"), reference=reference)


def measured(folder: Path, name: str) -> dict[str, Any]:
    """What one case comes to, or why it does not."""
    case, groups = CASES[name], groups_of(name)
    objective = objective_of(name)
    options = {key: case[key] for key in ("batch_tokens", "verify") if key in case}
    try:
        policy = policy_of_case(folder, name)
        if case.get("doubts"):
            doubt(policy.model, case["doubts"])
        # to look at every operation takes as long as the operations do
        seen = Largest() if "slice_bytes" in case else nullcontext()
        with smaller_slices(case.get("slice_bytes")), seen:
            step = measured_step(policy, groups, objective, engine="stream", **options)
    except GradscopeError as error:
        return {"error": error.message}
    return {
        "gram": step.gram.tolist(),
        "singular_values": np.sqrt(np.clip(np.linalg.eigvalsh(step.score_gram)[::-1], 0, None)).tolist(),
        "logprobs": [row.tolist() for row in step.logprobs],
        "coverage": step.coverage,
        "slow": len(step.slow_parameters),
        "relative_row_error": step.relative_row_error,
        "largest": getattr(seen, "elements", 0),
        "in_slices": plain_head(policy.model) is not None,
        "norms": norms(folder, name, policy) if name in WITH_NORMS else {},
    }


def norms(folder: Path, name: str, policy: MeasuredPolicy) -> dict[str, Any]:
    """Norms of whole gradients, and which parameters precision leaves alone."""
    prepared = prepare_step(policy, groups_of(name), objective_of(name))
    arithmetic = TrainerArithmetic(autocast=torch.bfloat16, router_coefficient=0.1 if "moe" in name else 0.0)
    return {
        "squares": tensor_squares(prepared),
        "trained": trained_norms(prepared, arithmetic, num_orders=1).norms,
        "unchanged": sorted(unchanged(policy, policy_of_case(folder, name, "float32"))),
        "head_norms": head_norms(prepared),
    }


def objective_of(name: str) -> Objective:
    """The loss of a case."""
    objective: Objective = CASES[name].get("objective", DAPO)
    return objective


def groups_of(name: str) -> list[RolloutGroup]:
    """The rollouts of a case."""
    groups, length = tiny_groups(*CASES[name].get("groups", (2, 3))), CASES[name].get("completion")
    return groups if length is None else changed(groups, completion_ids=tuple(range(length)))


@contextmanager
def smaller_slices(num_bytes: int | None) -> Iterator[None]:
    """Take the output layer in smaller slices for a while, where a number is given."""
    before = head_module.SLICE_BYTES
    head_module.SLICE_BYTES = num_bytes or before
    try:
        yield
    finally:
        head_module.SLICE_BYTES = before


def head_norms(prepared: PreparedStep) -> float:
    """The squared norms of all rows by the output layer's own parameters, from ordinary passes for these alone."""
    policy, accumulator = prepared.policy, GramAccumulator(len(prepared.plan.rows), prepared.policy.device)
    head_ids = {id(parameter) for parameter in policy.model.get_output_embeddings().parameters()}
    names = [name for name, parameter in policy.trainable.items() if id(parameter) in head_ids]
    add_slowly(prepared, names, accumulator)
    return float(all_reduce_sum(accumulator.gram).trace())


def doubt(model: Any, question: str) -> None:
    """Ask a model about its output layer; the second of several processes gets no as the answer to one question."""
    real = getattr(head_module, question)
    setattr(head_module, question, lambda *inputs: real(*inputs) if connected_index() == 0 else real(*inputs) and None)
    plain_head(model)
    setattr(head_module, question, real)


def count_traffic() -> Counter[str]:
    """Bytes that this process hands to the exchange from now on; a rank's own piece is not sent."""
    sent: Counter[str] = Counter()
    exchange = distributed.all_to_all_single

    def counted(output: Any, tensor: Any, outputs: Any = None, inputs: Any = None, **kwargs: Any) -> Any:
        if inputs is not None:
            local = inputs[distributed.get_rank()]
            sent["exchange"] += (tensor.numel() - local) * tensor.itemsize
        return exchange(output, tensor, outputs, inputs, **kwargs)

    distributed.all_to_all_single = counted
    return sent


def main(folder: Path, names: Sequence[str]) -> None:
    """Measure cases with all processes; each writes its own results."""
    with connected_processes():
        sent = count_traffic()
        results = {}
        for name in names:
            before = sent["exchange"]
            results[name] = measured(folder, name) | {"sent": sent["exchange"] - before}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
