"""What in a trainer's arguments keeps its gradient from being formed, whatever the log holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from gradscope.gradients.plan.losses import LOSSES
from gradscope.gradients.plan.sampler import Mode
from gradscope.reason import Reason
from gradscope.rollouts.run import TrainerSettings
from gradscope.rollouts.trl_version import VERSION_HINT, TrlVersion
from gradscope.rollouts.types import Rollout


def is_reused(settings: TrainerSettings) -> bool:
    """TRL skips the ratio exactly when every update starts with fresh rollouts."""
    accumulation, per_generation = _steps(settings)
    return bool(accumulation % (per_generation * int(settings.get("num_iterations", 1))))


def reason_against(settings: TrainerSettings) -> Reason | None:
    """The first obstacle in a trainer's arguments, or None."""
    return next(_obstacles(settings), None)


def several_sequences(rollouts: Sequence[Rollout]) -> Reason | None:
    """Why rollouts that were trained on as several sequences are not recomputed; None where each is one in the loss."""
    several = sum(any(any(tokens.mask) for tokens in rollout.earlier) for rollout in rollouts)
    if not several:
        return None
    return Reason(
        "several_sequences",
        f"{several} of {len(rollouts)} rollouts were trained on as several sequences, and gradients are computed of "
        "one sequence a rollout",
    )


def _obstacles(settings: TrainerSettings) -> Iterator[Reason]:
    get = settings.get
    loss_type = get("loss_type", "dapo")
    if loss_type not in LOSSES:
        yield Reason("loss_unknown", f"loss_type {loss_type!r} has no rule here")
    if get("importance_sampling_level", "token") not in ("token", "sequence"):
        level = get("importance_sampling_level")
        yield Reason("loss_unknown", f"importance_sampling_level {level!r} has no rule here")
    yield from _of_batches(settings)
    if get("neftune_noise_alpha"):
        yield Reason(
            "dropout",
            f"NEFTune added random noise to the embeddings (neftune_noise_alpha = {get('neftune_noise_alpha')}), and "
            "what it drew is not logged",
            hint="Train without neftune_noise_alpha.",
        )
    if get("use_liger_kernel", False) or get("use_liger_loss", False):
        yield Reason("loss_not_on_disk", "the loss was a fused Liger kernel")
    if get("use_vllm") and get("vllm_importance_sampling_mode", "sequence_mask") not in get_args(Mode):
        mode = get("vllm_importance_sampling_mode")
        yield Reason("loss_unknown", f"vllm_importance_sampling_mode {mode!r} has no rule here")
    yield from _of_old_luspo(settings)


def _of_batches(settings: TrainerSettings) -> Iterator[Reason]:
    """What depends on which rollouts were together in a generation batch, an update or a micro-batch."""
    get = settings.get
    accumulation, per_generation = _steps(settings)
    if per_generation < accumulation:
        yield Reason("rollouts_missing", "an update covers several generation batches, and the log holds the last")
    if per_generation > accumulation:
        yield Reason("batch_split", "each update sees a shuffled part of the logged batch, and which is not logged")
    loss = LOSSES.get(get("loss_type", "dapo"))
    masked = float(get("top_entropy_quantile", 1.0)) < 1.0
    bonus = bool(get("entropy_coef", 0.0) or get("use_adaptive_entropy", False))
    known = TrlVersion.parse(get("trl_version")).known
    if masked and bonus and loss is not None and loss.by_all_tokens and not known:
        yield Reason(
            "settings_unknown",
            "what the entropy bonus is divided by depends on TRL's version, which is not known",
            hint=VERSION_HINT,
        )
    if _has_one_micro_batch(settings):
        return
    if loss is not None and loss.by_micro_batch:
        yield Reason(
            "micro_batches_unknown",
            f"{get('loss_type')} averages within micro-batches, and which rollouts shared one is not logged",
        )
    if masked:
        yield Reason(
            "micro_batches_unknown",
            "top_entropy_quantile masks tokens by their entropy within micro-batches, and which rollouts shared one is "
            "not logged",
        )
    if bonus:
        yield Reason(
            "micro_batches_unknown",
            "the entropy bonus is a mean within micro-batches, and which rollouts shared one is not logged",
        )


def _of_old_luspo(settings: TrainerSettings) -> Iterator[Reason]:
    """Until 1.10 luspo averaged over the padded batch wherever its term was one a token."""
    get, version = settings.get, TrlVersion.parse(settings.get("trl_version"))
    if get("loss_type") != "luspo" or (version.known and not version.is_before(1, 10)):
        return
    by_token_ratios = get("use_vllm", False) and str(get("vllm_importance_sampling_mode", "")).startswith("token")
    by_token = get("importance_sampling_level", "token") == "token" or bool(get("beta", 0.0)) or by_token_ratios
    if not by_token and float(get("top_entropy_quantile", 1.0)) >= 1.0:
        return
    if version.known:
        yield Reason("loss_not_on_disk", "luspo by token averages over the padding of each micro-batch before TRL 1.10")
    else:
        yield Reason(
            "settings_unknown",
            "how luspo averages depends on TRL's version, which is not known",
            hint=VERSION_HINT,
        )


def _steps(settings: TrainerSettings) -> tuple[int, int]:
    """Micro-batches of an update, and of a generation batch."""
    accumulation = int(settings.get("gradient_accumulation_steps", 1))
    return accumulation, int(settings.get("steps_per_generation", accumulation))


def _has_one_micro_batch(settings: TrainerSettings) -> bool:
    rows: Any = settings.get("generation_batch_size")
    return rows is not None and rows == settings.get("per_device_train_batch_size")
