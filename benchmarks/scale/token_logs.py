"""Logs of tokens, 24 a rollout: prime-rl's, NeMo-RL's, open-instruct's and slime's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.scale.kind import Kind, duckdb_scan, groups_of, lines, loop
from benchmarks.scale.made_up import (
    PROMPT_TOKENS,
    RESPONSE_TOKENS,
    Group,
    MadeUpRun,
    completion,
    prompt_ids,
    prompt_text,
    response,
    write_lines,
)

_MASK = [0] * PROMPT_TOKENS + [1] * RESPONSE_TOKENS
_SHORTER = 200
_SCORE = "traces[1].rewards.correct.score * traces[1].rewards.correct.weight"
_REWARDS = "rewards STRUCT(correct STRUCT(score DOUBLE, weight DOUBLE))"
_EPISODE = "run: 'STRUCT(work STRUCT(step BIGINT))', \"group\": 'STRUCT(id VARCHAR)', task: 'STRUCT(hash VARCHAR)'"


def _episode(step: int, group: Group, row: int, reward: float) -> dict[str, Any]:
    """A line of prime-rl's, before advantages are known."""
    text, (ids, logprobs) = prompt_text(group.prompt), response(step, row)
    ask = {"message": {"role": "user", "content": text}, "token_ids": prompt_ids(group.prompt)}
    answer = {"message": {"role": "assistant", "content": completion(step, row, _SHORTER)}, "token_ids": ids}
    trace = {
        "version": 1,
        "id": f"t{step}-{row}",
        "agent": {"name": "solver", "trainable": True},
        "nodes": [
            {**ask, "mask": [False] * PROMPT_TOKENS},
            {"parent": 0, "sampled": True, **answer, "mask": [True] * RESPONSE_TOKENS, "logprobs": logprobs},
        ],
        "rewards": {"correct": {"score": reward, "weight": 1.0}},
        "info": {"kind": "train", "dispatch": {"step": step, "time": 1.0}},
        "is_completed": True,
        "ok": True,
    }
    return {
        "id": f"e{step}-{row}",
        "env": {"id": "math", "name": "math"},
        "task": {"type": "MathTask", "data": {"prompt": text}, "hash": f"h{group.prompt}"},
        "group": {"id": f"g{step}-{group.number}"},
        "run": {
            "type": "train",
            "id": "r",
            "work": {"type": "train", "step": step, "policy": {"start": step - 1, "end": step - 1}},
        },
        "ok": True,
        "traces": [trace],
    }


def _episodes(run: MadeUpRun, step: int) -> Iterator[dict[str, Any]]:
    return (_episode(step, group, row, reward) for group in run.groups(step) for row, reward, _ in group.rows)


def make_prime_rl(folder: Path, run: MadeUpRun, with_broken: bool) -> None:
    """Traces before September 2026: all that arrived at each step."""
    for step in run.steps:
        file = folder / "rollouts" / f"step_{step}" / "train" / "all" / "traces.jsonl"
        write_lines(file, _episodes(run, step), run.size(step), with_broken=with_broken)


def scan_prime_rl(folder: Path) -> dict[str, list[str]]:
    """A group is ``group.id``, a reward the sum of score times weight."""
    files = folder / "rollouts" / "*" / "train" / "all" / "traces.jsonl"
    table = lines(files, f"{_EPISODE}, traces: 'STRUCT({_REWARDS})[]'")
    rows = f'SELECT run.work.step AS step, "group".id AS name, task.hash AS prompt, {_SCORE} AS reward FROM {table}'
    return duckdb_scan(groups_of(rows))


def make_stream(folder: Path, run: MadeUpRun, with_broken: bool) -> None:
    """The stream since September 2026: groups that are not dead were trained on, one step after their dispatch."""
    traces = folder / "monitors" / "file" / "traces"
    for step in run.steps:
        chunk = f"{step - 1:05d}.jsonl"
        write_lines(traces / "stream" / chunk, _episodes(run, step), run.size(step), with_broken=with_broken)
        write_lines(traces / "annotations" / "orchestrator" / chunk, _annotations(run, step), 0, with_broken=False)


def _annotations(run: MadeUpRun, step: int) -> Iterator[dict[str, Any]]:
    for group in run.groups(step):
        for row, _, advantage in group.rows if len(set(group.rewards)) > 1 else ():
            tokens = [0.0] * PROMPT_TOKENS + [advantage] * RESPONSE_TOKENS
            yield {
                "version": 1,
                "trace_id": f"t{step}-{row}",
                "info": {"effective": True, "ship": {"step": step + 1, "time": 3.0}, "advantage": advantage},
                "branches": [{"index": 0, "advantages": tokens}],
            }


def scan_stream(folder: Path) -> dict[str, list[str]]:
    """As before, at the first step that trained on the group, else that of its dispatch: the annotations are joined."""
    traces = folder / "monitors" / "file" / "traces"
    table = lines(traces / "stream" / "*.jsonl", f"{_EPISODE}, traces: 'STRUCT(id VARCHAR, {_REWARDS})[]'")
    beside = lines(
        traces / "annotations" / "orchestrator" / "*.jsonl",
        "trace_id: 'VARCHAR', info: 'STRUCT(ship STRUCT(step BIGINT))'",
    )
    rows = (
        f'SELECT run.work.step AS sent, info.ship.step AS shipped, "group".id AS name, task.hash AS prompt, '
        f"{_SCORE} AS reward FROM {table} LEFT JOIN {beside} ON traces[1].id = trace_id"
    )
    return duckdb_scan(groups_of(rows, step="coalesce(min(shipped), min(sent))", by="name"))


