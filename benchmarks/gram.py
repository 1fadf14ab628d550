"""Time and peak memory of the R x R Gram over one plain forward and backward of the same padded batch.

Run `python benchmarks/gram.py`; `pip install '.[bench]'` adds the peers. Each cell is a process of its own: memory is
its peak above what the built model takes, time the ratio of interleaved pairs (method, plain) after a warm-up of each.
``matmul`` is the time of the plain pass's matrix products at the machine's own rate, over the plain pass: the limit.
The self-check is not part of the time; on every run it adds a plain pass over two rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from peers import PACKAGES, peer_work
from workload import (
    LENGTHS,
    build_model,
    build_plan,
    interleaved,
    matmul_seconds,
    peak_bytes,
    plain_pass,
    reset_peak,
    seconds,
    spread,
)

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
        cell = run_cell(trained, lengths, method, size, arguments.pairs)
        print(f"| {trained} | {lengths} | {size} | {method} | {cell} |", flush=True)


def cells() -> Iterator[tuple[str, str, int, str]]:
    """Every cell of the table: engines everywhere, peers on eight rollouts of equal length."""
    for trained in ("full", "lora"):
        for lengths, (num_prompt, _) in LENGTHS.items():
            for size in (8, 16) if lengths == "T=256" else (8,):
                engines = ENGINES if num_prompt > 100 else ENGINES[:2]
                peers = tuple(PACKAGES) if size == 8 and not lengths.startswith("ragged") else ()
                few = (BY_ROW,) if lengths == "T=256" else ()
                for method in ("matmul", "plain", *engines, *few, *peers):
                    yield trained, lengths, size, method


def run_cell(trained: str, lengths: str, method: str, size: int, pairs: int) -> str:
    """Measure a cell in a process of its own."""
    package = PACKAGES.get(method)
    if package and importlib.util.find_spec(package) is None:
        return f"{package} is not installed | - | -"
    command = [sys.executable, __file__, "--cell", trained, lengths, method, str(size), "--pairs", str(pairs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    cell = json.loads(done.stdout.splitlines()[-1])
    peak = "-" if cell["peak_mb"] is None else f"{cell['peak_mb']:.0f}"
    covered = "-" if cell["covered"] is None else f"{cell['covered']:.0%}"
    return f"{spread(cell['ratios'])} | {peak} | {covered}"


def measure_cell(trained: str, lengths: str, method: str, size: int, pairs: int) -> dict[str, Any]:
    """Peak memory of the first call, then time ratios of interleaved pairs."""
    import torch

    from gradscope.gradients.model.batches import pad_batch

    torch.set_num_threads(1)
    model, trainable = build_model(trained, attention="eager" if method == "vmap" else "sdpa")
    plan = build_plan(lengths, size)
    batch = pad_batch(range(size), plan.sequences, torch.device("cpu"))
    plain = plain_pass(model, trainable, batch)
    if method == "matmul":
        plain()
        ratios = [matmul_seconds(model, trainable, batch) / seconds(plain) for _ in range(pairs)]
        return {"ratios": ratios, "peak_mb": None, "covered": None}
    if method == "opacus":
        twin, parameters = build_model(trained)  # it changes the model, and the plain pass must not pay for it
        work = peer_work(method, twin, parameters, batch)
    elif method in PACKAGES:
        work = peer_work(method, model, trainable, batch)
    else:
        work = {"plain": plain, **engines(model, trainable, plan, batch)}[method]
    before = reset_peak()
    total = work()
    peak = peak_bytes() - before
    whole = sum(parameter.numel() for parameter in trainable.values())
    return {
        "ratios": interleaved(work, plain, pairs),
        "peak_mb": peak / 1e6,
        "covered": None if total is None else total.num_parameters / whole,
    }


def engines(model: Any, trainable: dict[str, Any], plan: Any, batch: Any) -> dict[str, Callable[[], Any]]:
    """What each engine does for this plan."""
    import torch

    from gradscope.gradients.engines.loop import GramAccumulator, loop_gram
    from gradscope.gradients.engines.prompt import prompt_gram
    from gradscope.gradients.engines.stream import stream_gram
    from gradscope.gradients.model.batches import BATCH_COST, MAX_BATCH_TOKENS, pad_batch, split_rows

    def run(add_up: Callable[[Any], object]) -> Any:
        total = GramAccumulator(len(plan.rows), torch.device("cpu"))
        add_up(total)
        return total

    tokens, rows = batch.input_ids.numel(), plan.sequences

    def stream(most: int) -> Callable[[], Any]:
        parts = split_rows([row.length for row in rows], most, BATCH_COST)
        batches = [pad_batch(part, [rows[index] for index in part], torch.device("cpu")) for part in parts]
        return lambda: run(lambda total: stream_gram(model, trainable, plan, batches, total, lambda *_: None))

    return {
        "loop": lambda: run(lambda total: loop_gram(model, trainable, plan, total, lambda *_: None)),
        "stream": stream(MAX_BATCH_TOKENS),
        BY_ROW: stream(256),
        "prompt": lambda: run(lambda total: prompt_gram(model, trainable, plan, tokens, total, lambda *_: None)),
    }


if __name__ == "__main__":
    main()
