"""The trainer's own loss as one weight per token: what multiplies grad log pi(token) at the scale of its grad_norm.

TRL minimizes sum_i sum_t w_it (-ratio_it A_i + beta kl_it). The aggregation (``loss_type``) only sets w_it. While a
batch is used once, ratio_it is exactly 1, so the gradient is a weighted sum of grad log pi; a reused batch brings the
ratio to the log-probabilities it was sampled with, and the clip. A setting whose weights the log cannot tell gives a
reason, never a number.

Shapes: R rollouts of a step, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from gradscope.rollouts.run import TrainerSettings
from gradscope.rollouts.types import Rollout

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo"]

_LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")
_SHAPING = ("loss_type", "beta", "temperature")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The part of a trainer's settings that shapes the gradient."""

    loss_type: LossType = "dapo"
    """How token terms are averaged."""
    beta: float = 0.0
    """Coefficient of the KL term."""
    temperature: float = 1.0
    """Logits are divided by it before the softmax."""
    use_bias_correction_kl: bool = True
    """Whether the KL term is multiplied by the importance ratio."""
    importance_ratio: bool = False
    """Whether the batch was reused, so that ratios to the sampled log-probabilities differ from 1."""
    epsilon_low: float = 0.2
    """The ratio is clipped below 1 - epsilon_low."""
    epsilon_high: float = 0.2
    """The ratio is clipped above 1 + epsilon_high."""
    delta: float | None = None
    """A second, two-sided bound on the ratio; None without one."""
    max_completion_length: int | None = None
    """The trainer's limit on completions."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """How the trainer rendered conversations, for prompts whose ids were not logged."""
    mask_truncated: bool = False
    """Whether truncated completions leave the loss."""
    router_loss_of_model: bool = False
    """Whether a router's load-balancing term was left at the coefficient of the model's own configuration."""
    num_rows: int | None = None
    """Rollouts of one optimizer step according to the settings; None where they do not tell."""
    assumed: tuple[str, ...] = ()
    """Settings that shape the gradient, were not known, and stand at TRL's default."""
    cannot: str | None = None
    """Why the trainer's gradient cannot be formed from these settings; None where it can."""

    @classmethod
    def from_settings(cls, settings: TrainerSettings) -> Objective:
        """The objective of a trainer's arguments; ``cannot`` says why where it has no exact token weights."""
        loss_type = settings.get("loss_type", "dapo")
        epsilon = float(settings.get("epsilon", 0.2))
        beta = float(settings.get("beta", 0.0))
        assumed = [name for name in _SHAPING if name not in settings.values]
        if beta and "use_bias_correction_kl" not in settings.values:
            assumed.append("use_bias_correction_kl")
        max_length = settings.get("max_completion_length")
        return cls(
            loss_type=cast(LossType, loss_type) if loss_type in _LOSS_TYPES else "dapo",
            beta=beta,
            temperature=float(settings.get("temperature", 1.0)),
            use_bias_correction_kl=bool(settings.get("use_bias_correction_kl", True)),
            importance_ratio=_is_reused(settings),
            epsilon_low=epsilon,
            epsilon_high=float(settings.get("epsilon_high", epsilon)),
            delta=settings.get("delta"),
            max_completion_length=None if max_length is None else int(max_length),
            chat_template_kwargs=dict(settings.get("chat_template_kwargs", {})),
            mask_truncated=bool(settings.get("mask_truncated_completions", False)),
            router_loss_of_model=settings.values.get("router_aux_loss_coef", 0.0) is None,
            num_rows=_num_rows(settings),
            assumed=tuple(assumed),
            cannot=_reason_against(settings),
        )

    def reason_against(self, rollouts: Sequence[Rollout]) -> str | None:
        """Why the rollouts of a step do not tell the trainer's gradient, without a final period, or None."""
        if self.cannot is not None:
            return self.cannot
        if self.num_rows is not None and len(rollouts) != self.num_rows:
            return f"the log holds {len(rollouts)} of the {self.num_rows} rollouts of the step"
        if self.mask_truncated and any(rollout.status == "unknown" for rollout in rollouts):
            return "truncated completions leave the loss, and the log does not say which were truncated"
        if self.importance_ratio and any(rollout.logprobs is None for rollout in rollouts):
            return "the batch was reused, and the log-probabilities it was sampled with were not logged"
        if self.loss_type == "dr_grpo" and self.max_completion_length is None:
            return "dr_grpo divides by max_completion_length, which is not known"
        return None

    def counted(self, rollout: Rollout, mask: Sequence[bool]) -> tuple[bool, ...]:
        """Which tokens are in the loss, [T]: the mask, or none where a truncated completion leaves it."""
        if self.mask_truncated and rollout.status == "truncated":
            return (False,) * len(mask)
        return tuple(mask)

    def token_weights(self, masks: Sequence[Sequence[bool]]) -> list[float]:
        """The weight w_i of each counted token, the same for all tokens of a completion.

        ``grpo`` 1/(R |o_i|); ``bnpo`` and ``dapo`` 1/(tokens of the step); ``dr_grpo`` 1/(R max_completion_length).
        Averaging over micro-batches and processes is included, so sums over the step have the scale of the logged
        gradient norm.

        Args:
            masks: Which tokens count, per rollout of one step, [R][T].

        Returns:
            One weight per rollout, [R].

        Raises:
            ValueError: ``dr_grpo`` without ``max_completion_length``.

        Example:
            >>> Objective(loss_type="grpo").token_weights([[True, True], [True, False]])
            [0.25, 0.5]
        """
        counts = [sum(mask) for mask in masks]
        if self.loss_type == "grpo":
            return [1.0 / (len(counts) * max(count, 1)) for count in counts]
        if self.loss_type == "dr_grpo":
            if self.max_completion_length is None:
                raise ValueError("dr_grpo divides by max_completion_length, which is not known")
            return [1.0 / (len(counts) * self.max_completion_length)] * len(counts)
        return [1.0 / max(sum(counts), 1)] * len(counts)


