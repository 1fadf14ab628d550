import pytest

from gradscope.errors import UsageError
from gradscope.gradients.engine_options import EngineOptions, parse_batch_tokens


@pytest.mark.parametrize(("text", "number"), [("auto", None), ("1", 1), ("4096", 4096)])
def test_a_batch_is_a_number_of_tokens_or_what_fits(text: str, number: int | None) -> None:
    assert parse_batch_tokens(text) == number


@pytest.mark.parametrize("text", ["", "0", "-5", "1e3", "4.5", "all"])
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a number of tokens") as caught:
        parse_batch_tokens(text)
    assert caught.value.hint == "Use auto, or a whole number from 1 on."


def test_high_precision_is_float32() -> None:
    with pytest.raises(UsageError, match="There is no precision 'low'"):
        EngineOptions(precision="low")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--precision high computes in float32, and --dtype bfloat16 asks for another"):
        EngineOptions(precision="high", dtype="bfloat16")
    assert EngineOptions(precision="high", dtype="float32").dtype == "float32"
