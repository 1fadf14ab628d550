"""Held-out samples: k completions of each prompt, graded, before and after training.

Sampling draws from a generator state of its own, so whether and how much is held out does not change the training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradscope.progress import ProgressCallback, no_progress
from gradscope.training.grpo.policy import TrainedPolicy
from gradscope.training.tasks.task import Problem, Task
from gradscope.writing import atomic_write


def write_heldout(path: Path, policy: TrainedPolicy, task: Task, completions: Sequence[str]) -> None:
    """Grade samples of the held-out prompts and write a row a sample.

    Args:
        path: The JSONL file: ``prompt_id, prompt, answer, completion, reward, correct``; replaced where it exists. The
            prompt is a list of messages where the policy gets it through a chat template.
        policy: What was sampled from.
        completions: From :func:`sample`, the same number for each held-out prompt.
    """
    num_samples = len(completions) // len(task.heldout)
    rows = [_row(policy, task, task.heldout[index // num_samples], text) for index, text in enumerate(completions)]
    atomic_write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), force=True)


def sample(
    policy: TrainedPolicy,
    problems: Sequence[Problem],
    *,
    num_samples: int,
    rows_at_once: int,
    max_completion_length: int,
    temperature: float,
    seed: int,
    progress: ProgressCallback = no_progress,
    label: str = "prompts",
) -> list[str]:
    """Sample completions with the policy as it is now.

    Args:
        problems: What to ask.
        num_samples: Samples of each prompt, k.
        rows_at_once: Completions generated together, at least those of one prompt.
        max_completion_length: Most tokens of a completion.
        temperature: Sampling temperature.
        seed: Seed of the sampling.
        progress: Told after each batch of prompts.
        label: What the progress is called.

    Returns:
        The texts, the k samples of a prompt in a row.
    """
    import torch

    size = max(1, rows_at_once // num_samples)
    completions: list[str] = []
    training, device = policy.model.training, policy.model.device
    policy.model.eval()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(seed)
        for start in range(0, len(problems), size):
            batch = problems[start : start + size]
            completions += _generate(policy, batch, num_samples, max_completion_length, temperature)
            progress(start + len(batch), len(problems), label)
    policy.model.train(training)
    return completions


def _row(policy: TrainedPolicy, task: Task, problem: Problem, completion: str) -> dict[str, Any]:
    reward = task.grade(completion, problem.answer)
    return {
        "prompt_id": problem.prompt_id,
        "prompt": policy.messages(problem) or problem.prompt,
        "answer": problem.answer,
        "completion": completion,
        "reward": reward,
        "correct": reward == len(task.graders),
    }


def _generate(
    policy: TrainedPolicy, problems: Sequence[Problem], num_samples: int, max_completion_length: int, temperature: float
) -> list[str]:
    from transformers import GenerationConfig

    batch = policy.tokenizer.pad(
        {"input_ids": [policy.encode(problem) for problem in problems]}, return_tensors="pt", padding_side="left"
    ).to(policy.model.device)
    sampling = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        repetition_penalty=1.0,
        max_new_tokens=max_completion_length,
        num_return_sequences=num_samples,
        pad_token_id=policy.tokenizer.pad_token_id,
        eos_token_id=sorted(policy.eos_ids()),
    )
    output = policy.model.generate(**batch, generation_config=sampling)
    return policy.tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
