"""Time and peak memory of the R x R Gram over one plain forward and backward of the same padded batch.

`python -m benchmarks.gram` makes docs/research/engine_time_and_memory.csv but for the peers (opacus, bergson, vmap),
which 51a00793 measures. Each cell is a process of its own: memory is its peak above what the built model takes, time
the ratio of interleaved pairs (method, plain) after a warm-up of each. ``matmul`` is the time of the plain pass's
matrix products at the machine's own rate, over the plain pass: the limit. The self-check is not part of the time; on
every run it adds a plain pass over two rows.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.random_steps import product_flops, random_policy, random_step

LENGTHS: dict[str, tuple[int, tuple[int, ...]]] = {
    "T=256": (32, (224,)),
    "ragged, T=32 to 256": (16, (240, 16, 176, 80, 112, 144, 48, 208)),
    "prompt 512, completions 128": (512, (128,)),
}
"""Tokens of the prompt, and of the completions in turn."""
SHAPE = {
    **{"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 6, "vocab_size": 8192},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64},
}
"""A Qwen3 of 13.5 M parameters with tied embeddings."""
NUM_PAIRS = 5
ENGINES = ("loop", "stream", "prompt")
BY_ROW = "stream, --batch-tokens 256"  # a row of T = 256 a batch: less memory


def main() -> None:
    """Print the table, or one cell of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", nargs=4, metavar=("TRAINED", "LENGTHS", "METHOD", "R"))
    parser.add_argument("--pairs", type=int, default=NUM_PAIRS)
    arguments = parser.parse_args()
    if arguments.cell:
        trained, lengths, method, size = arguments.cell
        print(json.dumps(measure_cell(trained, lengths, method, int(size), arguments.pairs)))
        return
    print("| trained | rollouts | R | method | time / plain: median (range) | peak above the model, MB | covered |")
    print("|---|---|---|---|---|---|---|")
    for trained, lengths, size, method in cells():
        command = [sys.executable, __file__, "--cell", trained, lengths, method, str(size), "--pairs"]
        done = subprocess.run([*command, str(arguments.pairs)], check=True, capture_output=True, text=True)
        cell = json.loads(done.stdout.splitlines()[-1])
        ratios, covered = cell["ratios"], "-" if cell["covered"] is None else f"{cell['covered']:.0%}"
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        peak = "-" if cell["peak_mb"] is None else f"{cell['peak_mb']:.0f}"
        print(f"| {trained} | {lengths} | {size} | {method} | {ratio} | {peak} | {covered} |", flush=True)


def cells() -> Iterator[tuple[str, str, int, str]]:
    """Every cell of the table."""
    for trained in ("full", "lora"):
        for lengths, (num_prompt, _) in LENGTHS.items():
            for size in (8, 16) if lengths == "T=256" else (8,):
                engines = ENGINES if num_prompt > 100 else ENGINES[:2]
                few = (BY_ROW,) if lengths == "T=256" else ()
                for method in ("matmul", "plain", *engines, *few):
                    yield trained, lengths, size, method


def measure_cell(trained: str, lengths: str, method: str, size: int, pairs: int) -> dict[str, Any]:
    """Peak memory of the first call, then time ratios of interleaved pairs."""
    import torch

    from gradscope.gradients.model.batches import pad_batch

    torch.set_num_threads(1)
    prompt, completions = LENGTHS[lengths]
    policy = random_policy(SHAPE, trained, "float32", "cpu")
    step = random_step(policy, [completions[row % len(completions)] for row in range(size)], prompt, size)
    batch = pad_batch(range(size), step.plan.sequences, policy.device)
    plain = plain_pass(policy, batch)
    if method == "matmul":
        plain()
        ratios = [matmul_seconds(policy, batch) / seconds(plain) for _ in range(pairs)]
        return {"ratios": ratios, "peak_mb": None, "covered": None}
    work = {"plain": plain, **engines(step, batch.input_ids.numel())}[method]
    before = reset_peak()
    total = work()
    peak = peak_bytes() - before
    plain()
    whole = sum(parameter.numel() for parameter in policy.trainable.values())
    return {
        "ratios": [seconds(work) / seconds(plain) for _ in range(pairs)],
        "peak_mb": peak / 1e6,
        "covered": None if total is None else total.num_parameters / whole,
    }


def engines(step: Any, tokens: int) -> dict[str, Callable[[], Any]]:
    """What each engine does for this step, whose padded batch has so many tokens."""
    from gradscope.gradients.engines.loop import GramAccumulator, loop_gram
    from gradscope.gradients.engines.prompt import prompt_gram
    from gradscope.gradients.engines.stream import stream_gram
    from gradscope.gradients.model.batches import MAX_BATCH_TOKENS
    from gradscope.gradients.model.budget import TokenBudget

    policy, rows = step.policy, range(len(step.plan.rows))
    step = replace(step, budget=TokenBudget(tokens))

    def run(add_up: Callable[[Any], object]) -> Any:
        total = GramAccumulator(len(rows), policy.device)
        add_up(total)
        return total

    def stream(most: int) -> Callable[[], Any]:
        batches = step.batches(rows, most)
        return lambda: run(lambda total: stream_gram(step, batches, total, lambda *_: None))

    return {
        "loop": lambda: run(lambda total: loop_gram(step, policy.trainable, total, lambda *_: None)),
        "stream": stream(MAX_BATCH_TOKENS),
        BY_ROW: stream(256),
        "prompt": lambda: run(lambda total: prompt_gram(step, tokens, total, lambda *_: None)),
    }


def plain_pass(policy: Any, batch: Any) -> Callable[[], None]:
    """One forward and backward pass of a padded batch, as training does it with logits formed whole."""
    import torch

    starts = [stop - num for num, (_, stop) in zip(batch.num_completion, batch.spans, strict=True)]
    kept = batch.length - min(starts) + 1
    counted = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    for row, start, (_, stop) in zip(counted, starts, batch.spans, strict=True):
        row[start:stop] = True
    given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "use_cache": False}

    def plain() -> None:
        logits = policy.model(**given, position_ids=batch.position_ids, logits_to_keep=kept).logits[:, :-1]
        chosen = logits.gather(2, batch.input_ids[:, 1 - kept :, None]).squeeze(2) - torch.logsumexp(logits, 2)
        chosen[counted[:, 1 - kept :]].sum().backward()
        for parameter in policy.trainable.values():
            parameter.grad = None

    return plain


def matmul_seconds(policy: Any, batch: Any) -> float:
    """Seconds of the plain pass's matrix products at this machine's own rate, attention left out: the limit."""
    import torch

    tokens, predicted = batch.input_ids.numel(), sum(num + 1 for num in batch.num_completion)
    first, second = torch.randn(tokens, 384), torch.randn(384, 1152)
    best = min(seconds(lambda: first @ second) for _ in range(20))
    return best * product_flops(policy, tokens, predicted) / (2 * tokens * 384 * 1152)


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


if __name__ == "__main__":
    main()
