"""What the engine's benchmarks measure on: a Qwen3-shaped model, random rollouts, the plain pass, clock and memory."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LENGTHS: dict[str, tuple[int, tuple[int, ...]]] = {
    "T=256": (32, (224,)),
    "ragged, T=32 to 256": (16, (240, 16, 176, 80, 112, 144, 48, 208)),
    "prompt 512, completions 128": (512, (128,)),
}
"""Tokens of the prompt, and of the completions in turn."""
VOCAB = 8192


def build_model(trained: str, *, attention: str = "sdpa") -> tuple[Any, dict[str, Any]]:
    """A Qwen3-shaped model of 13.5 M parameters with tied embeddings; LoRA of rank 16 on every linear layer."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=384,
        intermediate_size=1152,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        attn_implementation=attention,
    )
    model: Any = Qwen3ForCausalLM(config).eval()
    if trained == "lora":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")).eval()
    return model, {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def build_plan(lengths: str, size: int) -> Any:
    """Score rows of one group: random rollouts behind one random prompt."""
    import torch

    from gradscope.gradients.model.batches import TokenSequence
    from gradscope.gradients.plan.objective import Objective
    from gradscope.gradients.plan.rows import plan_rows
    from gradscope.rollouts.groups import Rollout

    generator = torch.Generator().manual_seed(0)

    def ids(number: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, VOCAB, (number,), generator=generator).tolist())

    num_prompt, num_completion = LENGTHS[lengths]
    prompt, sequences, rollouts = ids(num_prompt), [], []
    for sample in range(size):
        completion = ids(num_completion[sample % len(num_completion)])
        sequences.append(
            TokenSequence(
                group_id="g",
                sample=sample,
                prompt_ids=prompt,
                completion_ids=completion,
                mask=(True,) * len(completion),
                inferred=False,
            )
        )
        rollouts.append(Rollout(group_id="g", sample=sample, row=sample, prompt="", completion="", reward=0.0))
    return plan_rows(sequences, rollouts, Objective())


def summed_logprobs(model: Any, batch: Any) -> Any:
    """The sum of a batch's log-probabilities, all completions, by plain operations on their logits."""
    import torch

    starts = [stop - num for num, (_, stop) in zip(batch.num_completion, batch.spans, strict=True)]
    kept = batch.length - min(starts) + 1
    counted = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    for row, start, (_, stop) in zip(counted, starts, batch.spans, strict=True):
        row[start:stop] = True
    given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "use_cache": False}
    logits = model(**given, position_ids=batch.position_ids, logits_to_keep=kept).logits[:, :-1]
    chosen = logits.gather(2, batch.input_ids[:, 1 - kept :, None]).squeeze(2) - torch.logsumexp(logits, 2)
    return chosen[counted[:, 1 - kept :]].sum()


def plain_pass(model: Any, trainable: dict[str, Any], batch: Any) -> Callable[[], None]:
    """One forward and backward pass of a padded batch, as training does it with logits formed whole."""

    def plain() -> None:
        summed_logprobs(model, batch).backward()
        for parameter in trainable.values():
            parameter.grad = None

    return plain


def matmul_seconds(model: Any, trainable: dict[str, Any], batch: Any) -> float:
    """Seconds of the plain pass's matrix products at this machine's own rate, attention left out: the limit."""
    import torch

    trained = {id(parameter) for parameter in trainable.values()}
    tokens, predicted = batch.input_ids.numel(), sum(num + 1 for num in batch.num_completion)
    flops = 0
    for layer in (module for module in model.modules() if isinstance(module, torch.nn.Linear)):
        positions = predicted if layer.out_features == VOCAB else tokens
        passes = 3 if id(layer.weight) in trained else 2  # forward, backward, and the weight's own gradient
        flops += 2 * passes * positions * layer.weight.numel()
    first, second = torch.randn(tokens, 384), torch.randn(384, 1152)
    best = min(seconds(lambda: first @ second) for _ in range(20))
    return best * flops / (2 * tokens * 384 * 1152)


def interleaved(work: Callable[[], object], plain: Callable[[], object], pairs: int) -> list[float]:
    """Ratios of interleaved pairs, after a warm-up of each."""
    work()
    plain()
    return [seconds(work) / seconds(plain) for _ in range(pairs)]


def seconds(work: Callable[[], object]) -> float:
    """CPU time: the machine is shared."""
    start = time.process_time()
    work()
    return time.process_time() - start


def reset_peak() -> int:
    """Start the peak afresh; returns the memory in use now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    """The most memory in use since the peak was reset (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def spread(ratios: Sequence[float]) -> str:
    """Median and range."""
    import statistics

    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
