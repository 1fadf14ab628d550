"""How often each verdict is false on populations that nobody tuned it to.

`python benchmarks/referee/verdicts.py` prints a row a verdict and a population; docs/trust.md has them by verdict.
Some populations are a referee's, the others were written down before any of them was run. Logs and truths are made
here; of the package nothing but what is judged is imported. A quarter of an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.claims import gradients, outcomes
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.diagnostics.passk.measure import compare_samples
from gradscope.diagnostics.passk.samples import Samples
from gradscope.estimate import Estimate
from gradscope.metrics.gram.alignment import expected_updates, pass_at_k_weights
from gradscope.metrics.outcomes.degeneracy import GroupTable, estimate_degeneracy, split_gap
from gradscope.metrics.outcomes.dispersion import dispersion_test, estimate_rate_parts
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.metrics.uncertainty.steps import trend
from gradscope.results.source import Source

Array = NDArray[np.float64]
Rng = np.random.Generator
FEW = Resampling(num_resamples=300)
Row = tuple[str, str, str, Callable[[Rng], bool]]
"""A verdict, a population, how much work a log is, and whether the verdict was said falsely of a new log."""


def logit(values: Array) -> Array:
    """Pass rates of numbers."""
    return np.asarray(1 / (1 + np.exp(-values)), dtype=np.float64)


RATES: dict[str, Callable[[Rng, int], Array]] = {
    "Beta(2, 2)": lambda rng, size: rng.beta(2, 2, size),
    "70 % below .02, 30 % above .6": lambda rng, size: np.where(
        rng.random(size) < 0.7, rng.uniform(0, 0.02, size), rng.uniform(0.6, 1, size)
    ),
    "logit-normal(-2, 2)": lambda rng, size: logit(rng.normal(-2, 2, size)),
}


def log(rng: Rng, rates: Array, *, steps: int, size: int = 4, returns: bool = True, **luck: float) -> GroupTable:
    """Groups of as many prompts at each step.

    Args:
        rates: [prompts] or [steps, prompts].
        returns: Whether the prompts of each step are the same.
        luck: ``shared``, the correlation of rollouts of a group; ``failed``, the chance that a group is failed whole.

    Returns:
        The log.
    """
    each = np.broadcast_to(rates, (steps, rates.shape[-1])).reshape(-1)
    step = np.repeat(np.arange(1, steps + 1), rates.shape[-1])
    prompt = np.tile(np.arange(rates.shape[-1]), steps) if returns else np.arange(len(each))
    own, common = rng.random((len(each), size)) < each[:, None], rng.random(len(each)) < each
    passes = np.where(rng.random(own.shape) < luck.get("shared", 0.0) ** 0.5, common[:, None], own)
    passed = passes.sum(axis=1) * (rng.random(len(each)) >= luck.get("failed", 0.0))
    return GroupTable(
        step=step,
        prompt=prompt,
        size=np.full(len(each), size),
        dead=(passed == 0) | (passed == size),
        num_passing=passed,
        level_counts=np.column_stack([passed, size - passed]),
    )


def walk(rng: Rng, steps: int, correlation: float) -> Array:
    """AR(1) of variance 1."""
    values = rng.normal(size=steps)
    for at in range(1, steps):
        values[at] = correlation * values[at - 1] + (1 - correlation**2) ** 0.5 * values[at]
    return values


def judged(judge: Callable[[Evidence], Any], table: GroupTable) -> str:
    """A claim's verdict on a log."""
    found = estimate_degeneracy(table, resampling=FEW)
    between, over_time = split_gap(table, found.jensen_gap)
    stays, of_visit = estimate_rate_parts(table.step, table.prompt, table.size, table.num_passing, resampling=FEW)
    report = SimpleNamespace(
        jensen_gap=found.jensen_gap,
        frac_reward_zero_std=found.frac_reward_zero_std,
        iid_prediction=found.iid_prediction,
        gap_decomposition=SimpleNamespace(between_prompts=between, over_time=over_time),
        overdispersion=SimpleNamespace(between_prompts=stays, between_visits=of_visit),
    )
    evidence = SimpleNamespace(degeneracy=lambda: report, groups=lambda: table, resampling=FEW)
    return str(judge(cast(Evidence, evidence)).verdict)


