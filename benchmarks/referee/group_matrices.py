"""The gradient of one group by weight matrix, by plain autograd: an oracle for ``gradscope rank --rows weight``.

Reads the rollouts and the checkpoint of a run of ``gradscope train`` with pyarrow and transformers, forms the gradient
of every rollout by one backward pass, cuts each group into sub-groups of R rollouts, and prints the effective rank
(Roy and Vetterli 2007) of sum_i A_i dlogp_i/dW, mean over live sub-groups: of the output head and over all matrices,
beside unrelated ones. Advantages are written out here. Nothing is taken from the package.

    python benchmarks/referee/group_matrices.py RUN --step 1 --advantage dr_grpo --advantage sign
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM

ADVANTAGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "dr_grpo": lambda r: r - r.mean(),
    "grpo": lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-4),
    "sign": lambda r: 2 * r - 1,
    "reinforce": lambda r: r,
}


def effective_rank(values: np.ndarray) -> float:
    """Exp of the entropy of s / sum s."""
    share = values[values > 0] / values.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def gradients(model: torch.nn.Module, row: dict[str, list[int]], temperature: float) -> dict[str, torch.Tensor]:
    """D log pi(completion) / dW of every matrix, in float64 from the softmax on."""
    ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
    start = len(row["prompt_ids"])
    logits = model(ids).logits[0, start - 1 : -1].double() / temperature
    chosen = torch.log_softmax(logits, dim=-1)[torch.arange(len(logits)), ids[0, start:]]
    weights = {name: w for name, w in model.named_parameters() if w.dim() == 2}
    counted = torch.tensor(row["mask"] or [True] * len(logits))
    grads = torch.autograd.grad((chosen * counted).sum(), list(weights.values()))
    return dict(zip(weights, grads, strict=True))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--advantage", action="append", choices=sorted(ADVANTAGES))
    arguments = parser.parse_args()
    names = arguments.advantage or ["dr_grpo", "sign", "reinforce"]
    rows = pq.read_table(arguments.run / "rollouts" / f"step_{arguments.step:05d}.parquet").to_pylist()
    folder = arguments.run / "checkpoints" / f"checkpoint-{arguments.step - 1}"
    temperature = json.loads((arguments.run / "manifest.json").read_text())["config"]["temperature"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    by_group: dict[str, list[dict]] = {}
    for row in rows:
        by_group.setdefault(row["group_id"], []).append(row)
    matrices = sum(weight.dim() == 2 for weight in model.parameters())
    size = max(len(group) for group in by_group.values())
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for group in by_group.values():
        rewards = np.array([row["reward"] for row in group])
        each = [gradients(model, row, temperature) for row in group] if rewards.any() else []
        for name in names if each else []:
            for r in [2**k for k in range(1, size.bit_length())]:
                for first in range(0, len(group) - r + 1, r):
                    weights = ADVANTAGES[name](rewards[first : first + r])
                    if name != "reinforce" and np.ptp(rewards[first : first + r]) == 0:
                        continue
                    if not weights.any():
                        continue
                    ranks = {
                        tensor: effective_rank(
                            torch.linalg.svdvals(
                                sum(w * each[first + i][tensor].double() for i, w in enumerate(weights))
                            ).numpy()
                        )
                        for tensor in each[0]
                    }
                    head = ranks.get("lm_head.weight", ranks[list(ranks)[-1]])
                    found.setdefault((name, r), []).append((head, float(np.mean(list(ranks.values())))))
    print(f"| advantage | R | live sub-groups | head | mean over {matrices} matrices |")
    print("|---|---:|---:|---:|---:|")
    for (name, r), values in sorted(found.items()):
        head, mean = np.mean(values, axis=0)
        print(f"| {name} | {r} | {len(values)} | {head:.3f} | {mean:.3f} |")


if __name__ == "__main__":
    main()
