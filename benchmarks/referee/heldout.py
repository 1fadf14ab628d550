"""Coverage of what `gradscope rank --heldout` says of a step and held-out prompts.

`python benchmarks/referee/heldout.py` makes steps of training prompts and held-out prompts of one population, and asks
how often each 95 % interval holds the truth, and how often a transfer and an influence are claimed. Truths are those of
the population, an influence's that of all held-out prompts on the step at hand. Ten minutes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np

from gradscope.estimate import Estimate
from gradscope.metrics.gram.interference import HeldoutEffects, heldout_effects

SIZES = ((8, 8), (8, 32), (16, 16), (16, 64), (32, 64))
"""Training and held-out prompts."""
_COLUMNS, _ROLLOUTS = 40, 8
_SHARED = np.eye(_COLUMNS)[0]
POPULATIONS = ("unrelated", "shared", "clusters", "against", "heavy", "few")


def directions(kind: str, rng: np.random.Generator, number: int, *, held_out: bool) -> np.ndarray:
    """Where the gradient of each prompt points."""
    own = rng.normal(size=(number, _COLUMNS))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    if kind == "shared":
        return own + 0.6 * _SHARED
    if kind == "clusters":
        return own + 0.8 * np.where(rng.random(number) < 0.7, 1, -1)[:, None] * _SHARED
    if kind == "against":
        return own + 0.5 * (-1 if held_out else 1) * _SHARED
    if kind == "heavy":
        return (own + 0.6 * _SHARED) * np.exp(rng.normal(size=(number, 1)))
    if kind == "few":
        kinds = rng.integers(0, 3, number)
        return np.eye(_COLUMNS)[kinds] - 0.7 * (kinds == 2)[:, None] * _SHARED + 0.5 * own
    return own


def rollouts(kind: str, rng: np.random.Generator, number: int, *, held_out: bool) -> tuple[np.ndarray, np.ndarray]:
    """Score vectors, [J, G, P], and rewards, [J, G]."""
    rate = rng.beta(1.2, 1.2, size=number)
    rewards = (rng.random((number, _ROLLOUTS)) < rate[:, None]).astype(float)
    along = directions(kind, rng, number, held_out=held_out)
    noise = rng.normal(size=(number, _ROLLOUTS, _COLUMNS)) * 1.2 / np.sqrt(_COLUMNS)
    scale = np.linalg.norm(along, axis=1)[:, None, None]
    return 2 * (rewards - rate[:, None])[..., None] * along[:, None, :] + noise * scale, rewards


def answers(kind: str, rng: np.random.Generator, number: int) -> np.ndarray:
    """C_k of the held-out prompts that have a correct sample, [M, P]."""
    scores, rewards = rollouts(kind, rng, number, held_out=True)
    solved = rewards.sum(axis=1) > 0
    shares = rewards / np.maximum(rewards.sum(axis=1, keepdims=True), 1)
    return np.einsum("jn,jnd->jd", shares, scores)[solved]


def effects(scores: np.ndarray, rewards: np.ndarray, heldout: np.ndarray) -> HeldoutEffects:
    """What the package makes of one step under group-mean advantages."""
    flat, weights = scores.reshape(-1, _COLUMNS), (rewards - rewards.mean(axis=1, keepdims=True)).ravel()
    groups, norms = np.repeat(np.arange(len(scores)), _ROLLOUTS), np.linalg.norm(heldout, axis=1)
    gram = flat @ flat.T
    return heldout_effects(gram, weights, groups, rewards.ravel() == 1, flat @ heldout.T, norms, gram)


def influences_of_all(scores: np.ndarray, rewards: np.ndarray, population: np.ndarray) -> np.ndarray:
    """The influence of each prompt with a gradient on all held-out prompts that there are."""
    sums = np.einsum("jn,jnd->jd", rewards - rewards.mean(axis=1, keepdims=True), scores)
    norms = np.linalg.norm(sums, axis=1)
    live = norms > 0
    return sums[live] @ population.mean(axis=0) / (norms[live].mean() * np.linalg.norm(population, axis=1).mean())


def simulate(kind: str, trained: int, held: int, repeats: int) -> str:
    """Coverage of one population at one size, in a line."""
    rng = np.random.default_rng(1)
    whole = effects(*rollouts(kind, rng, 500, held_out=False), answers(kind, rng, 500))
    population, steps, found = answers(kind, rng, 8000), [], defaultdict[str, list[tuple[bool, bool]]](list)

    def keep(name: str, estimate: Estimate, truth: float) -> None:
        if estimate.interval is not None:
            low, high = estimate.interval
            found[name].append((low <= truth <= high, estimate.side_of_zero != 0))

    for _ in range(repeats):
        scores, rewards = rollouts(kind, rng, trained, held_out=False)
        steps.append(effects(scores, rewards, answers(kind, rng, held)))
        truths = influences_of_all(scores, rewards, population)
        for estimate, truth in zip(steps[-1].influences(), truths, strict=True):
            keep("influence", estimate, truth)
    own = [(step.effect.sum(axis=0).mean(), step.own.sum() / step.is_solved.sum()) for step in steps if step.own.any()]
    transfer = np.mean([first for first, _ in own]) / np.mean([second for _, second in own])
    for step in steps:
        keep("hurt", step.frac_hurt(), float((whole.effect < 0).mean()))
        keep("cosine", step.mean_cosine(), float(whole.cosine.mean()))
        keep("transfer", step.transfer(), float(transfer))
    shares = {name: np.mean(pairs, axis=0) for name, pairs in found.items()}
    return "  ".join(f"{name} {holds:.3f} ({claims:.3f})" for name, (holds, claims) in sorted(shares.items()))


def main() -> None:
    """Print coverage by population and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=500)
    repeats = parser.parse_args().repeats
    print("How often the interval holds the truth (and how often it leaves zero out)")
    for kind in POPULATIONS:
        for trained, held in SIZES:
            print(f"{kind:10s} {trained:3d} on {held:3d}  {simulate(kind, trained, held, repeats)}", flush=True)


if __name__ == "__main__":
    main()