def of_groups() -> Iterator[Row]:
    """Verdicts on groups: one rate for all, or none of the visit's luck, is the truth."""
    one = np.full(24, 0.4)
    lucky: dict[str, dict[str, float]] = {
        "one rate, rho .05": {"shared": 0.05},
        "one rate, rho .2": {"shared": 0.2},
        "one rate, a tenth of the groups failed whole": {"failed": 0.1},
    }
    for name, luck in lucky.items():

        def stays(rng: Rng, luck: dict[str, float] = luck) -> bool:
            table = log(rng, one, steps=8, **luck)
            return (
                estimate_rate_parts(table.step, table.prompt, table.size, table.num_passing, resampling=FEW)[0].ends[0]
                > 0
            )

        yield "degeneracy: some of the variance stays with the prompt", name, "", stays
        yield (
            "`dead_groups.origin` supported",
            f"{name}, prompts return",
            "",
            lambda rng, luck=luck: judged(outcomes.excess_from_prompts, log(rng, one, steps=8, **luck)) == "supported",
        )
        yield (
            "`dead_groups.origin` either",
            f"{name}, no prompt returns",
            "",
            lambda rng, luck=luck: (
                judged(outcomes.excess_from_prompts, log(rng, one, steps=8, returns=False, **luck)) != "cannot_tell"
            ),
        )
        yield (
            "`dead_groups.persist` supported",
            name,
            "",
            lambda rng, luck=luck: judged(outcomes.dead_groups_return, log(rng, one, steps=8, **luck)) == "supported",
        )
    for rate in (0.1, 0.9):

        def differ(rng: Rng, rate: float = rate) -> bool:
            table = log(rng, np.full(16, rate), steps=8)
            found = dispersion_test(table.size, table.num_passing, table.step, seed=int(rng.integers(1 << 30)))
            return found.p_value.value is not None and found.p_value.value <= 0.05

        yield "degeneracy: groups of a step differ", f"one rate, {rate}", "", differ
        yield (
            "`dead_groups.excess` supported",
            f"one rate, {rate}",
            "",
            lambda rng, rate=rate: (
                judged(outcomes.dead_beyond_prediction, log(rng, np.full(16, rate), steps=4)) == "supported"
            ),
        )
    yield (
        "`dead_groups.excess` contradicted",
        "70 % below .02, 30 % above .6",
        "",
        lambda rng: (
            judged(outcomes.dead_beyond_prediction, log(rng, RATES["70 % below .02, 30 % above .6"](rng, 16), steps=2))
            == "contradicted"
        ),
    )


def of_courses() -> Iterator[Row]:
    """Verdicts on trends: nothing grows is the truth."""
    for steps, correlation in ((4, 0.9), (5, 0.9), (12, 0.9), (30, 0.9), (12, 0.95), (30, 0.95)):
        yield (
            "a trend (`sparser.rollouts`, `tokens`, `entries`; the report)",
            f"AR({correlation}), {steps} steps",
            "light",
            lambda rng, steps=steps, correlation=correlation: (
                trend(np.arange(steps), walk(rng, steps, correlation)).side_of_zero != 0
            ),
        )

    def grows(table: GroupTable) -> bool:
        return judged(gradients.groups_grow_sparser, table) == "supported"

    harder = np.linspace(0.5, 0.05, 24)[:, None] * np.ones(12)
    yield (
        "`sparser.groups` supported",
        "constant policy, prompts grow harder, none returns",
        "",
        lambda rng: grows(log(rng, harder, steps=24, returns=False)),
    )

    def epochs(rng: Rng, shocks: float) -> GroupTable:
        """Three passes over 96 prompts, hardest last, eight a step."""
        level = np.sort(rng.normal(-0.5, 1.5, 96))[::-1].reshape(12, 8)
        rates = logit(np.tile(level, (3, 1)) + shocks * walk(rng, 36, 0.9)[:, None])
        table = log(rng, rates, steps=36)
        prompt = np.tile(np.arange(96), 3)
        return GroupTable(**{**vars_of(table), "prompt": prompt})

    for shocks in (0.0, 0.6):
        name = "constant policy, three epochs, hardest last" if not shocks else "the same with shocks, AR(.9)"
        yield "`sparser.groups` supported", name, "", lambda rng, shocks=shocks: grows(epochs(rng, shocks))
    yield (
        "`sparser.groups` supported",
        "the same 16 prompts, shocks, AR(.9), 40 steps",
        "",
        lambda rng: grows(log(rng, logit(rng.normal(0, 1, 16) + 0.6 * walk(rng, 40, 0.9)[:, None]), steps=40)),
    )


