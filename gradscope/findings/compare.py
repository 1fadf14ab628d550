"""The sentences of a comparison: what the tests decide, and what they leave open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gradscope.findings.degeneracy_parts import conflicts_of_runs
from gradscope.results.compare import ComparedPair, Comparison
from gradscope.say import chance, counted, points, with_interval

if TYPE_CHECKING:
    from gradscope.metrics.uncertainty.levels import Jump  # behind it lies scipy

_SCOPE = (
    "Seeds vary prompts, their order and sampling. One task and one model: this says nothing about others, nor about "
    "learning rates that were not tried."
)
_UNITS: dict[str, tuple[str, str | Callable[[float], str], str]] = {
    "train_reward": ("mean reward", "+.3f", ""),
    "reward_trend": ("trend of the mean reward", "+.3f", ""),
    "mean_frac_reward_zero_std": ("groups without a gradient", points, " points"),
    "mean_clipped_ratio": ("completions cut off", points, " points"),
    "mean_entropy": ("entropy", "+.3f", ""),
    "mean_kl": ("KL", "+.3g", ""),
    "mean_grad_norm": ("gradient norm", "+.3g", ""),
    **{
        f"completion_{unit}{trend}": (f"{title}length of completions", "+,.1f", f" {unit}")
        for unit in ("tokens", "characters")
        for trend, title in (("", ""), ("_trend", "trend of the "))
    },
}
"""Metric of two runs -> its title, the format of its difference, and its unit."""
_UPDATE_METRICS = ("mean_entropy", "mean_kl", "mean_grad_norm")  # which differ between models whatever they learn


def compare_findings(comparison: Comparison) -> tuple[str, ...]:
    """What the tests decide, what they leave open, and what they cannot say, in sentences for people."""
    no_common = comparison.cautions[:1] if comparison.num_common_steps == 0 else ()
    return (
        *(no_common or _two_runs(comparison)),
        *conflicts_of_runs(comparison.rewards),
        *_claims(comparison),
        *comparison.cautions[len(no_common) :],
        *_caution(comparison),
        *(f"{folder} is left out: {reason}." for folder, reason in comparison.left_out.items()),
        *_open(comparison),
        *([_SCOPE] if any(pair.num_pairs > 1 for pair in comparison.pairs) else []),
    )


def _two_runs(comparison: Comparison) -> Iterator[str]:
    """For two runs the difference that chance explains least, or that it may explain all."""
    pairs = [pair for pair in comparison.pairs if pair.within_runs is not None]
    if not pairs:
        return
    if comparison.parting:
        yield comparison.parting
    names = {cell.name: ", ".join(cell.runs) for cell in comparison.cells}
    first, second = names[pairs[0].first], names[pairs[0].second]
    sure = [(pair, pair.within_runs) for pair in pairs if pair.within_runs and pair.verdict == "differ"]
    if not sure:
        yield from comparison.levels_left
        labels = ", ".join(_UNITS.get(pair.metric, (pair.metric,))[0] for pair in pairs)
        start = f"No difference between {first} and {second} is"
        start = "Of means and trends over all steps none is" if comparison.parting or comparison.levels_left else start
        yield f"{start} beyond chance ({len(pairs)} looked at: {labels})."
        return
    sure.sort(key=lambda entry: (entry[0].metric in _UPDATE_METRICS, -entry[1].effect_over_interval))
    texts = []
    for pair, difference in sure:
        title, form, unit = _UNITS.get(pair.metric, (pair.metric, "+.3f", ""))
        texts.append(f"{title} {with_interval(difference, form)}{unit}")
    is_unpaired = comparison.num_shared_prompts == 0
    beyond = "beyond the chance of prompts" if _is_of_prompts(comparison) else "beyond chance"
    caveat = ", but may be that of other prompts" * is_unpaired
    yield f"{second} against {first}: {texts[0]}, which is {beyond}{caveat}."
    if texts[1:]:
        yield f"Beyond it, too: {'; '.join(texts[1:])}."
    yield from comparison.levels_left


def parting_sentence(first: str, second: str, moved: Jump) -> str:
    """Where the mean rewards of two runs part, and how far; ``moved`` is the jump of their difference."""
    return (
        f"{second} diverges from {first} at step {moved.step}: its mean reward minus the other's goes from "
        f"{moved.before:+.3g} to {moved.after:+.3g} and ends at {moved.end:+.3g} (medians of {moved.num_median} steps)."
    )


def _is_of_prompts(comparison: Comparison) -> bool:
    """Whether there are too few steps for intervals to allow for a policy that wanders."""
    from gradscope.metrics.uncertainty.steps import MIN_STEPS  # behind it lies scipy

    return comparison.source.kind != "metrics" and comparison.num_common_steps < MIN_STEPS


def shared_prompts(num_shared: int, num_all: int, runs: str) -> str:
    """How many prompts runs have in common, and what follows where they have none."""
    caution = "" if num_shared else ": a difference may be that of the prompts"
    return f"{num_shared:,} of {num_all:,} prompts are in {runs}{caution}."


def _claims(comparison: Comparison) -> Iterator[str]:
    """The verdict first: what is decided, or that nothing is."""
    decided = [pair for pair in comparison.pairs if pair.verdict == "decides"]
    yield from (f"{_difference(pair)}, {_corrected(pair.sign_flip_p_holm)} by sign flips)." for pair in decided)
    if comparison.num_tests and not decided:
        reasons = {pair.least_detectable.undefined for pair in comparison.pairs}
        why = f": {reason}" if len(reasons) == 1 and (reason := next(iter(reasons))) else ""
        yield f"None of the {comparison.num_tests} tests decides after Holm's correction{why}."
    for pair in (pair for pair in comparison.pairs if pair.verdict == "suggests"):
        flips = "" if pair.sign_flip_p_holm is None else f" ({_corrected(pair.sign_flip_p_holm)})"
        undecided = f"which sign flips do not decide{flips}" if flips else "which so few pairs do not decide"
        yield f"{_difference(pair)}, {_corrected(pair.p_holm)} if differences are normal), {undecided}."


def _difference(pair: ComparedPair) -> str:
    value = pair.difference.value or 0.0
    verb = "is" if pair.verdict == "decides" else "seems"
    return (
        f"{pair.metric}: {pair.second} {verb} {'above' if value > 0 else 'below'} {pair.first} by {abs(value):.3f} "
        f"({with_interval(pair.difference, '+.3f')}, {pair.num_pairs} pairs"
    )


def _corrected(p_value: float | None) -> str:
    """A p-value that the pair's verdict says is there."""
    return "corrected p unknown" if p_value is None else f"corrected {chance(p_value)}"


