"""Time and peak memory of the R x R Gram over one plain forward and backward of the same batch.

Run `python benchmarks/gram.py`. Each cell is a process of its own: memory is its peak above what the built model takes,
time the ratio of interleaved pairs (Gram, plain) after one warm-up of each. The self-check is not part of the time; on
every run it adds one plain pass over the first batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_PAIRS = 5
PROMPT, COMPLETION = 32, 224


def main() -> None:
    """Print the table, or one cell of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", nargs=3, metavar=("TRAINED", "METHOD", "R"))
    parser.add_argument("--pairs", type=int, default=NUM_PAIRS)
    arguments = parser.parse_args()
    if arguments.cell:
        trained, method, size = arguments.cell
        print(json.dumps(measure_cell(trained, method, int(size), arguments.pairs)))
        return
    print("| trained | R | method | time / plain: median (range) | peak memory above the model, MB |")
    print("|---|---|---|---|---|")
    for trained in ("full", "lora"):
        for size in (8, 16):
            for method in ("plain", "loop", "stream"):
                cell = run_cell(trained, method, size, arguments.pairs)
                low, high = min(cell["ratios"]), max(cell["ratios"])
                middle = statistics.median(cell["ratios"])
                print(
                    f"| {trained} | {size} | {method} | {middle:.2f} ({low:.2f}-{high:.2f}) | {cell['peak_mb']:.0f} |",
                    flush=True,
                )


def run_cell(trained: str, method: str, size: int, pairs: int) -> dict[str, Any]:
    """Measure a cell in a process of its own."""
    command = [sys.executable, __file__, "--cell", trained, method, str(size), "--pairs", str(pairs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    cell: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return cell


def measure_cell(trained: str, method: str, size: int, pairs: int) -> dict[str, Any]:
    """Peak memory of the first call, then time ratios of interleaved pairs."""
    import torch

    torch.set_num_threads(1)
    work, plain = build(trained, method, size)
    before = reset_peak()
    work()
    peak = peak_bytes() - before
    plain()
    ratios = [seconds(work) / seconds(plain) for _ in range(pairs)]
    return {"ratios": ratios, "peak_mb": peak / 1e6}


def build(trained: str, method: str, size: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """The measured work and the plain pass over the same rollouts."""
    import torch

    from gradscope.gradients.batches import pad_batch
    from gradscope.gradients.forward import completion_logprobs
    from gradscope.gradients.gram import GramAccumulator
    from gradscope.gradients.loop import loop_gram
    from gradscope.gradients.objective import Objective
    from gradscope.gradients.rows import plan_rows
    from gradscope.gradients.stream import stream_gram
    from gradscope.gradients.tokens import TokenSequence
    from gradscope.rollouts.types import Rollout

    model, trainable = build_model(trained)
    generator = torch.Generator().manual_seed(0)
    sequences, rollouts = [], []
    for sample in range(size):
        ids = torch.randint(0, 8192, (PROMPT + COMPLETION,), generator=generator).tolist()
        sequences.append(
            TokenSequence(
                group_id="g",
                sample=sample,
                prompt_ids=tuple(ids[:PROMPT]),
                completion_ids=tuple(ids[PROMPT:]),
                mask=(True,) * COMPLETION,
                inferred=False,
            )
        )
        rollouts.append(Rollout(group_id="g", sample=sample, row=sample, prompt="", completion="", reward=0.0))
    plan = plan_rows(sequences, rollouts, Objective())
    batch = pad_batch(range(size), sequences, torch.device("cpu"))

    def plain() -> None:
        logprobs = completion_logprobs(model, batch, 1.0)
        torch.stack([row.sum() for row in logprobs]).sum().backward()
        for parameter in trainable.values():
            parameter.grad = None

    def loop() -> None:
        loop_gram(model, trainable, plan, GramAccumulator(size, torch.device("cpu")), lambda *_: None)

    def stream() -> None:
        stream_gram(model, trainable, plan, [batch], GramAccumulator(size, torch.device("cpu")), lambda *_: None)

    return {"plain": plain, "loop": loop, "stream": stream}[method], plain


def build_model(trained: str) -> tuple[Any, dict[str, Any]]:
    """A Qwen3-shaped model of 13.5 M parameters with tied embeddings; LoRA of rank 16 on every linear layer."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=8192,
        hidden_size=384,
        intermediate_size=1152,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    model: Any = Qwen3ForCausalLM(config).eval()
    if trained == "lora":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")).eval()
    return model, {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def seconds(work: Callable[[], None]) -> float:
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


if __name__ == "__main__":
    main()
