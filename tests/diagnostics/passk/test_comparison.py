from __future__ import annotations

import pytest

from gradscope.diagnostics.passk.comparison import crossover_k
from gradscope.diagnostics.passk.measure import pass_at_k_of_samples
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.results.passk import PassAtKDifference
from tests.diagnostics.made_up_runs import FIRST, SECOND, samples


def test_second_file_is_paired_by_prompt() -> None:
    report = pass_at_k_of_samples([FIRST, SECOND], ks=(4, 1))
    comparison = report.comparison
    assert (comparison.num_prompts, comparison.num_unpaired) == (3, 1)
    by_k = {row.k: row for row in comparison.rows}
    assert by_k[1].difference.value == pytest.approx((3 * 0.25 - 1.5) / 3)
    assert (by_k[1].first_wins, by_k[1].second_wins, by_k[1].ties) == (2, 1, 0)
    assert by_k[4].difference.value == pytest.approx(1 / 3)
    assert (by_k[4].first_wins, by_k[4].second_wins, by_k[4].ties) == (0, 1, 2)
    assert comparison.crossover_k == 4
    assert (comparison.solved.both, comparison.solved.first_only) == (2, 0)
    assert (comparison.solved.second_only, comparison.solved.neither) == (1, 0)
    assert "the sign turns at k = 4" in report.findings[2]
    assert report.findings[3].startswith("Verdict: undecided; the intervals allow a gain and a loss: -0.250")
    assert report.findings[4].startswith("1 prompts are in only one of first and second")


def test_further_files_are_compared_with_the_first() -> None:
    third = samples("third", {"a": [0, 0, 0, 0]})
    report = pass_at_k_of_samples([FIRST, SECOND, third])
    assert report.comparison.second == "second"
    assert [(one.first, one.second) for one in report.further_comparisons] == [("first", "third")]


def test_difference_beyond_the_samples_is_undefined() -> None:
    short = samples("short", {"a": [1, 0]})
    row = pass_at_k_of_samples([FIRST, short], ks=(4,)).comparison.rows[0]
    assert row.difference.undefined == "k = 4 exceeds the 2 samples of a prompt"
    assert (row.first_wins, row.second_wins, row.ties) == (0, 0, 0)


def test_wide_interval_is_called_undecided() -> None:
    one = samples("one", {str(i): [i % 2, 0] for i in range(12)})
    two = samples("two", {str(i): [(i // 2) % 2, 0] for i in range(12)})
    report = pass_at_k_of_samples([one, two], ks=(1,))
    assert "undecided" in report.findings[2]


def test_sign_may_never_turn() -> None:
    def row(k: int, value: float) -> PassAtKDifference:
        return PassAtKDifference(k=k, difference=Estimate.exact(value), first_wins=0, second_wins=0, ties=0)

    assert crossover_k([row(1, 0.1), row(2, 0.0), row(4, -0.1)]) == 4
    assert crossover_k([row(1, 0.1), row(2, 0.0)]) is None
    assert crossover_k([row(1, 0.0), row(2, -0.1)]) is None
    assert crossover_k([]) is None


def test_files_about_different_prompts_are_refused() -> None:
    other = samples("other", {"z": [1, 0]})
    with pytest.raises(InputError, match="have no prompt in common: the first has prompt 'a', the second 'z'"):
        pass_at_k_of_samples([FIRST, other])
