import math

import pytest

from gradscope.estimate import Estimate
from gradscope.say import amount, evenly, interval, names_apart, number, percent, points, with_interval

SHARE = Estimate(value=0.25, low=0.0004, high=0.5)


@pytest.mark.parametrize(
    ("form", "text"),
    [(".2f", "0.25 [0.00, 0.50]"), ("+.3f", "+0.250 [+0.000, +0.500]"), (percent, "25.0 % [<0.1 %, 50.0 %]")],
)
def test_a_number_and_its_ends_read_alike(form: object, text: str) -> None:
    assert with_interval(SHARE, form) == text


def test_a_fact_reads_without_brackets() -> None:
    assert with_interval(Estimate.exact(0.5), ".1f") == "0.5"
    assert interval(Estimate.exact(0.5), ".1f") == interval(Estimate.undefined_because("no data"), ".1f") == ""


def test_an_undefined_number_cannot_be_said() -> None:
    with pytest.raises(ValueError, match="an undefined number cannot be said: no data"):
        with_interval(Estimate.undefined_because("no data"), ".1f")


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0.0 %"), (0.0004, "<0.1 %"), (0.0005, "0.1 %"), (1.0, "100.0 %"), (-0.02, "-2.0 %")]
)
def test_only_nothing_reads_as_nothing(share: float, text: str) -> None:
    assert percent(share) == text


def test_differences_of_shares_are_signed_points() -> None:
    assert (points(0.051), points(-0.2), points(0.0)) == ("+5.1", "-20.0", "+0.0")


def test_amounts_are_whole_from_a_hundred_on() -> None:
    assert (amount(12.53), amount(99.96), amount(999.96), amount(-1000.4)) == ("12.5", "100", "1,000", "-1,000")


def test_a_number_that_is_not_finite_is_said_in_words() -> None:
    assert (number(math.nan, ".2f"), number(-math.inf, percent), number(0.5, percent)) == ("NaN", "-Infinity", "50.0 %")


@pytest.mark.parametrize(("number", "chosen"), [(12, 12), (13, 12), (500, 12)])
def test_many_items_are_chosen_evenly_with_their_ends(number: int, chosen: int) -> None:
    rows = evenly(range(number), 12)
    assert (len(rows), rows[0], rows[-1]) == (chosen, 0, number - 1)


def test_names_that_recur_have_what_tells_their_paths_apart() -> None:
    assert names_apart(["r"] * 3 + ["q"], ["t/1/r", "t/2/r", "t/2/b/r", "q"]) == ["1", "2", "2/b", "q"]
    assert names_apart(["r"] * 2, ["t/r", "t/r"]) == ["t/r", "t/r"]
    assert names_apart(["r"] * 2, ["r", "old/r"]) == ["r", "old"]
    assert names_apart(["gpt", "base"] * 2, ["a", "a", "b", "b"]) == ["a/gpt", "a/base", "b/gpt", "b/base"]
