"""Logs of tokens, 24 a rollout: prime-rl's, NeMo-RL's, open-instruct's and slime's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.scale.kind import Kind, file_a_step, groups_of, lines
from benchmarks.scale.made_up import (
    PROMPT_TOKENS,
    RESPONSE_TOKENS,
    MadeUpRun,
    Rollout,
    completion,
    prompt_ids,
    prompt_text,
    response,
)

_MASK = [0] * PROMPT_TOKENS + [1] * RESPONSE_TOKENS


def _episode(rollout: Rollout) -> dict[str, Any]:
    """A line of prime-rl's, before advantages are known."""
    step, text, (ids, logprobs) = rollout.step, prompt_text(rollout.prompt), response(rollout.step, rollout.row)
    ask = {"message": {"role": "user", "content": text}, "token_ids": prompt_ids(rollout.prompt)}
    answer = {"message": {"role": "assistant", "content": completion(step, rollout.row)}, "token_ids": ids}
    work = {"type": "train", "step": step, "policy": {"start": step - 1, "end": step - 1}}
    trace = {
        "version": 1,
        "id": f"t{step}-{rollout.row}",
        "agent": {"name": "solver", "trainable": True},
        "nodes": [
            {**ask, "mask": [False] * PROMPT_TOKENS},
            {"parent": 0, "sampled": True, **answer, "mask": [True] * RESPONSE_TOKENS, "logprobs": logprobs},
        ],
        "rewards": {"correct": {"score": rollout.reward, "weight": 1.0}},
        "info": {"kind": "train", "dispatch": {"step": step, "time": 1.0}},
        "is_completed": True,
        "ok": True,
    }
    return {
        "id": f"e{step}-{rollout.row}",
        "env": {"id": "math", "name": "math"},
        "task": {"type": "MathTask", "data": {"prompt": text}, "hash": f"h{rollout.prompt}"},
        "group": {"id": f"g{step}-{rollout.group}"},
        "run": {"type": "train", "id": "r", "work": work},
        "ok": True,
        "traces": [trace],
    }


def episodes(run: MadeUpRun, step: int) -> Iterator[dict[str, Any]]:
    """All that arrived at a step, as prime-rl's traces before September 2026 have it."""
    return map(_episode, run.rollouts(step))


def scan_prime_rl(folder: Path) -> str:
    """A group is ``group.id``, a reward the sum of score times weight."""
    files = folder / "rollouts" / "*" / "train" / "all" / "traces.jsonl"
    table = lines(
        files,
        "run: 'STRUCT(work STRUCT(step BIGINT))', \"group\": 'STRUCT(id VARCHAR)', task: 'STRUCT(hash VARCHAR)', "
        "traces: 'STRUCT(rewards STRUCT(correct STRUCT(score DOUBLE, weight DOUBLE)))[]'",
    )
    score = "traces[1].rewards.correct.score * traces[1].rewards.correct.weight"
    rows = f'SELECT run.work.step AS step, "group".id AS name, task.hash AS prompt, {score} AS reward FROM {table}'
    return groups_of(rows)


def nemo_rl_rows(run: MadeUpRun, step: int) -> Iterator[dict[str, Any]]:
    """NeMo-RL's training data: a batch of one a row."""
    for rollout in run.rollouts(step):
        ids, logprobs = response(step, rollout.row)
        sampled = [0.0] * PROMPT_TOKENS + logprobs
        yield {
            "content": [[prompt_text(rollout.prompt), completion(step, rollout.row)]],
            "rewards": [rollout.reward],
            "input_lengths": [len(_MASK)],
            "token_ids": [prompt_ids(rollout.prompt) + ids],
            "token_loss_mask": [_MASK],
            "sample_loss_mask": [1.0],
            "advantages": [[rollout.advantage] * len(_MASK)],
            "generation_logprobs": [sampled],
            "prev_logprobs": [sampled],
            "idx": rollout.row,
        }


def scan_nemo_rl(folder: Path) -> str:
    """A group is the tokens before the first that was sampled, at the step that the file's name tells."""
    table = lines(
        folder / "exp_001" / "train_data_step*.jsonl",
        "token_ids: 'BIGINT[][]', token_loss_mask: 'BIGINT[][]', rewards: 'DOUBLE[]'",
    )
    rows = (
        r"SELECT regexp_extract(filename, 'step(\d+)\.jsonl$', 1)::BIGINT AS step, "
        "token_ids[1][:list_position(token_loss_mask[1], 1) - 1] AS name, name AS prompt, rewards[1] AS reward "
        f"FROM {table}"
    )
    return groups_of(rows)


def open_instruct_rows(run: MadeUpRun, step: int) -> Iterator[dict[str, Any]]:
    """A shard of open-instruct's traces, which hold no text."""
    for rollout in run.rollouts(step):
        ids, logprobs = response(step, rollout.row)
        yield {
            "step": step,
            "sample_idx": rollout.row,
            "prompt_idx": rollout.group,
            "prompt_tokens": prompt_ids(rollout.prompt),
            "response_tokens": ids,
            "reward": rollout.reward,
            "advantage": rollout.advantage,
            "finish_reason": "stop",
            "dataset": "gsm8k",
            "ground_truth": None,
            "request_info": None,
            "logprobs": logprobs,
        }


def scan_open_instruct(folder: Path) -> str:
    """A group is ``prompt_idx``; the tokens of its prompt are read as the text that they are."""
    table = lines(
        folder / "demo_rollouts_*.jsonl",
        "step: 'BIGINT', prompt_idx: 'BIGINT', prompt_tokens: 'JSON', reward: 'DOUBLE'",
    )
    return groups_of(f"SELECT step, prompt_idx AS name, prompt_tokens AS prompt, reward FROM {table}")


def make_slime(folder: Path, run: MadeUpRun, _: bool) -> None:
    """The dumps of slime: a file of ``torch.save`` a rollout."""
    import torch

    (folder / "rollout_data").mkdir()
    for step in run.steps:
        document = {"rollout_id": step, "samples": list(map(_sample, run.rollouts(step)))}
        torch.save(document, folder / "rollout_data" / f"{step}.pt")


def _sample(rollout: Rollout) -> dict[str, Any]:
    ids, logprobs = response(rollout.step, rollout.row)
    return {
        "group_index": rollout.group,
        "index": rollout.row,
        "prompt": prompt_text(rollout.prompt),
        "tokens": prompt_ids(rollout.prompt) + ids,
        "response": completion(rollout.step, rollout.row),
        "response_length": RESPONSE_TOKENS,
        "label": str((rollout.prompt + 10) // 2),
        "reward": rollout.reward,
        "loss_mask": None,
        "weight_versions": [],
        "rollout_log_probs": logprobs,
        "status": "completed",
        "metadata": {},
    }


TRACES, TRAIN_DATA = "rollouts/step_{step}/train/all/traces.jsonl", "exp_001/train_data_step{step}.jsonl"
KINDS = (
    Kind(name="prime-rl", num_rows=650_000, make=file_a_step(TRACES, episodes), scan=scan_prime_rl),
    Kind(name="nemo-rl", num_rows=800_000, make=file_a_step(TRAIN_DATA, nemo_rl_rows), scan=scan_nemo_rl),
    Kind(
        name="open-instruct",
        num_rows=2_000_000,
        make=file_a_step("demo_rollouts_{index:06d}.jsonl", open_instruct_rows),
        scan=scan_open_instruct,
    ),
    Kind(name="slime", num_rows=600_000, make=make_slime, has_lines=False),
)
