"""What formulations make of the same rollouts, and what the baseline costs, in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.advantages.registry import LOGGED
from gradscope.estimate import Estimate
from gradscope.metrics.gram.reward_baselines import REFERENCE
from gradscope.results.rank import BaselineNoise, FormulationUpdate
from gradscope.results.update import UpdateTrajectory, WeightUpdate


def update_findings(updates: Sequence[FormulationUpdate], baselines: Sequence[BaselineNoise]) -> tuple[str, ...]:
    """At most three sentences with their numbers.

    Args:
        updates: The update of each step and formulation.
        baselines: The noise under each baseline, all steps together first.

    Returns:
        Sentences.
    """
    return (*_noise(updates), *_climbs(updates), *_baseline(baselines))


def weight_update_findings(
    updates: Sequence[WeightUpdate], trajectories: Sequence[UpdateTrajectory]
) -> tuple[str, ...]:
    """What training did to the weights, each number beside its null.

    Args:
        updates: Changes of matrices.
        trajectories: All matrices together first.

    Returns:
        At most three sentences.
    """
    whole, last = trajectories[0], max(update.last for update in updates)
    sentences = []
    if whole.top_energy.value is not None and whole.linear_growth.value is not None:
        sentences.append(
            f"Over {len(whole.num_updates)} checkpoints one direction holds {whole.top_energy.value:.0%} of the "
            f"updates' energy (a random walk: {whole.walk_top_energy.value:.0%}), and a straight line "
            f"{whole.linear_growth.value:.0%} (a random walk: {whole.walk_linear_growth.value:.0%})."
        )
    since = [update for update in updates if update.first == min(u.first for u in updates) and update.last == last]
    ranks = [(u.effective_rank.value, u.gaussian.value) for u in since if u.effective_rank.value and u.gaussian.value]
    if ranks:
        mean, null = (sum(column) / len(ranks) for column in zip(*ranks, strict=True))
        sentences.append(
            f"After {last} updates the change of a matrix has effective rank {mean:.1f} on average over {len(ranks)} "
            f"matrices; unrelated entries would give {null:.1f}."
        )
    overlaps = [
        (u.principal_overlap.value, u.principal_null.value) for u in since if u.principal_null.value is not None
    ]
    known = [(share, null) for share, null in overlaps if share is not None and null is not None]
    if known:
        share, null = (sum(column) / len(known) for column in zip(*known, strict=True))
        sentences.append(
            f"On average {share:.1%} of a change lies in the principal directions of the initial weights; a random "
            f"change would have {null:.1%} there."
        )
    return tuple(sentences)


def _noise(updates: Sequence[FormulationUpdate]) -> list[str]:
    """How much of the logged update is signal."""
    ratios = [u.signal_to_noise.value for u in updates if u.advantage == _first(updates)]
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return []
    num_signal = sum(ratio > 1 for ratio in known)
    return [
        f"The expected update under {_first(updates)} exceeds its own noise (signal to noise above 1) at {num_signal} "
        f"of {len(known)} steps; median {sorted(known)[len(known) // 2]:.2f}."
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
    told = (
        f"The optimal baseline of a mixed group is {whole.optimal_baseline.value:.2f} on average, at a mean reward of "
        f"{whole.pass_rate:.2f}"
        if whole.optimal_baseline.value is not None
        else "No group shows an optimal baseline"
    )
    if not usable:
        return [f"{told}; no baseline can be told from {REFERENCE} by the noise of its gradient."]
    best = min(usable, key=lambda name: usable[name].value or 0.0)
    noise = usable[best]
    change = (noise.value or 0.0) - 1
    word = "less" if change < 0 else "more"
    return [
        f"{told}; of the baselines that differ measurably, {best} has {abs(change):.0%} {word} gradient noise than "
        f"{REFERENCE} (ratio {noise.value:.2f} [{noise.low:.2f}, {noise.high:.2f}])."
    ]


_ALIGNED = 0.9
"""A cosine whose interval lies below this is called another direction."""
_OWN_REWARD = ("group_mean", "optimal")
"""Baselines that see the rollout that they are for; their noise is no fair comparison."""


def _first(updates: Sequence[FormulationUpdate]) -> str | None:
    names = [update.advantage for update in updates]
    return LOGGED if LOGGED in names else next(iter(names), None)


def _differs(ratio: Estimate) -> bool:
    return ratio.low is not None and ratio.high is not None and not ratio.low <= 1.0 <= ratio.high
