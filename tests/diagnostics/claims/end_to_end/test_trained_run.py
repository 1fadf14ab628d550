"""A run that was trained here, held against every claim; ranks by plain autograd, without the package's engine."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from gradscope.diagnostics.claims.evidence import ADVANTAGE, MOST_TOKENS
from gradscope.diagnostics.claims.measure import measure_claims, read_claims
from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.diagnostics.rank.measure import measure_rank
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.results.rank import RankReport
from gradscope.results.verdicts import ClaimRow, ClaimsReport
from gradscope.training.config import TrainConfig
from gradscope.training.train import train

pytestmark = pytest.mark.slow  # trains

STEP, SIZE = 3, 8


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of groups of eight, every checkpoint kept."""
    settings = {
        "output": str(tmp_path_factory.mktemp("claims") / "run"),
        "steps": STEP,
        "num_prompts": 8,
        "group_size": SIZE,
        "checkpoint_every": 1,
        "heldout_prompts": 4,
        "heldout_samples": 8,
        "device": "cpu",
    }
    return train(TrainConfig.from_json(settings))


@pytest.fixture(scope="module")
def report(run: Path) -> ClaimsReport:
    return measure_claims(run)


def row_of(report: ClaimsReport, name: str) -> ClaimRow:
    (row,) = [row for row in report.claims if row.name == name]
    return row


def effective_rank(values: np.ndarray) -> float:
    share = values[values > 0] / values.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def ranks_by_autograd(run: Path, sizes: tuple[int, ...]) -> dict[int, dict[str, float]]:
    """Effective rank of sum_i (r_i - mean r) dlogp_i/dW by matrix, mean over groups that live at every size."""
    rows = pq.read_table(run / "rollouts" / f"step_{STEP:05d}.parquet").to_pylist()
    folder = run / "checkpoints" / f"checkpoint-{STEP - 1}"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    weights = {name: weight for name, weight in model.named_parameters() if weight.dim() == 2}
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row)
    ranks: dict[int, list[list[dict[str, float]]]] = {size: [] for size in sizes}
    for group in groups.values():
        rewards = np.array([row["reward"] for row in group])
        parts = {size: [slice(at, at + size) for at in range(0, len(group) - size + 1, size)] for size in sizes}
        live = {size: [part for part in own if np.ptp(rewards[part]) > 0] for size, own in parts.items()}
        if not all(live.values()):
            continue
        each = [gradients(model, weights, row) for row in group]
        for size, own in live.items():
            ranks[size].append([ranks_of(each[part], rewards[part] - rewards[part].mean()) for part in own])
    return {
        size: {name: float(np.mean([np.mean([part[name] for part in own]) for own in of_size])) for name in weights}
        for size, of_size in ranks.items()
    }


def gradients(model: torch.nn.Module, weights: dict[str, torch.Tensor], row: dict) -> dict[str, torch.Tensor]:
    ids, start = torch.tensor([row["prompt_ids"] + row["completion_ids"]]), len(row["prompt_ids"])
    logits = model(ids).logits[0, start - 1 : -1].double()
    chosen = torch.log_softmax(logits, dim=-1)[torch.arange(len(logits)), ids[0, start:]]
    counted = torch.tensor(row["mask"] or [True] * len(logits))
    grads = torch.autograd.grad((chosen * counted).sum(), list(weights.values()))
    return dict(zip(weights, grads, strict=True))


def ranks_of(each: list[dict[str, torch.Tensor]], advantages: np.ndarray) -> dict[str, float]:
    sums = {name: sum(a * one[name].double() for a, one in zip(advantages, each, strict=True)) for name in each[0]}
    return {name: effective_rank(torch.linalg.svdvals(total).numpy()) for name, total in sums.items()}


def test_every_claim_has_a_verdict_and_a_sentence(report: ClaimsReport) -> None:
    assert [row.name for row in report.claims] == [claim.name for claim in CLAIMS]
    assert {row.verdict for row in report.claims} <= {"supported", "contradicted", "cannot_tell"}
    assert all(row.why.endswith(".") and row.settle for row in report.claims)
    assert (report.steps, report.skipped) == ((1, 2, 3), {})
    assert report.engine["engine"]
    measured = {row.name for row in report.claims if row.estimate.is_defined}
    assert {claim.name for claim in CLAIMS if claim.name.startswith(("rank_two", "rank_rises", "weights"))} <= measured


def test_ranks_of_weights_are_those_of_autograd(run: Path, report: ClaimsReport) -> None:
    by_size = ranks_by_autograd(run, (2, 4, SIZE))
    row, head = row_of(report, "rank_two.weights"), row_of(report, "rank_two.output_head")
    assert row.steps == head.steps == (STEP,)
    assert row.estimate.value == pytest.approx(np.mean(list(by_size[SIZE].values())), rel=1e-4)
    assert head.estimate.value == pytest.approx(by_size[SIZE]["lm_head.weight"], rel=1e-4)
    for size, ranks in by_size.items():
        assert f"{ranks['lm_head.weight']:.2f} at R = {size}" in head.why


def paired_rank(run: Path, rows: str) -> RankReport:
    tokens = MOST_TOKENS if rows in ("hidden", "logit") else None
    options = RankOptions(group_sizes=[2, 4], pair_groups=True, tokens=tokens)
    return measure_rank(run, steps=[STEP], rows=rows, advantages=[ADVANTAGE], options=options)


