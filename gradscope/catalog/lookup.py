"""The metric catalogue: what every number is called, how it is computed, and where it comes from.

Every table caption, figure, JSON document, check message and `gradscope explain` reads this one list, so a name never
means two things. The entries are in one file a family.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

from gradscope.catalog.entry import Metric
from gradscope.catalog.gradients import CONTRIBUTION_METRICS, GRADIENT_METRICS, HELDOUT_METRICS, SPARSITY_METRICS
from gradscope.catalog.groups import GROUP_METRICS, SAMPLE_METRICS
from gradscope.catalog.logged import COMPARE_METRICS, LOGGED_METRICS, SPIKE_METRICS
from gradscope.catalog.spectrum import NULL_METRICS, SPECTRUM_METRICS
from gradscope.catalog.token_parts import TOKEN_PART_METRICS
from gradscope.catalog.weights import INTERFERENCE_METRICS, UPDATE_METRICS, WEIGHT_UPDATE_METRICS
from gradscope.errors import UsageError

_FAMILIES = {
    "groups": GROUP_METRICS,
    "samples": SAMPLE_METRICS,
    "spectrum": SPECTRUM_METRICS,
    "nulls": NULL_METRICS,
    "gradients": GRADIENT_METRICS,
    "sparsity": SPARSITY_METRICS,
    "updates": UPDATE_METRICS,
    "interference": INTERFERENCE_METRICS,
    "held-out prompts": HELDOUT_METRICS,
    "token parts": TOKEN_PART_METRICS,
    "weight updates": WEIGHT_UPDATE_METRICS,
    "contributions": CONTRIBUTION_METRICS,
    "spikes": SPIKE_METRICS,
    "logged policy": LOGGED_METRICS,
    "comparisons": COMPARE_METRICS,
}
FAMILIES: dict[str, tuple[Metric, ...]] = {
    family: tuple(entry.named(name) for name, entry in entries.items()) for family, entries in _FAMILIES.items()
}
"""Family -> its entries, in the order of reading."""

CATALOG: dict[str, Metric] = {entry.name: entry for family in FAMILIES.values() for entry in family}
"""Name -> entry, by family."""

ESSENTIAL = (
    "frac_reward_zero_std",
    "frac_reward_conflict",
    "pass_rate",
    "jensen_gap",
    "starvation.frac_rollouts",
    "pass_at_k",
    "effective_rank",
    "grad_norm",
    "replay_grad_norm_error",
    "entropy.mean",
)
"""What to know first, and what a search that fits several names puts first."""

_RANGE = re.compile(r"[\[(](?:(-?[0-9.]+)|[^,]+), (?:(-?[0-9.]+)|.+)[\])].*")
"""``[0, 1]``; an end in letters is none that is known."""
_BUDGET = re.compile(r"pass([@^])([1-9][0-9]*)")


def metric(name: str) -> Metric:
    """A catalogue entry by its name; ``pass@8`` and ``pass^8`` are ``pass_at_k`` and ``pass_hat_k``.

    Raises:
        UsageError: There is no such metric; the hint names the nearest ones.

    >>> metric("effective_rank").formula
    'exp H(q), q_i = s_i / sum(s), H(q) = -sum(q log q)'
    """
    resolved = catalog_name(name)
    if resolved in CATALOG:
        return CATALOG[resolved]
    near = near_names(name, CATALOG) or [entry.name for entry in search(name)[:3]]
    hint = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else "See `gradscope explain` for the list."
    raise UsageError(f"There is no metric {name!r}.", hint=hint)


def search(text: str) -> list[Metric]:
    """The entries that hold a word or a part of it: more of the words first, names before titles before texts.

    >>> search("zero std")[0].name
    'frac_reward_zero_std'
    """
    words = re.findall(r"[a-z0-9@^]+", text.lower())
    scores = {name: [_fit(entry, word) for word in words] for name, entry in CATALOG.items()}
    fitting = [name for name in CATALOG if any(scores[name])]
    fitting.sort(key=lambda name: (scores[name].count(0), -sum(scores[name]) - 3 * (name in ESSENTIAL)))
    return [CATALOG[name] for name in fitting]


def _fit(entry: Metric, word: str) -> int:
    """How well a word fits an entry; 0 where it does not."""
    text = f"{entry.meaning} {entry.moved_by} {entry.source}".lower()
    parts = (6, re.split(r"[._]", entry.name)), (4, entry.name), (4, entry.title.lower()), (1, text)
    return next((score for score, part in parts if word in part), 0)


def definitions(*names: str) -> dict[str, str]:
    """The formulas that a document prints with its numbers.

    >>> definitions("pass@8")
    {'pass@8': 'mean over prompts of 1 - C(n-c, k) / C(n, k)'}
    """
    return {name: metric(name).formula for name in names}


def catalog_name(name: str) -> str:
    """The entry of a name: ``pass_at_k`` for ``pass@<k>``, ``pass_hat_k`` for ``pass^<k>``, else the name.

    >>> catalog_name("pass@16"), catalog_name("pass^4"), catalog_name("stable_rank")
    ('pass_at_k', 'pass_hat_k', 'stable_rank')
    """
    budget = _BUDGET.fullmatch(name)
    if budget is None:
        return name
    return "pass_at_k" if budget[1] == "@" else "pass_hat_k"


def range_of(name: str) -> tuple[float, float]:
    """The least and the greatest that a metric can be; infinite where there is no end, or where it depends on the run.

    Raises:
        UsageError: There is no such metric.

    >>> range_of("pass@16"), range_of("grad_norm"), range_of("effective_rank")
    ((0.0, 1.0), (0.0, inf), (1.0, inf))
    """
    ends = _RANGE.fullmatch(metric(name).range)
    low, high = (None, None) if ends is None else ends.groups()
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def budget_of(name: str) -> int | None:
    """The k of ``pass@<k>`` or ``pass^<k>``; None for any other name.

    >>> budget_of("pass@16"), budget_of("stable_rank")
    (16, None)
    """
    budget = _BUDGET.fullmatch(name)
    return None if budget is None else int(budget[2])


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """At most three of the names that exist which a mistyped one was probably meant to be, the nearest first.

    >>> near_names("effective_rnk", CATALOG)[0]
    'effective_rank'
    """
    return difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)
