import re
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from msgspec import Struct
from typer.testing import CliRunner

from gradscope.cli import app as app_module
from gradscope.cli.app import command as app
from gradscope.cli.arguments.options import (
    complete_formulation,
    parse_choices,
    parse_counts,
    parse_files,
    parse_metrics,
    parse_names,
    parse_numbers,
    parse_steps,
    with_records,
)
from gradscope.errors import UsageError
from gradscope.option import Option
from gradscope.render.terminal.names import TABLES, choices_of


def test_commas_and_repetition_give_the_same() -> None:
    for parse in (parse_names, parse_metrics, parse_files, parse_numbers, parse_counts):
        assert parse("--x", None) == parse("--x", []) == ()
    assert parse_names("--advantage", ["grpo,sign"]) == parse_names("--advantage", ["grpo", " sign"])
    assert parse_numbers("--learning-rate", ["1e-4, 3"]) == parse_numbers("--learning-rate", ["1e-4", "3"]) == (1e-4, 3)
    assert parse_counts("--k", ["1,4"]) == parse_counts("--k", ["1", "4"]) == (1, 4)
    assert parse_files("--samples", ["a,b"]) == parse_files("--samples", ["a", "b"]) == ("a", "b")
    assert parse_metrics("--track", ["a,b"]) == parse_metrics("--track", ["a", "b"]) == ("a", "b")


def test_a_choice_is_one_of_a_few_names() -> None:
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
        *((text, "is not a whole number or a range of them") for text in ("", "0-", "-3", "1.5", "1:2:3")),
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
        *((words, None) for words in (None, [], ["3", "all"], ["3,all"])),
        (["7"], (7,)),
        (["4:6", "5", "1"], (1, 4, 5, 6)),
        (["4-6,5,1"], (1, 4, 5, 6)),
    ],
)
def test_steps_are_named_by_number_list_range_or_all(words: list[str] | None, steps: tuple[int, ...] | None) -> None:
    assert parse_steps(words) == steps


COMMANDS: dict[str, Any] = app().commands


@pytest.mark.parametrize("command", sorted(TABLES))
def test_every_table_of_a_command_is_named_at_its_option_and_taken(command: str) -> None:
    names = choices_of(command)
    (option,) = [parameter for parameter in COMMANDS[command].params if "--show" in parameter.opts]
    assert all(name in option.help for name in names)
    assert parse_choices("--show", [",".join(names)], names) == names
    with pytest.raises(UsageError, match="--show does not take 'nothing'"):
        parse_choices("--show", ["nothing"], names)


@pytest.mark.parametrize(
    ("incomplete", "completed"),
    [("dr_", ["dr_grpo"]), ("sign,dr_", ["sign,dr_grpo"]), ("nothing", []), ("sig", ["sign", "sign:c="])],
)
def test_the_last_formulation_of_a_list_is_completed(incomplete: str, completed: list[str]) -> None:
    assert complete_formulation(incomplete) == completed


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("gradscope deg", "degeneracy"),
        ("gradscope rank --adv", "--advantage"),
        ("gradscope explain frac_reward_zero", "frac_reward_zero_std"),
        ("gradscope check run --track frac_reward_zero", "frac_reward_zero_std"),
        ("gradscope check run --require frac_reward_zero", "frac_reward_zero_std"),
        *((f"gradscope {command} run --advantage dr_", "dr_grpo") for command in ("rank", "replay", "claims")),
    ],
)
def test_a_shell_completes(words: str, completed: str) -> None:
    asked = {"_GRADSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    answer = CliRunner().invoke(app_module.app, env=asked, prog_name="gradscope")
    assert answer.stdout.split() == [completed]


class Inner(Struct, frozen=True, kw_only=True):
    """A record inside a record."""

    step: Annotated[str | None, Option("A column.", "NAME", flags=("--step-column",))] = None
    """Its flag has another name than the field."""
    hidden: int = 7  # no option of the command line


class Outer(Struct, frozen=True, kw_only=True):
    """One record of options."""

    path: Annotated[str | Path | None, Option("A path, under two names.", "PATH", flags=("--path", "--where"))] = None
    """Text where a person types it."""
    inner: Inner = Inner()  # expanded too
    switch: Annotated[bool, Option("A switch.")] = False  # on or off
    size: Annotated[int | None, Option("Parsed.", "N", parse=lambda text: int(text) * 2)] = None
    least: Annotated[int, Option("Bounded.", "N", at_least=1)] = 1
    """A number of its own grammar."""


def run(*arguments: str, leave_out: tuple[str, ...] = ()) -> tuple[int, str, list[Outer]]:
    app, seen = typer.Typer(), []

    @app.command()
    @with_records(leave_out=leave_out)
    def command(
        name: str, *, outer: Outer, times: Annotated[int, Option("A flag of its own.", "N", flags=("--as-often",))] = 1
    ) -> None:
        assert name == "x"
        seen.extend([outer] * times)

    done = CliRunner().invoke(app, ["x", *arguments])
    return done.exit_code, done.output, seen


@pytest.mark.parametrize(
    ("arguments", "records"),
    [
        ("", [Outer()]),
        (
            "--where a/b --step-column iteration --switch --size 4",
            [Outer(path="a/b", inner=Inner(step="iteration"), switch=True, size=8)],
        ),
        ("--as-often 2", [Outer(), Outer()]),
        ("--times 2", None),
        ("--least 1", [Outer()]),
        ("--least 0", None),
    ],
)
def test_every_field_is_a_flag_and_the_command_gets_the_record(arguments: str, records: list[Outer] | None) -> None:
    code, output, seen = run(*arguments.split())
    assert (code, seen) == ((2, []) if records is None else (0, records))
    assert bool(output) == (records is None)


@pytest.mark.parametrize(
    ("flag", "left_out"), [("--switch", "switch"), ("--step-column=a", "step"), ("--step-column=a", "inner")]
)
def test_what_is_left_out_is_no_flag(flag: str, left_out: str) -> None:
    code, output, seen = run(flag, leave_out=(left_out,))
    assert (code, seen) == (2, [])
    assert "No such option" in output
