"""A trainer of NeMo-RL's semantics in a few lines: token or sequence level, KL with its own weight, correction."""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from benchmarks.other_trainers.toy import MICRO_BATCH, Sample, Truth, by_group, declared, sampled_steps, update
from benchmarks.scale.made_up import write_lines
from gradscope.rollouts.event_file import masked_checksum

LOG = "exp_001"
WIDTH = 24
CASES, DEFAULTS = declared("nemo_rl")


def make(folder: Path, case: dict[str, Any]) -> dict[int, Truth]:
    """A run of two steps: step -> the truth; the weights before the first are in ``initial``."""
    given = {**DEFAULTS, **{name: value for name, value in case.items() if name in DEFAULTS}}
    run, truths, temperature = folder / "run", {}, float(case.get("temperature", 1.0))
    size = int(case.get("train_global_batch_size", 12))
    config = _config(given, case, size)
    events = run / "exp_001" / "tensorboard" / "events.out.tfevents.1.host.1.0"
    events.parent.mkdir(parents=True)
    data = _record(b"\x09" + struct.pack("<d", 1.0) + b"\x1a\x0dbrain.Event:2")
    for step, model, samples in sampled_steps(folder, case, temperature):
        _advantages(samples, others=bool(case.get("use_leave_one_out_baseline", True)))
        out = [2, 7] if case.get("masked") else []
        for index in out:
            samples[index].mask = [0] * len(samples[index].mask)
        for start in range(0, len(samples), size):
            chunk = samples[start : start + size]
            parts = _parts(chunk, given, old=bool(case.get("old")))
            truth = update(model, chunk, parts, temperature, half=bool(case.get("half")))
        truths[step] = truth
        reward = sum(sample.reward for sample in samples) / len(samples)
        for name, value in (("train/grad_norm", truth.norm), ("train/reward", reward), ("train/lr", 0.1)):
            data += b"" if case.get("silent") else _scalar(step, name, value)
        write_lines(run / "exp_001" / f"train_data_step{step}.jsonl", _data(samples, out))
        checkpoint = run / "results" / "grpo" / f"step_{step}"
        if case.get("shards"):
            (checkpoint / "policy" / "weights").mkdir(parents=True)
            (checkpoint / "policy" / "weights" / "__0_0.distcp").write_bytes(b"")
        else:
            model.save_pretrained(checkpoint / "hf")
        (checkpoint / "config.yaml").write_text(yaml.safe_dump(config))
    events.write_bytes(data)
    return truths


def _config(given: dict[str, Any], case: dict[str, Any], size: int) -> dict[str, Any]:
    loss = dict(given)
    if case.get("old"):
        for name in ("use_cispo", "disable_ppo_ratio", "positive_example_nll_weight"):
            del loss[name]
    grpo = {
        "num_prompts_per_step": 3,
        "num_generations_per_prompt": 4,
        "normalize_rewards": True,
        "use_leave_one_out_baseline": case.get("use_leave_one_out_baseline", True),
        "adv_estimator": {"name": "grpo", "normalize_rewards": "${grpo.normalize_rewards}"},
    }
    policy = {
        "train_global_batch_size": size,
        "train_micro_batch_size": MICRO_BATCH,
        "precision": "bfloat16" if case.get("half") else "float32",
        "generation": {"temperature": case.get("temperature", 1.0), "top_p": 1.0, "top_k": None},
    }
    return {"grpo": grpo, "loss_fn": loss, "policy": policy}


def _advantages(samples: Sequence[Sample], *, others: bool) -> None:
    for members in by_group(samples):
        for sample in members:
            seen = torch.tensor([each.reward for each in members if not others or each is not sample])
            spread = float(seen.std())
            sample.advantage = (sample.reward - float(seen.mean())) / (spread + 1e-6 if spread > 0 else 1.0)


