"""A trainer of prime-rl's semantics in a few lines: ratio to the sampler, trust region by probability, token mean."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.other_trainers.toy import Sample, Truth, by_group, declared, sampled_steps, update
from benchmarks.scale.made_up import write_lines

LOG = "."
CASES, DEFAULTS = declared("prime_rl")


def make(folder: Path, case: dict[str, Any]) -> dict[int, Truth]:
    """A run of two steps: step -> the truth; the weights before the first are in ``initial``."""
    given = {**DEFAULTS, **case}
    run, truths, metrics = folder / "run", {}, []
    temperature = float(case.get("temperature", 1.0))
    for step, model, samples in sampled_steps(folder, case, temperature):
        if case.get("dead"):
            for sample in samples[-4:]:
                sample.reward = 1.0
        for members in by_group(samples):
            mean = sum(sample.reward for sample in members) / len(members)
            for sample in members:
                sample.advantage = sample.reward - mean
        batch = [sample for sample in samples if sample.advantage != 0]
        truths[step] = update(model, batch, _parts(batch, given), temperature, half=bool(case.get("half")))
        metrics += [
            {"step": step, "time": 1.0, "optim/grad_norm": truths[step].norm, "optim/lr": 1.0},
            {"step": step, "time": 2.0, "reward/all/mean": sum(sample.reward for sample in samples) / len(samples)},
        ]
        if case.get("export"):
            write_lines(run / "token_exports" / f"step_{step}" / "rank_0.jsonl", _export(step, batch))
        elif case.get("stream"):
            _write_stream(run / "monitors" / "file" / "traces", step, samples, case)
        else:
            shift = 1 if case.get("elsewhere") else 0
            arrived = run / "rollouts" / f"step_{step}" / "train" / "all" / "traces.jsonl"
            write_lines(arrived, _traces(step, samples, case, trained=False))
            later = run / "rollouts" / f"step_{step + shift}" / "train" / "effective" / "traces.jsonl"
            write_lines(later, _traces(step, batch, case, trained=True))
        model.save_pretrained(run / "weights" / f"step_{step}")
        if case.get("bare"):
            (run / "weights" / f"step_{step}" / "config.json").unlink()
    _write_config(run / "configs" / "rl.json", case)
    write_lines(run / "metrics.jsonl", metrics)
    return truths


def _parts(batch: Sequence[Sample], given: dict[str, Any]) -> Any:
    num_tokens = sum(sample.num_counted for sample in batch)

    def parts(sample: Sample, logp: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
        mask, sampled = sample.counted.to(logp), sample.sampler.to(logp)
        gap = logp - sampled
        moved = (logp.exp() - sampled.exp()).detach()
        if given.get("type") == "ipo":
            gone = moved.abs() > given["ipo_threshold"]
        elif "ipo_mask_low" in given:
            gone = (moved > given["ipo_mask_high"]) | (moved < -given["ipo_mask_low"])
        elif sample.advantage > 0:
            gone = moved > given["dppo_mask_high"]
        else:
            gone = moved < -given["dppo_mask_low"]
        gain = (mask * ~gone) * given["adv_tau"] * sample.advantage * gap.exp()
        return -gain.sum() / num_tokens, (mask * given["kl_tau"] * gap**2).sum() / num_tokens

    return parts


def _traces(step: int, samples: Sequence[Sample], case: dict[str, Any], *, trained: bool) -> Iterator[dict[str, Any]]:
    for name, sample in _named(step, samples):
        row = _episode(step, name, f"g{sample.group}", sample, case)
        if trained:
            row["traces"][0]["nodes"][1]["advantages"] = [sample.advantage] * sum(map(bool, sample.mask))
        yield row


def _write_stream(folder: Path, step: int, samples: Sequence[Sample], case: dict[str, Any]) -> None:
    """All episodes into the stream, and an annotation for each that is trained on."""
    episodes, annotations = folder / "stream" / "00000.jsonl", folder / "annotations" / "orchestrator" / "00000.jsonl"
    for file in (episodes, annotations):
        file.parent.mkdir(parents=True, exist_ok=True)
    with episodes.open("a") as arrived, annotations.open("a") as shipped:
        for shift in (0, 1) if case.get("elsewhere") else (0,):
            for name, sample in _named(step, samples)[shift :: 2 if case.get("elsewhere") else 1]:
                arrived.write(json.dumps(_episode(step, name, f"g{step}-{sample.group}", sample, case)) + "\n")
                credit = [0.0] * len(sample.prompt) + [sample.advantage * bool(flag) for flag in sample.mask]
                info = {"effective": True, "ship": {"step": step + shift, "time": 1.0}}
                update = {"version": 1, "trace_id": name, "info": info}
                if sample.advantage != 0:
                    shipped.write(json.dumps({**update, "branches": [{"index": 0, "advantages": credit}]}) + "\n")


def _named(step: int, samples: Sequence[Sample]) -> list[tuple[str, Sample]]:
    return [
        (f"t{step}-{sample.group}-{index}", sample)
        for members in by_group(samples)
        for index, sample in enumerate(members)
    ]


def _episode(step: int, name: str, group: str, sample: Sample, case: dict[str, Any]) -> dict[str, Any]:
    asked = {"message": {"role": "user", "content": f"question {sample.group}"}, "token_ids": sample.prompt}
    nodes: list[dict[str, Any]] = [{**asked, "mask": [False] * len(sample.prompt)}]
    said = {"parent": 0, "sampled": True, "message": {"role": "assistant", "content": "an answer"}}
    answer = {**said, "token_ids": sample.completion, "mask": [bool(flag) for flag in sample.mask]}
    if not case.get("silent"):
        answer["logprobs"] = [float(sample.sampler[index]) for index, flag in enumerate(sample.mask) if flag]
    return {
        "id": f"e{name}",
        "env": {"id": "sums", "name": "sums"},
        "group": {"id": group},
        "task": {"hash": f"h{step}-{sample.group}"},
        "run": {"type": "train", "work": {"type": "train", "step": step}},
        "ok": True,
        "traces": [
            {"id": name, "rewards": {"right": {"score": sample.reward, "weight": 1.0}}, "nodes": [*nodes, answer]}
        ],
    }


def _export(step: int, batch: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    for sample in batch:
        zeros = [0.0] * len(sample.prompt)
        yield {
            "schema_version": 1,
            "step": step,
            "rank": 0,
            "env_name": "sums",
            "token_ids": sample.prompt + sample.completion,
            "loss_mask": [False] * len(sample.prompt) + [bool(flag) for flag in sample.mask],
            "advantages": zeros + [sample.advantage * flag for flag in sample.mask],
            "inference_logprobs": zeros + sample.sampler.tolist(),
        }


def _write_config(file: Path, case: dict[str, Any]) -> None:
    own = (*DEFAULTS, "type", "ipo_mask_low", "ipo_mask_high")
    loss = {name: case[name] for name in own if name in case}
    orchestrator = {"train": {"sampling": {"temperature": case.get("temperature", 1.0)}}}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"trainer": {"loss": {"type": "default", **loss}}, "orchestrator": orchestrator}))