def vars_of(table: GroupTable) -> dict[str, Any]:
    """The columns of a table."""
    return {name: getattr(table, name) for name in ("step", "prompt", "size", "dead", "num_passing", "level_counts")}


def of_reach() -> Iterator[Row]:
    """Verdicts on reach: a second policy of known make."""

    def samples(rng: Rng, rates: Array, size: int) -> Samples:
        return Samples(
            name="s",
            source=Source(path="s", format="made-up", recognized="made up"),
            prompts=tuple(map(str, range(len(rates)))),
            num_samples=np.full(len(rates), size),
            num_correct=rng.binomial(size, rates),
            num_missing=0,
        )

    def verdict(rng: Rng, first: Array, second: Array, size: int) -> str:
        both = samples(rng, first, size), samples(rng, second, size)
        return compare_samples(*both, (1, 8, size), resampling=FEW).verdict

    for name, draw in RATES.items():
        for title, m in (("identical", 1), ("best of 8", 8)):
            yield (
                "capacity expansion",
                f"{name}, {title}, 300 x 64",
                "",
                lambda rng, draw=draw, m=m: (
                    verdict(rng, p := draw(rng, 300), 1 - (1 - p) ** m, 64) == "capacity expansion"
                ),
            )
        yield (
            "search compression",
            f"{name}, identical, 300 x 64",
            "",
            lambda rng, draw=draw: verdict(rng, p := draw(rng, 300), p, 64) == "search compression",
        )
    yield (
        "search compression",
        "Beta(2, 2), best of 8, 300 x 256: nothing left to expand",
        "",
        lambda rng: verdict(rng, p := rng.beta(2, 2, 300), 1 - (1 - p) ** 8, 256) == "search compression",
    )

    def half(rng: Rng) -> bool:
        p = RATES["logit-normal(-2, 2)"](rng, 300)
        new = rng.random(300) < 0.15
        return verdict(rng, np.where(new, 0.0, p), np.where(new, 0.4, p**2), 64) == "search compression"

    yield "search compression", "logit-normal(-2, 2), 15 % solved anew, the others worse", "", half

    def exploited(rng: Rng) -> bool:
        p = np.where(rng.random(300) < 0.4, 0.0, rng.beta(2, 2, 300))
        fooled = rng.random(300) < 0.3
        return verdict(rng, p, np.where(fooled, 1 - 0.2 * (1 - p), p), 64) == "capacity expansion"

    yield "capacity expansion", "verifier exploited on 30 % of the prompts, 40 % at 0, Beta(2, 2)", "", exploited


