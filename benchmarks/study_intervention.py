"""One small step without training: does descent on failures lower q^G? docs/research/study_intervention.md.

``python benchmarks/study_intervention.py --output DIR --page docs/research/study_intervention.md`` trains the run whose
checkpoints are looked at, takes a step along each direction, and fills the page; what is there is not made again, and
``--quick`` is the smoke test. Nothing is sampled after a step: the samples from before it are weighed by the ratio of
their probabilities, so that both sides of a difference share them.
"""

from __future__ import annotations

import argparse
import csv
import io
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from study import LEVEL, fill_page

from gradscope.advantages.registry import compute_advantages
from gradscope.metrics.uncertainty.paired import holm, sign_flip_p_value, student_mean
from gradscope.rollouts.run_folder import checkpoint_path
from gradscope.training.config import TrainConfig
from gradscope.training.tasks.load import load_task
from gradscope.training.tasks.task import Task
from gradscope.training.train import train

Array = NDArray[np.float64]

SIZE = 4
NORMS = (0.01, 0.1)
"""Lengths of a step; the first update of AdamW at 3e-4 has 0.09."""
DIRECTIONS, _ROWS_AT_ONCE = ("all-fail part of sign", "mixed part of grpo", "random"), 4096


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much of it; groups are of four."""

    checkpoints: Sequence[int] = (0, 20, 40)
    """Updates before the weights that are looked at."""
    num_prompts: int = 40
    """Prompts of the population, on which pass rates are measured and batches are drawn."""
    num_samples: int = 2500
    """Samples of each: 100,000 in all."""
    num_batches: int = 20
    """Batches, each of which makes a direction of every kind."""
    batch_prompts: int = 16
    """Prompts of a batch."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Distinct completions of the population, and how often each came."""

    ids: torch.Tensor
    """Prompt and completion, padded on the right, [U, L]."""
    mask: torch.Tensor
    """Which tokens of them are a completion's, [U, L]."""
    prompt: NDArray[np.int64]
    """The prompt of each, [U]."""
    reward: Array
    """0 or 1, [U]."""
    share: Array
    """Share of the samples of its prompt, [U]."""


