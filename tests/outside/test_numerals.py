import math

import pytest

from gradscope.outside.numerals import MAX_DIGITS, integer_from, number_from

NO_NUMBERS = ("", " ", "1_0", "٣", "²", "1e", "e5", "0x10", "1,5", "--1", "1 0", "true", ".", "1.2.3", "nan1", "½")


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), ("-.5", -0.5), ("+5.", 5), ("1E-3", 1e-3), (" 2\t", 2), ("1e400", math.inf)]
)
def test_numbers_are_read(text: str, number: float) -> None:
    assert number_from(text) == number


def test_words_for_what_is_not_finite_are_numbers() -> None:
    assert math.isnan(number_from("NaN"))
    assert number_from("-Infinity") == -math.inf


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_everything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        number_from(text)
    with pytest.raises(ValueError, match="is not a whole number"):
        integer_from(text)


@pytest.mark.parametrize(("text", "number"), [("10", 10), ("-3.0", -3), ("+7", 7), (str(2**80), 2**80)])
def test_whole_numbers_are_read(text: str, number: int) -> None:
    assert integer_from(text) == number


@pytest.mark.parametrize("text", ["2.9", "1e3", "nan", "inf"])
def test_a_fraction_is_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        integer_from(text)


def test_a_number_has_so_many_digits_and_no_more() -> None:
    assert number_from("9" * MAX_DIGITS) == 1e300
    with pytest.raises(ValueError, match=f"more than the {MAX_DIGITS}"):
        number_from("9" * (MAX_DIGITS + 1))
    with pytest.raises(ValueError, match=f"more than the {MAX_DIGITS}"):
        integer_from("9" * 5000)
