import os
import shutil
import tomllib
from pathlib import Path

import pytest

from gradscope.cli.remembered import FILE, HEADER, remembered_for, remembered_in
from gradscope.errors import InputError
from tests.cli.conftest import Cli
from tests.conftest import LOGS
from tests.rollouts.readers.lines import write_lines

NAMES = ("--reward-column", "score", "--prompt-column", "question")
TABLE = '[runs."log.jsonl"]\n'


@pytest.fixture(autouse=True)
def remembers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADSCOPE_REMEMBER", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A log whose reward is guessed wrongly: the column of that name is another one."""
    rows = [{"question": f"q{n // 4}", "score": float(n % 2), "reward": 1.0, "step": 1} for n in range(16)]
    return write_lines(tmp_path / "log.jsonl", *rows)


def dead(done: tuple[int, str, str]) -> str:
    assert done[0] == 0, done
    return done[1].split()[0]


def test_what_was_given_once_is_used_and_said_until_it_is_given_anew(cli: Cli, odd: Path) -> None:
    assert dead(cli("degeneracy", odd.name)) == "4"
    first = cli("degeneracy", odd.name, *NAMES)
    assert dead(first) == "0"
    assert f"wrote {FILE}: the next command on {odd.name} needs no --prompt-column, --reward-column" in first.err
    again = cli("degeneracy", odd.name)
    assert dead(again) == "0"
    assert f"note: {FILE} is used for log.jsonl: --prompt-column question, --reward-column score" in again.err
    other = cli("degeneracy", odd, "--reward-column", "reward")
    assert dead(other) == "4"
    assert "--prompt-column question" in other.err
    assert dict(remembered_for(odd.name)[0].options) == {"prompt-column": "question", "reward-column": "reward"}


def test_the_same_again_is_said_no_more_and_quiet_says_nothing(cli: Cli, odd: Path) -> None:
    assert cli("degeneracy", odd.name, *NAMES, "--quiet").err == ""
    before = Path(FILE).stat().st_mtime_ns
    assert FILE not in cli("degeneracy", odd.name, *NAMES).err
    assert Path(FILE).stat().st_mtime_ns == before
    assert cli("degeneracy", odd.name, "--quiet").err == ""


def test_an_error_keeps_nothing_and_a_failed_check_does(cli: Cli, odd: Path) -> None:
    assert cli("degeneracy", odd.name, "--reward-column", "absent").code == 2
    assert not Path(FILE).exists()
    assert cli("check", odd.name, *NAMES, "--require", "frac_reward_zero_std >= 1").code == 1
    assert Path(FILE).exists()


