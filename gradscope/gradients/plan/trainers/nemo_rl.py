"""NeMo-RL's ``ClippedPGLossFn``: ``loss_fn``, over one update a step.

With ``token_level_loss`` tokens are summed and divided by those of the global batch, else averaged by sequence and then
over the sequences that count. Where a step has one update, the log-probabilities before it are those of the weights at
hand, so its ratio is 1; the correction for the engine that sampled is its own factor. ``grad_norm`` is taken before
clipping and is that of the step's last update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradscope.gradients.plan.losses import Loss, Mode, SamplerCorrection, clipped, tokens_alike
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.trainers.terms import counted_completions_alike, dual_clipped, held_ratio, log_likelihood
from gradscope.reason import Reason
from gradscope.rollouts.run import TrainerSettings

_LOSS = "loss_fn"
_KL_TYPES = {"k1": "k1", "k2": "k2", "k3": "k3 bounded"}
_SHAPING = (f"{_LOSS}.token_level_loss", f"{_LOSS}.reference_policy_kl_penalty", "policy.generation.temperature")
_ARGUMENTS = frozenset(
    {"disable_ppo_ratio", "token_level_loss", "sequence_level_importance_ratios", "ratio_clip_min", "ratio_clip_max"}
    | {"ratio_clip_c", "reference_policy_kl_penalty", "reference_policy_kl_type", "kl_input_clamp_value"}
    | {"kl_output_clamp_value", "use_kl_in_reward", "use_importance_sampling_correction", "use_cispo"}
    | {"truncated_importance_sampling_type", "truncated_importance_sampling_ratio", "force_on_policy_ratio"}
    | {"truncated_importance_sampling_ratio_min", "use_on_policy_kl_approximation", "positive_example_nll_weight"}
)
"""Arguments of the loss until 0.7 and a little beyond; another one that is set tells a loss of another release."""
_NEUTRAL = {"top_p": (None, 1, 1.0), "top_k": (None, -1, 0)}
"""Values of the sampling arguments that leave the distribution alone."""
VERSION_HINT = 'Give NeMo-RL\'s version with --run-config: {"nemo_rl_version": "0.7.0", ...}.'
"""What to do where a loss depends on a version that is not known."""
CONFIG_HINT = "Give NeMo-RL's configuration with --run-config: config.yaml of any of its checkpoints."
"""What to do where the arguments are not at hand."""


def nemo_rl_objective(settings: TrainerSettings) -> Objective:
    """The loss of NeMo-RL's arguments; ``cannot`` says why where it has no exact token weights."""

    def of_loss(name: str, default: Any = None) -> Any:
        return settings.at(f"{_LOSS}.{name}", default)

    cannot = next(_obstacles(settings), None)
    by_sequence = bool(of_loss("sequence_level_importance_ratios", False))
    term, name = dual_clipped, "clipped"
    if of_loss("use_cispo", False):
        term, name = held_ratio, "cispo"
    elif of_loss("disable_ppo_ratio", False):
        term, name = log_likelihood, "reinforce"
    elif by_sequence:
        term, name = clipped, "gspo"
    by_token = bool(of_loss("token_level_loss", True))
    dual, correction = of_loss("ratio_clip_c"), None if cannot else _correction(settings)
    in_reward = bool(of_loss("use_kl_in_reward", False))
    return Objective(
        loss_type=f"NeMo-RL's {name}, {'token' if by_token else 'sequence'} level",
        declared=Loss(term=term, average=tokens_alike if by_token else counted_completions_alike),
        importance_sampling_level="sequence" if by_sequence else "token",
        beta=0.0 if in_reward else float(of_loss("reference_policy_kl_penalty", 0.01)),
        kl_type=_KL_TYPES.get(str(of_loss("reference_policy_kl_type", "k3")), "k3 bounded"),
        use_bias_correction_kl=bool(_weighs_kl(settings)),
        temperature=float(settings.at("policy.generation.temperature", 1.0)),
        epsilon_low=float(of_loss("ratio_clip_min", 0.2)),
        epsilon_high=float(of_loss("ratio_clip_max", 0.2)),
        delta=None if dual is None else float(dual),
        correction=correction,
        needs_sampler=correction is not None,
        num_rows=_num_rows(settings),
        assumed=tuple(name for name in _SHAPING if settings.at(name) is None),
        cannot=cannot,
    )


