"""verl's actor loss: ``loss_mode`` and ``loss_agg_mode``, the KL loss, the entropy bonus and the rollout correction.

One optimizer update takes a mini-batch. Since 0.8 (the workers on engines) tokens and sequences are counted over the
whole mini-batch; the older workers average within each micro-batch, which changes ``token-mean``. ``actor/grad_norm``
is taken before clipping and is the mean over a step's mini-batches and epochs, so a step with one update has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradscope.gradients.plan.losses import (
    Average,
    Loss,
    SamplerCorrection,
    completions_alike,
    soft_gate,
    summed_tokens,
    tokens_alike,
)
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.trainers.terms import (
    by_factor,
    dual_clipped,
    held_ratio,
    log_likelihood,
    sequence_clipped,
    summed,
)
from gradscope.reason import Reason
from gradscope.rollouts.run import TrainerSettings

_ACTOR = "actor_rollout_ref.actor"
_CORRECTION = "algorithm.rollout_correction"
_BY_SEQUENCE = "seq-mean-token-mean"
AGGREGATIONS: Mapping[str, Average] = {
    "token-mean": tokens_alike,
    "token-sum": summed,
    "seq-mean-token-sum": summed_tokens,
    _BY_SEQUENCE: completions_alike,
    "seq-mean-token-sum-norm": by_factor,
}
"""``loss_agg_mode`` -> the average."""
TERMS = {
    "vanilla": dual_clipped,
    "gpg": log_likelihood,
    "cispo": held_ratio,
    "gspo": sequence_clipped,
    "sapo": soft_gate,
    "bypass_mode": dual_clipped,
}
"""``policy_loss.loss_mode`` -> the term."""
_ALWAYS_BY_SEQUENCE = ("gspo", "sapo")
"""Terms that verl averages by sequence whatever ``loss_agg_mode`` says."""
KL_TYPES: Mapping[str, str] = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3 bounded",
    "k3": "k3 bounded",
}
"""``kl_loss_type`` -> the estimator; with a plus the gradient is that of k2."""
_SHAPING = (f"{_ACTOR}.loss_agg_mode", f"{_ACTOR}.use_kl_loss", "actor_rollout_ref.rollout.temperature")


def verl_objective(settings: TrainerSettings) -> Objective:
    """The loss of verl's arguments; ``cannot`` says why where it has no exact token weights."""

    def of_actor(name: str, default: Any = None) -> Any:
        return settings.at(f"{_ACTOR}.{name}", default)

    cannot = next(_obstacles(settings), None)
    mode, term = _mode(settings), _term(settings)
    clip = float(of_actor("clip_ratio", 0.2))
    has_kl, kl_type = bool(of_actor("use_kl_loss", False)), str(of_actor("kl_loss_type", "low_var_kl"))
    correction = None if cannot else _correction(settings)
    bypassed = _is_bypassed(settings)
    average = AGGREGATIONS.get(mode, tokens_alike)
    return Objective(
        loss_type=f"verl's {term}, {mode}",
        declared=Loss(term=TERMS.get(term, dual_clipped), average=average, entropy_alike=True),
        beta=float(of_actor("kl_loss_coef", 0.001)) if has_kl else 0.0,
        kl_type="k2" if kl_type.endswith("+") else KL_TYPES.get(kl_type, "k3 bounded"),
        use_bias_correction_kl=False,
        temperature=float(settings.at("actor_rollout_ref.rollout.temperature", 1.0)),
        epsilon_low=float(of_actor("clip_ratio_low", clip)),
        epsilon_high=float(of_actor("clip_ratio_high", clip)),
        delta=float(of_actor("clip_ratio_c", 3.0)),
        sapo_temperature_pos=float(of_actor("tau_pos", 1.0)),
        sapo_temperature_neg=float(of_actor("tau_neg", 1.05)),
        entropy_coef=float(of_actor("entropy_coeff", 0.0)),
        loss_scale_factor=_scale_factor(settings),
        importance_ratio=bypassed,
        ratio_to_logged=bypassed,
        correction=correction,
        needs_sampler=correction is not None,
        num_rows=_num_rows(settings),
        assumed=tuple(name for name in _SHAPING if settings.at(name) is None),
        cannot=cannot,
    )


def _obstacles(settings: TrainerSettings) -> Iterator[Reason]:
    yield from _of_updates(settings)
    yield from _of_names(settings)
    yield from _of_micro_batches(settings)
    yield from _of_correction(settings)