class Policies:
    """A softmax over three answers a prompt, with weights of its own or, ``opposed``, one set with signs by prompt."""

    def __init__(self, rates: tuple[float, ...], size: int, *, opposed: bool = False) -> None:
        self.probabilities = [np.array([p, (1 - p) * 0.3, (1 - p) * 0.7]) for p in rates]
        self.size, self.opposed = size, opposed

    def score(self, prompt: int, answer: int) -> Array:
        """Grad log pi, flat."""
        own = np.eye(3)[answer] - self.probabilities[prompt]
        if self.opposed:
            return np.asarray(own * (1 - 2 * (prompt % 2)))
        row = np.zeros((len(self.probabilities), 3))
        row[prompt] = own
        return row.ravel()

    def weights(self, part: str, rewards: Array) -> Array:
        """Sign's advantages of one kind of group."""
        kind = "all_fail" if rewards.max() == 0 else "all_pass" if rewards.min() == 1 else "mixed"
        return (2 * rewards - 1) * (kind == part)

    def truth(self, part: str) -> float:
        """Cosine of the expected part with the gradient of pass@G, by all outcomes of a group."""
        pushed, climbs = 0.0, 0.0
        for prompt, p in enumerate(self.probabilities):
            for answers in product(range(3), repeat=self.size):
                weights = self.weights(part, np.array([float(answer == 0) for answer in answers]))
                scores = [self.score(prompt, answer) for answer in answers]
                pushed = pushed + np.prod(p[list(answers)]) * sum(w * s for w, s in zip(weights, scores, strict=True))
            climbs = climbs + self.size * (1 - p[0]) ** (self.size - 1) * p[0] * self.score(prompt, 0)
        one, other = np.asarray(pushed), np.asarray(climbs)
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    def cosine(self, rng: Rng, part: str, num_groups: int) -> Estimate:
        """As the claim measures it."""
        prompts = np.arange(num_groups) % len(self.probabilities)
        answers = np.array([rng.choice(3, size=self.size, p=self.probabilities[prompt]) for prompt in prompts])
        scores = np.array([self.score(p, a) for p, row in zip(prompts, answers, strict=True) for a in row])
        rewards = (answers == 0).astype(np.float64)
        own = np.concatenate([self.weights(part, row) for row in rewards])
        climbs = pass_at_k_weights(rewards, self.size).ravel()
        groups = np.repeat(np.arange(num_groups), self.size)
        return expected_updates(scores @ scores.T, [own, climbs], groups).cosine(0, 1)


def of_directions() -> Iterator[Row]:
    """Verdicts on what Sign's parts climb."""
    populations = {
        "easy .9 and hard .15": Policies((0.9, 0.15), 4),
        ".95, .5, .05, G = 5": Policies((0.95, 0.5, 0.05), 5),
        "easy .8 against hard .2, one set of weights": Policies((0.8, 0.2), 4, opposed=True),
        "one prompt at .3": Policies((0.3,), 3),
    }
    for name, policies in populations.items():
        for part in ("all_fail", "mixed", "all_pass"):
            truth = policies.truth(part)

            def climbs(rng: Rng, policies: Policies = policies, part: str = part, truth: float = truth) -> bool:
                side = policies.cosine(rng, part, 60).side_of_zero
                return side != 0 and side != np.sign(truth)

            yield f"`sign.{part}` either", f"{name}: {truth:+.2f}", "", climbs

            def same(rng: Rng, policies: Policies = policies, part: str = part, truth: float = truth) -> bool:
                low, high = policies.cosine(rng, part, 60).interval or (-1.0, 1.0)
                alike = truth >= gradients.SAME_DIRECTION
                return high < gradients.SAME_DIRECTION if alike else low >= gradients.SAME_DIRECTION

            yield "the same direction (`sign.same_direction`) either", f"{name}, {part}: {truth:+.2f}", "", same


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--only", nargs="+", default=["groups", "courses", "reach", "directions"])
    options = parser.parse_args()
    print("| verdict | population, and what is true of it | logs | said falsely |\n|---|---|--:|--:|")
    for part in options.only:
        for verdict, population, work, said in globals()[f"of_{part}"]():
            trials = options.trials * (10 if work == "light" else 1)
            false = sum(said(np.random.default_rng([trial, len(population)])) for trial in range(trials))
            print(f"| {verdict} | {population} | {trials} | {100 * false / trials:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
