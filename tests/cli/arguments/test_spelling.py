import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import gradscope
from gradscope.cli.app import options_by_command
from gradscope.cli.arguments.spelling import fitting_hint, with_new_names
from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["degeneracy", "run", "--format", "trl"], ["degeneracy", "run", "--reader", "trl"]),
        (["report", "run", "--tokens", "0"], ["report", "run", "--max-tokens", "0"]),
        (["compare", "grid", "--only=seed"], ["compare", "grid", "--vary=seed"]),
        (["check", "run", "--rule", "value"], ["check", "run", "--decide-by", "value"]),
    ],
)
def test_an_old_spelling_works_and_is_named(old: list[str], new: list[str]) -> None:
    renamed, (note,) = with_new_names(old)
    assert renamed == new
    assert (
        note == f"{old[2].partition('=')[0]} is now {new[2].partition('=')[0]}; the next release drops the old spelling"
    )


def test_what_is_no_old_option_stays_as_it_is() -> None:
    for arguments in ([], ["check", "run", "--format", "junit"], ["passk", "--", "--format"], ["explain", "--format"]):
        assert with_new_names(arguments) == (arguments, [])


def test_the_note_is_talk_and_quiet_leaves_it_out(cli: Cli, log: object) -> None:
    done = cli("degeneracy", log, "--format", "generic")
    assert done.code == 0
    assert done.err.startswith("note: --format is now --reader; the next release drops the old spelling\n")
    assert cli("degeneracy", log, "--format", "generic", "--quiet").err == ""


OPTIONS = options_by_command()
OF_OTHER_PROGRAMS = {"--log_completions", "--multi_gpu", "--nproc-per-node", "--upgrade"}


def words_of(node: ast.AST) -> str:
    """The text of a string; what is put into it stands as a blank."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.FormattedValue):
        return " "
    return "".join(words_of(part) for part in ast.iter_child_nodes(node))


def hints() -> Iterator[tuple[str, str]]:
    for path in sorted(Path(gradscope.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "hint" and "--" in words_of(node.value):
                yield f"{path.name}:{node.value.lineno}", words_of(node.value)


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", text))


@pytest.mark.slow
def test_an_option_of_a_hint_is_the_commands_own_or_its_owner_is_named() -> None:
    expected = OF_OTHER_PROGRAMS.union(*OPTIONS.values())
    result = list(hints())
    assert len(result) > 50
    assert {"passk", "check", "train"} <= OPTIONS.keys()
    for (index, hint), (command, own) in product(result, OPTIONS.items()):
        assert options_in(hint) <= expected, f"{index} names an option that no command has"
        output = fitting_hint(hint, [command, "my-run"], OPTIONS)
        named = {name for name in re.findall(r"gradscope ([a-z]+)", hint) if name in OPTIONS}
        for option in options_in(hint) - own - OF_OTHER_PROGRAMS:
            owned = any(option in OPTIONS[name] for name in named)
            of_others = rf"\((--\S+, )*{option}(, --\S+)* (is an|are) options? of `gradscope "
            assert owned or re.search(of_others, output), index


def test_without_a_command_a_hint_stays_as_it_is() -> None:
    assert fitting_hint("Use --k 1.", ["--version"], OPTIONS) == "Use --k 1."


def test_a_command_line_says_whose_option_a_hint_names(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"a": 1}\n')
    done = cli("replay", log)
    assert done.code == 2
    assert (
        "(--reward-column, --group-column, --prompt-column, --step-column, --metric-column are options of "
        "`gradscope degeneracy`, not of `gradscope replay`.)"
    ) in done.err
