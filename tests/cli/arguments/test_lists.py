import re
from pathlib import Path

import pytest

from gradscope.cli.app import command as app
from gradscope.cli.arguments.lists import (
    parse_choices,
    parse_counts,
    parse_files,
    parse_metrics,
    parse_names,
    parse_numbers,
    parse_steps,
)
from gradscope.errors import UsageError

LISTS = {
    "rank": ("--step", "--advantage", "--group-size", "--show"),
    "replay": ("--step", "--show"),
    "spike": ("--metric-column", "--show"),
    "claims": ("--step", "--samples", "--show"),
    "report": ("--metric-column", "--step", "--samples", "--show"),
    "degeneracy": ("--metric-column", "--group-size", "--show"),
    "passk": ("--k", "--show"),
    "compare": ("--metric-column", "--k", "--show"),
    "check": ("--metric-column", "--track", "--allow-unknown", "--show"),
    "train": ("--seeds", "--advantage", "--learning-rate"),
}
"""Every option that takes several values, but check's requirements, which hold commas of their own."""


def test_every_option_that_can_be_repeated_is_one_of_these_lists() -> None:
    for name, command in app().commands.items():
        repeatable = {one.opts[0] for one in command.params if one.multiple}
        assert repeatable - {"--require"} == set(LISTS.get(name, ())), name


@pytest.mark.parametrize("parse", [parse_names, parse_metrics, parse_files, parse_numbers, parse_counts])
def test_nothing_is_nothing(parse) -> None:  # type: ignore[no-untyped-def]
    assert parse("--x", None) == parse("--x", []) == ()


def test_commas_and_repetition_give_the_same() -> None:
    assert parse_names("--advantage", ["grpo,sign"]) == parse_names("--advantage", ["grpo", " sign"])
    assert parse_numbers("--learning-rate", ["1e-4, 3"]) == parse_numbers("--learning-rate", ["1e-4", "3"]) == (1e-4, 3)
    assert parse_counts("--k", ["1,4"]) == parse_counts("--k", ["1", "4"]) == (1, 4)
    assert parse_files("--samples", ["a,b"]) == parse_files("--samples", ["a", "b"]) == ("a", "b")
    assert parse_metrics("--track", ["a,b"]) == parse_metrics("--track", ["a", "b"]) == ("a", "b")


def test_one_of_a_few_names_is_taken_and_no_other() -> None:
    assert parse_choices("--show", None, ("steps",)) == ()
    assert parse_choices("--show", ["signal, steps", "steps"], ("steps", "signal")) == ("signal", "steps", "steps")
    with pytest.raises(UsageError, match=r"--show does not take 'sginal'\.") as caught:
        parse_choices("--show", ["steps,sginal"], ("steps", "signal"))
    assert caught.value.hint == "Write --show with any of steps, signal"


def test_a_range_has_both_ends_and_two_spellings() -> None:
    assert parse_counts("--seeds", "0-2,5,7-7") == parse_counts("--seeds", ["0:2", "5,7:7"]) == (0, 1, 2, 5, 7)


def test_the_steps_of_a_metric_are_its_own() -> None:
    words = ["frac_replay_mismatch@1,21,41,pass@8", "reward@5-20,30:max"]
    assert parse_metrics("--track", words) == ("frac_replay_mismatch@1,21,41", "pass@8", "reward@5-20,30:max")


def test_a_file_with_a_comma_in_its_name_is_one_file(tmp_path: Path) -> None:
    odd = tmp_path / "lr=0.1,seed=0.jsonl"
    odd.touch()
    assert parse_files("--samples", [str(odd), "a,b"]) == (str(odd), "a", "b")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "Name something, or leave --advantage out."),
        ("grpo,", "Write --advantage grpo"),
        (",grpo", "Write --advantage grpo"),
        ("a,,b", "Write --advantage a,b"),
    ],
)
def test_empty_names(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="names nothing between two commas") as caught:
        parse_names("--advantage", text)
    assert caught.value.hint == hint


@pytest.mark.parametrize("text", ["", "fast", "1e-4,", "1e-4;2e-4"])
def test_bad_numbers(text: str) -> None:
    with pytest.raises(UsageError, match=r"--learning-rate is .*, which is no number or list of numbers") as caught:
        parse_numbers("--learning-rate", text)
    assert caught.value.hint == "Write --learning-rate 1e-4,2e-4"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "is not a whole number or a range of them") for text in ("", "a", "0-", "-3", "1.5", "0--2", "1:2:3")),
        ("4-0", "is a range that runs backwards"),
        ("0:99999999", "is a range of more than 1,000,000 numbers"),
    ],
)
def test_bad_counts_and_a_hint_that_reads(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_counts("--seeds", text)
    written = re.findall(r"--seeds ([\d:,]*\d)", caught.value.hint or "")
    assert written
    assert all(parse_counts("--seeds", example) for example in written)


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (None, None),
        ([], None),
        (["3", "all"], None),
        (["3,all"], None),
        (["7"], (7,)),
        (["4:6", "5", "1"], (1, 4, 5, 6)),
        (["4-6,5,1"], (1, 4, 5, 6)),
    ],
)
def test_steps_are_named_by_number_list_range_or_all(words: list[str] | None, steps: tuple[int, ...] | None) -> None:
    assert parse_steps(words) == steps


@pytest.mark.parametrize("word", ["x", "1:", "-3", "1.5", "1:2:3", "6:5", "0:99999999"])
def test_what_is_no_step_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--step"):
        parse_steps([word])
