"""Does credit for single tokens raise a rank? Token rows and dL/dW of the same groups under four kinds of credit.

By plain autograd, nothing of the package. ``outcome``: the group's reward minus its mean at every token; ``return``:
the sum of the token's and all later rewards, minus the group's mean there; ``immediate``: the token's own reward minus
the group's mean there; ``random signs``: the outcome's sizes with signs drawn token by token, which no rank of rows can
see. How unequal the sizes are is taken out by the ratio to unrelated rows, whose singular values are the rows' norms.

    python benchmarks/referee/token_credit.py RUN --step 21 --group-size 4
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM


def effective_rank(values: np.ndarray) -> float:
    """Exp of the entropy of s / sum s."""
    share = values[values > 0] / values.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def token_gradients(
    model: torch.nn.Module, row: dict[str, list[int]], temperature: float
) -> list[dict[str, torch.Tensor]]:
    """D log pi(token) / dW for each completion token."""
    ids, start = torch.tensor([row["prompt_ids"] + row["completion_ids"]]), len(row["prompt_ids"])
    logits = model(ids).logits[0, start - 1 : -1].double() / temperature
    chosen = torch.log_softmax(logits, dim=-1)[torch.arange(len(logits)), ids[0, start:]]
    weights = {name: w for name, w in model.named_parameters() if w.dim() == 2}
    return [
        dict(zip(weights, torch.autograd.grad(one, list(weights.values()), retain_graph=True), strict=True))
        for one in chosen
    ]


def credits(group: list[dict[str, list[float]]], seed: int) -> dict[str, list[np.ndarray]]:
    """The weight of every token, by kind of credit."""
    rewards = np.array([row["reward"] for row in group])
    outcome = [np.full(len(row["completion_ids"]), r - rewards.mean()) for row, r in zip(group, rewards, strict=True)]
    labels = [np.array(row["token_rewards"]) for row in group]
    returns = [np.cumsum(own[::-1])[::-1] for own in labels]
    rng = np.random.default_rng(seed)
    return {
        "outcome": outcome,
        "return": minus_mean(returns),
        "immediate": minus_mean(labels),
        "random signs": [own * rng.choice([-1.0, 1.0], len(own)) for own in outcome],
    }


def minus_mean(rows: list[np.ndarray]) -> list[np.ndarray]:
    """Each row minus the mean of all at the same place, ended ones counting as 0."""
    width = max(map(len, rows))
    mean = np.mean([np.pad(row, (0, width - len(row))) for row in rows], axis=0)
    return [row - mean[: len(row)] for row in rows]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--group-size", type=int, default=4)
    options = parser.parse_args()
    rows = pq.read_table(options.run / "rollouts" / f"step_{options.step:05d}.parquet").to_pylist()
    folder = options.run / "checkpoints" / f"checkpoint-{options.step - 1}"
    temperature = json.loads((options.run / "manifest.json").read_text())["config"]["temperature"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    by_group: dict[str, list[dict]] = {}
    for row in rows:
        by_group.setdefault(row["group_id"], []).append(row)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for number, whole in enumerate(by_group.values()):
        group = whole[: options.group_size]
        weights = credits(group, number)
        if any(not np.concatenate(own).any() for own in weights.values()):
            continue  # the same groups under every kind
        each = [gradient for row in group for gradient in token_gradients(model, row, temperature)]
        flat = torch.stack([torch.cat([part.flatten() for part in one.values()]) for one in each]).double()
        gram = (flat @ flat.T).numpy()
        for kind, own in weights.items():
            factors = np.concatenate(own)
            values = np.sqrt(np.clip(np.linalg.eigvalsh(factors[:, None] * gram * factors), 0, None))
            norms = np.abs(factors) * np.sqrt(np.diag(gram))
            summed = {
                name: sum(float(f) * one[name].double() for f, one in zip(factors, each, strict=True))
                for name in each[0]
            }
            of_weights = np.mean([effective_rank(torch.linalg.svdvals(w).numpy()) for w in summed.values()])
            found.setdefault(kind, []).append((effective_rank(values), effective_rank(norms), float(of_weights)))
    print(f"{len(found['outcome'])} groups of {options.group_size} at step {options.step}, alive under every kind\n")
    print("| credit | token rows | unrelated rows | ratio | dL/dW, mean over weights |")
    print("|---|---:|---:|---:|---:|")
    for kind, ranks in found.items():
        own, unrelated, of_weights = np.mean(ranks, axis=0)
        print(f"| {kind} | {own:.2f} | {unrelated:.2f} | {own / unrelated:.2f} | {of_weights:.2f} |")


if __name__ == "__main__":
    main()
