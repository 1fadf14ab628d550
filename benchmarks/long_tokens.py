"""Exact, sampled and sketched token rows of one long group, and whether the stated errors hold.

Run `python benchmarks/long_tokens.py [--model trained|embedded|llama]`. The exact matrix of all tokens is the truth;
each other way is repeated with several seeds and held to what its result states. Three models:

- ``trained``: a small Qwen3 trained on text of a random Markov chain, which samples its own rollouts;
- ``embedded``: the model that ships with gradscope, which samples its own rollouts too;
- ``llama``: a Llama of a few million parameters with random weights, on random tokens.

Every other rollout has reward 1. `--rollouts` and `--completion` set the number of tokens: 72 times 56 make 4,032.
The exact matrix of N rows takes about N^2 P operations in float64: of 4,032 rows 100 CPU seconds for the embedded
model, and more than 17 minutes for the Llama.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from gradscope.diagnostics.rank.rows import step_rows
from gradscope.diagnostics.rank.tokens.spectra import token_spectra
from gradscope.estimate import Estimate
from gradscope.gradients.model.checkpoint import load_model
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens.measure import measure_tokens
from gradscope.results.rank import GradientSpectrum
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.training.grpo.policy import EMBEDDED_FOLDER

VOCAB, PROMPT = 128, 8
RANKS = ("effective_rank", "stable_rank", "participation_ratio")
COLUMNS = ("way", "seed", "s1", *RANKS, "stated error", "largest error seen", "CPU s", "wall s")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("trained", "embedded", "llama"), default="trained")
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--completion", type=int, default=160)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sketches", type=int, nargs="*", default=(1024, 4096, 16384))
    parser.add_argument("--samples", type=int, nargs="*", default=(512, 128))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    policy = as_policy(build_model(arguments.model, arguments.updates))
    samples = arguments.model != "llama"
    groups = [sampled_group(policy.model, arguments.rollouts, arguments.completion, from_model=samples)]
    prepared = prepare_step(policy, groups, Objective(loss_type="dapo"))
    step = measure_step(prepared)
    rows = step_rows(step)

    def rows_of(seed: int, most: int | None, num_buckets: int | None = None) -> GradientSpectrum:
        grams = measure_tokens(prepared, step, most=most, num_buckets=num_buckets, seed=seed)
        return token_spectra(rows, grams, "logged", None, seed=seed)[0][0]

    ways: dict[str, Any] = {}
    for most in arguments.samples:
        ways[f"--max-tokens {most}"] = lambda seed, most=most: rows_of(seed, most)
    for size in arguments.sketches:
        ways[f"--sketch {size}"] = lambda seed, size=size: rows_of(seed, None, size)
    truth, *seconds = timed(lambda: rows_of(0, None))
    print(f"{truth.label.shape[0]} tokens, {truth.label.shape[1]} parameters, {arguments.threads} thread(s)\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    print_row("all, exact", 0, truth, truth, "", "", *seconds)
    for way, measure in ways.items():
        for seed in range(arguments.seeds):
            spectrum, *seconds = timed(lambda measure=measure, seed=seed: measure(seed))
            print_row(way, seed, spectrum, truth, *errors(spectrum, truth), *seconds)


def timed(measure: Any) -> tuple[Any, float, float]:
    """A result, the CPU seconds and the wall seconds that it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = measure()
    return result, time.process_time() - cpu, time.perf_counter() - wall


def print_row(
    way: str, seed: int, spectrum: GradientSpectrum, truth: GradientSpectrum, stated: str, seen: str, *seconds: float
) -> None:
    """One line of the table; a rank has its distance from the exact one behind it."""
    largest, exact = spectrum.singular_values[0], truth.singular_values[0]
    cells = [f"{largest:.4g} ({largest / exact - 1:+.2%})"]
    cells += [compared(getattr(spectrum.ranks, name), getattr(truth.ranks, name)) for name in RANKS]
    times = [f"{second:.1f}" for second in seconds]
    print(f"| {' | '.join([way, str(seed), *cells, stated, seen, *times])} |", flush=True)


def compared(rank: Estimate, truth: Estimate) -> str:
    """A rank and its relative distance from the exact one."""
    assert rank.value is not None
    assert truth.value is not None
    return f"{rank.value:.1f} ({rank.value / truth.value - 1:+.1%})"


def errors(spectrum: GradientSpectrum, truth: GradientSpectrum) -> tuple[str, str]:
    """What a result states of its error, and what is so."""
    assert spectrum.tokens is not None
    exact, values = np.array(truth.singular_values), np.array(spectrum.singular_values)
    if spectrum.tokens.energy_error is not None:
        seen = float(np.max(np.abs(values**2 - exact**2)) / np.sum(exact**2))
        return f"s^2 to {spectrum.tokens.energy_error:.2%} of their sum", f"{seen:.2%}"
    is_below = bool(np.all(values <= exact[: len(values)] * (1 + 1e-5)))
    above = "no value above the whole's" if is_below else "interlacing broken"
    return f"{spectrum.tokens.frac_seen:.0%} of the tokens", above


def build_model(name: str, updates: int) -> Any:
    """One of the three models, in evaluation mode and float32."""
    if name == "trained":
        return trained_model(updates)
    if name == "embedded":
        return load_model(EMBEDDED_FOLDER, torch.float32).eval()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    model: Any = LlamaForCausalLM(config)
    return model.eval()


def trained_model(updates: int) -> Any:
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
    return model.eval()


def as_policy(model: Any) -> MeasuredPolicy:
    """The model as the engine takes it, all of its parameters trained."""
    cpu, trainable = torch.device("cpu"), dict(model.named_parameters())
    return MeasuredPolicy(
        model=model, tokenizer=None, trainable=trainable, kind="full", device=cpu, dtype=torch.float32
    )


def sampled_group(model: Any, size: int, length: int, *, from_model: bool) -> RolloutGroup:
    """Rollouts of one prompt, every other one with reward 1, sampled from the model or at random."""
    torch.manual_seed(1)
    vocab = model.config.vocab_size
    ids = torch.randint(vocab, (1, PROMPT)).expand(size, -1)
    with torch.no_grad():
        while ids.shape[1] < PROMPT + length:
            shares = torch.softmax(model(ids).logits[:, -1], -1) if from_model else torch.ones(size, vocab)
            ids = torch.cat([ids, torch.multinomial(shares, 1)], dim=1)
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