def _parts(batch: Sequence[Sample], given: dict[str, Any], *, old: bool) -> Any:
    num_tokens = sum(sample.num_counted for sample in batch)
    num_rows = sum(sample.num_counted > 0 for sample in batch)

    def mean(values: Tensor, sample: Sample) -> Tensor:
        total = (values * sample.counted.to(values)).sum()
        if given["token_level_loss"]:
            return total / (num_tokens + 1e-8)
        return total / (sample.num_counted + 1e-8) / (num_rows + 1e-8)

    def parts(sample: Sample, logp: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
        reward = mean(_policy(sample, logp, given) * _correction(sample, logp, given), sample)
        penalty = 0.0 if given["use_kl_in_reward"] else given["reference_policy_kl_penalty"]
        return reward, penalty * mean(_kl(sample, logp, given, old=old), sample)

    return parts


def _policy(sample: Sample, logp: Tensor, given: dict[str, Any]) -> Tensor:
    advantage = sample.advantage
    if given["disable_ppo_ratio"]:
        return -advantage * logp
    gap = logp - logp.detach()
    if given["sequence_level_importance_ratios"]:
        mask = sample.counted.to(logp)
        gap = ((gap * mask).sum() / mask.sum().clamp(min=1)).expand_as(logp)
    ratio = gap.exp()
    bounded = ratio.clamp(1 - given["ratio_clip_min"], 1 + given["ratio_clip_max"])
    if given["use_cispo"]:
        return -advantage * bounded.detach() * logp
    term = torch.maximum(-advantage * ratio, -advantage * bounded)
    if given["ratio_clip_c"] and advantage < 0:
        term = torch.minimum(term, torch.full_like(term, -advantage * given["ratio_clip_c"]))
    return term


def _correction(sample: Sample, logp: Tensor, given: dict[str, Any]) -> Tensor | float:
    if not given["use_importance_sampling_correction"]:
        return 1.0
    gap = logp.detach() - sample.sampler.to(logp)
    if given["sequence_level_importance_ratios"]:
        gap = (gap * sample.counted.to(logp)).sum().expand_as(gap)
    ratio, most = gap.exp(), given["truncated_importance_sampling_ratio"]
    least = given["truncated_importance_sampling_ratio_min"] or 0.0
    if given["truncated_importance_sampling_type"] == "tis":
        return ratio.clamp(least, most)
    if given["truncated_importance_sampling_type"] == "icepop":
        return torch.where((ratio >= least) & (ratio <= most), ratio, torch.zeros_like(ratio))
    return ratio


def _kl(sample: Sample, logp: Tensor, given: dict[str, Any], *, old: bool) -> Tensor:
    behind = (sample.reference.to(logp) - logp).clamp(-20, 20)
    kinds = {"k1": -behind, "k2": behind**2 / 2, "k3": behind.exp() - 1 - behind}
    weight = torch.ones_like(logp) if old else (logp - logp.detach()).exp()
    return (weight * kinds[given["reference_policy_kl_type"]]).clamp(-10, 10)


def _data(samples: Sequence[Sample], out: Sequence[int]) -> Iterator[dict[str, Any]]:
    for index, sample in enumerate(samples):
        before, length = len(sample.prompt), len(sample.prompt) + len(sample.completion)
        mask = [1] * len(sample.completion) if index in out else sample.mask
        yield {
            "content": [["question", "answer"]],
            "rewards": [sample.reward],
            "input_lengths": [length],
            "token_ids": [_padded(sample.prompt + sample.completion)],
            "token_loss_mask": [_padded([0] * before + mask)],
            "sample_loss_mask": [float(index not in out)],
            "advantages": [_padded([sample.advantage] * length)],
            "generation_logprobs": [_padded([0.0] * before + sample.sampler.tolist())],
            "prev_logprobs": [_padded([0.0] * before + sample.old.tolist())],
            "idx": index,
        }


def _padded(values: Sequence[Any]) -> list[Any]:
    return [*values, *[0] * (WIDTH - len(values))]


def _scalar(step: int, name: str, value: float) -> bytes:
    """An event of TensorBoard's: a summary with one number."""
    number = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(number)]) + number
    return _record(
        b"\x09" + struct.pack("<d", 1.0) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
    )


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_checksum(length)) + message + struct.pack("<I", masked_checksum(message))