def _weighs_kl(settings: TrainerSettings) -> bool | None:
    """Whether the KL term is multiplied by a ratio of value 1, as since 0.7; None where nothing tells."""
    version = str(settings.get("nemo_rl_version", "")).split(".")
    if len(version) > 1 and version[0].isdigit() and version[1].isdigit():
        return (int(version[0]), int(version[1])) >= (0, 7)
    if settings.get(f"{_LOSS}.use_cispo") is not None:  # an argument since 0.7
        return True
    return None if settings.origin is None else False


def _obstacles(settings: TrainerSettings) -> Iterator[Reason]:
    yield from _of_updates(settings)

    def of_loss(name: str, default: Any = None) -> Any:
        return settings.at(f"{_LOSS}.{name}", default)

    has_kl = bool(of_loss("reference_policy_kl_penalty", 0.01)) and not of_loss("use_kl_in_reward", False)
    if has_kl and of_loss("reference_policy_kl_type", "k3") not in _KL_TYPES:
        yield Reason("loss_unknown", f"reference_policy_kl_type {of_loss('reference_policy_kl_type')!r} has no rule")
    if has_kl and of_loss("use_on_policy_kl_approximation", False):
        yield Reason("loss_unknown", "use_on_policy_kl_approximation weighs the KL term by the sampler's ratio")
    if has_kl and _weighs_kl(settings) is None:
        text = "whether the KL term has the gradient through the sampling probability depends on NeMo-RL's version"
        yield Reason("settings_unknown", f"{text}, which is not known", hint=VERSION_HINT)
    if of_loss("positive_example_nll_weight", 0.0):
        yield Reason("loss_unknown", "positive_example_nll_weight averages within micro-batches")
    if of_loss("truncated_importance_sampling_type") == "seq-mask-tis":
        yield Reason("loss_unknown", "truncated_importance_sampling_type seq-mask-tis has no rule here")
    in_use = {
        name.removeprefix(f"{_LOSS}.") for name, value in settings.values.items() if value and f"{_LOSS}." in name
    }
    if in_use - _ARGUMENTS:
        text = f"loss_fn has {', '.join(sorted(in_use - _ARGUMENTS))}, of a release whose loss has no rule here"
        yield Reason("loss_unknown", text)
    for name, neutral in _NEUTRAL.items():
        cut = settings.at(f"policy.generation.{name}")
        if cut not in neutral:
            yield Reason("loss_unknown", f"log-probabilities are of the distribution cut at {name} = {cut}")


def _of_updates(settings: TrainerSettings) -> Iterator[Reason]:
    rows, batch = _num_rows(settings), settings.at("policy.train_global_batch_size")
    if rows is None or batch is None:
        text = "how many updates a step has follows from num_prompts_per_step, num_generations_per_prompt and "
        yield Reason("settings_unknown", f"{text}train_global_batch_size, which are not known", hint=CONFIG_HINT)
    elif rows != int(batch):
        text = f"NeMo-RL logs the norm of the last of {-(-rows // int(batch))} updates of a step, which starts from "
        yield Reason("several_updates", f"{text}weights that are not saved")


def _num_rows(settings: TrainerSettings) -> int | None:
    prompts, samples = (settings.at(f"grpo.num_{name}") for name in ("prompts_per_step", "generations_per_prompt"))
    return None if prompts is None or samples is None else int(prompts) * int(samples)


def _correction(settings: TrainerSettings) -> SamplerCorrection | None:
    if not settings.at(f"{_LOSS}.use_importance_sampling_correction", False):
        return None
    high = settings.at(f"{_LOSS}.truncated_importance_sampling_ratio")
    low = settings.at(f"{_LOSS}.truncated_importance_sampling_ratio_min")
    drops = settings.at(f"{_LOSS}.truncated_importance_sampling_type") == "icepop"
    modes: dict[tuple[bool, bool], Mode] = {
        (False, False): "token_truncate",
        (False, True): "token_mask",
        (True, False): "sequence_truncate",
        (True, True): "sequence_mask",
    }
    by_sequence = bool(settings.at(f"{_LOSS}.sequence_level_importance_ratios", False))
    return SamplerCorrection(
        mode=modes[by_sequence, drops],
        low=None if low is None else float(low),
        high=None if high is None else float(high),
    )
