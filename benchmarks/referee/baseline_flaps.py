"""How often `gradscope check --baseline` fails a run of the same process, and how often it finds a worse one.

`python benchmarks/referee/baseline_flaps.py` simulates pairs of runs: numbers that a trainer logs at each step, also
from processes that the intervals were not made for (noise on a slow drift, moving averages, heavy tails, spikes, a
learning curve), and groups of 0/1 rewards on the same prompts. A family holds six metrics: four means over the last
fifth of the steps, of independent processes of one kind, and two means over paired prompts. Before, a number without an
interval was judged by itself, and each other one by its own interval. The processes are made here; only the verdicts
are gradscope's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.check.measure import baseline_verdicts
from gradscope.diagnostics.check.requirements import CheckSettings
from gradscope.metrics.outcomes.passk import pass_at_k
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.metrics.uncertainty.steps import mean_of_steps
from gradscope.results.verdicts import BaselineMetric, Verdict

Array = NDArray[np.float64]
Process = Callable[[np.random.Generator, int], Array]
LOGGED = ("grad_norm", "kl", "entropy", "clip_ratio")
PROMPTS, GROUP_SIZE, SAMPLES = 64, 8, 16


def persistent(rng: np.random.Generator, steps: int, correlation: float) -> Array:
    """AR(1) of unit variance, from its stationary law."""
    noise = rng.normal(size=steps) * np.sqrt(1 - correlation**2)
    values = np.empty(steps)
    values[0] = rng.normal()
    for at in range(1, steps):
        values[at] = correlation * values[at - 1] + noise[at]
    return values


PROCESSES: dict[str, Process] = {
    "independent": lambda rng, steps: rng.normal(size=steps),
    "AR(1), 0.5": lambda rng, steps: persistent(rng, steps, 0.5),
    "AR(1), 0.9": lambda rng, steps: persistent(rng, steps, 0.9),
    "noise on AR(1), 0.95": lambda rng, steps: persistent(rng, steps, 0.95) + rng.normal(size=steps),
    "moving average of 10, noise": lambda rng, steps: (
        np.convolve(rng.normal(size=steps + 9), np.ones(10) / np.sqrt(10), "valid") + rng.normal(size=steps)
    ),
    "lognormal": lambda rng, steps: rng.lognormal(0, 1, steps),
    "Student's t, 3": lambda rng, steps: rng.standard_t(3, steps),
    "spikes in 3 % of steps": lambda rng, steps: rng.normal(size=steps) + 20 * (rng.random(steps) < 0.03),
    "learning curve": lambda rng, steps: 3 * np.exp(-4 * np.arange(steps) / steps) + 0.3 * persistent(rng, steps, 0.7),
    "sine of 16 steps": lambda rng, steps: (
        np.sin(2 * np.pi * (np.arange(steps) / 16 + rng.random())) + 0.5 * rng.normal(size=steps)
    ),
}


def metrics_of(
    process: Process, steps: int, rates: Array, shift: float, rng: np.random.Generator
) -> dict[str, BaselineMetric]:
    """The six metrics of one run; a shift moves the logged numbers, in standard deviations of a step."""
    metrics = {}
    for name in LOGGED:
        course = process(rng, steps)
        course = course + shift * course[-(steps // 5) :].std()
        estimate = mean_of_steps(course[-(steps // 5) :], course)
        metrics[f"{name}@last20%"] = BaselineMetric(estimate=estimate)
    passed = rng.binomial(GROUP_SIZE, rates)
    dead = ((passed == 0) | (passed == GROUP_SIZE)).astype(float)
    solved = pass_at_k(np.full(len(rates), SAMPLES), rng.binomial(SAMPLES, rates), 8)
    for name, values in (("frac_reward_zero_std", dead), ("pass@8", solved)):
        prompts = {str(place): float(value) for place, value in enumerate(values)}
        metrics[name] = BaselineMetric(estimate=bootstrap_mean(values), prompts=prompts)
    return metrics


def one_trial(process: Process, steps: int, trial: int, shift: float, sharpened: float) -> list[Verdict]:
    """The verdicts on a second run; sharpened moves each pass rate that part of its way to 0 or 1."""
    rng = np.random.default_rng([trial, steps])
    rates = rng.beta(0.5, 0.5, PROMPTS)
    before = metrics_of(process, steps, rates, 0.0, rng)
    worse = rates + sharpened * (np.round(rates) - rates)
    after = metrics_of(process, steps, worse, shift, rng)
    return baseline_verdicts(before, after, CheckSettings(resampling=Resampling(seed=trial)), path="run")


def fails_by_itself(verdict: Verdict) -> bool:
    """The rule before: the near end of a metric's own interval, and the change itself where there is none."""
    change = verdict.change
    assert change is not None
    logged = not verdict.metric.startswith(("frac", "pass"))
    low, high = (change.change.value or 0.0,) * 2 if logged else change.change.ends
    rose, fell = low > 0, high < 0
    return rose or fell if logged else rose if verdict.metric.startswith("frac") else fell


def shares(process: Process, steps: int, trials: int, shift: float, sharpened: float) -> list[float]:
    """Families with a failure: as before, each by its own interval, and now; then those with an unknown."""
    counts = np.zeros(4)
    for trial in range(trials):
        verdicts = one_trial(process, steps, trial, shift, sharpened)
        outside = [v.change is not None and _own_interval(v) for v in verdicts]
        outcomes = [verdict.outcome for verdict in verdicts]
        counts += [any(map(fails_by_itself, verdicts)), any(outside), "fail" in outcomes, "unknown" in outcomes]
    return (counts / trials).tolist()


def _own_interval(verdict: Verdict) -> bool:
    change = verdict.change
    assert change is not None
    interval = change.change.interval
    if interval is None:
        return False
    rose, fell = interval[0] > 0, interval[1] < 0
    return {"<=": rose, ">=": fell, "==": rose or fell}[verdict.op]


def main() -> None:
    """Prints false alarms by process, then how much of a real loss is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 300])
    options = parser.parse_args()
    print(f"Families of six metrics that fail, the process unchanged ({options.trials} pairs of runs)\n")
    print("| process | steps | before | each by its own interval | now | undecided |\n|---|---|---|---|---|---|")
    for name, process in PROCESSES.items():
        for steps in options.steps:
            cells = " | ".join(f"{share:.1%}" for share in shares(process, steps, options.trials, 0.0, 0.0))
            print(f"| {name} | {steps} | {cells} |", flush=True)
    print("\nFamilies that fail where the run is worse: logged numbers higher by some SD of a step, or sharper rates\n")
    print(
        "| process | steps | +1 SD | +2 SD | +4 SD | every pass rate half way to its end |\n|---|---|---|---|---|---|"
    )
    for name in ("independent", "AR(1), 0.5", "AR(1), 0.9", "lognormal"):
        for steps in options.steps:
            found = [shares(PROCESSES[name], steps, options.trials, shift, 0.0)[2] for shift in (1.0, 2.0, 4.0)]
            found.append(shares(PROCESSES[name], steps, options.trials, 0.0, 0.5)[2])
            print(f"| {name} | {steps} | {' | '.join(f'{share:.0%}' for share in found)} |", flush=True)


if __name__ == "__main__":
    main()
