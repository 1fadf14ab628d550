"""Time and peak memory of exact token rows, over a plain forward and backward.

Run `python benchmarks/tokens.py`. The unit is one plain forward and backward of the same rollout. A row's time is that
of the whole Gram matrix over its number of rows; `rows kept` is one backward a row with all rows held in memory. Each
cell is a process of its own: memory is its peak above what the built model takes, time the median of interleaved pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from workload import build_model, peak_bytes, reset_peak, seconds, summed_logprobs

PROMPT, COMPLETION = 32, 96
METHODS = ("lockstep", "rows kept")


def main() -> None:
    """Print the table, or one cell of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", nargs=2, metavar=("TRAINED", "METHOD"))
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(measure_cell(*arguments.cell, arguments.pairs)))
        return
    print("| trained | method | a row's time / plain: median (range) | peak memory above the model, MB |")
    print("|---|---|---|---|")
    for trained in ("full", "lora"):
        for method in METHODS:
            command = [sys.executable, __file__, "--cell", trained, method, "--pairs", str(arguments.pairs)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            cell = json.loads(done.stdout.splitlines()[-1])
            ratios = cell["ratios"]
            middle = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            print(f"| {trained} | {method} | {middle} | {cell['peak_mb']:.0f} |", flush=True)


def measure_cell(trained: str, method: str, pairs: int) -> dict[str, Any]:
    """Peak memory of the first call, then time ratios of interleaved pairs."""
    import torch

    torch.set_num_threads(1)
    model, trainable = build_model(trained)
    work, plain = build(model, trainable, method)
    before = reset_peak()
    work()
    peak = peak_bytes() - before
    plain()
    ratios = [seconds(work) / seconds(plain) / COMPLETION for _ in range(pairs)]
    return {"ratios": ratios, "peak_mb": peak / 1e6}


def build(model: Any, trainable: dict[str, Any], method: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """The measured work, and the plain pass over the same rollout."""
    import torch

    from gradscope.gradients.engines.loop import GramAccumulator
    from gradscope.gradients.model.batches import TokenSequence, pad_batch
    from gradscope.gradients.tokens.lockstep import lockstep_gram
    from gradscope.gradients.tokens.rows import TokenRow, chunks_of, token_loop_rows

    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    ids = torch.randint(0, 8192, (PROMPT + COMPLETION,), generator=generator).tolist()
    sequence = TokenSequence(
        group_id="g",
        sample=0,
        prompt_ids=tuple(ids[:PROMPT]),
        completion_ids=tuple(ids[PROMPT:]),
        mask=(True,) * COMPLETION,
        inferred=False,
    )
    rows = [TokenRow(sequence=0, position=position) for position in range(COMPLETION)]
    chunks, batch = chunks_of(rows, [sequence]), pad_batch([0], [sequence], cpu)

    def plain() -> None:
        summed_logprobs(model, batch).backward()
        for parameter in trainable.values():
            parameter.grad = None

    def lockstep() -> None:
        lockstep_gram(model, trainable, chunks, 1.0, GramAccumulator(COMPLETION, cpu))

    def rows_kept() -> None:
        token_loop_rows(model, trainable, chunks, 1.0, GramAccumulator(COMPLETION, cpu).add_rows)

    return {"lockstep": lockstep, "rows kept": rows_kept}[method], plain


if __name__ == "__main__":
    main()
