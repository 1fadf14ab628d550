"""The losses of verl, prime-rl and NeMo-RL by their own arguments, and whose loss a run's arguments describe.

A setting whose weights the log does not determine gives a reason, never a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gradscope.errors import InputError
from gradscope.gradients.plan import losses
from gradscope.gradients.plan.objective import Objective, no_rule
from gradscope.reason import Reason
from gradscope.rollouts.run import TrainerSettings

_MODES: dict[tuple[bool, bool], losses.Mode] = {
    (False, False): "token_truncate",
    (False, True): "token_mask",
    (True, False): "sequence_truncate",
    (True, True): "sequence_mask",
}
"""Whether ratios are of sequences, and whether one out of bounds is dropped -> the correction."""


def _release(settings: TrainerSettings, name: str) -> tuple[int, int] | None:
    parts = str(settings.get(name, "")).split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None


def _section(settings: TrainerSettings, name: str) -> Callable[..., Any]:
    """An argument below a section by its own name, or a default."""
    return lambda argument, default=None: settings.lookup(f"{name}.{argument}", default)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _product(settings: TrainerSettings, *names: str) -> int | None:
    """The rollouts of an update: prompts times samples, where both are known."""
    prompts, samples = (settings.lookup(name) for name in names)
    return None if prompts is None or samples is None else int(prompts) * int(samples)


# verl's actor loss: ``loss_mode`` and ``loss_agg_mode``, the KL loss, the entropy bonus and the rollout correction.
#
# One optimizer update takes a mini-batch. Since 0.8 (the workers on engines) tokens and sequences are counted over the
# mini-batch; the older workers average within each micro-batch, which changes ``token-mean``. ``actor/grad_norm``
# is taken before clipping and is the mean over a step's mini-batches and epochs, so a step with one update has its own.
_ACTOR = "actor_rollout_ref.actor"
_CORRECTION = "algorithm.rollout_correction"
_BY_SEQUENCE = "seq-mean-token-mean"
AGGREGATIONS: Mapping[str, losses.Average] = {
    "token-mean": losses.mean_per_token,
    "token-sum": losses.summed,
    "seq-mean-token-sum": losses.summed_tokens,
    _BY_SEQUENCE: losses.mean_per_completion,
    "seq-mean-token-sum-norm": losses.by_factor,
}
"""``loss_agg_mode`` -> the average."""
_VERL_TERMS = {
    "vanilla": losses.dual_clipped,
    "gpg": losses.log_likelihood,
    "cispo": losses.held_ratio,
    "gspo": losses.sequence_clipped,
    "sapo": losses.soft_gate,
    "bypass_mode": losses.dual_clipped,
}
"""``policy_loss.loss_mode`` -> the term."""
_ALWAYS_BY_SEQUENCE = ("gspo", "sapo")  # terms that verl averages by sequence whatever ``loss_agg_mode`` says
_VERL_KL: Mapping[str, str] = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
"""``kl_loss_type`` -> the estimator; with a plus the gradient is that of k2."""
_VERL_SHAPING = (f"{_ACTOR}.loss_agg_mode", f"{_ACTOR}.use_kl_loss", "actor_rollout_ref.rollout.temperature")

_VERL_CONFIG = "Give verl's configuration with --run-config: .hydra/config.yaml of the folder that it was started in."
"""What to do where the arguments are not at hand."""
_VERL_VERSION = 'Give verl\'s version with --run-config: {"verl_version": "0.9.1", ...}.'
"""What to do where a loss depends on a version that is not known."""


_KL_BOUNDS = (20.0, 10.0)  # within which the log-ratio and the k3 term are held, by NeMo-RL's defaults, too


def _verl_objective(settings: TrainerSettings) -> Objective:
    """The loss of verl's arguments; ``cannot`` says why where it has no exact token weights."""
    actor, cannot = _section(settings, _ACTOR), next(_verl_obstacles(settings), None)
    mode, term = _verl_mode(settings), _verl_term(settings)
    clip = float(actor("clip_ratio", 0.2))
    has_kl, kl_type = bool(actor("use_kl_loss", False)), str(actor("kl_loss_type", "low_var_kl"))
    correction = None if cannot else _verl_correction(settings)
    bypassed = _is_bypassed(settings)
    average = AGGREGATIONS.get(mode, losses.mean_per_token)
    if _leaves_out_empty(settings) and _is_one_micro_batch(settings):
        average = losses.without_empty(average)
    return Objective(
        loss_type=f"verl's {term}, {mode}",
        declared=losses.Loss(term=_VERL_TERMS.get(term, losses.dual_clipped), average=average, averages_entropy=True),
        beta=float(actor("kl_loss_coef", 0.001)) if has_kl else 0.0,
        kl_type="k2" if kl_type.endswith("+") else _VERL_KL.get(kl_type, "k3"),
        kl_bounds=_KL_BOUNDS if kl_type in ("low_var_kl", "k3") else (math.inf, math.inf),
        use_bias_correction_kl=False,
        temperature=float(settings.lookup("actor_rollout_ref.rollout.temperature", 1.0)),
        epsilon_low=float(actor("clip_ratio_low", clip)),
        epsilon_high=float(actor("clip_ratio_high", clip)),
        delta=float(actor("clip_ratio_c", 3.0)),
        sapo_temperature_pos=float(actor("tau_pos", 1.0)),
        sapo_temperature_neg=float(actor("tau_neg", 1.05)),
        entropy_coef=float(actor("entropy_coeff", 0.0)),
        loss_scale_factor=_scale_factor(settings),
        importance_ratio=bypassed or settings.updates_per_batch > 1,  # a script's
        ratio_to_logged=bypassed,
        correction=correction,
        needs_sampler=correction is not None,
        num_rows=_verl_rows(settings),
        cannot_with_empty=_without_empty(settings),
        assumed=tuple(name for name in _VERL_SHAPING if settings.lookup(name) is None),
        cannot=cannot,
    )


