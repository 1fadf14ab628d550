"""A trainer of verl's semantics in a few lines: mini-batches, ``loss_agg_mode``, dual clip, KL, entropy, correction."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from benchmarks.other_trainers.toy import Sample, Truth, by_group, declared, sampled_steps, update
from benchmarks.scale.made_up import write_lines

CASES, DEFAULTS = declared("verl")
WIDTH = DEFAULTS["data.max_response_length"]  # that the older trainer pads to


def make(folder: Path, case: dict[str, Any]) -> dict[int, Truth]:
    """A run of two steps: step -> the truth; the weights before the first are in ``initial``."""
    given = {**DEFAULTS, **{name: value for name, value in case.items() if "." in name}}
    temperature = float(given["rollout.temperature"])
    run, truths, metrics = folder / "run", {}, []
    for step, model, samples in sampled_steps(folder, case, temperature):
        _advantages(samples, given)
        size = int(given["actor.ppo_mini_batch_size"]) * int(given["rollout.n"])
        found = [
            update(model, batch, _parts(batch, given), temperature, half=bool(case.get("half")))
            for _ in range(int(given["actor.ppo_epochs"]))
            for batch in (samples[start : start + size] for start in range(0, len(samples), size))
        ]
        truths[step] = found[0]
        mean = sum(each.norm for each in found) / len(found)
        scores = sum(sample.reward for sample in samples) / len(samples)
        metrics.append({"step": step, "data": {"actor/grad_norm": mean, "critic/score/mean": scores}})
        write_lines(run / "rollouts" / f"{step}.jsonl", _rollouts(step, samples, case))
        actor = run / f"global_step_{step}" / "actor"
        if case.get("shards"):
            actor.mkdir(parents=True)
            (actor / "model_world_size_1_rank_0.pt").write_bytes(b"")
        else:
            model.save_pretrained(actor / ("lora_adapter" if case.get("lora") else "huggingface"))
    if case.get("old"):
        del given["trainer.use_v1"]
    _write_config(run / ".hydra" / "config.yaml", given)
    write_lines(run / "metrics.jsonl", metrics)
    return truths


def _advantages(samples: Sequence[Sample], given: dict[str, Any]) -> None:
    for members in by_group(samples):
        scores = torch.tensor([_score(sample, given) for sample in members])
        centered = scores - scores.mean()
        if given["algorithm.norm_adv_by_std_in_grpo"]:
            centered = centered / (scores.std() + 1e-6)
        for sample, advantage in zip(members, centered.tolist(), strict=True):
            sample.advantage = advantage


def _score(sample: Sample, given: dict[str, Any]) -> float:
    if not given["algorithm.use_kl_in_reward"]:
        return sample.reward
    return sample.reward - 0.3 * float(((sample.old - sample.reference) * torch.tensor(sample.mask)).sum())


def _parts(mini_batch: Sequence[Sample], given: dict[str, Any]) -> Any:
    """The loss of one mini-batch; tokens and sequences are counted over all of it."""
    num_tokens, num_rows = sum(sample.num_counted for sample in mini_batch), len(mini_batch)
    mode = given["actor.loss_agg_mode"]
    if given["actor.policy_loss.loss_mode"] == "gspo":
        mode = "seq-mean-token-mean"

    def weight(sample: Sample) -> float:
        if mode == "token-mean":
            return 1 / num_tokens
        if mode == "token-sum":
            return 1.0
        by_row = {
            "seq-mean-token-sum": 1.0,
            "seq-mean-token-mean": 1 / (sample.num_counted + 1e-8),
            "seq-mean-token-sum-norm": 1 / float(given["actor.loss_scale_factor"] or WIDTH),
        }
        return by_row[mode] / num_rows

    def parts(sample: Sample, logp: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
        average = weight(sample) * sample.counted.to(logp)
        rest = -float(given["actor.entropy_coeff"]) * (average * entropy).sum()
        if given["actor.use_kl_loss"]:
            rest = rest + float(given["actor.kl_loss_coef"]) * (average * _kl(sample, logp, given)).sum()
        return (average * _policy(sample, logp, given)).sum(), rest

    return parts


def _policy(sample: Sample, logp: Tensor, given: dict[str, Any]) -> Tensor:
    bypassed, advantage = given["algorithm.rollout_correction.bypass_mode"], sample.advantage
    old = (sample.sampler if bypassed else logp.detach()).to(logp)
    ratio = (logp - old).clamp(-20, 20).exp()
    low, high = 1 - given["actor.clip_ratio_low"], 1 + given["actor.clip_ratio_high"]
    mode = given["actor.policy_loss.loss_mode"]
    if mode == "gspo":
        counted = sample.counted.to(logp)
        mean = ((logp - old) * counted).sum() / counted.sum()
        ratio = (logp - logp.detach() + mean.detach()).clamp(max=10).exp()
    if mode in ("vanilla", "gspo"):
        term = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(low, high))
        if advantage < 0 and mode == "vanilla":
            term = torch.minimum(term, torch.full_like(term, -advantage * given["actor.clip_ratio_c"]))
    else:
        factor = ratio.clamp(low, high).detach() if mode == "cispo" else 1.0
        term = -factor * advantage * logp
    return term * _correction(sample, logp, given)


def _correction(sample: Sample, logp: Tensor, given: dict[str, Any]) -> Tensor | float:
    level = given["algorithm.rollout_correction.rollout_is"]
    if level is None or given["algorithm.rollout_correction.bypass_mode"]:
        return 1.0
    gap = (logp.detach() - sample.sampler.to(logp)) * sample.counted.to(logp)
    ratio = (gap if level == "token" else gap.sum().expand_as(gap)).exp()
    bounds = [float(part) for part in str(given["algorithm.rollout_correction.rollout_is_threshold"]).split("_")]
    if len(bounds) == 1:
        return ratio.clamp(max=bounds[0])
    return torch.where((ratio >= bounds[0]) & (ratio <= bounds[1]), ratio, torch.zeros_like(ratio))


def _kl(sample: Sample, logp: Tensor, given: dict[str, Any]) -> Tensor:
    reference, kind = sample.reference.to(logp), given["actor.kl_loss_type"]
    if kind == "kl":
        return logp - reference
    if kind in ("mse", "k3+"):  # the plus takes the gradient of k2
        return 0.5 * (logp - reference) ** 2
    behind = (reference - logp).clamp(-20, 20)
    return (behind.exp() - behind - 1).clamp(-10, 10)


def _rollouts(step: int, samples: Sequence[Sample], case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for session, sample in (numbered for members in by_group(samples) for numbered in enumerate(members)):
        row: dict[str, Any] = {
            "input": f"question {sample.group}",
            "output": " ".join(map(str, sample.completion)),
            "gts": "x",
            "score": sample.reward,
            "step": step,
            "uid": f"g{sample.group}_{session}_0",
        }
        if case.get("old"):
            del row["uid"]
        if not case.get("text"):
            before, after = 10 - len(sample.prompt), WIDTH - len(sample.completion)
            row |= {
                "prompts": [0] * before + sample.prompt,
                "responses": sample.completion + [0] * after,
                "attention_mask": [0] * before + [1] * (26 - before - after) + [0] * after,
                "response_mask": sample.mask + [0] * after,
                "rollout_log_probs": sample.sampler.tolist() + [0.0] * after,
                "advantages": [sample.advantage * flag for flag in sample.mask] + [0.0] * after,
            }
        yield row


def _write_config(file: Path, given: dict[str, Any]) -> None:
    nested: dict[str, Any] = {}
    for name, value in given.items():
        path = f"actor_rollout_ref.{name}" if name.startswith(("actor.", "rollout.")) else name
        *above, last = path.split(".")
        inner = nested
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = value
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(nested))