def _of_updates(settings: TrainerSettings) -> Iterator[Reason]:
    """The norm of a step is a mean over its updates, of which all but the first start from weights nobody saved."""
    prompts, mini_batch = settings.at("data.train_batch_size"), settings.at(f"{_ACTOR}.ppo_mini_batch_size")
    epochs = int(settings.at(f"{_ACTOR}.ppo_epochs", 1))
    if prompts is None or mini_batch is None:
        text = "how many updates a step has follows from data.train_batch_size and actor.ppo_mini_batch_size, not known"
        yield Reason("settings_unknown", text, hint=CONFIG_HINT)
        return
    updates = -(-int(prompts) // int(mini_batch)) * epochs
    if updates > 1:
        yield Reason(
            "several_updates",
            f"verl logs the mean norm over the {updates} updates of a step, and the later ones start from weights that "
            "are not saved",
        )


def _of_names(settings: TrainerSettings) -> Iterator[Reason]:
    mode, term = _mode(settings), _term(settings)
    kl_type = str(settings.at(f"{_ACTOR}.kl_loss_type", "low_var_kl")).removesuffix("+")
    if term not in TERMS:
        yield Reason("loss_unknown", f"policy_loss.loss_mode {term!r} has no rule here")
    if mode not in AGGREGATIONS:
        yield Reason("loss_unknown", f"loss_agg_mode {mode!r} has no rule here")
    if settings.at(f"{_ACTOR}.use_kl_loss", False) and kl_type not in KL_TYPES:
        yield Reason("loss_unknown", f"kl_loss_type {kl_type!r} has no rule here")
    if settings.get("distillation.enabled", False):
        yield Reason("loss_unknown", "the loss has a distillation term")
    given = str(settings.at(f"{_ACTOR}.loss_agg_mode", "token-mean"))
    beside = settings.at(f"{_ACTOR}.use_kl_loss", False) or settings.at(f"{_ACTOR}.entropy_coeff", 0.0)
    if term in _ALWAYS_BY_SEQUENCE and beside and given != _BY_SEQUENCE:
        text = f"{term} averages its own term by sequence and the KL and entropy terms by {given}"
        yield Reason("loss_unknown", f"{text}, which has no rule here")


def _of_micro_batches(settings: TrainerSettings) -> Iterator[Reason]:
    """The older workers average within micro-batches; which rollouts shared one is not logged."""
    mode = _mode(settings)
    if mode == "seq-mean-token-sum-norm" and _scale_factor(settings) is None:
        text = "seq-mean-token-sum-norm without loss_scale_factor divides by the longest response of each micro-batch"
        hint = "Set actor.loss_scale_factor to a constant in the next run."
        yield Reason("micro_batches_unknown", text, hint=hint)
    by_mini_batch = _counts_by_mini_batch(settings)
    if mode == "seq-mean-token-sum-norm" and by_mini_batch is False:
        yield Reason("loss_unknown", "what seq-mean-token-sum-norm divides by changed before verl 0.8")
    if mode in ("seq-mean-token-sum", _BY_SEQUENCE) or by_mini_batch or _has_one_micro_batch(settings):
        return
    if by_mini_batch is None:
        text = f"whether {mode} counts over the mini-batch or over each micro-batch depends on verl's version"
        yield Reason("settings_unknown", f"{text}, which is not known", hint=VERSION_HINT)
    else:
        text = f"{mode} averages within micro-batches before verl 0.8, and which rollouts shared one is not logged"
        hint = "Use verl 0.8 or newer, or one micro-batch an update, in the next run."
        yield Reason("micro_batches_unknown", text, hint=hint)


def _of_correction(settings: TrainerSettings) -> Iterator[Reason]:
    def of(name: str) -> Any:
        return settings.get(f"{_CORRECTION}.{name}", settings.get(name))

    if of("rollout_rs"):
        yield Reason("loss_unknown", f"rollout_correction.rollout_rs = {of('rollout_rs')} rejects tokens by rules")
    if of("rollout_is") and of("rollout_is_batch_normalize"):
        yield Reason("loss_unknown", "rollout_is_batch_normalize scales the weights by their mean")
    if of("rollout_is") not in (None, False, "token", "sequence"):
        yield Reason("loss_unknown", f"rollout_is {of('rollout_is')!r} has no rule here")
    if of("bypass_mode") and _counts_by_mini_batch(settings) is False:
        yield Reason("loss_unknown", "before verl 0.8 the ratio is 1 in a step of one update, bypass_mode or not")
    if of("bypass_mode") and of("loss_type") not in (None, "ppo_clip"):
        yield Reason("loss_unknown", f"bypass_mode with loss_type {of('loss_type')!r} has no rule here")


def _counts_by_mini_batch(settings: TrainerSettings) -> bool | None:
    """Whether tokens are counted over the whole mini-batch, as since verl 0.8; None where nothing tells."""
    version = _version(settings)
    if version is not None:
        return version >= (0, 8) or settings.at("trainer.use_legacy_worker_impl") == "disable"
    if settings.get("verl_v1") or settings.at("trainer.use_v1") is not None:
        return True
    legacy = settings.at("trainer.use_legacy_worker_impl")  # an argument of 0.6 and 0.7
    return None if legacy is None else legacy == "disable"


def _version(settings: TrainerSettings) -> tuple[int, int] | None:
    parts = str(settings.get("verl_version", "")).split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None


def _mode(settings: TrainerSettings) -> str:
    mode = str(settings.at(f"{_ACTOR}.loss_agg_mode", "token-mean"))
    return _BY_SEQUENCE if _term(settings) in _ALWAYS_BY_SEQUENCE else mode


def _term(settings: TrainerSettings) -> str:
    """The loss mode; with ``bypass_mode`` the trainer of 0.8 and older has one of its own."""
    if _is_bypassed(settings) and not settings.get("verl_v1"):
        return "bypass_mode"
    return str(settings.at(f"{_ACTOR}.policy_loss.loss_mode", "vanilla"))


def _is_bypassed(settings: TrainerSettings) -> bool:
    """Whether the sampler's log-probabilities stand for those of the trainer before the update."""
    return bool(settings.at(f"{_CORRECTION}.bypass_mode", False))


def _scale_factor(settings: TrainerSettings) -> float | None:
    """The constant; where it is not set, the response length that the trainer of 0.8 and older pads to."""
    value = settings.at(f"{_ACTOR}.loss_scale_factor")
    if value is None and not settings.get("verl_v1") and not settings.at("trainer.use_v1", False):
        value = settings.at("data.max_response_length")
    return None if value is None else float(value)


def _has_one_micro_batch(settings: TrainerSettings) -> bool:
    devices = int(settings.at("trainer.n_gpus_per_node", 8)) * int(settings.at("trainer.nnodes", 1))
    rows, size = _num_rows(settings), settings.at(f"{_ACTOR}.ppo_micro_batch_size_per_gpu")
    dynamic = settings.at(f"{_ACTOR}.use_dynamic_bsz", False)
    return devices == 1 and not dynamic and rows is not None and size is not None and int(size) >= rows


def _num_rows(settings: TrainerSettings) -> int | None:
    prompts, samples = settings.at(f"{_ACTOR}.ppo_mini_batch_size"), settings.at("actor_rollout_ref.rollout.n")
    return None if prompts is None or samples is None else int(prompts) * int(samples)


def _correction(settings: TrainerSettings) -> SamplerCorrection | None:
    """Truncated (one bound) or dropped (two, ``low_high``) ratios of the trainer to the engine that sampled."""
    cap = settings.at(f"{_ACTOR}.tis_imp_ratio_cap", 0.0)  # the same under its name of 0.5 and 0.6
    level = settings.at(f"{_CORRECTION}.rollout_is") or ("token" if cap and float(cap) > 0 else None)
    if not level or _is_bypassed(settings):
        return None
    bounds = str(settings.at(f"{_CORRECTION}.rollout_is_threshold", cap or 2.0)).split("_")
    high, low = float(bounds[-1]), float(bounds[0]) if len(bounds) == 2 else None
    if level == "token":
        return SamplerCorrection(mode="token_truncate" if low is None else "token_mask", low=low, high=high)
    return SamplerCorrection(mode="sequence_truncate" if low is None else "sequence_mask", low=low, high=high)


CONFIG_HINT = "Give verl's configuration with --run-config: .hydra/config.yaml of the folder that it was started in."
"""What to do where the arguments are not at hand."""
VERSION_HINT = 'Give verl\'s version with --run-config: {"verl_version": "0.9.1", ...}.'
"""What to do where a loss depends on a version that is not known."""
