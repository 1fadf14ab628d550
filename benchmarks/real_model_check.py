"""Four numbers of the real run by a few lines that share no code with gradscope: docs/research/real_model.md.

``python -m benchmarks.real_model_check DIR`` wants the folder that ``real_model.py`` filled, and takes 8 GB.
"""

import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    """Print each number beside gradscope's."""
    folder = Path(sys.argv[1])
    rows = pq.read_table(next((folder / "full" / "rollouts").glob("step_*00001*.parquet"))).to_pylist()
    rows = [row for row in rows if row["step"] == 1]
    model = AutoModelForCausalLM.from_pretrained(folder / "full" / "checkpoints" / "checkpoint-0", dtype=torch.float32)
    total, ranks = grad_norm_and_ranks(model, rows)
    replayed = json.loads((folder / "measured" / "replay.json").read_text(encoding="utf-8"))["result"]
    print(f"grad_norm of step 1: {total:.7g}; replay says {replayed['steps'][0]['recomputed']['grad_norm']:.7g}")
    ranked = json.loads((folder / "measured" / "rank_rollout.json").read_text(encoding="utf-8"))["result"]
    curve = next(row for row in ranked["curve"] if (row["step"], row["advantage"], row["group_size"]) == (1, "grpo", 8))
    said = curve["effective_rank"]["value"]
    print(f"mean effective rank of {len(ranks)} live groups: {sum(ranks) / len(ranks):.4f}; rank says {said:.4f}")
    samples = (folder / "full" / "heldout" / "before.jsonl").read_text(encoding="utf-8").splitlines()
    for k in (1, 64):
        print(f"pass@{k} before: {pass_at_k(list(map(json.loads, samples)), k):.6f}")
    print(f"dead groups: {dead_groups(folder / 'full')}")


def grad_norm_and_ranks(model: Any, rows: list[dict[str, Any]]) -> tuple[float, list[float]]:
    """The norm of the step's gradient, and exp(entropy) of each live group's singular values by share.

    The loss is the mean over all tokens of -advantage * log-probability (TRL's ``dapo`` at ratio 1).
    """
    num_tokens = sum(len(row["completion_ids"]) for row in rows)
    whole, ranks = torch.zeros(sum(p.numel() for p in model.parameters())), []
    groups = defaultdict(list)
    for row in rows:
        groups[row["group_id"]].append(row)
    for group in groups.values():
        if len({row["reward"] for row in group}) == 1:
            continue
        gradients = []
        for row in group:
            ids = torch.tensor([[*row["prompt_ids"], *row["completion_ids"]]])
            logprobs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
            model.zero_grad()
            (-row["advantage"] * logprobs[len(row["prompt_ids"]) - 1 :].sum() / num_tokens).backward()
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        whole += sum(gradients)
        products = [[float(gradient.double() @ other.double()) for other in gradients] for gradient in gradients]
        values = torch.linalg.eigvalsh(torch.tensor(products, dtype=torch.float64)).clamp(min=0).sqrt()
        shares = values / values.sum()
        ranks.append(round(math.exp(-sum(share * math.log(share) for share in shares.tolist() if share > 0)), 4))
    return float(whole.double().norm()), ranks  # in float32 a sum over 134.5 M squares is 2 % short


def pass_at_k(samples: list[dict[str, Any]], k: int) -> float:
    """The mean over prompts of the chance that k of their samples, drawn without replacement, hold a correct one."""
    outcomes = defaultdict(list)
    for sample in samples:
        outcomes[sample["prompt_id"]].append(sample["correct"])
    chances = [1 - math.comb(len(passed) - sum(passed), k) / math.comb(len(passed), k) for passed in outcomes.values()]
    return sum(chances) / len(chances)


def dead_groups(run: Path) -> str:
    """How many groups have equal rewards, of how many."""
    rewards = defaultdict(set)
    for file in sorted((run / "rollouts").glob("*.parquet")):
        for row in pq.read_table(file, columns=["step", "group_id", "reward"]).to_pylist():
            rewards[row["step"], row["group_id"]].add(row["reward"])
    return f"{sum(len(values) == 1 for values in rewards.values())} of {len(rewards)}"


if __name__ == "__main__":
    main()
