"""What formulations make of the same rollouts, and what the baseline costs, in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.advantages.registry import LOGGED
from gradscope.estimate import Estimate
from gradscope.metrics.gram.reward_baselines import REFERENCE
from gradscope.results.rank import BaselineNoise, FormulationUpdate
from gradscope.say import with_interval


def update_findings(updates: Sequence[FormulationUpdate], baselines: Sequence[BaselineNoise]) -> tuple[str, ...]:
    """At most three sentences on updates, and on the noise under each baseline, all steps together first."""
    return (*_noise(updates), *_climbs(updates), *_baseline(baselines))


def _noise(updates: Sequence[FormulationUpdate]) -> list[str]:
    """How much of the logged update is signal."""
    of_first = [update.signal_to_noise.value for update in updates if update.advantage == _first(updates)]
    ratios = [ratio for ratio in of_first if ratio is not None]
    if not ratios:
        return []
    num_signal = sum(ratio > 1 for ratio in ratios)
    return [
        f"The expected update under {_first(updates)} exceeds its own noise (signal to noise above 1) at {num_signal} "
        f"of {len(ratios)} steps; median {sorted(ratios)[len(ratios) // 2]:.2f}."
    ]


def _climbs(updates: Sequence[FormulationUpdate]) -> list[str]:
    """Formulations whose expected update provably leaves the gradient of pass@k."""
    step = max((update.step for update in updates), default=None)
    apart: dict[str, list[str]] = {}
    for update in updates:
        for target, cosine in update.alignment.items():
            if update.step == step and cosine.high is not None and cosine.high < _ALIGNED:
                apart.setdefault(target, []).append(f"{update.advantage} ({cosine.value:.2f})")
    return [
        f"At step {step} the expected update does not follow the gradient of {target} under {', '.join(names)}."
        for target, names in apart.items()
    ]


def _baseline(baselines: Sequence[BaselineNoise]) -> list[str]:
    """The least noisy baseline that does not look at its own rollout, where it can be told from leave-one-out."""
    if not baselines:
        return []
    whole = baselines[0]
    usable = {n: r for n, r in whole.relative_noise.items() if n not in _OWN_REWARD and _differs(r)}
    optimum = (
        f"The optimal baseline of a mixed group is {whole.optimal_baseline.value:.2f} on average, at a mean reward of "
        f"{whole.pass_rate:.2f}"
        if whole.optimal_baseline.value is not None
        else "No group shows an optimal baseline"
    )
    if not usable:
        return [f"{optimum}; no baseline can be told from {REFERENCE} by the noise of its gradient."]
    best = min(usable, key=lambda name: usable[name].value or 0.0)
    noise = usable[best]
    change = (noise.value or 0.0) - 1
    word = "less" if change < 0 else "more"
    return [
        f"{optimum}; of the baselines that differ measurably, {best} has {abs(change):.0%} {word} gradient noise than "
        f"{REFERENCE} (ratio {with_interval(noise, '.2f')})."
    ]


_ALIGNED = 0.9
"""A cosine whose interval lies below this is called another direction."""
_OWN_REWARD = ("group_mean", "optimal")
"""Baselines that see the rollout that they are for; their noise is no fair comparison."""


def _first(updates: Sequence[FormulationUpdate]) -> str | None:
    names = [update.advantage for update in updates]
    return LOGGED if LOGGED in names else next(iter(names), None)


def _differs(ratio: Estimate) -> bool:
    return ratio.map(lambda value: value - 1.0).side_of_zero != 0
