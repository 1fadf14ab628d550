"""The trainer's own loss from its arguments: which formula, how tokens average, what the log must hold for it.

TRL minimizes sum_i sum_t w_it (term_it + beta kl_it). The terms and the averages w_it are declared in
:mod:`gradscope.gradients.plan.losses`, which differentiates them. A setting whose weights the log does not determine
gives a reason, never a number.

Shapes: R rollouts of a step, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from gradscope.gradients.plan import losses
from gradscope.gradients.plan.losses import LOSSES, RLOO, Loss, LossParameters, Mode, SamplerCorrection
from gradscope.reason import Reason
from gradscope.rollouts.groups import Rollout
from gradscope.rollouts.run import UNKNOWN_TRL, VERSION_HINT, TrainerSettings, TrlVersion


def reason_against(settings: TrainerSettings) -> Reason | None:
    """The first obstacle in a trainer's arguments, or None."""
    return next(_obstacles(settings), None)


def several_sequences(rollouts: Sequence[Rollout]) -> Reason | None:
    """Why rollouts that were trained on as several sequences are not recomputed; None where each is one in the loss."""
    number = sum(any(any(tokens.mask) for tokens in rollout.earlier) for rollout in rollouts)
    if not number:
        return None
    return Reason(
        "several_sequences",
        f"{number} of {len(rollouts)} rollouts were trained on as several sequences, and gradients are computed of "
        "one sequence a rollout",
    )


def no_rule(*cases: tuple[object, str]) -> Iterator[Reason]:
    """Those of some cases that hold, with a sentence each, as losses that have no rule here."""
    return (Reason("loss_unknown", text) for holds, text in cases if holds)


def _obstacles(settings: TrainerSettings) -> Iterator[Reason]:
    get = settings.get
    loss_type = get("loss_type", "dapo")
    level, mode = get("importance_sampling_level", "token"), get("vllm_importance_sampling_mode", "sequence_mask")
    yield from no_rule(
        (loss_type not in LOSSES, f"loss_type {loss_type!r} has no rule here"),
        ("rloo_k" in settings.values, "the arguments are those of RLOOTrainer before TRL 0.22, whose loss has no rule"),
        (level not in ("token", "sequence"), f"importance_sampling_level {level!r} has no rule here"),
    )
    yield from _batch_obstacles(settings)
    if get("neftune_noise_alpha"):
        yield Reason(
            "dropout",
            f"NEFTune added random noise to the embeddings (neftune_noise_alpha = {get('neftune_noise_alpha')}), and "
            "what it drew is not logged",
            hint="Train without neftune_noise_alpha.",
        )
    if get("use_liger_kernel", False) or get("use_liger_loss", False):
        yield Reason("loss_not_on_disk", "the loss was a fused Liger kernel")
    is_unknown = get("use_vllm") and mode not in get_args(Mode)
    yield from no_rule((is_unknown, f"vllm_importance_sampling_mode {mode!r} has no rule here"))
    yield from _old_luspo_obstacles(settings)


def _batch_obstacles(settings: TrainerSettings) -> Iterator[Reason]:
    """Settings whose effect depends on which rollouts shared a generation batch, an update or a micro-batch."""
    get = settings.get
    accumulation, per_generation = _steps(settings)
    if per_generation < accumulation:
        yield Reason("rollouts_missing", "an update covers several generation batches, and the log holds the last")
    if per_generation > accumulation:
        yield Reason("batch_split", "each update sees a shuffled part of the logged batch, and which is not logged")
    loss = LOSSES.get(get("loss_type", "dapo"))
    masked = float(get("top_entropy_quantile", 1.0)) < 1.0
    bonus = bool(get("entropy_coef", 0.0) or get("use_adaptive_entropy", False))
    has_version = TrlVersion.parse(get("trl_version")).is_known
    if masked and bonus and loss is not None and loss.by_all_tokens and not has_version:
        text = "what the entropy bonus is divided by depends on TRL's version, which is not known"
        yield Reason("settings_unknown", text, hint=VERSION_HINT)
    rows, micro_batch = get("generation_batch_size"), get("per_device_train_batch_size")
    if rows is not None and rows == micro_batch:  # one micro-batch
        return
    hint = "" if micro_batch else "Give per_device_train_batch_size with --run-config; of a whole step, it is exact."
    for applies, text in (
        (loss is not None and loss.by_micro_batch, f"{get('loss_type')} averages"),
        (masked, "top_entropy_quantile masks tokens by their entropy"),
        (bonus, "the entropy bonus is a mean"),
    ):
        if applies:
            text += " within micro-batches, and which rollouts shared one is not logged"
            yield Reason("micro_batches_unknown", text, hint)


