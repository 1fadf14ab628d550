import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.conftest import Cli
from tests.render.examples import HOSTILE
from tests.rollouts.readers.lines import write_lines


def test_the_file_that_was_chosen_in_a_folder_is_named(cli: Cli, log: Path) -> None:
    assert (
        f"read {log.parent}: jsonl with a row a rollout, 1 file (log.jsonl), 24 rows"
        in cli("degeneracy", log.parent).err
    )
    for number in range(4):
        (log.parent / f"{number}.jsonl").write_bytes(log.read_bytes())
    assert "(0.jsonl" not in cli("degeneracy", log.parent).err


def test_a_terminal_is_told_of_an_input_in_a_line(cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = log.parent / ("a" * 30)
    folder.mkdir()
    log.rename(folder / log.name)
    monkeypatch.chdir(log.parent)
    stderr = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr("gradscope.cli.output.delivery.sys", SimpleNamespace(stderr=stderr))
    line = f"read {folder.name}: jsonl with a row a rollout, 1 file, 24 rows"
    assert line in cli("degeneracy", folder.name).err
    assert "(log.jsonl)" in cli("degeneracy", folder.name, "--show", "notes").err


def test_the_answer_names_commands_that_work_and_what_was_asked_for_is_part_of_it(cli: Cli, log: Path) -> None:
    done = cli("degeneracy", log, "--group-size", "2", "--by=window", "--reward-column", "reward")
    lines = done.out.splitlines()
    assert len(lines) <= 40
    (command,) = [line.removeprefix("$ gradscope ") for line in lines if line.startswith("$ ")]
    assert command == f"report {log} --reward-column reward"  # options that `report` has not are left out
    assert cli(*shlex.split(command), "--output", log.parent / "page.html").code == 0
    assert "unbiased" in done.out


def test_a_verdict_alone_is_nothing_else(cli: Cli, log: Path) -> None:
    done = cli("degeneracy", log, "--show", "verdict")
    assert (len(done.out.splitlines()), "$ " in done.out) == (2, False)


def test_a_pipe_gets_no_color_and_no_padding(cli: Cli, log: Path) -> None:
    done = cli("degeneracy", log)
    assert done.out.startswith("4 of 6 groups (66.7 %")
    assert not [line for line in done.out.splitlines() if line != line.rstrip() or "\x1b" in line]


def test_json_is_one_document_and_nothing_else(cli: Cli, log: Path) -> None:
    done = cli("degeneracy", log, "--json", "--quiet", "--group-size", "2", "--group-size", "8")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["schema"] == "gradscope/degeneracy"
    result = document["result"]
    assert (result["num_groups"], result["num_rollouts"], result["group_size"]) == (6, 24, 4)
    assert result["frac_reward_zero_std"]["value"] == 4 / 6
    assert [row["group_size"] for row in result["by_group_size"]] == [4, 2, 8]
    assert result["by_group_size"][2]["degeneracy"]["value"] is None
    assert result["by_group_size"][2]["degeneracy"]["undefined"]
    assert document["definitions"]["iid_prediction"]
    assert [entry["path"] for entry in document["inputs"]] == [str(log)]


def test_two_runs_differ_in_their_time_only(cli: Cli, log: Path) -> None:
    first, second = (json.loads(cli("degeneracy", log, "--json").out) for _ in range(2))
    assert first | {"created_at": ""} == second | {"created_at": ""}


def test_a_hostile_row_reaches_no_stream_unescaped(cli: Cli, tmp_path: Path) -> None:
    rows = [{"prompt_id": HOSTILE, HOSTILE: i, "step": 1, "reward": reward} for i, reward in enumerate((1, 0, HOSTILE))]
    log = write_lines(tmp_path / "hostile.jsonl", *rows)
    for extra in ((), ("--json",), ("--strict",), ("--reward", HOSTILE), ("--reward-column", HOSTILE)):
        done = cli("degeneracy", log, *extra)
        assert not {"\x1b", "\u202e"} & set(done.out + done.err), extra


def test_quarantined_rows_are_counted_on_stderr_and_refused_when_strict(cli: Cli, log: Path) -> None:
    with log.open("a") as stream:
        stream.write('{"prompt_id": "easy", "step": 3, "rew')
    done = cli("degeneracy", log)
    assert done.code == 0
    assert "warning: set aside 1 row: the last line is cut off" in done.err
    assert f"{log.name}:25" in done.err
    strict = cli("degeneracy", log, "--strict")
    assert (strict.code, strict.out) == (2, "")
    assert strict.err.startswith("error: ")


def test_prediction_takes_a_number_or_each_step(cli: Cli, log: Path) -> None:
    fixed = json.loads(cli("degeneracy", log, "--json", "--base-pass-rate", "0.3").out)["result"]
    assert fixed["iid_prediction"]["value"] == pytest.approx(0.3**4 + 0.7**4)
    assert fixed["pass_rate_origin"] == "the given base pass rate, 0.3"
    by_step = json.loads(cli("degeneracy", log, "--json", "--base-pass-rate", "step").out)["result"]
    assert by_step["pass_rate_origin"] == "the mean of each step"
    assert (
        "--base-pass-rate is a number or 'step', not 'often'."
        in cli("degeneracy", log, "--base-pass-rate", "often").err
    )


def test_target_is_answered_in_table_and_words(cli: Cli, log: Path) -> None:
    done = cli("degeneracy", log, "--target-degeneracy", "0.5", "--show", "findings")
    assert done.code == 0
    assert "to 50 % dead" in done.out
    assert "At most 50.0 % dead groups: " in " ".join(done.out.split())
