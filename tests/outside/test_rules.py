from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.outside import rules
from gradscope.outside.rules import FieldRule, integer_between, is_finite, require_fields


@pytest.mark.parametrize(
    ("rule", "held", "broken"),
    [
        (rules.TEXT, ["", "x"], [1, None, ["x"]]),
        (rules.FLAG, [True, False], [0, 1, "true", None]),
        (rules.FLAG.or_null(), [True, None], [0]),
        (rules.OBJECT, [{}], [[], None]),
        (rules.NUMBER, [0, -1, 2.5, 10**300], ["1", True, float("nan"), float("-inf"), 10**400, None]),
        (rules.FROM_ZERO, [0, 0.5], [-0.1, float("inf"), True]),
        (rules.ABOVE_ZERO, [0.5], [0, -1, "1"]),
        (rules.NUMBERS, [[], [1, 0.5], (1,)], [1, [True], [1, "x"]]),
        (rules.TEXTS, [[], ["a"]], ["a", [1], None]),
        (integer_between(1), [1, 10**20], [0, 1.0, True, "1", None]),
        (integer_between(0, 3), [0, 3], [-1, 4]),
    ],
)
def test_a_rule_holds_of_what_its_words_say(rule: FieldRule, held: list[Any], broken: list[Any]) -> None:
    assert all(map(rule.holds, held))
    assert not any(map(rule.holds, broken))


def test_words_complete_the_sentence() -> None:
    words = [rule.words for rule in (integer_between(1), integer_between(0, 3), rules.TEXT.or_null())]
    assert words == ["a whole number from 1 on", "a whole number from 0 to 3", "text or null"]
    assert not is_finite(True)


def test_the_first_that_is_something_else_is_named_briefly() -> None:
    fields = {"a": "x", "b": "y" * 100}
    require_fields(fields, {"a": rules.TEXT, "absent": rules.NUMBER}, "a.json", hint="Mend it.")
    with pytest.raises(InputError, match=r"a\.json: b is 'y{40}', and it can only be a finite number\.") as caught:
        require_fields(fields, {"b": rules.NUMBER}, "a.json", hint="Mend it.", cause="weights_unreadable")
    assert (caught.value.hint, caught.value.cause) == ("Mend it.", "weights_unreadable")