def _old_luspo_obstacles(settings: TrainerSettings) -> Iterator[Reason]:
    """Until 1.10 luspo averaged over the padded batch wherever its term was one a token."""
    get, version = settings.get, TrlVersion.parse(settings.get("trl_version"))
    if get("loss_type") != "luspo" or (version.is_known and not version.is_before(1, 10)):
        return
    by_token_ratios = get("use_vllm", False) and str(get("vllm_importance_sampling_mode", "")).startswith("token")
    by_token = get("importance_sampling_level", "token") == "token" or bool(get("beta", 0.0)) or by_token_ratios
    if not by_token and float(get("top_entropy_quantile", 1.0)) >= 1.0:
        return
    if version.is_known:
        yield Reason("loss_not_on_disk", "luspo by token averages over the padding of each micro-batch before TRL 1.10")
    else:
        yield Reason(
            "settings_unknown", "how luspo averages depends on TRL's version, which is not known", hint=VERSION_HINT
        )


def _steps(settings: TrainerSettings) -> tuple[int, int]:
    """Micro-batches of an update, and of a generation batch."""
    accumulation = int(settings.get("gradient_accumulation_steps", 1))
    return accumulation, int(settings.get("steps_per_generation", accumulation))


_SHAPING = ("loss_type", "beta", "temperature")
_PARAMETERS = (
    "importance_sampling_level",
    "delta",
    "sapo_temperature_pos",
    "sapo_temperature_neg",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
)
"""Arguments of the losses that have the same name in TRL."""


_OTHER_AVERAGES = {
    "a mean over all tokens of the update": losses.mean_per_token,
    "a mean over tokens, then over completions": losses.mean_per_completion,
    "a sum over tokens, then a mean over completions": losses.summed_tokens,
}


