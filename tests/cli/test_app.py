import ast
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import gradscope
from gradscope.__main__ import fitting_hint, with_new_names
from gradscope.advantages.registry import ALL_FORMULATIONS
from gradscope.cli.app import HELP_NAMES, command, examples_in, options_by_command
from gradscope.rollouts.readers.detect import FORMATS
from tests.cli.conftest import Cli
from tests.conftest import REPOSITORY

COMMANDS: dict[str, Any] = command().commands


def test_the_commands_are_those_that_work() -> None:
    analyses = {"degeneracy", "passk", "rank", "replay", "report", "claims", "compare", "check", "spike"}
    assert set(COMMANDS) == {"config", "demo", "train", "explain", "reduce", *analyses}


OF_OUTPUT = {"--json", "--output", "--force", "--quiet", "--strict"}
OF_A_MODEL = {"--device", "--dtype", "--model", "--initial", "--run-config", "--completion-ids"}


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"config", "demo", "train", "explain", "reduce"}))
def test_commands_share_the_options_of_output_and_of_a_model(name: str) -> None:
    flags = {flag for option in COMMANDS[name].params for flag in option.opts}
    assert flags >= (OF_OUTPUT | OF_A_MODEL if name in ("rank", "replay", "report", "check") else OF_OUTPUT)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_parses_and_is_in_the_help_as_it_is_typed(cli: Cli, name: str) -> None:
    page = re.sub(r"\\?\s+", "", cli(name, "--help-all").out)
    for example in import_module(f"gradscope.cli.commands.{name}").EXAMPLES:
        program, named, *arguments = shlex.split(example)
        assert program == "gradscope"
        with COMMANDS[named].make_context(named, arguments, resilient_parsing=False) as context:
            assert context.params
        assert re.sub(r"\s+", "", example) in page


def test_no_arguments_say_where_to_begin(cli: Cli) -> None:
    started = cli()
    assert (started.code, started.err) == (0, "")
    lines = started.out.splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= 80
    assert {line.split()[1] for line in lines[2:]} == {"degeneracy", "report", "demo", "--help"}


def test_the_help_names_the_exit_codes(cli: Cli) -> None:
    text = " ".join(cli("--help").out.split())
    for part in ("0 done", "1 a check failed", "2 usage, or input that is unusable", "3 a bug", "130 interrupted"):
        assert part in text


PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((REPOSITORY / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_parses(page: Path) -> None:
    """What is shown as typed, in a block or as a cell of a table; dots stand for a value."""
    text = page.read_text(encoding="utf-8").replace("\\\n", "")
    typed = re.findall(r"^(?:\$ |    )gradscope (.+)$", text, flags=re.MULTILINE)
    typed += re.findall(r"\| `gradscope ([a-z]+ [^`]+)` \|", text)
    for line in typed:
        name, *arguments = shlex.split(line.replace(" ...", " x"), comments=True)
        if "$" not in line and ";" not in line:
            with COMMANDS[name].make_context(name, arguments) as context:
                assert context.params


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_first_page_fits_a_terminal_and_opens_with_examples(cli: Cli, name: str) -> None:
    done = cli(name, "--help")
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert lines.index("Examples") <= 4
    assert "─ Common ─" in done.out
    assert f"all options: gradscope {name} --help-all" in done.out


def test_the_page_of_all_commands_fits_a_terminal_with_a_line_for_each(cli: Cli) -> None:
    lines = cli("--help").out.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_first_page_shows_at_most_eight_options_and_all_of_them_exist(name: str) -> None:
    own = {flag for parameter in COMMANDS[name].params for flag in parameter.opts}
    assert not own & set(HELP_NAMES)
    assert (name != "config") <= len(COMMANDS[name].common) <= 8
    assert set(COMMANDS[name].common) <= own


@pytest.mark.parametrize("name", [[], ["rank"]], ids=" ".join)
def test_h_is_help(cli: Cli, name: list[str]) -> None:
    assert cli(*name, "-h") == cli(*name, "--help")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_whole_with_its_names_choices_and_default(cli: Cli, name: str) -> None:
    done = cli(name, "--help-all")
    page = done.out
    assert (done.code, done.err) == (0, "")
    assert max(map(len, page.splitlines())) <= 80
    assert "Examples" in page
    assert "…" not in page
    assert "<bool>" not in page
    assert re.fullmatch(rf"Usage: gradscope {name} \[OPTIONS\]( \[?[A-Z_]+\]?(\.\.\.)?)?", page.splitlines()[0])
    reported = " ".join(line.strip("│ ") for line in page.splitlines())
    for first in COMMANDS[name].params:
        assert all(flag in reported for flag in first.opts if flag.startswith("--"))
        assert all(word in reported for word in (first.metavar or "").split("|"))
        assert first.help or first.param_type_name == "argument"
        assert " ".join((first.help or "").replace("\\[", "[").split()) in reported
    of_one_command = {"check": "[tool.gradscope.check]", "train": "[default: grpo]"}  # brackets are no markup
    assert of_one_command.get(name, "") in reported
    if name == "rank":
        assert reported.count("[default: auto]") == 4
        assert "[default: None]" not in reported
        assert f"--advantage: {', '.join(ALL_FORMULATIONS)}" in reported
        assert f"--reader: {', '.join(reader.name for reader in FORMATS)}" in reported


def test_a_long_example_goes_on_behind_a_backslash() -> None:
    shown = examples_in(["gradscope rank my-run " + "--step 1 " * 10 + "--json"])
    assert max(map(len, shown.splitlines())) <= 78
    assert re.sub(r" \\\n +", " ", shown).strip() == "gradscope rank my-run " + "--step 1 " * 10 + "--json"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *(("degeneracy --success-threshold", text) for text in ("1_0", "nan", "٣", "1e400", "9" * 400, "")),
        *((option, "1_0") for option in ("degeneracy --every", "train --seed", "train --beta", "train --jobs")),
    ],
)
def test_numbers_of_options_have_the_grammar_of_all_others(cli: Cli, tmp_path: Path, option: str, text: str) -> None:
    command, flag = option.split()
    done = cli(*([command] if command == "train" else [command, tmp_path]), flag, text)
    assert (done.code, done.out) == (2, "")
    assert f"Invalid value for '{flag}'" in done.err


def test_whole_numbers_and_bounds_of_options_are_held_to(cli: Cli, tmp_path: Path) -> None:
    for option, text in (("--seed", "1.5"), ("--jobs", "0"), ("--steps", "1e3")):
        assert f"Invalid value for '{option}'" in cli("train", option, text, "--output", tmp_path / "run").err
    assert "no such option" not in cli("degeneracy", tmp_path, "--success-threshold", " -.5e0").err.lower()


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
    for index, hint in result:
        assert options_in(hint) <= expected, f"{index} names an option that no command has"
        named = {name for name in re.findall(r"gradscope ([a-z]+)", hint) if name in OPTIONS}
        owned = OF_OTHER_PROGRAMS.union(*(OPTIONS[name] for name in named))
        for running, own in OPTIONS.items():
            for option in options_in(hint) - own - owned:
                of_others = rf"\((--\S+, )*{option}(, --\S+)* (is an|are) options? of `gradscope "
                assert re.search(of_others, fitting_hint(hint, [running, "my-run"], OPTIONS)), index


def test_without_a_command_a_hint_stays_as_it_is() -> None:
    assert fitting_hint("Use --k 1.", ["--version"], OPTIONS) == "Use --k 1."


def test_a_command_line_says_whose_option_a_hint_names(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"a": 1}\n')
    done = cli("replay", log)
    assert done.code == 2
    assert "(--n-column, --c-column are options of `gradscope passk`, not of `gradscope replay`.)" in done.err
    assert "(--metric-column is an option of `gradscope degeneracy`, not of `gradscope replay`.)" in done.err