class Subject:
    """Weights before a step: what they sample, how likely it is, and where its gradient points."""

    def __init__(self, folder: Path, prompts: Sequence[Any], grade: Any) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.prompts, self.grade = prompts, grade
        self.before = torch.nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()

    def sample(self, chosen: Sequence[int], num_samples: int) -> Sampled:
        """So many completions of each chosen prompt."""
        found: dict[tuple[int, tuple[int, ...]], int] = {}
        end = self.model.generation_config.eos_token_id
        for place in chosen:
            asked = self.tokenizer(self.prompts[place].prompt, return_tensors="pt", add_special_tokens=False).input_ids
            with torch.no_grad():
                out = self.model.generate(
                    asked.expand(num_samples, -1),
                    attention_mask=torch.ones(num_samples, asked.shape[1], dtype=torch.long),
                    do_sample=True,
                    top_k=0,
                    max_new_tokens=27,
                    pad_token_id=self.tokenizer.pad_token_id,
                )[:, asked.shape[1] :].tolist()
            for row in out:
                ids = row[: row.index(end) + 1] if end in row else row
                found[place, tuple(ids)] = found.get((place, tuple(ids)), 0) + 1
        return self._table(found, num_samples)

    def _table(self, found: Mapping[tuple[int, tuple[int, ...]], int], num_samples: int) -> Sampled:
        heads = {
            place: self.tokenizer.encode(self.prompts[place].prompt, add_special_tokens=False) for place, _ in found
        }
        rows = [(heads[place], ids) for place, ids in found]
        width = max(len(head) + len(ids) for head, ids in rows)
        table, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width)
        for index, (head, ids) in enumerate(rows):
            table[index, : len(head) + len(ids)] = torch.tensor([*head, *ids])
            mask[index, len(head) : len(head) + len(ids)] = 1
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for _, ids in rows]
        return Sampled(
            ids=table,
            mask=mask,
            prompt=np.array([place for place, _ in found]),
            reward=np.array(
                [self.grade(text, self.prompts[place].answer) for text, (place, _) in zip(texts, found, strict=True)]
            ),
            share=np.array(list(found.values())) / num_samples,
        )

    def logprobs(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Log-probability of each completion, [U]."""
        logits = self.model(ids).logits[:, :-1].log_softmax(-1)
        taken = logits.gather(-1, ids[:, 1:, None])[..., 0]
        return (taken * mask[:, 1:]).sum(1)

    def at(self, step: torch.Tensor, sampled: Sampled) -> Array:
        """Log-probabilities after a step from the weights, [U]."""
        torch.nn.utils.vector_to_parameters(self.before + step, self.model.parameters())
        parts = zip(sampled.ids.split(_ROWS_AT_ONCE), sampled.mask.split(_ROWS_AT_ONCE), strict=True)
        with torch.no_grad():
            found = torch.cat([self.logprobs(*part) for part in parts]).double().numpy()
        torch.nn.utils.vector_to_parameters(self.before, self.model.parameters())
        return np.asarray(found)

    def gradient(self, sampled: Sampled, weights: Array) -> torch.Tensor:
        """The gradient of the weighed log-probabilities, [P]."""
        total = (self.logprobs(sampled.ids, sampled.mask) * torch.tensor(weights, dtype=torch.float32)).sum()
        return torch.nn.utils.parameters_to_vector(torch.autograd.grad(total, list(self.model.parameters())))


def directions(subject: Subject, plan: Plan, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """One batch's directions, each of length 1; none of a part that the batch does not have."""
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    parts: dict[str, torch.Tensor] = {name: torch.zeros(len(subject.before)) for name in DIRECTIONS}
    for place in draw.choice(plan.num_prompts, plan.batch_prompts, replace=False).tolist():
        group = subject.sample([place], SIZE)
        counts = np.rint(group.share * SIZE).astype(int)
        rewards = np.repeat(group.reward, counts)
        if not rewards.any():
            parts["all-fail part of sign"] += subject.gradient(group, -counts.astype(float))
        elif not rewards.all():
            of_copy = compute_advantages("grpo", rewards)  # equal completions have equal advantages
            parts["mixed part of grpo"] += subject.gradient(group, of_copy[np.cumsum(counts) - 1] * counts)
    parts["random"] = torch.randn(len(subject.before))
    for name, vector in parts.items():
        if vector.any():  # a batch may have no group of a kind
            yield name, vector / vector.norm()


def changes(before: Sampled, ratios: Array) -> tuple[float, float]:
    """What a step makes of q^G and of pass@1, means over prompts, by the ratios w of probabilities after and before."""
    # A rate moves by the mean of r (w - 1); the mean of w is 1, so p may be taken from r, which takes noise out.
    places = np.unique(before.prompt)
    rate = np.array([np.sum((before.share * before.reward)[before.prompt == place]) for place in places])
    own = before.reward - rate[np.searchsorted(places, before.prompt)]
    moved = np.array([np.sum((before.share * own * (ratios - 1))[before.prompt == place]) for place in places])
    after = np.clip(rate + moved, 0.0, 1.0)
    return float(np.mean((1 - after) ** SIZE - (1 - rate) ** SIZE)), float(np.mean(after - rate))


def measure(output: Path, plan: Plan, *, show: bool) -> list[dict[str, Any]]:
    """A row a checkpoint, length, direction and batch; with ``show`` those that are there."""
    run = output / "run"
    config = TrainConfig(
        output=str(run),
        task="bimodal",
        group_size=SIZE,
        num_prompts=8,
        learning_rate=1e-4,
        steps=max(plan.checkpoints),
        checkpoint_every=next(step for step in plan.checkpoints if step),
        train_prompts=plan.num_prompts,
        heldout_prompts=0,
        device="cpu",
    )
    if not show:
        train(config, resume=run.is_dir())
    rows: list[dict[str, Any]] = []
    for checkpoint in plan.checkpoints:
        file = output / f"rows-{checkpoint}.csv"
        if not file.is_file() and not show:
            write_rows(file, list(_rows(load_task(config), run, plan, checkpoint)))
        rows += read_rows(file) if file.is_file() else []
    return rows


def _rows(task: Task, run: Path, plan: Plan, checkpoint: int) -> Iterator[dict[str, Any]]:
    """Those of one of the weights."""
    subject = Subject(checkpoint_path(run, checkpoint), task.train, task.grade)
    torch.manual_seed(checkpoint)
    sampled = subject.sample(range(plan.num_prompts), plan.num_samples)
    rate = float(np.sum(sampled.share * sampled.reward)) / plan.num_prompts
    start = subject.at(torch.zeros_like(subject.before), sampled)
    for batch in range(plan.num_batches):
        for name, unit in directions(subject, plan, 1000 * checkpoint + batch):
            for norm in NORMS:
                failed, passed = changes(sampled, np.exp(subject.at(norm * unit, sampled) - start))
                row = {"checkpoint": checkpoint, "length": norm, "direction": name, "batch": batch}
                numbers = {"pass@1 before": rate, "q^4 change": failed, "pass@1 change": passed}
                yield row | {title: round(number, 9) for title, number in numbers.items()}
        print(f"checkpoint {checkpoint}: {batch + 1} of {plan.num_batches} batches", flush=True)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file, numbers as numbers."""
    with file.open(encoding="utf-8", newline="") as stream:
        return [
            {title: value if title == "direction" else literal_eval(value) for title, value in row.items()}
            for row in csv.DictReader(stream)
        ]


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """All of them at once, so that a file is whole or not there."""
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    file.write_text(stream.getvalue(), encoding="utf-8")


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the page shows: each direction's changes, the tests among them."""
    cells = list(dict.fromkeys((row["checkpoint"], row["length"]) for row in rows))
    of = {
        (cell, name, number): np.array(
            [float(r[number]) for r in rows if (r["checkpoint"], r["length"], r["direction"]) == (*cell, name)]
        )
        for cell in cells
        for name in DIRECTIONS
        for number in ("q^4 change", "pass@1 change")
    }
    found = [sign_flip_p_value(of[cell, DIRECTIONS[0], "q^4 change"]) for cell in cells]
    missing = len(Plan().checkpoints) * len(NORMS) - len(cells)  # planned, and not there yet: they count as decided no
    corrected = holm([*found, *[1.0] * missing])[: len(cells)]
    lines = [
        "| updates before | length | direction | batches | q^4, change in 1/1000 | p | pass@1, change in 1/1000 |",
        "|--:|--:|---|--:|--:|--:|--:|",
    ]
    for cell, p in zip(cells, corrected, strict=True):
        for name in DIRECTIONS:
            failed, passed = (_thousandths(of[cell, name, number]) for number in ("q^4 change", "pass@1 change"))
            decided = name == DIRECTIONS[0] and p is not None and p <= LEVEL
            told = "" if name != DIRECTIONS[0] or p is None else f"**{p:.4f}**" if decided else f"{p:.4f}"
            count = len(of[cell, name, "q^4 change"])
            lines.append(f"| {cell[0]:g} | {cell[1]:g} | {name} | {count} | {failed} | {told} | {passed} |")
    return "\n".join(lines)


def _thousandths(changes_of_batches: Array) -> str:
    mean = student_mean(1000 * changes_of_batches)
    return f"{mean.value:+.2f} [{mean.low:+.2f}, {mean.high:+.2f}]" if mean.low is not None else f"{mean.value:+.2f}"


def main() -> int:
    """Run the study, or read what it wrote."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True, help="the folder of the run")
    parser.add_argument("--page", type=Path, help="the page to put the table into")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--quick", action="store_true", help="the smoke test")
    options = parser.parse_args()
    quick = Plan(checkpoints=(0, 2), num_prompts=10, num_samples=20, num_batches=2, batch_prompts=8)
    torch.set_num_threads(1)
    rows = measure(options.output, quick if options.quick else Plan(), show=options.show)
    text = tables(rows)
    print(text)
    if options.page is not None:
        fill_page(options.page, "<!-- tables of benchmarks/study_intervention.py -->", "<!-- end of tables -->", text)
        write_rows(options.page.parent / "study_intervention.csv", rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