def test_the_variable_turns_it_off(cli: Cli, odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("degeneracy", odd.name, *NAMES)
    monkeypatch.setenv("GRADSCOPE_REMEMBER", "0")
    assert dead(cli("degeneracy", odd.name)) == "4"
    Path(FILE).unlink()
    cli("degeneracy", odd.name, *NAMES)
    assert not Path(FILE).exists()


def test_each_of_several_runs_is_read_in_its_own_way(cli: Cli, odd: Path, tmp_path: Path) -> None:
    plain = write_lines(
        tmp_path / "plain.jsonl", *({"prompt": f"p{n // 4}", "reward": n % 2, "step": 1} for n in range(8))
    )
    cli("degeneracy", odd.name, *NAMES)
    done = cli("report", odd.name, plain.name, "--output", "page.html")
    assert done.code == 0, done.err
    assert "is used for log.jsonl" in done.err
    assert "plain.jsonl: --" not in done.err


def test_a_project_keeps_it_in_its_own_file_where_gradscope_wrote_that(cli: Cli, odd: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    Path("outputs").mkdir()
    log = odd.rename(tmp_path / "outputs" / odd.name)
    Path(FILE).write_text(HEADER)
    assert f"wrote {FILE}" in cli("degeneracy", log, *NAMES).err
    assert list(tomllib.loads(Path(FILE).read_text())["runs"]) == ["outputs/log.jsonl"]
    Path(FILE).write_text('[check]\nrequire = ["frac_all_pass <= 0.9"]\n')
    assert "wrote outputs/gradscope.toml" in cli("degeneracy", log, *NAMES).err


def test_without_a_project_nothing_above_is_looked_at(cli: Cli, odd: Path, tmp_path: Path) -> None:
    Path("outputs").mkdir()
    log = odd.rename(tmp_path / "outputs" / odd.name)
    Path(FILE).write_text('[runs."outputs/log.jsonl"]\nreward-column = "score"\n')
    assert dead(cli("degeneracy", log)) == "4"


def test_paths_open_from_anywhere_and_ids_stay(odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(FILE).write_text(f'{TABLE}initial = "./base"\nrun-config = "/a/b"\nmodel = "org/name"\n')
    assert dict(remembered_for("log.jsonl")[0].options) == {
        "initial": "base",
        "run-config": "/a/b",
        "model": "org/name",
    }
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    (remaining,) = remembered_for("../log.jsonl")
    assert remaining.options["initial"] == str(tmp_path / "base")


def test_paths_below_the_file_are_kept_from_there(cli: Cli, odd: Path, tmp_path: Path) -> None:
    Path("args.json").write_text("{}")
    cli("degeneracy", odd.name, "--run-config", "args.json")
    assert tomllib.loads(Path(FILE).read_text())["runs"]["log.jsonl"] == {"run-config": "./args.json"}


def test_lines_of_a_person_stay_as_they_are(cli: Cli, odd: Path) -> None:
    Path(FILE).write_text(f'{HEADER}# mine\n[check]\nrequire = []  # none\n{TABLE}reader = "generic"\n[other]\nx = 1\n')
    cli("degeneracy", odd.name, *NAMES)
    text = Path(FILE).read_text()
    assert text.startswith(f"{HEADER}# mine\n[check]\nrequire = []  # none\n{TABLE}")
    assert text.endswith("[other]\nx = 1\n")
    assert tomllib.loads(text)["runs"]["log.jsonl"]["reader"] == "generic"


@pytest.mark.parametrize(
    "text", [f'{HEADER}runs = {{"log.jsonl" = {{reader = "generic"}}}}\n', f"{HEADER}[runs.'log.jsonl']\n"]
)
def test_what_cannot_be_changed_line_by_line_is_left_alone(cli: Cli, odd: Path, text: str) -> None:
    Path(FILE).write_text(text)
    done = cli("degeneracy", odd.name, *NAMES)
    assert done.code == 0
    assert "options are not remembered for log.jsonl: gradscope.toml was written by hand in a way that" in done.err
    assert Path(FILE).read_text() == text


@pytest.mark.parametrize("kind", ["hand", "link", "broken link", "folder"])
def test_what_gradscope_did_not_write_is_never_written(cli: Cli, odd: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    if kind == "hand":
        Path(FILE).write_text("[check]\n")
    elif kind == "folder":
        Path(FILE).mkdir()
    else:
        if kind == "link":
            target.write_text(HEADER)
        Path(FILE).symlink_to(target)
    done = cli("degeneracy", odd.name, *NAMES)
    if kind == "folder":
        assert "gradscope.toml cannot be read" in done.err
        return
    assert "gradscope.toml was not written by gradscope, and is left as it is" in done.err
    assert target.exists() == (kind == "link")
    assert Path(FILE).is_symlink() == ("link" in kind)
    assert kind != "link" or target.read_text() == HEADER


def test_another_users_file_is_named_and_not_written(cli: Cli, odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(FILE).write_text(f'{HEADER}{TABLE}reward-column = "score"\n')
    owner = Path(FILE).stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    done = cli("degeneracy", odd.name, "--quiet")
    assert f"warning: {FILE} is of user {owner}, and is used for log.jsonl: --reward-column score" in done.err
    assert f"(of user {owner})" in cli("config", odd.name).out
    assert f"the folder . is of user {owner}" in cli("degeneracy", odd.name, *NAMES).err
    assert "question" not in Path(FILE).read_text()


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("[runs", "is not TOML"),
        (f"a = {'[' * 100_000}", "is not TOML: it is nested too deeply"),
        ("runs = 3", "has no tables of runs"),
        ("[runs]\nx = 3", "has no tables of runs"),
        (f'{TABLE}advantage = "evil.py:f"', "keeps 'advantage' for log.jsonl, which is no option that can be kept"),
        (f"{TABLE}strict = true", "keeps 'strict'"),
        (f"{TABLE}reader = 3", "keeps a reader for log.jsonl that is no line of text"),
        (f'{TABLE}reader = ["trl"]', "no line of text"),
        (f'{TABLE}initial = "\\u001b[2J"', "no line of text"),
        (f'{TABLE}initial = "{"a" * 5000}"', "no line of text"),
        (f'{TABLE}metric-column = ["a=b", 3]', "no line of text"),
    ],
)
def test_hostile_files_end_in_one_clear_error(cli: Cli, odd: Path, text: str, output: str) -> None:
    Path(FILE).write_text(text)
    done = cli("degeneracy", odd.name)
    assert (done.code, done.out) == (2, "")
    assert output in done.err
    assert "\x1b" not in done.err
    assert len(done.err.splitlines()) == 2


def test_bytes_that_are_no_text_and_a_pipe_are_refused(cli: Cli, odd: Path) -> None:
    Path(FILE).write_bytes(b"\xff")
    with pytest.raises(InputError, match="cannot be read"):
        remembered_in(Path(FILE))
    Path(FILE).unlink()
    os.mkfifo(FILE)
    assert "is a pipe" in cli("degeneracy", odd.name).err


def test_names_with_quotes_and_other_scripts_come_back(cli: Cli, tmp_path: Path) -> None:
    name = 'a "b" é\x7f.jsonl'
    rows = [{"q\\": "p", "прим": n % 2, "step": 1} for n in range(4)]
    log = write_lines(tmp_path / name, *rows)
    assert cli("degeneracy", log, "--reward-column", "прим", "--prompt-column", "q\\").code == 0
    assert dict(remembered_for(name)[0].options) == {"prompt-column": "q\\", "reward-column": "прим"}


def test_of_a_url_and_of_its_password_nothing_is_kept(cli: Cli, odd: Path) -> None:
    url = f"file://{odd}"
    assert cli("degeneracy", url, *NAMES).code == 0
    assert not Path(FILE).exists()


def test_a_link_to_a_run_is_the_run(cli: Cli, odd: Path, tmp_path: Path) -> None:
    cli("degeneracy", odd.name, *NAMES)
    Path("links").mkdir()
    Path("links/latest").symlink_to(odd)
    assert remembered_for("links/latest") == remembered_for(odd.name)


def test_a_command_on_the_log_alone_does_not_ask_for_weights_that_are_kept(cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(LOGS / "trl", tmp_path / "trl")
    asked = "give them with --initial"
    assert asked in cli("degeneracy", "trl", "--show", "notes").err
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"model_type": "qwen2"}')
    header = b'{"__metadata__":{}}'
    weights = tmp_path / "base" / "model.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    Path(FILE).write_text(f'{HEADER}[runs."trl"]\ninitial = "./base"\n')
    done = cli("degeneracy", "trl", "--show", "notes")
    assert done.code == 0
    assert asked not in done.err
    assert FILE not in done.err
    weights.write_bytes(b"cut off")
    assert asked in cli("degeneracy", "trl", "--show", "notes").err
