"""prime-rl's loss: ``trainer.loss`` of type ``default`` or ``ipo``, over one update a step.

Every token has the importance ratio of the trainer to the engine that sampled it, whose log-probabilities are logged;
tokens whose probability moved too far are left out, and the squared log-ratio is added. All are summed and divided by
the tokens of the whole batch, over all processes. ``optim/grad_norm`` is taken before clipping.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.gradients.plan.losses import Loss, tokens_alike
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.trainers.terms import within_both_bounds, within_one_bound
from gradscope.reason import Reason
from gradscope.rollouts.run import TrainerSettings

_LOSS = "trainer.loss"
_TERMS = {"default": within_one_bound, "ipo": within_both_bounds}
_ARGUMENTS = frozenset(
    {"type", "adv_tau", "kl_tau", "dppo_mask_low", "dppo_mask_high", "ipo_threshold", "ipo_mask_low", "ipo_mask_high"}
    | {"teacher_tau", "import_path", "kwargs"}
)
"""Arguments of the losses since 0.5; another name tells a loss of an older or a newer release."""
_SHAPING = (f"{_LOSS}.type", f"{_LOSS}.kl_tau")


def prime_rl_objective(settings: TrainerSettings) -> Objective:
    """The loss of prime-rl's arguments; ``cannot`` says why where it has no exact token weights."""
    kind = _kind(settings)
    low, high = _bounds(settings)
    return Objective(
        loss_type=f"prime-rl's {kind}",
        declared=Loss(term=_TERMS.get(kind, within_one_bound), average=tokens_alike),
        beta=float(settings.at(f"{_LOSS}.kl_tau", 1e-3)),
        kl_type="square",
        kl_to_sampler=True,
        use_bias_correction_kl=False,
        advantage_scale=float(settings.at(f"{_LOSS}.adv_tau", 1.0)),
        epsilon_low=low,
        epsilon_high=high,
        temperature=_sampling_temperature(settings),
        importance_ratio=True,
        ratio_to_logged=True,
        assumed=tuple(name for name in _SHAPING if settings.at(name) is None),
        cannot=next(_obstacles(settings), None),
    )


def _sampling_temperature(settings: TrainerSettings) -> float:
    """What the rollouts of training were sampled at: its place in the configuration changed, its name did not."""
    named = {
        name: value
        for name, value in settings.values.items()
        if name.endswith("sampling.temperature") and "eval" not in name and value is not None
    }
    return float(next(iter(named.values()), settings.get("temperature", 1.0)))


def _kind(settings: TrainerSettings) -> str:
    """The type; until 0.6 ``default`` had both bounds, named ``ipo_mask_low`` and ``ipo_mask_high``."""
    kind = str(settings.at(f"{_LOSS}.type", "default"))
    return "ipo" if kind == "default" and settings.at(f"{_LOSS}.ipo_mask_low") is not None else kind


def _bounds(settings: TrainerSettings) -> tuple[float, float]:
    def of(name: str, default: float) -> float:
        return float(settings.at(f"{_LOSS}.{name}", default))

    if _kind(settings) == "ipo":
        both = of("ipo_threshold", 0.1)
        return of("ipo_mask_low", both), of("ipo_mask_high", both)
    return of("dppo_mask_low", 0.2), of("dppo_mask_high", 0.2)


def _obstacles(settings: TrainerSettings) -> Iterator[Reason]:
    kind = _kind(settings)
    if kind not in _TERMS:
        yield Reason("loss_unknown", f"trainer.loss of type {kind!r} has no rule here")
    if settings.at(f"{_LOSS}.teacher_tau", 0.0) and any(".teacher" in name for name in settings.values):
        yield Reason("loss_unknown", "advantages hold a teacher's log-probabilities, which are not logged")
    unsupported = {
        name.removeprefix(f"{_LOSS}.").partition(".")[0] for name in settings.values if name.startswith(f"{_LOSS}.")
    }
    if unsupported - _ARGUMENTS:
        text = (
            f"trainer.loss has {', '.join(sorted(unsupported - _ARGUMENTS))}, of a release whose loss has no rule here"
        )
        yield Reason("loss_unknown", text)
    if any("temp_scheduler" in name and value is not None for name, value in settings.values.items()):
        yield Reason("loss_unknown", "the temperature followed a schedule, which has no rule here")
    temperatures = {
        float(value)
        for name, value in settings.values.items()
        if name.endswith("sampling.temperature") and "eval" not in name and value is not None
    }
    if len(temperatures) > 1:
        yield Reason("loss_unknown", "environments sampled at different temperatures, which has no rule here")
