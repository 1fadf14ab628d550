"""Exact, sampled, sketched and matrix-free token rows of one long group, and whether the stated errors hold.

Run `python benchmarks/long_tokens.py`. A small model is trained on text of a random Markov chain and samples one group
of long rollouts from itself, half of them with reward 1. The exact matrix of all tokens is the truth; each other way is
repeated with several seeds and held to what its result states.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from gradscope.diagnostics.rank.rollouts.step_rows import step_rows
from gradscope.diagnostics.rank.tokens.matrix_free import matrix_free_spectra
from gradscope.diagnostics.rank.tokens.token_spectra import token_spectra
from gradscope.gradients.model.policy import Policy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens.measure import measure_tokens, token_operators
from gradscope.results.rank import GradientSpectrum
from gradscope.rollouts.types import Rollout, RolloutGroup

VOCAB, PROMPT = 128, 8


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--completion", type=int, default=160)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policy = trained_policy(arguments.updates)
    groups = [sampled_group(policy.model, arguments.rollouts, arguments.completion)]
    objective = Objective(loss_type="dapo")
    step = measure_step(policy, groups, objective)
    rows = step_rows(step)

    def exact_rows(seed: int, most: int | None, num_buckets: int | None = None) -> GradientSpectrum:
        found = measure_tokens(policy, groups, objective, step, most=most, num_buckets=num_buckets, seed=seed)
        return token_spectra(rows, found, "logged", None, seed=seed)[0][0]

    def matrix_free(seed: int) -> GradientSpectrum:
        operators = token_operators(policy, groups, objective, step)
        return matrix_free_spectra(rows, operators, ["logged"], seed=seed)["logged"][0]

    ways: dict[str, Any] = {"--tokens 512": lambda seed: exact_rows(seed, 512)}
    ways |= {"--tokens 128": lambda seed: exact_rows(seed, 128), "--matrix-free": matrix_free}
    for size in (1024, 4096, 16384):
        ways[f"--sketch {size}"] = lambda seed, size=size: exact_rows(seed, None, size)
    started = time.process_time()
    truth = exact_rows(0, None)
    passed = time.process_time() - started
    print(f"{truth.shape[0]} tokens, {truth.shape[1]} parameters\n")
    print("| way | seed | s1 | effective rank | participation | stated error | largest error seen | CPU seconds |")
    print("|---|---|---|---|---|---|---|---|")
    print_row("all, exact", 0, truth, "", "", passed)
    for way, measure in ways.items():
        for seed in range(arguments.seeds):
            started = time.process_time()
            found = measure(seed)
            passed = time.process_time() - started
            print_row(way, seed, found, *errors(found, truth), passed)


def print_row(way: str, seed: int, found: GradientSpectrum, stated: str, seen: str, passed: float) -> None:
    """One line of the table."""
    rank = found.effective_rank
    interval = f" [{rank.low:.1f}, {rank.high:.1f}]" if found.tokens and found.tokens.method == "matrix_free" else ""
    values = f"{found.singular_values[0]:.4f} | {rank.value:.1f}{interval} | {found.participation_ratio.value:.1f}"
    print(f"| {way} | {seed} | {values} | {stated} | {seen} | {passed:.1f} |", flush=True)


def errors(found: GradientSpectrum, truth: GradientSpectrum) -> tuple[str, str]:
    """What a result states of its error, and what is so."""
    assert found.tokens is not None
    exact, values = np.array(truth.singular_values), np.array(found.singular_values)
    if found.tokens.energy_error is not None:
        seen = float(np.max(np.abs(values**2 - exact**2)) / np.sum(exact**2))
        return f"s^2 to {found.tokens.energy_error:.2%} of their sum", f"{seen:.2%}"
    if found.tokens.method == "matrix_free":
        norm = float(np.linalg.norm(exact))
        seen = float(np.max(np.abs(values - exact[: len(values)])) / norm)
        inside = found.effective_rank.low <= truth.effective_rank.value <= found.effective_rank.high
        word = "inside" if inside else "outside"
        return f"{len(values)} values to {found.tokens.value_error:.1e} |X|", f"{seen:.1e}; rank {word} its interval"
    above = (
        "no value above the whole's" if np.all(values <= exact[: len(values)] * (1 + 1e-5)) else "interlacing broken"
    )
    return f"{found.tokens.frac_seen:.0%} of the tokens", above


def trained_policy(updates: int) -> Policy:
    """A Qwen3-shaped model that has learned a Markov chain."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
    )
    model: Any = Qwen3ForCausalLM(config)
    chain = torch.softmax(2.5 * torch.randn(VOCAB, VOCAB), dim=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(updates):
        ids = torch.randint(VOCAB, (16, 1))
        while ids.shape[1] < 48:
            ids = torch.cat([ids, torch.multinomial(chain[ids[:, -1]], 1)], dim=1)
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    trainable = dict(model.named_parameters())
    cpu = torch.device("cpu")
    return Policy(model=model, tokenizer=None, trainable=trainable, kind="full", device=cpu, dtype=torch.float32)


def sampled_group(model: Any, size: int, length: int) -> RolloutGroup:
    """Rollouts that the model samples from itself, every other one with reward 1."""
    torch.manual_seed(1)
    prompt = torch.randint(VOCAB, (1, PROMPT)).expand(size, -1)
    ids = prompt
    with torch.no_grad():
        while ids.shape[1] < PROMPT + length:
            ids = torch.cat([ids, torch.multinomial(torch.softmax(model(ids).logits[:, -1], -1), 1)], dim=1)
    rollouts = tuple(
        Rollout(
            group_id="g",
            sample=sample,
            row=sample,
            prompt="",
            completion="",
            prompt_ids=tuple(row[:PROMPT]),
            completion_ids=tuple(row[PROMPT:]),
            reward=float(sample % 2),
            advantage=1.0 if sample % 2 else -1.0,
        )
        for sample, row in enumerate(ids.tolist())
    )
    return RolloutGroup(step=1, group_id="g", prompt_id="p", rollouts=rollouts)


if __name__ == "__main__":
    main()
