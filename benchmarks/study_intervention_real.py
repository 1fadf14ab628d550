"""One small step without training, on a real model: docs/research/study_intervention.md, "On a real model".

``python benchmarks/study_intervention_real.py --run DIR/full --prompts DIR/train.jsonl --output rows.csv`` takes steps
from checkpoints of a run of ``benchmarks/real_model.py``; ``--table rows.csv`` prints the page's table. Nothing is
sampled after a step: the samples from before it are weighed by the ratio of their probabilities.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from gradscope.advantages.registry import compute_advantages
from gradscope.metrics.uncertainty.paired import holm, sign_flip_p_value, student_mean
from gradscope.training.config import TrainConfig
from gradscope.training.tasks.load import load_task
from gradscope.training.tasks.task import Task

SIZE, LONGEST = 4, 24
DIRECTIONS = ("all-fail part of sign", "mixed part of grpo", "random")
NUMBERS = ("q^4 change", "pass@1 change", "mean ratio", "effective samples")


class Subject:
    """Weights before a step: what they sample, how likely it is, and where its gradient points."""

    def __init__(self, folder: Path, task: Task, population: int, device: str, rows_at_once: int) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.prompts, self.grade = task.train[:population], task.grade
        self.device, self.rows_at_once = device, rows_at_once
        self.parameters = list(self.model.parameters())
        self.before = torch.nn.utils.parameters_to_vector(self.parameters).detach().clone()
        chats = [[{"role": "user", "content": one.prompt}] for one in self.prompts]
        asked = self.tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        ).to(device)
        self.heads, self.head_mask = asked["input_ids"], asked["attention_mask"]

    @torch.no_grad()
    def sample(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """A completion of each chosen prompt: its tokens, which of them count, [N, L] each, and its reward, [N]."""
        end, pad = self.model.generation_config.eos_token_id, self.tokenizer.pad_token_id
        parts = []
        for rows in chosen.split(self.rows_at_once):
            out = self.model.generate(
                self.heads[rows],
                attention_mask=self.head_mask[rows],
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                max_new_tokens=LONGEST,
                pad_token_id=pad,
            )[:, self.heads.shape[1] :]
            parts.append(torch.nn.functional.pad(out, (0, LONGEST - out.shape[1]), value=pad))
        ids = torch.cat(parts)
        is_end = torch.isin(ids, torch.tensor(end, device=self.device))
        counts = (is_end.cumsum(1) - is_end.long() == 0).float()
        texts = [
            self.tokenizer.decode(row[own > 0], skip_special_tokens=True) for row, own in zip(ids, counts, strict=True)
        ]
        answers = [self.prompts[row].answer for row in chosen.tolist()]
        return ids, counts, np.array(list(map(self.grade, texts, answers)))

    def logprobs(self, chosen: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Log-probability of each completion, the prompt read anew for each, [N]."""
        width = int(counts.sum(1).max())
        ids, counts = ids[:, :width], counts[:, :width]
        mask = torch.cat([self.head_mask[chosen], counts.long()], dim=1)
        out = self.model(
            torch.cat([self.heads[chosen], ids], dim=1),
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            logits_to_keep=width + 1,
        )
        taken = out.logits[:, :-1].log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        return (taken * counts).sum(1)

    @torch.no_grad()
    def at(self, step: torch.Tensor, chosen: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> np.ndarray:
        """Log-probabilities after a step from the weights, each prompt read once, [N]."""
        torch.nn.utils.vector_to_parameters(self.before + step, self.parameters)
        positions = (self.head_mask.cumsum(1) - 1).clamp(min=0)
        head = self.model(
            self.heads, attention_mask=self.head_mask, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        first = head.logits[:, -1].log_softmax(-1)
        layers = [(layer.keys, layer.values) for layer in head.past_key_values.layers]
        lengths = counts.sum(1).long()
        total = first[chosen].gather(-1, ids[:, :1])[:, 0].double()
        for rows in lengths.argsort().split(self.rows_at_once):  # of like length together
            width, prompt = int(lengths[rows].max()), chosen[rows]
            if width == 1:
                continue
            cache = DynamicCache([(keys[prompt], values[prompt]) for keys, values in layers])
            mask = torch.cat([self.head_mask[prompt], counts[rows, : width - 1].long()], dim=1)
            own = (mask.cumsum(1) - 1).clamp(min=0)[:, self.heads.shape[1] :]
            logits = self.model(
                ids[rows, : width - 1], attention_mask=mask, position_ids=own, past_key_values=cache, use_cache=True
            ).logits
            taken = logits.log_softmax(-1).gather(-1, ids[rows, 1:width, None])[..., 0]
            total[rows] += (taken * counts[rows, 1:width]).sum(1).double()
        torch.nn.utils.vector_to_parameters(self.before, self.parameters)
        return total.cpu().numpy()

    def gradient(self, weights: np.ndarray, *batch: torch.Tensor) -> torch.Tensor:
        """The gradient of the weighed log-probabilities, [P]; zero where every weight is."""
        total = torch.zeros_like(self.before)
        rows = torch.tensor(np.flatnonzero(weights), device=self.device)
        for part in rows.split(64) if len(rows) else ():
            own = torch.tensor(weights, dtype=torch.float32, device=self.device)[part]
            loss = (self.logprobs(*(one[part] for one in batch)) * own).sum()
            total += torch.nn.utils.parameters_to_vector(torch.autograd.grad(loss, self.parameters))
        return total


def directions(subject: Subject, batch_prompts: int, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """One batch's directions, each of length 1; none of a part that the batch does not have."""
    prompts = np.random.default_rng(seed).choice(len(subject.prompts), batch_prompts, replace=False)
    torch.manual_seed(seed)
    chosen = torch.tensor(np.repeat(prompts, SIZE), device=subject.device)
    ids, counts, rewards = subject.sample(chosen)
    groups = rewards.reshape(-1, SIZE)
    failed = np.repeat(np.where(groups.any(axis=1), 0.0, -1.0), SIZE)
    mixed = np.concatenate([compute_advantages("grpo", group) for group in groups])
    vectors = [subject.gradient(weights, chosen, ids, counts) for weights in (failed, mixed)]
    vectors.append(torch.randn(len(subject.before), device=subject.device))
    for name, vector in zip(DIRECTIONS, vectors, strict=True):
        if vector.any():
            yield name, vector / vector.norm()


def changes(prompt: np.ndarray, reward: np.ndarray, ratios: np.ndarray) -> tuple[float, float]:
    """What a step makes of q^4 and of pass@1, means over prompts, by the ratios w of probabilities after and before."""
    # A rate moves by the mean of r (w - 1); the mean of w is 1, so p may be taken from r, which takes noise out.
    number = np.bincount(prompt)
    rate = np.bincount(prompt, reward) / number
    moved = np.bincount(prompt, (reward - rate[prompt]) * (ratios - 1)) / number
    after = np.clip(rate + moved, 0.0, 1.0)
    return float(np.mean((1 - after) ** SIZE - (1 - rate) ** SIZE)), float(np.mean(after - rate))


def rows_of(arguments: argparse.Namespace, checkpoint: int) -> Iterator[dict[str, Any]]:
    """A row a direction, length and batch, of one of the weights."""
    data = TrainConfig(output="", task="jsonl", data=str(arguments.prompts), heldout_prompts=0, num_prompts=4)
    folder = arguments.run / "checkpoints" / f"checkpoint-{checkpoint}"
    subject = Subject(folder, load_task(data), arguments.population, arguments.device, arguments.rows_at_once)
    torch.manual_seed(checkpoint)
    chosen = torch.arange(len(subject.prompts), device=arguments.device).repeat_interleave(arguments.samples)
    ids, counts, rewards = subject.sample(chosen)
    start = subject.at(torch.zeros_like(subject.before), chosen, ids, counts)
    for batch in range(arguments.batches):
        for name, unit in directions(subject, arguments.batch_prompts, 1000 * checkpoint + batch):
            if name == "random" and batch >= arguments.random_batches:
                continue
            for length in arguments.lengths:
                ratios = np.exp(subject.at(length * unit, chosen, ids, counts) - start)
                effective = float(ratios.sum() ** 2 / (ratios**2).sum() / len(ratios))
                numbers = (*changes(chosen.cpu().numpy(), rewards, ratios), float(ratios.mean()), effective)
                row = {"checkpoint": checkpoint, "length": length, "direction": name, "batch": batch}
                rounded = {title: round(number, 9) for title, number in zip(NUMBERS, numbers, strict=True)}
                yield row | {"pass@1 before": round(float(rewards.mean()), 6)} | rounded
        print(f"checkpoint {checkpoint}: {batch + 1} of {arguments.batches} batches", flush=True)


def table(file: Path) -> str:
    """Each direction's changes, the planned tests among them."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    cells = list(dict.fromkeys((int(row["checkpoint"]), float(row["length"])) for row in rows))

    def of(cell: tuple[int, float], name: str, number: str) -> np.ndarray:
        own = [row for row in rows if (int(row["checkpoint"]), float(row["length"]), row["direction"]) == (*cell, name)]
        return np.array([float(row[number]) for row in own])

    tests = holm([sign_flip_p_value(of(cell, DIRECTIONS[0], "q^4 change")) for cell in cells])
    lines = [
        "| updates before | length | direction | batches | q^4, change in 1/1000 | p | pass@1, change in 1/1000 |",
        "|--:|--:|---|--:|--:|--:|--:|",
    ]
    for cell, p in zip(cells, tests, strict=True):
        for name in DIRECTIONS:
            shown = []
            for number in NUMBERS[:2]:
                mean = student_mean(1000 * of(cell, name, number))
                interval = "" if mean.low is None else f" [{mean.low:+.2f}, {mean.high:+.2f}]"
                shown.append("" if mean.value is None else f"{mean.value:+.2f}{interval}")
            test = "" if name != DIRECTIONS[0] or p is None else f"**{p:.4f}**" if p <= 0.05 else f"{p:.4f}"
            count = len(of(cell, name, "q^4 change"))
            lines.append(f"| {cell[0]} | {cell[1]:g} | {name} | {count} | {shown[0]} | {test} | {shown[1]} |")
    return "\n".join(lines)


def main() -> None:
    """Run the study, or print the table of what it wrote."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--checkpoints", type=int, nargs="+", default=[0, 8, 16])
    parser.add_argument("--lengths", type=float, nargs="+", default=[0.01, 0.03])
    parser.add_argument("--population", type=int, default=40)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--random-batches", type=int, default=5)
    parser.add_argument("--batch-prompts", type=int, default=16)
    parser.add_argument("--rows-at-once", type=int, default=2048)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(table(arguments.table))
        return
    with arguments.output.open("a", encoding="utf-8", newline="") as stream:
        writer = None
        for checkpoint in arguments.checkpoints:
            for row in rows_of(arguments, checkpoint):
                if writer is None:
                    writer = csv.DictWriter(stream, list(row), lineterminator="\n")
                    writer.writeheader()
                writer.writerow(row)
                stream.flush()


if __name__ == "__main__":
    main()