class Objective(LossParameters, frozen=True, kw_only=True):
    """The part of a trainer's settings that shapes the gradient."""

    loss_type: str = "dapo"  # the loss, a name of ``LOSSES``
    beta: float = 0.0  # coefficient of the KL term
    temperature: float = 1.0  # logits are divided by it before the softmax
    use_bias_correction_kl: bool = True  # whether the KL term is multiplied by the importance ratio
    importance_ratio: bool = False
    """Whether the batch was reused, so that ratios to the sampled log-probabilities differ from 1."""
    correction: SamplerCorrection | None = None
    """How the loss is corrected for an engine of its own that sampled; None: it is not."""
    needs_sampler: bool = False  # whether the loss looks at the log-probabilities of an engine of its own that sampled
    off_policy_threshold: float | None = None
    """Completions of negative advantage that are further off policy leave the reward part; None: all stay."""
    top_entropy_quantile: float = 1.0  # share of the tokens, those of highest entropy, that keep their reward part
    entropy_coef: float = 0.0  # coefficient of the entropy bonus
    chat_template_kwargs: Mapping[str, Any] = {}
    """How the trainer rendered conversations, for prompts whose ids were not logged."""
    mask_truncated: bool = False  # whether truncated completions leave the loss
    declared: Loss | None = None
    """The loss of another trainer, whose name ``loss_type`` then is; None: TRL's of that name."""
    ratio_to_logged: bool = False
    """Whether the importance ratio is to log-probabilities that were logged, at every update."""
    kl_to_sampler: bool = False
    """Whether the KL term is to the engine that sampled, whose log-probabilities were logged."""
    num_rows: int | None = None  # rollouts of one optimizer step by the settings; None where they do not determine it
    trl: TrlVersion = UNKNOWN_TRL  # TRL's version, as far as it is known
    assumed: tuple[str, ...] = ()  # unknown settings that shape the gradient, set to TRL's default
    cannot: Reason | None = None  # why the trainer's gradient cannot be formed from these settings; None where it can
    cannot_with_empty: Reason | None = None  # the same for a step with a rollout of which no token is in the loss

    @classmethod
    def from_settings(cls, settings: TrainerSettings) -> Objective:
        """The objective of a trainer's arguments; ``cannot`` says why where it has no exact token weights."""
        loss_type, are_of_rloo = str(settings.get("loss_type", "dapo")), settings.are_of_rloo
        epsilon = float(settings.get("epsilon", 0.2))
        beta = 0.0 if are_of_rloo else float(settings.get("beta", 0.0))  # RLOO has its KL term in the rewards
        assumed = [name for name in _SHAPING[2 * are_of_rloo :] if name not in settings.values]
        if beta and "use_bias_correction_kl" not in settings.values:
            assumed.append("use_bias_correction_kl")
        max_length = settings.get("max_completion_length")
        cannot = reason_against(settings)
        correction = None if cannot or are_of_rloo else SamplerCorrection.from_values(settings.values)
        threshold = settings.get("off_policy_mask_threshold")
        # TRL skips the ratio exactly when every update starts with fresh rollouts
        accumulation, per_generation = _steps(settings)
        return cls(
            **{name: settings.get(name) for name in _PARAMETERS if settings.get(name) is not None},
            loss_type="rloo" if are_of_rloo else loss_type if loss_type in LOSSES else "dapo",
            declared=RLOO if are_of_rloo else None,
            beta=beta,
            temperature=float(settings.get("temperature", 1.0)),
            use_bias_correction_kl=bool(settings.get("use_bias_correction_kl", True)),
            importance_ratio=bool(accumulation % (per_generation * int(settings.get("num_iterations", 1)))),
            epsilon_low=epsilon,
            epsilon_high=float(settings.get("epsilon_high", epsilon)),
            correction=correction,
            needs_sampler=bool(settings.get("use_vllm", False)) and (correction or threshold) is not None,
            off_policy_threshold=threshold,
            top_entropy_quantile=float(settings.get("top_entropy_quantile", 1.0)),
            entropy_coef=float(settings.get("entropy_coef", 0.0)),
            max_completion_length=None if max_length is None else int(max_length),
            chat_template_kwargs=dict(settings.get("chat_template_kwargs", {})),
            mask_truncated=bool(settings.get("mask_truncated_completions", False)),
            num_rows=None if (size := settings.get("generation_batch_size")) is None else int(size),
            trl=TrlVersion.parse(settings.get("trl_version")),
            assumed=tuple(assumed),
            cannot=cannot,
        )

    @property
    def loss(self) -> Loss:
        """The declared loss."""
        return LOSSES[self.loss_type] if self.declared is None else self.declared

    @property
    def has_reference(self) -> bool:
        """Whether the KL term is to other weights."""
        return bool(self.beta) and not self.kl_to_sampler

    @property
    def looks_at_logged(self) -> bool:
        """Whether the loss looks at logged log-probabilities."""
        return self.importance_ratio or self.needs_sampler or self.kl_to_sampler

    def reason_against(self, rollouts: Sequence[Rollout], *, has_old: bool = False) -> Reason | None:
        """The first reason why the rollouts of a step do not determine the trainer's gradient, or None.

        With ``has_old`` the weights that sampled a reused batch are available, so that its log-probabilities need not
        be logged.
        """
        if self.cannot is not None:
            return self.cannot
        if (reason := several_sequences(rollouts)) is not None:
            return reason
        if self.cannot_with_empty and any(rollout.mask is not None and not any(rollout.mask) for rollout in rollouts):
            return self.cannot_with_empty
        if self.num_rows is not None and len(rollouts) != self.num_rows:
            text = f"the log holds {len(rollouts)} rollouts of the step, and its update took {self.num_rows}"
            hint = "Log with each update the rollouts that it used." if len(rollouts) > self.num_rows else ""
            return Reason("rollouts_missing", text, hint)
        is_unknown = [rollout.status == "unknown" and rollout.completion_ids is None for rollout in rollouts]
        if self.mask_truncated and any(is_unknown):
            text = "truncated completions leave the loss, and the log does not say which were truncated"
            return Reason("truncation_unknown", text)
        any_truncated = any(rollout.status == "truncated" for rollout in rollouts)
        if self.mask_truncated and any_truncated and self.loss.by_all_tokens and not self.trl.is_known:
            text = f"whether {self.loss_type} divides by the tokens of truncated completions depends on TRL's version"
            return Reason("settings_unknown", f"{text}, which is not known", hint=VERSION_HINT)
        unlogged = any(rollout.logprobs is None for rollout in rollouts)
        if self.needs_sampler and unlogged:
            text = "the loss looks at vLLM's own log-probabilities of the tokens, which are not logged"
            return Reason("logprobs_missing", text)
        if (self.ratio_to_logged or self.kl_to_sampler) and unlogged:
            text = "the loss compares with the sampler's log-probabilities, which were not logged"
            return Reason("logprobs_missing", text)
        if self.importance_ratio and not has_old and (unlogged or self.needs_sampler):
            text = "the batch was reused, and the log-probabilities it was sampled with were not logged"
            return Reason("logprobs_missing", text)
        if self.loss_type == "dr_grpo" and self.max_completion_length is None:
            return Reason("settings_unknown", "dr_grpo divides by max_completion_length, which is not known")
        return None

    def counted(self, rollout: Rollout, mask: Sequence[bool]) -> tuple[bool, ...]:
        """Which tokens are in the loss, [T]: the mask, or none where a truncated completion leaves it."""
        if self.mask_truncated and rollout.status == "truncated":
            return (False,) * len(mask)
        return tuple(mask)

    def token_weights(
        self, masks: Sequence[Sequence[bool]], before_truncation: Sequence[Sequence[bool]] | None = None
    ) -> list[float]:
        """The weight w_i of each token of a completion that counts, [R], from which tokens count, [R][T].

        ``grpo`` 1/(R |o_i|); ``bnpo`` and ``dapo`` 1/(tokens of the step); ``dr_grpo`` 1/(R max_completion_length).
        Averaging over micro-batches and processes is included, so sums over the step have the scale of the logged
        gradient norm. TRL before 1.9 divides by the tokens ``before_truncation`` of truncated completions.

        >>> Objective(loss_type="grpo").token_weights([[True, True], [True, False]])
        [0.25, 0.5]
        """
        return self.loss.average([sum(mask) for mask in masks], self, self.num_tokens(masks, before_truncation))

    def num_tokens(self, masks: Sequence[Sequence[bool]], before_truncation: Sequence[Sequence[bool]] | None) -> int:
        """The tokens that a loss over all tokens divides by; the arguments are those of :meth:`token_weights`."""
        counts_truncated = self.loss.by_all_tokens and self.trl.is_before(1, 9)
        return sum(map(sum, before_truncation if counts_truncated and before_truncation is not None else masks))

    def other_averages(
        self, masks: Sequence[Sequence[bool]], sizes: Sequence[int], orders: Sequence[Sequence[int]]
    ) -> Iterator[tuple[str, list[list[float]]]]:
        """Averages that trainers have, with the weight of each completion's tokens, [1][R], and by order, [O][R].

        ``sizes`` are those of micro-batches, which the loss may be a mean over in unlogged ``orders`` where it is one
        over all tokens.
        """
        counts = [sum(mask) for mask in masks]
        for name, average in _OTHER_AVERAGES.items():
            yield name, [average(counts, self, sum(counts))]
        unlogged = orders if self.loss.average is losses.mean_per_token else ()
        for size in sizes:
            weights = [_by_micro_batch(counts, size, order) for order in (range(len(counts)), *unlogged)]
            yield f"a mean over tokens within each micro-batch of {size}", weights


def _by_micro_batch(counts: Sequence[int], size: int, order: Sequence[int]) -> list[float]:
    """The weights of a mean over tokens within micro-batches, then over these, [R], from the tokens that count, [R]."""
    weights = [0.0] * len(counts)
    for rows in (order[start : start + size] for start in range(0, len(counts), size)):
        for row in rows:
            weights[row] = size / (len(counts) * max(sum(counts[other] for other in rows), 1))
    return weights