def make_nemo_rl(folder: Path, run: MadeUpRun, with_broken: bool) -> None:
    """NeMo-RL's training data: a batch of one a row."""
    for step in run.steps:
        file = folder / "exp_001" / f"train_data_step{step}.jsonl"
        write_lines(file, _nemo_rl(run, step), run.size(step), with_broken=with_broken)


def _nemo_rl(run: MadeUpRun, step: int) -> Iterator[dict[str, Any]]:
    for group in run.groups(step):
        for row, reward, advantage in group.rows:
            ids, logprobs = response(step, row)
            sampled = [0.0] * PROMPT_TOKENS + logprobs
            yield {
                "content": [[prompt_text(group.prompt), completion(step, row, _SHORTER)]],
                "rewards": [reward],
                "input_lengths": [len(_MASK)],
                "token_ids": [prompt_ids(group.prompt) + ids],
                "token_loss_mask": [_MASK],
                "sample_loss_mask": [1.0],
                "advantages": [[advantage] * len(_MASK)],
                "generation_logprobs": [sampled],
                "prev_logprobs": [sampled],
                "idx": row,
            }


def scan_nemo_rl(folder: Path) -> dict[str, list[str]]:
    """A group is the tokens before the first that was sampled, at the step that the file's name tells."""
    table = lines(
        folder / "exp_001" / "train_data_step*.jsonl",
        "token_ids: 'BIGINT[][]', token_loss_mask: 'BIGINT[][]', rewards: 'DOUBLE[]'",
        with_filename=True,
    )
    rows = (
        r"SELECT regexp_extract(filename, 'step(\d+)\.jsonl$', 1)::BIGINT AS step, "
        "token_ids[1][:list_position(token_loss_mask[1], 1) - 1] AS name, name AS prompt, rewards[1] AS reward "
        f"FROM {table}"
    )
    return duckdb_scan(groups_of(rows))


def make_open_instruct(folder: Path, run: MadeUpRun, with_broken: bool) -> None:
    """open-instruct's traces, which hold no text; a shard a step."""
    for step in run.steps:
        file = folder / f"demo_rollouts_{step - 1:06d}.jsonl"
        write_lines(file, _open_instruct(run, step), run.size(step), with_broken=with_broken)


def _open_instruct(run: MadeUpRun, step: int) -> Iterator[dict[str, Any]]:
    for group in run.groups(step):
        for row, reward, advantage in group.rows:
            ids, logprobs = response(step, row)
            yield {
                "step": step,
                "sample_idx": row,
                "prompt_idx": group.number,
                "prompt_tokens": prompt_ids(group.prompt),
                "response_tokens": ids,
                "reward": reward,
                "advantage": advantage,
                "finish_reason": "stop",
                "dataset": "gsm8k",
                "ground_truth": None,
                "request_info": None,
                "logprobs": logprobs,
            }


def scan_open_instruct(folder: Path) -> dict[str, list[str]]:
    """A group is ``prompt_idx``; the tokens of its prompt are read as the text that they are."""
    table = lines(
        folder / "demo_rollouts_*.jsonl",
        "step: 'BIGINT', prompt_idx: 'BIGINT', prompt_tokens: 'JSON', reward: 'DOUBLE'",
    )
    return duckdb_scan(groups_of(f"SELECT step, prompt_idx AS name, prompt_tokens AS prompt, reward FROM {table}"))


def make_slime(folder: Path, run: MadeUpRun, _: bool) -> None:
    """The dumps of slime: a file of ``torch.save`` a rollout."""
    import torch

    (folder / "rollout_data").mkdir()
    for step in run.steps:
        samples = [_sample(step, group, row, reward) for group in run.groups(step) for row, reward, _ in group.rows]
        torch.save({"rollout_id": step, "samples": samples}, folder / "rollout_data" / f"{step}.pt")


def _sample(step: int, group: Group, row: int, reward: float) -> dict[str, Any]:
    ids, logprobs = response(step, row)
    return {
        "group_index": group.number,
        "index": row,
        "prompt": prompt_text(group.prompt),
        "tokens": prompt_ids(group.prompt) + ids,
        "response": completion(step, row, _SHORTER),
        "response_length": RESPONSE_TOKENS,
        "label": str((group.prompt + 10) // 2),
        "reward": reward,
        "loss_mask": None,
        "weight_versions": [],
        "rollout_log_probs": logprobs,
        "status": "completed",
        "metadata": {},
    }


def loop_slime(folder: Path) -> dict[str, list[str]]:
    """DuckDB reads no pickles: ``torch.load(weights_only=True)`` and a loop over its dictionaries stand beside."""
    return {"torch loop": loop("torch", folder)}


KINDS = (
    Kind(name="prime-rl", num_rows=650_000, make=make_prime_rl, peers=scan_prime_rl),
    Kind(name="prime-rl-stream", num_rows=600_000, make=make_stream, peers=scan_stream),
    Kind(name="nemo-rl", num_rows=800_000, make=make_nemo_rl, peers=scan_nemo_rl),
    Kind(name="open-instruct", num_rows=2_000_000, make=make_open_instruct, peers=scan_open_instruct),
    Kind(name="slime", num_rows=600_000, make=make_slime, peers=loop_slime, has_lines=False),
)
