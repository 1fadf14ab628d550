"""What a comparison says in words: what the tests decide, and what they leave open."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.results.compare import ComparedPair, Comparison
from gradscope.say import with_interval

LEVEL = 0.05
"""A corrected p-value below this decides."""


def compare_findings(comparison: Comparison) -> tuple[str, ...]:
    """What the tests decide, what they leave open, and what they cannot say, in sentences for people."""
    return (
        *_decisions(comparison),
        *_open(comparison),
        *_caution(comparison),
        *(f"{folder} is left out: {reason}." for folder, reason in comparison.left_out.items()),
    )


def is_decided(pair: ComparedPair) -> bool:
    """Whether a difference is one after correction."""
    return pair.p_holm is not None and pair.p_holm < LEVEL


def _decisions(comparison: Comparison) -> Iterator[str]:
    decided = [pair for pair in comparison.pairs if is_decided(pair)]
    yield from map(_decided, decided)
    if comparison.num_tests and not decided:
        yield f"None of the {comparison.num_tests} tests decides after Holm's correction."
    fewest = min((pair.num_pairs for pair in decided), default=0)
    if decided and 2 / 2**fewest > LEVEL:
        yield (
            f"With {fewest} pairs sign flips cannot give a p-value below {2 / 2**fewest:g}: what is decided rests on "
            "the t test, which takes differences for normal."
        )


def _decided(pair: ComparedPair) -> str:
    difference = pair.difference
    value, corrected = difference.value or 0.0, pair.p_holm or 0.0
    word = "above" if value > 0 else "below"
    return (
        f"{pair.metric}: {pair.second} is {word} {pair.first} by {abs(value):.3f} "
        f"({with_interval(difference, '+.3f')}, {pair.num_pairs} pairs, corrected p = {corrected:.2g})."
    )


def _open(comparison: Comparison) -> Iterator[str]:
    num_pairs = len({(pair.first, pair.second) for pair in comparison.pairs})
    for metric in comparison.metrics:
        undecided = [pair for pair in comparison.pairs if pair.metric == metric and not is_decided(pair)]
        if not undecided:
            continue
        ends = [abs(end) for pair in undecided for end in pair.difference.interval or ()]
        reach = f"; differences of up to {max(ends):.3f} are not excluded" if ends else ""
        yield f"{metric} leaves {len(undecided)} of {num_pairs} pairs undecided{reach}: no evidence of equality."


def _caution(comparison: Comparison) -> Iterator[str]:
    if not comparison.pairs:
        yield "No two cells differ in exactly one thing, so nothing is compared in pairs."
        return
    if any(pair.changed == "sampling" for pair in comparison.pairs):
        yield (
            "Sampling decides which groups are in a batch and how large they are: where it differs, numbers of the "
            "batches (train_reward, reward_drawdown, mean_frac_reward_zero_std) say that too, and only held-out "
            "samples compare like with like."
        )
    fewest = min(pair.num_pairs for pair in comparison.pairs)
    if fewest < 2:
        yield "Some cells share fewer than two seeds: their differences have no interval and no test."
    yield (
        "Seeds vary prompts, their order and sampling. One task and one model: this says nothing about others, nor "
        "about learning rates that were not tried."
    )