def _verl_obstacles(settings: TrainerSettings) -> Iterator[Reason]:
    """The norm of a step is a mean over its updates, and only the first starts from weights that are saved."""
    prompts, mini_batch = settings.lookup("data.train_batch_size"), settings.lookup(f"{_ACTOR}.ppo_mini_batch_size")
    epochs = int(settings.lookup(f"{_ACTOR}.ppo_epochs", 1))
    if prompts is None or mini_batch is None:
        text = "how many updates a step has follows from data.train_batch_size and actor.ppo_mini_batch_size, not known"
        yield Reason("settings_unknown", text, hint=_VERL_CONFIG)
    elif (updates := -(-int(prompts) // int(mini_batch)) * epochs) > 1:
        text = f"verl logs the mean norm over the {updates} updates of a step, and the later ones start from weights "
        yield Reason("several_updates", f"{text}that are not saved")
    mode, term = _verl_mode(settings), _verl_term(settings)
    kl_type = str(settings.lookup(f"{_ACTOR}.kl_loss_type", "low_var_kl")).removesuffix("+")
    aggregation = settings.lookup(f"{_ACTOR}.loss_agg_mode", "token-mean")
    has_kl = settings.lookup(f"{_ACTOR}.use_kl_loss", False)
    has_extra_terms = has_kl or settings.lookup(f"{_ACTOR}.entropy_coeff", 0.0)
    is_mixed = term in _ALWAYS_BY_SEQUENCE and has_extra_terms and str(aggregation) != _BY_SEQUENCE
    mixture = f"{term} averages its own term by sequence and the KL and entropy terms by {aggregation}"
    yield from no_rule(
        (term not in _VERL_TERMS, f"policy_loss.loss_mode {term!r} has no rule here"),
        (mode not in AGGREGATIONS, f"loss_agg_mode {mode!r} has no rule here"),
        (has_kl and kl_type not in _VERL_KL, f"kl_loss_type {kl_type!r} has no rule here"),
        (settings.get("distillation.enabled", False), "the loss has a distillation term"),
        (is_mixed, f"{mixture}, which has no rule here"),
    )
    yield from _verl_micro_batches(settings)
    yield from _verl_rejections(settings)


def _verl_micro_batches(settings: TrainerSettings) -> Iterator[Reason]:
    """The older workers average within micro-batches; which rollouts shared one is not logged."""
    mode = _verl_mode(settings)
    if mode == "seq-mean-token-sum-norm" and _scale_factor(settings) is None:
        text = "seq-mean-token-sum-norm without loss_scale_factor divides by the longest response of each micro-batch"
        hint = "Set actor.loss_scale_factor to a constant in the next run."
        yield Reason("micro_batches_unknown", text, hint=hint)
    by_mini_batch = _counts_by_mini_batch(settings)
    if mode == "seq-mean-token-sum-norm" and by_mini_batch is False:
        yield Reason("loss_unknown", "what seq-mean-token-sum-norm divides by changed before verl 0.8")
    if mode in ("seq-mean-token-sum", _BY_SEQUENCE) or by_mini_batch:
        return
    if _is_one_micro_batch(settings):
        return
    if by_mini_batch is None:
        text = f"whether {mode} counts over the mini-batch or over each micro-batch depends on verl's version"
        yield Reason("settings_unknown", f"{text}, which is not known", hint=_VERL_VERSION)
    else:
        text = f"{mode} averages within micro-batches before verl 0.8, and which rollouts shared one is not logged"
        hint = "Use verl 0.8 or newer, or one micro-batch an update, in the next run."
        yield Reason("micro_batches_unknown", text, hint=hint)


def _is_one_micro_batch(settings: TrainerSettings) -> bool:
    """Whether an update is known to be one forward and backward pass."""
    devices = int(settings.lookup("trainer.n_gpus_per_node", 8)) * int(settings.lookup("trainer.nnodes", 1))
    size, dynamic = (settings.lookup(f"{_ACTOR}.{n}") for n in ("ppo_micro_batch_size_per_gpu", "use_dynamic_bsz"))
    rows = _verl_rows(settings)
    return devices == 1 and not dynamic and rows is not None and size is not None and int(size) >= rows


def _leaves_out_empty(settings: TrainerSettings) -> bool:
    """Whether means over sequences leave out those without a token, as the workers of 0.6 and 0.7 do."""
    is_recent = (_release(settings, "verl_version") or (0, 6)) >= (0, 6)  # those of 0.5 divide by zero tokens
    return is_recent and _counts_by_mini_batch(settings) is False


def _without_empty(settings: TrainerSettings) -> Reason | None:
    """Means over sequences leave out those without a token, of each micro-batch (0.6, 0.7) or of none (since 0.8)."""
    by_mini_batch = _counts_by_mini_batch(settings)
    if _verl_mode(settings) not in ("seq-mean-token-sum", _BY_SEQUENCE) or by_mini_batch:
        return None
    if _leaves_out_empty(settings) and _is_one_micro_batch(settings):
        return None
    text = f"{_verl_mode(settings)} leaves rollouts without a token in the loss out of the mean of their micro-batch"
    hint = _VERL_VERSION if by_mini_batch is None else "Use verl 0.8 or newer in the next run."
    return Reason("micro_batches_unknown", f"{text} before verl 0.8, and which shared one is not logged", hint)


def _verl_rejections(settings: TrainerSettings) -> Iterator[Reason]:
    def get(name: str) -> Any:
        return settings.get(f"{_CORRECTION}.{name}", settings.get(name))

    level, bypassed, loss_type = get("rollout_is"), get("bypass_mode"), get("loss_type")
    is_old = _counts_by_mini_batch(settings) is False
    return no_rule(
        (get("rollout_rs"), f"rollout_correction.rollout_rs = {get('rollout_rs')} rejects tokens by rules"),
        (level and get("rollout_is_batch_normalize"), "rollout_is_batch_normalize scales the weights by their mean"),
        (level not in (None, False, "token", "sequence"), f"rollout_is {level!r} has no rule here"),
        (bypassed and is_old, "before verl 0.8 the ratio is 1 in a step of one update, bypass_mode or not"),
        (
            bypassed and loss_type not in (None, "ppo_clip"),
            f"bypass_mode with loss_type {loss_type!r} has no rule here",
        ),
    )


def _counts_by_mini_batch(settings: TrainerSettings) -> bool | None:
    """Whether tokens are counted over the mini-batch, as since verl 0.8; None where that is unknown."""
    version = _release(settings, "verl_version")
    if version is not None:
        return version >= (0, 8) or settings.lookup("trainer.use_legacy_worker_impl") == "disable"
    if settings.get("verl_v1") or settings.lookup("trainer.use_v1") is not None:
        return True
    legacy = settings.lookup("trainer.use_legacy_worker_impl")  # an argument of 0.6 and 0.7
    return None if legacy is None else legacy == "disable"


def _verl_mode(settings: TrainerSettings) -> str:
    mode = str(settings.lookup(f"{_ACTOR}.loss_agg_mode", "token-mean"))
    return _BY_SEQUENCE if _verl_term(settings) in _ALWAYS_BY_SEQUENCE else mode


def _verl_term(settings: TrainerSettings) -> str:
    """The loss mode; with ``bypass_mode`` the trainer of 0.8 and older has one of its own."""
    if _is_bypassed(settings) and not _is_v1(settings):
        return "bypass_mode"
    return str(settings.lookup(f"{_ACTOR}.policy_loss.loss_mode", "vanilla"))


def _is_v1(settings: TrainerSettings) -> bool:
    """Whether the trainer was that of 0.9, by its rows or its arguments."""
    return bool(settings.get("verl_v1") or settings.lookup("trainer.use_v1", False))


def _is_bypassed(settings: TrainerSettings) -> bool:
    """Whether the sampler's log-probabilities are used for those of the trainer before the update."""
    return bool(settings.lookup(f"{_CORRECTION}.bypass_mode", False))


def _scale_factor(settings: TrainerSettings) -> float | None:
    """The constant; where it is not set, the response length that the trainer of 0.8 and older pads to."""
    value = settings.lookup(f"{_ACTOR}.loss_scale_factor")
    if value is None and not _is_v1(settings):
        value = settings.lookup("data.max_response_length")
    return _number(value)


def _verl_rows(settings: TrainerSettings) -> int | None:
    return _product(settings, f"{_ACTOR}.ppo_mini_batch_size", "actor_rollout_ref.rollout.n")


def _verl_correction(settings: TrainerSettings) -> losses.SamplerCorrection | None:
    """Truncated (one bound) or dropped (two, ``low_high``) ratios of the trainer to the engine that sampled."""
    cap = settings.lookup(f"{_ACTOR}.tis_imp_ratio_cap", 0.0)  # the same under its name of 0.5 and 0.6
    level = settings.lookup(f"{_CORRECTION}.rollout_is") or ("token" if cap and float(cap) > 0 else None)
    if not level or _is_bypassed(settings):
        return None
    bounds = str(settings.lookup(f"{_CORRECTION}.rollout_is_threshold", cap or 2.0)).split("_")
    high, low = float(bounds[-1]), float(bounds[0]) if len(bounds) == 2 else None
    return losses.SamplerCorrection(mode=_MODES[level != "token", low is not None], low=low, high=high)


# prime-rl's loss: ``trainer.loss`` of type ``default`` or ``ipo``, over one update a step.
#
# Every token has the importance ratio of the trainer to the engine that sampled it, whose log-probabilities are logged;
# tokens whose probability moved too far are left out, and the squared log-ratio is added. All are summed and divided by
# the tokens of the batch, over all processes. ``optim/grad_norm`` is taken before clipping.
_PRIME_LOSS = "trainer.loss"
_PRIME_TERMS = {"default": losses.within_one_bound, "ipo": losses.within_both_bounds}
_PRIME_ARGUMENTS = frozenset(
    {"type", "adv_tau", "kl_tau", "dppo_mask_low", "dppo_mask_high", "ipo_threshold", "ipo_mask_low", "ipo_mask_high"}
    | {"teacher_tau", "import_path", "kwargs"}
)
"""Arguments of the losses since 0.5; another name means a loss of an older or a newer release."""
_PRIME_SHAPING = (f"{_PRIME_LOSS}.type", f"{_PRIME_LOSS}.kl_tau")


def _prime_rl_objective(settings: TrainerSettings) -> Objective:
    """The loss of prime-rl's arguments; ``cannot`` says why where it has no exact token weights."""
    kind, loss = _prime_kind(settings), _section(settings, _PRIME_LOSS)
    low, high = loss("dppo_mask_low", 0.2), loss("dppo_mask_high", 0.2)
    if kind == "ipo":
        low, high = (loss(name, loss("ipo_threshold", 0.1)) for name in ("ipo_mask_low", "ipo_mask_high"))
    # the section of the configuration that has the temperature of training changed, its name did not
    temperatures = _sampling_temperatures(settings) or [float(settings.get("temperature", 1.0))]
    return Objective(
        loss_type=f"prime-rl's {kind}",
        declared=losses.Loss(term=_PRIME_TERMS.get(kind, losses.within_one_bound), average=losses.mean_per_token),
        beta=float(loss("kl_tau", 1e-3)),
        kl_type="square",
        kl_to_sampler=True,
        use_bias_correction_kl=False,
        advantage_scale=float(loss("adv_tau", 1.0)),
        epsilon_low=float(low),
        epsilon_high=float(high),
        temperature=temperatures[0],
        importance_ratio=True,
        ratio_to_logged=True,
        assumed=tuple(name for name in _PRIME_SHAPING if settings.lookup(name) is None),
        cannot=next(_prime_obstacles(settings), None),
    )


def _sampling_temperatures(settings: TrainerSettings) -> list[float]:
    return [
        float(value)
        for name, value in settings.values.items()
        if name.endswith("sampling.temperature") and "eval" not in name and value is not None
    ]


def _prime_kind(settings: TrainerSettings) -> str:
    """The type; until 0.6 ``default`` had both bounds, named ``ipo_mask_low`` and ``ipo_mask_high``."""
    kind = str(settings.lookup(f"{_PRIME_LOSS}.type", "default"))
    return "ipo" if kind == "default" and settings.lookup(f"{_PRIME_LOSS}.ipo_mask_low") is not None else kind


def _prime_obstacles(settings: TrainerSettings) -> Iterator[Reason]:
    kind, values = _prime_kind(settings), settings.values
    has_teacher = settings.lookup(f"{_PRIME_LOSS}.teacher_tau", 0.0) and any(".teacher" in name for name in values)
    arguments = [name.removeprefix(f"{_PRIME_LOSS}.") for name in values if name.startswith(f"{_PRIME_LOSS}.")]
    unsupported = sorted({name.partition(".")[0] for name in arguments} - _PRIME_ARGUMENTS)
    has_schedule = any("temp_scheduler" in name and value is not None for name, value in values.items())
    differ = len(set(_sampling_temperatures(settings))) > 1
    return no_rule(
        (kind not in _PRIME_TERMS, f"trainer.loss of type {kind!r} has no rule here"),
        (has_teacher, "advantages hold a teacher's log-probabilities, which are not logged"),
        (unsupported, f"trainer.loss has {', '.join(unsupported)}, of a release whose loss has no rule here"),
        (has_schedule, "the temperature followed a schedule, which has no rule here"),
        (differ, "environments sampled at different temperatures, which has no rule here"),
    )


# NeMo-RL's ``ClippedPGLossFn``: ``loss_fn``, over one update a step.
#
# With ``token_level_loss`` tokens are summed and divided by those of the global batch, else averaged by sequence and
# then over the sequences that count. Where a step has one update, the log-probabilities before it are those of the
# current weights, so its ratio is 1; the correction for the engine that sampled is its own factor. ``grad_norm`` is
# taken before clipping and is that of the step's last update.
_NEMO_LOSS = "loss_fn"
_NEMO_KL = ("k1", "k2", "k3")
_NEMO_SHAPING = (
    f"{_NEMO_LOSS}.token_level_loss",
    f"{_NEMO_LOSS}.reference_policy_kl_penalty",
    "policy.generation.temperature",
)
_NEMO_ARGUMENTS = frozenset(
    {"disable_ppo_ratio", "token_level_loss", "sequence_level_importance_ratios", "ratio_clip_min", "ratio_clip_max"}
    | {"ratio_clip_c", "reference_policy_kl_penalty", "reference_policy_kl_type", "kl_input_clamp_value"}
    | {"kl_output_clamp_value", "use_kl_in_reward", "use_importance_sampling_correction", "use_cispo"}
    | {"truncated_importance_sampling_type", "truncated_importance_sampling_ratio", "force_on_policy_ratio"}
    | {"truncated_importance_sampling_ratio_min", "use_on_policy_kl_approximation", "positive_example_nll_weight"}
)
"""Arguments of the loss up to 0.7 and a few later ones; any other that is set means a later release's loss."""
_NEUTRAL = {"top_p": (None, 1, 1.0), "top_k": (None, -1, 0)}
"""Values of the sampling arguments that leave the distribution alone."""
_NEMO_VERSION = 'Give NeMo-RL\'s version with --run-config: {"nemo_rl_version": "0.7.0", ...}.'
"""What to do where a loss depends on a version that is not known."""
_NEMO_CONFIG = "Give NeMo-RL's configuration with --run-config: config.yaml of any of its checkpoints."
"""What to do where the arguments are not at hand."""


def _nemo_rl_objective(settings: TrainerSettings) -> Objective:
    """The loss of NeMo-RL's arguments; ``cannot`` says why where it has no exact token weights."""
    loss, cannot = _section(settings, _NEMO_LOSS), next(_nemo_obstacles(settings), None)
    by_sequence = bool(loss("sequence_level_importance_ratios", False))
    term, name = losses.dual_clipped, "clipped"
    if loss("use_cispo", False):
        term, name = losses.held_ratio, "cispo"
    elif loss("disable_ppo_ratio", False):
        term, name = losses.log_likelihood, "reinforce"
    elif by_sequence:
        term, name = losses.clipped, "gspo"
    by_token = bool(loss("token_level_loss", True))
    correction = None
    if cannot is None and loss("use_importance_sampling_correction", False):
        correction = losses.SamplerCorrection(
            mode=_MODES[by_sequence, loss("truncated_importance_sampling_type") == "icepop"],
            low=_number(loss("truncated_importance_sampling_ratio_min")),
            high=_number(loss("truncated_importance_sampling_ratio")),
        )
    in_reward = bool(loss("use_kl_in_reward", False))
    return Objective(
        loss_type=f"NeMo-RL's {name}, {'token' if by_token else 'sequence'} level",
        declared=losses.Loss(
            term=term, average=losses.mean_per_token if by_token else losses.without_empty(losses.mean_per_completion)
        ),
        importance_sampling_level="sequence" if by_sequence else "token",
        beta=0.0 if in_reward else float(loss("reference_policy_kl_penalty", 0.01)),
        kl_type=str(loss("reference_policy_kl_type", "k3")),
        kl_bounds=_nemo_kl_bounds(settings),
        use_bias_correction_kl=bool(_weighs_kl(settings)),
        temperature=float(settings.lookup("policy.generation.temperature", 1.0)),
        epsilon_low=float(loss("ratio_clip_min", 0.2)),
        epsilon_high=float(loss("ratio_clip_max", 0.2)),
        delta=_number(loss("ratio_clip_c")),
        correction=correction,
        needs_sampler=correction is not None,
        num_rows=_nemo_rows(settings),
        assumed=tuple(name for name in _NEMO_SHAPING if settings.lookup(name) is None),
        cannot=cannot,
    )


def _nemo_kl_bounds(settings: TrainerSettings) -> tuple[float, float]:
    """``kl_input_clamp_value`` and ``kl_output_clamp_value``, where null is none; arguments since 0.5."""
    has_bounds = (_release(settings, "nemo_rl_version") or (0, 5)) >= (0, 5)
    defaults = zip(("input", "output"), _KL_BOUNDS if has_bounds else (math.inf, math.inf), strict=True)
    named = (settings.values.get(f"{_NEMO_LOSS}.kl_{kind}_clamp_value", bound) for kind, bound in defaults)
    low, high = (math.inf if bound is None else float(bound) for bound in named)
    return low, high


def _weighs_kl(settings: TrainerSettings) -> bool | None:
    """Whether the KL term is multiplied by a ratio of value 1, as since 0.7; None where that is unknown."""
    version = _release(settings, "nemo_rl_version")
    if version is not None:
        return version >= (0, 7)
    if settings.get(f"{_NEMO_LOSS}.use_cispo") is not None:  # an argument since 0.7
        return True
    return None if settings.origin is None else False


def _nemo_obstacles(settings: TrainerSettings) -> Iterator[Reason]:
    rows, batch = _nemo_rows(settings), settings.lookup("policy.train_global_batch_size")
    if rows is None or batch is None:
        text = "how many updates a step has follows from num_prompts_per_step, num_generations_per_prompt and "
        yield Reason("settings_unknown", f"{text}train_global_batch_size, which are not known", hint=_NEMO_CONFIG)
    elif rows != int(batch):
        text = f"NeMo-RL logs the norm of the last of {-(-rows // int(batch))} updates of a step, which starts from "
        yield Reason("several_updates", f"{text}weights that are not saved")
    loss = _section(settings, _NEMO_LOSS)
    has_kl = bool(loss("reference_policy_kl_penalty", 0.01)) and not loss("use_kl_in_reward", False)
    kl_type, by_sampler = loss("reference_policy_kl_type"), loss("use_on_policy_kl_approximation", False)
    yield from no_rule(
        (
            has_kl and loss("reference_policy_kl_type", "k3") not in _NEMO_KL,
            f"reference_policy_kl_type {kl_type!r} has no rule",
        ),
        (has_kl and by_sampler, "use_on_policy_kl_approximation weighs the KL term by the sampler's ratio"),
    )
    if has_kl and _weighs_kl(settings) is None:
        text = "whether the KL term has the gradient through the sampling probability depends on NeMo-RL's version"
        yield Reason("settings_unknown", f"{text}, which is not known", hint=_NEMO_VERSION)
    masks_sequences = loss("truncated_importance_sampling_type") == "seq-mask-tis"
    in_use = [name for name, value in settings.values.items() if value and f"{_NEMO_LOSS}." in name]
    unsupported = sorted({name.removeprefix(f"{_NEMO_LOSS}.") for name in in_use} - _NEMO_ARGUMENTS)
    cuts = {name: settings.lookup(f"policy.generation.{name}") for name in _NEUTRAL}
    yield from no_rule(
        (loss("positive_example_nll_weight", 0.0), "positive_example_nll_weight averages within micro-batches"),
        (masks_sequences, "truncated_importance_sampling_type seq-mask-tis has no rule here"),
        (unsupported, f"loss_fn has {', '.join(unsupported)}, of a release whose loss has no rule here"),
        *(
            (cut not in _NEUTRAL[name], f"log-probabilities are of the distribution cut at {name} = {cut}")
            for name, cut in cuts.items()
        ),
    )


def _nemo_rows(settings: TrainerSettings) -> int | None:
    return _product(settings, "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt")


TRAINERS: Mapping[str, Callable[[TrainerSettings], Objective]] = {
    "verl": _verl_objective,
    "prime-rl": _prime_rl_objective,
    "nemo-rl": _nemo_rl_objective,
}
"""Trainers other than TRL -> the loss of their arguments."""


def objective_of(settings: TrainerSettings) -> Objective:
    """The loss of a run: of the trainer that its arguments name, else TRL's.

    Raises:
        InputError: An argument is of another type, or a number out of range.
    """
    try:
        return TRAINERS.get(str(settings.get("trainer")), Objective.from_settings)(settings)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InputError(
            f"{settings.origin} holds arguments that no trainer has: {error}.",
            hint="Give the trainer's arguments as it had them: --run-config FILE",
        ) from error
