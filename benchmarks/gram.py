"""Time and peak memory of the R x R Gram over one plain forward and backward of the same padded batch.

`python benchmarks/gram.py` makes docs/research/engine_time_and_memory.csv but for the peers (opacus, bergson, vmap),
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
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LENGTHS: dict[str, tuple[int, tuple[int, ...]]] = {
    "T=256": (32, (224,)),
    "ragged, T=32 to 256": (16, (240, 16, 176, 80, 112, 144, 48, 208)),
    "prompt 512, completions 128": (512, (128,)),
}
"""Tokens of the prompt, and of the completions in turn."""
VOCAB = 8192
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
    model, trainable = build_model(trained)
    plan = build_plan(lengths, size)
    batch = pad_batch(range(size), plan.sequences, torch.device("cpu"))
    plain = plain_pass(model, trainable, batch)
    if method == "matmul":
        plain()
        ratios = [matmul_seconds(model, trainable, batch) / seconds(plain) for _ in range(pairs)]
        return {"ratios": ratios, "peak_mb": None, "covered": None}
    work = {"plain": plain, **engines(model, trainable, plan, batch)}[method]
    before = reset_peak()
    total = work()
    peak = peak_bytes() - before
    plain()
    whole = sum(parameter.numel() for parameter in trainable.values())
    return {
        "ratios": [seconds(work) / seconds(plain) for _ in range(pairs)],
        "peak_mb": peak / 1e6,
        "covered": None if total is None else total.num_parameters / whole,
    }


def engines(model: Any, trainable: dict[str, Any], plan: Any, batch: Any) -> dict[str, Callable[[], Any]]:
    """What each engine does for this plan."""
    import torch

    from gradscope.gradients.engines.loop import GramAccumulator, loop_gram
    from gradscope.gradients.engines.prompt import prompt_gram
    from gradscope.gradients.engines.stream import stream_gram
    from gradscope.gradients.model.batches import MAX_BATCH_TOKENS
    from gradscope.gradients.model.budget import TokenBudget
    from gradscope.gradients.model.policy import MeasuredPolicy
    from gradscope.gradients.plan.prepared_step import PreparedStep

    def run(add_up: Callable[[Any], object]) -> Any:
        total = GramAccumulator(len(plan.rows), cpu)
        add_up(total)
        return total

    tokens, cpu, dtype = batch.input_ids.numel(), torch.device("cpu"), torch.float32
    policy = MeasuredPolicy(model=model, tokenizer=None, trainable=trainable, kind="full", device=cpu, dtype=dtype)
    step = PreparedStep(step=1, groups=(), policy=policy, plan=plan, budget=TokenBudget(tokens))

    def stream(most: int) -> Callable[[], Any]:
        batches = step.batches(range(len(plan.rows)), most)
        return lambda: run(lambda total: stream_gram(step, batches, total, lambda *_: None))

    return {
        "loop": lambda: run(lambda total: loop_gram(step, trainable, total, lambda *_: None)),
        "stream": stream(MAX_BATCH_TOKENS),
        BY_ROW: stream(256),
        "prompt": lambda: run(lambda total: prompt_gram(step, tokens, total, lambda *_: None)),
    }


def build_model(trained: str) -> tuple[Any, dict[str, Any]]:
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


def plain_pass(model: Any, trainable: dict[str, Any], batch: Any) -> Callable[[], None]:
    """One forward and backward pass of a padded batch, as training does it with logits formed whole."""
    import torch

    starts = [stop - num for num, (_, stop) in zip(batch.num_completion, batch.spans, strict=True)]
    kept = batch.length - min(starts) + 1
    counted = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    for row, start, (_, stop) in zip(counted, starts, batch.spans, strict=True):
        row[start:stop] = True
    given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "use_cache": False}

    def plain() -> None:
        logits = model(**given, position_ids=batch.position_ids, logits_to_keep=kept).logits[:, :-1]
        chosen = logits.gather(2, batch.input_ids[:, 1 - kept :, None]).squeeze(2) - torch.logsumexp(logits, 2)
        chosen[counted[:, 1 - kept :]].sum().backward()
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
