from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from gradscope.cli.arguments.records import with_records
from gradscope.option import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A record inside a record."""

    step: Annotated[str | None, Option("A column.", "NAME", flags=("--step-column",))] = None
    """Its flag has another name than the field."""
    hidden: int = 7  # no option of the command line


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
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


def test_every_field_is_a_flag_and_the_command_gets_the_record() -> None:
    code, _, seen = run("--where", "a/b", "--step-column", "iteration", "--switch", "--size", "4")
    assert code == 0
    assert seen == [Outer(path="a/b", inner=Inner(step="iteration"), switch=True, size=8)]


def test_a_parameter_with_an_option_is_a_flag_too() -> None:
    assert run("--as-often", "2") == (0, "", [Outer(), Outer()])
    assert run("--times", "2")[0] == 2


def test_less_than_the_least_is_refused() -> None:
    assert run("--least", "1")[0] == 0
    assert run("--least", "0")[0] == 2


def test_without_flags_the_record_has_its_defaults() -> None:
    assert run()[2] == [Outer()]


@pytest.mark.parametrize(
    ("flag", "left_out"), [("--switch", "switch"), ("--step-column=a", "step"), ("--step-column=a", "inner")]
)
def test_what_is_left_out_is_no_flag(flag: str, left_out: str) -> None:
    code, output, seen = run(flag, leave_out=(left_out,))
    assert (code, seen) == (2, [])
    assert "No such option" in output