def _open(comparison: Comparison) -> Iterator[str]:
    if any(pair.within_runs for pair in comparison.pairs):
        return
    reasons = {pair.least_detectable.undefined for pair in comparison.pairs}
    if comparison.pairs and not comparison.num_tests and len(reasons) == 1:
        yield f"Nothing is decided ({', '.join(map(str, reasons))}), which is no evidence of equality either."
        return
    num_pairs = len({(pair.first, pair.second) for pair in comparison.pairs})
    for metric in comparison.metrics:
        undecided = [pair for pair in comparison.pairs if pair.metric == metric and pair.verdict != "decides"]
        if not undecided:
            continue
        ends = [abs(end) for pair in undecided for end in pair.difference.interval or ()]
        largest = f"; differences of up to {max(ends):.3f} are not excluded" if ends else ""
        detectable = [pair.least_detectable.value for pair in undecided if pair.least_detectable.value is not None]
        if detectable:
            span = f" to {max(detectable):.3f}" * (max(detectable) - min(detectable) >= 0.0005)
            power = f"one of {min(detectable):.3f}{span} would be decided four times in five"
        else:
            power = f"none could be decided ({undecided[0].least_detectable.undefined})"
        yield (
            f"{metric} leaves {len(undecided)} of {num_pairs} pairs undecided{largest}; {power}. This is no evidence "
            "of equality."
        )


def _caution(comparison: Comparison) -> Iterator[str]:
    if not comparison.pairs:
        yield "No two cells differ in exactly one thing, so nothing is compared in pairs."
        return
    if any(pair.changed == "sampling" for pair in comparison.pairs):
        yield (
            "Sampling decides which groups are in a batch and how large they are: where it differs, numbers of the "
            "batches (train_reward, reward_trend, reward_drawdown, mean_frac_reward_zero_std) say that too, and only "
            "held-out samples compare like with like."
        )
    fewest = min(pair.num_pairs for pair in comparison.pairs)
    changes = [(pair.within_runs, pair.verdict) for pair in comparison.pairs if pair.within_runs is not None]
    if changes:
        steps = comparison.num_common_steps
        few = f": {counted(steps, 'step')} {'does' if steps == 1 else 'do'} not tell how far a policy wanders"
        few = few * bool(steps and _is_of_prompts(comparison))
        units = "prompts" if few or not steps else "prompts and steps"
        units = f"the {'steps' if comparison.source.kind == 'metrics' else units} of the two runs"
        yield f"These intervals are over {units} and do not cover other seeds, so no test is made{few}."
        if steps and any(difference.side_of_zero and verdict == "open" for difference, verdict in changes):
            yield f"A metric differs where zero is outside its interval, widened for the {len(changes)} looked at."
    elif fewest < 2:
        yield (
            "Some cells share fewer than two seeds: their differences have no interval and no test. `gradscope report` "
            "on such runs has intervals that resample their prompts."
        )
    for changed in dict.fromkeys(pair.changed for pair in comparison.pairs if ", " in pair.changed):
        yield f"The two differ in several things ({changed}), so it is unknown which of them makes the difference."
