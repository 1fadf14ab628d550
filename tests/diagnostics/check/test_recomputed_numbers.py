"""Which row of which step a metric of gradients means."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradscope.catalog.lookup import CATALOG
from gradscope.diagnostics.check.metric_values import MetricValues
from gradscope.diagnostics.check.recomputed_numbers import (
    furthest_deviation,
    is_of_tokens,
    look_closer,
    number_at,
    rank_number,
)
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.results.rank import RankReport
from tests.diagnostics.check.test_metric_values import rank_report
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.render.rank_examples import correction, entropy_change, kl, logprob_change, token_kind

_KINDS = ({}, {"entropy": "rest"}, {"entropy": "top_fifth", "sign": "positive"}, {"entropy": "top_fifth"})


def numbered(rows: list[object], *names: str) -> tuple[object, ...]:
    """The rows at step 6, each with numbers of its own."""
    return tuple(
        replace(row, step=6, **dict.fromkeys(names, Estimate.exact(0.1 * place))) for place, row in enumerate(rows)
    )


LAST = {
    "token_kinds": numbered([token_kind(**kind) for kind in _KINDS], "energy_share", "cosine"),
    "corrections": numbered([correction(name) for name in ("none", "tis", "icepop")], "ess", "norm_ratio", "cosine"),
    "entropy_changes": (entropy_change(1), entropy_change(6)),
    "token_kl": (kl(1), kl(6)),
    "logprob_changes": (logprob_change(1), logprob_change(6)),
}


def of_tokens(**parts: object) -> RankReport:
    return replace(rank_report(), **({**LAST, **parts}))


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("token_kinds.energy_share", ("token_kinds", "top_fifth"), " of the top fifth by entropy"),
        ("token_kinds.cosine", ("token_kinds", "top_fifth"), " of the top fifth by entropy"),
        ("corrections.ess", ("corrections", "tis"), " of tis"),
        ("corrections.norm_ratio", ("corrections", "tis"), " of tis"),
        ("corrections.cosine", ("corrections", "tis"), " of tis"),
        ("entropy_change.rate", ("entropy_changes", None), ""),
        ("entropy_change.cosine", ("entropy_changes", None), ""),
        ("token_kl.top_share", ("token_kl", None), ""),
        ("logprob_changes.matched", ("logprob_changes", None), ""),
    ],
)
def test_numbers_of_tokens_are_those_of_one_row_of_the_last_step(
    name: str, row: tuple[str, str | None], words: str
) -> None:
    entry, (table, kind) = CATALOG[name], row
    report = of_tokens()
    chosen = [
        one
        for one in getattr(report, table)
        if one.step == 6
        and (kind is None or kind == getattr(one, "correction", None) or kind == getattr(one, "entropy", None))
        and (getattr(one, "sign", None), getattr(one, "probability", None)) == (None, None)
    ]
    assert len(chosen) == 1
    assert is_of_tokens(entry)
    assert rank_number(report, entry) == (
        number_at(chosen[0], entry.path.partition(".")[2]),
        f"{name}{words} at step 6",
    )
    assert look_closer(entry, "a run") == "Look closer: gradscope rank 'a run' --rows token"
    values = MetricValues(run=run_of(group_of([1, 0], step=6)), cache={"rank token": report})
    assert values.value(name).estimate == rank_number(report, entry)[0]


def test_a_table_that_the_last_step_lacks_says_why() -> None:
    report = of_tokens(corrections=(), missing_parts={"corrections": "step 6: nothing was sampled"})
    estimate, _ = rank_number(report, CATALOG["corrections.ess"])
    assert estimate.undefined == "step 6: nothing was sampled"
    other = of_tokens(token_kinds=tuple(kind for kind in LAST["token_kinds"] if kind.entropy is None))
    estimate, _ = rank_number(other, CATALOG["token_kinds.cosine"])
    assert estimate.undefined == "no token of the step is of that kind"


def test_a_row_of_an_earlier_step_is_not_taken() -> None:
    earlier = replace(LAST["entropy_changes"][0], step=5)
    report = of_tokens(entropy_changes=(earlier,))
    assert not rank_number(report, CATALOG["entropy_change.rate"])[0].is_defined


def test_ranks_without_a_spectrum_have_no_number() -> None:
    estimate, subject = rank_number(replace(rank_report(), curve=()), CATALOG["stable_rank"])
    assert (estimate.undefined, subject) == ("no group has a spectrum", "stable_rank at step 6")
    assert not is_of_tokens(CATALOG["stable_rank"])


def norms(**others: float) -> dict[int, dict[str, float]]:
    values = {step: {"grad_norm": 1.0 + 0.1 * (step % 4)} for step in range(1, 21)}
    values[7]["grad_norm"] = 9.0
    values[9].update(others)
    return values


def test_the_deviation_is_that_of_the_step_that_stands_out() -> None:
    run = run_of(group_of([1, 0], step=1), metrics=norms())
    estimate, subject = furthest_deviation(run)
    assert estimate.value > 10.0
    assert subject.startswith("deviation of grad_norm at step 7 (chance reaches ")
    value = MetricValues(run=run).value("deviation")
    assert (value.estimate, value.is_not_finite) == (estimate, False)


def test_a_number_that_is_none_is_no_deviation_and_fails() -> None:
    run = run_of(group_of([1, 0], step=1), metrics=norms(kl=math.nan))
    assert furthest_deviation(run)[1] == "deviation of kl at step 9"
    value = MetricValues(run=run).value("deviation")
    assert value.is_not_finite
    assert value.estimate.undefined == "it was logged as no finite number"


def test_without_a_course_nothing_stands_out() -> None:
    run = run_of(group_of([1, 0], step=1))
    with pytest.raises(InputError, match="No step can stand out"):
        furthest_deviation(run)
    assert not MetricValues(run=run).value("deviation").is_not_finite
