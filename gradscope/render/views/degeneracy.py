"""Tables of dead groups, which the terminal and the page draw."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from gradscope.render.views.view import Column, Selection, View, digits
from gradscope.render.words import plain

_LETTERS = 80  # of a prompt; a longer one is cut


def prompts_view(limit: int) -> View:
    """The prompts that took the most rollouts and are not live: so many of them."""
    columns = (
        Column("prompt", lambda row: plain(row["prompt"] or row["prompt_id"], limit=_LETTERS), limit=28),
        Column("groups", itemgetter("num_groups"), "count"),
        Column("rollouts", itemgetter("num_rollouts"), "count"),
        Column("pass\nrate", itemgetter("pass_rate"), "share"),
        Column("status", lambda row: row["status"] or None),
        Column("first\nstep", itemgetter("first_step"), "count"),
        Column("last\nlive", itemgetter("last_live_step"), "count"),
    )

    def first(rows: Sequence[dict[str, str]]) -> Selection:
        left = rows[limit:]
        dead = sum(row["status"] in ("never", "always") for row in left)
        words = f"{len(left):,} more prompts, {dead:,} of them without a gradient: --output DIR writes all as CSV"
        return Selection(rows[:limit], remarks=(words,) if left else ())

    return View("by_prompt", columns, first)


def _parts(field: str, title: str) -> View:
    columns = (
        Column(title, title, limit=20),
        Column("groups", "num_groups", "count"),
        Column("rollouts", "num_rollouts", "count"),
        Column("no gradient", "frac_reward_zero_std", "share", ""),
        Column("pass rate", "pass_rate", "share", ""),
    )
    return View(field, columns)


ENVIRONMENTS = _parts("by_environment", "environment")
POLICIES = _parts("by_policy", "policy")
SIZES = View(
    "by_group_size",
    (
        Column("group\nsize", digits("group_size"), "count"),
        Column("no gradient", "degeneracy", "share", ""),
        Column("i.i.d.\nprediction", "iid_prediction", "share"),
        Column("Jensen gap", "jensen_gap", "gap", ""),
        Column("how", "method"),
    ),
)
ADVANTAGES = View(
    "advantages",
    (
        Column("advantage on these rewards", "advantage"),
        Column("mean max(A, 0)", "positive_mass", "share"),
        Column("mean max(-A, 0)", "negative_mass", "share"),
        Column("A = 0", "frac_zero", "share"),
    ),
)
REWARDS = View(
    "by_reward",
    (
        Column("reward function", "name", limit=24),
        Column("weight", "weight", "norm"),
        Column("tied", "frac_tied", "share"),
        Column("squared\nadvantage", "advantage_share", "share"),
        Column("squared\ndifferences", "difference_share", "share"),
        Column("alone", "num_alone", "count"),
    ),
)
