import math
import re

import pytest

from gradscope.catalog.lookup import CATALOG, budget_of, catalog_name, definitions, metric, near_names, range_of
from gradscope.errors import UsageError


def test_budgets_stand_for_their_entry() -> None:
    assert metric("pass@8") is CATALOG["pass_at_k"]
    assert catalog_name("pass^2") == "pass_hat_k"
    assert (budget_of("pass@128"), budget_of("pass@0"), budget_of("pass@k")) == (128, None, None)


def test_definitions_are_the_formulas() -> None:
    assert definitions("stable_rank") == {"stable_rank": "sum(s^2) / s_1^2"}


def test_unknown_metric_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="There is no metric 'effective_rnk'") as caught:
        metric("effective_rnk")
    assert caught.value.hint.startswith("Did you mean 'effective_rank'")
    with pytest.raises(UsageError, match="There is no metric 'xyzzy'") as caught:
        metric("xyzzy")
    assert caught.value.hint == "See `gradscope explain` for the list."


def test_suggestions_are_few_and_near() -> None:
    assert near_names("frac_all_pas", CATALOG)[0] == "frac_all_pass"
    assert near_names("zzz", CATALOG) == []


def test_a_range_is_known_where_it_is_numbers() -> None:
    assert range_of("pass@8") == (0.0, 1.0)
    assert range_of("grad_norm") == (0.0, math.inf)
    assert range_of("stable_rank") == (1.0, math.inf)
    assert range_of("optimal_baseline") == (-math.inf, math.inf)
    assert range_of("update_cosine") == (-1.0, 1.0)


def test_what_goes_wrong_is_better_lower_and_what_is_gained_higher() -> None:
    """Held by the words of the names, for a gate fails by the direction of its metric."""
    lower = r"chi2|kl_k3|beyond|clipped|lag$|above_1|truncated|seconds|slowest|_error$|mismatch|hurt|all_fail|zero_std$"
    higher = r"_ess$|^pass_(rate|at_k|hat_k)$|transfer|influence|alignment\.pass"
    for name, entry in CATALOG.items():
        if not name.startswith("mean_"):  # a mean over runs of another length tells nothing
            expected = "lower" if re.search(lower, name) else "higher" if re.search(higher, name) else entry.better
            assert entry.better == expected, name