def _is_reused(settings: TrainerSettings) -> bool:
    """TRL skips the ratio exactly when every update starts with fresh rollouts."""
    accumulation = int(settings.get("gradient_accumulation_steps", 1))
    per_generation = int(settings.get("steps_per_generation", accumulation))
    return bool(accumulation % (per_generation * int(settings.get("num_iterations", 1))))


def _num_rows(settings: TrainerSettings) -> int | None:
    """Rows of one update: the generation batch where each update uses one whole generation batch."""
    size = settings.get("generation_batch_size")
    return None if size is None else int(size)


def _reason_against(settings: TrainerSettings) -> str | None:
    accumulation = int(settings.get("gradient_accumulation_steps", 1))
    per_generation = int(settings.get("steps_per_generation", accumulation))
    get = settings.get
    checks: tuple[tuple[bool, str], ...] = (
        (get("loss_type", "dapo") not in _LOSS_TYPES, f"loss_type {get('loss_type')!r} has no rule here"),
        (per_generation < accumulation, "an update covers several generation batches, and the log holds the last"),
        (
            per_generation > accumulation,
            "each update sees a shuffled part of the logged batch, and which is not logged",
        ),
        (
            get("loss_type") == "bnpo" and not _has_one_micro_batch(settings),
            "bnpo averages within micro-batches, and which rollouts shared one is not logged",
        ),
        (float(get("top_entropy_quantile", 1.0)) < 1.0, "top_entropy_quantile masks tokens by their entropy"),
        (bool(get("entropy_coef", 0.0)) or bool(get("use_adaptive_entropy", False)), "the loss has an entropy bonus"),
        (bool(get("use_liger_kernel", False) or get("use_liger_loss", False)), "the loss was a fused Liger kernel"),
        (
            bool(get("use_vllm", False)) and bool(get("vllm_importance_sampling_correction", True)),
            "the loss is corrected by ratios between trainer and vLLM, which are not logged",
        ),
        (bool(get("beta", 0.0)) and bool(get("sync_ref_model", False)), "the KL reference moves (sync_ref_model)"),
        *_reasons_of_ratio(settings),
    )
    return next((reason for holds, reason in checks if holds), None)


def _reasons_of_ratio(settings: TrainerSettings) -> tuple[tuple[bool, str], ...]:
    """Sequence-level ratios equal token-level ones only at ratio 1 and without a ratio-corrected KL."""
    by_sequence = settings.get("importance_sampling_level", "token") != "token"
    corrected_kl = bool(settings.get("beta", 0.0)) and bool(settings.get("use_bias_correction_kl", True))
    reused = _is_reused(settings)
    return (
        (by_sequence and (reused or corrected_kl), "importance ratios are per sequence"),
        (reused and settings.get("off_policy_mask_threshold") is not None, "off-policy sequences are masked"),
    )


def _has_one_micro_batch(settings: TrainerSettings) -> bool:
    rows: Any = settings.get("generation_batch_size")
    return rows is not None and rows == settings.get("per_device_train_batch_size")