@pytest.mark.parametrize(
    ("name", "rows", "sequence"),
    [
        ("rollouts", "rollout", "curve"),
        ("hidden_rollouts", "hidden", "curve"),
        ("hidden_tokens", "hidden", "token_curve"),
        ("logits", "logit", "token_curve"),
        ("advantages", "advantage", "curve"),
    ],
)
def test_each_candidate_is_the_matrix_that_rank_looks_at(
    run: Path, report: ClaimsReport, name: str, rows: str, sequence: str
) -> None:
    (point,) = [one for one in getattr(paired_rank(run, rows), sequence) if one.group_size == SIZE]
    row = row_of(report, f"rank_two.{name}")
    assert row.estimate == point.effective_rank
    assert row.null == point.nulls["gaussian"].effective_rank


def outputs(run: Path, updates: int, rows: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and entropies of all counted completion tokens under some weights, by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / f"checkpoint-{updates}", dtype=torch.float32)
    logprobs, entropies = [], []
    for row in rows:
        ids, start = torch.tensor([row["prompt_ids"] + row["completion_ids"]]), len(row["prompt_ids"])
        with torch.no_grad():
            logs = torch.log_softmax(model(ids).logits[0, start - 1 : -1].double(), dim=-1)
        counted = np.array(row["mask"] or [True] * len(logs), dtype=bool)
        logprobs.append(logs[torch.arange(len(logs)), ids[0, start:]].numpy()[counted])
        entropies.append(-(logs.exp() * logs).sum(dim=-1).numpy()[counted])
    return np.concatenate(logprobs), np.concatenate(entropies)


def test_what_moves_the_entropy_is_that_of_plain_forward_passes(run: Path, report: ClaimsReport) -> None:
    parts, changes = [], []
    for step in (1, 2, 3):
        rows = pq.read_table(run / "rollouts" / f"step_{step:05d}.parquet").to_pylist()
        logprobs, before = outputs(run, step - 1, rows)
        lengths = [sum(row["mask"] or [True] * len(row["completion_ids"])) for row in rows]
        advantages = np.repeat([row["advantage"] for row in rows], lengths)
        parts.append((logprobs - logprobs.mean()) * (advantages - advantages.mean()))
        changes.append(outputs(run, step, rows)[1] - before)
    covariance, change = row_of(report, "entropy.covariance"), row_of(report, "entropy.predicted")
    assert covariance.estimate.value == pytest.approx(np.concatenate(parts).mean(), rel=1e-3)
    assert change.estimate.value == pytest.approx(np.concatenate(changes).mean(), rel=1e-3)
    assert covariance.steps == change.steps == (1, 2, 3)
    assert "which are 3 of the 3 between the checkpoints" in change.why


def test_first_steps_of_two_optimizers_move_what_plain_ones_move(run: Path) -> None:
    rows = pq.read_table(run / "rollouts" / f"step_{STEP:05d}.parquet").to_pylist()
    folder = run / "checkpoints" / f"checkpoint-{STEP - 1}"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    weights = {name: weight for name, weight in model.named_parameters() if weight.dim() == 2}
    each = [(row["advantage"], gradients(model, weights, row)) for row in rows if row["advantage"]]
    rate = json.loads((run / "metrics.jsonl").read_text().splitlines()[STEP - 1])["learning_rate"]
    shares = {}
    for name, weight in weights.items():
        gradient = sum(advantage * grads[name].double() for advantage, grads in each)
        steps = (gradient, gradient.sign())
        length, before = rate * steps[1].norm(), weight.detach().double()
        moved = [before.bfloat16() != (before + step * length / step.norm()).bfloat16() for step in steps]
        shares[name] = [float(one.double().mean()) for one in moved]
    rows = measure_rank(run, rows="weight", steps=[STEP]).optimizers
    moved_shares = {(row.tensor, row.optimizer): row.bfloat16_moved.value for row in rows}
    for name, both in shares.items():  # Adam's first step is its signs but for eps
        assert [moved_shares[name, optimizer] for optimizer in ("sgd", "adam")] == pytest.approx(both, abs=3e-2)


def test_without_gradients_only_claims_about_them_are_open(run: Path, report: ClaimsReport) -> None:
    without = measure_claims(run, gradients=False)
    assert (without.steps, without.engine) == ((), {})
    asked = "Gradients were not recomputed, as asked (--no-gradients)."
    refused = {row.name for row in without.claims if row.why == asked}
    assert {row.verdict for row in without.claims if row.name in refused} == {"cannot_tell"}
    sparser = ("sparser.rollouts", "sparser.tokens", "sparser.entries")
    recomputed = ("rank_two", "rank_rises", *sparser, "optimal", "sign", "tokens", "entropy")
    expected = {one.name for one in CLAIMS if one.name.startswith((*recomputed, "negative"))} - {"rank_two.advantages"}
    assert refused == expected
    for row in without.claims:
        if row.name not in refused:
            assert row == row_of(report, row.name)


def test_a_metric_of_ones_own_is_recomputed_where_gradients_are(run: Path, tmp_path: Path) -> None:
    texts = "".join(f'{key} = "it"\n' for key in ("name", "source", "claim", "settle"))
    (tmp_path / "mine.toml").write_text(f'[[claims]]\n{texts}metric = "effective_rank"\nbetween = [1, 8]\n')
    mine = read_claims(tmp_path / "mine.toml")
    (row,) = measure_claims(run, claims=mine).claims
    assert 1 <= row.estimate.value <= 8
    (row,) = measure_claims(run, claims=mine, gradients=False).claims
    assert row.why == "Gradients were not recomputed, as asked (--no-gradients)."
