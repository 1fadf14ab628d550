"""A small part of each campaign, whose whole is run by hand; docs/research/security.md has what that came to."""

import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from gradscope.__main__ import main
from tests.conftest import REPOSITORY
from tests.forked import ForkedPython
from tests.hostile import ended, gate, grown, inputs, servers
from tests.hostile.cases import EVALUATIONS, run_case, subjects
from tests.hostile.oracle import counted, difference, write_log

pytestmark = pytest.mark.slow

_FEW = ("--kills", "1", "--most", "1", "--seed", "5")


def test_damaged_logs_are_read_refused_or_set_aside(tmp_path: Path) -> None:
    outcomes = [run_case(1, case, tmp_path / "case", None) for case in range(40)]
    assert [outcome for outcome in outcomes if outcome.wrong] == []
    assert {0, 2} <= {outcome.code for outcome in outcomes}
    assert len({outcome.subject for outcome in outcomes}) > 15
    assert {("oracle", "large"), ("oracle", "small")} <= {(outcome.subject, outcome.damage) for outcome in outcomes}


def test_a_case_can_be_made_again(tmp_path: Path) -> None:
    outcomes = [run_case(7, 3, tmp_path / "case", None) for _ in range(2)]
    assert len({(outcome.subject, outcome.damage, outcome.command, outcome.code) for outcome in outcomes}) == 1
    assert len(subjects()) > 30


def test_any_file_of_a_log_may_be_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for subject in subjects():
        files = [path for path in [subject, *subject.rglob("*")] if path.is_file()]
        # of files that differ in their numbers alone, as those of steps, one is enough
        for file in {re.sub("[0-9]+", "", path.name): path for path in files}.values():
            copy = tmp_path / str(file.relative_to(subject.parent)).replace("/", "-") / subject.name
            copy.parent.mkdir()
            shutil.copytree(subject, copy) if subject.is_dir() else shutil.copy(subject, copy)
            pipe = copy / file.relative_to(subject)
            pipe.unlink()
            os.mkfifo(pipe)
            command = "passk" if subject.name.startswith(EVALUATIONS) else "degeneracy"
            signal.alarm(60)  # the machine may be busy; who opens the pipe waits until then
            assert main([command, str(copy)]) in (0, 2), (pipe, capsys.readouterr().err)
    signal.alarm(0)


def test_a_count_that_differs_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    write_log(log, 3)
    true = counted(log)
    source, quarantined = {"num_rows": true["used"]}, {"num_rows": true["rows"] - true["used"]}
    result = {"source": source, "quarantined": quarantined, "num_groups": true["groups"]}
    result["frac_reward_zero_std"] = {"value": true["dead"] / true["groups"]}
    assert difference(log, result) == ""
    assert difference(log, result | {"quarantined": {"num_rows": quarantined["num_rows"] - 1}}).startswith("counts {")
    assert difference(log, None).startswith("refused")
    log.write_text("garbage\n")
    assert difference(log, None) == ""
    assert difference(log, result) == "read, and no group is whole"


def test_what_is_written_is_whole_whatever_happens() -> None:
    done = ForkedPython(["-m", "tests.hostile.writes", "--writer", "degeneracy --output", *_FEW])
    out, err = done.communicate()
    assert done.returncode == 0, out + err
    assert "killed at a write: 1 held" in out


def test_nothing_of_a_stranger_is_written() -> None:
    done = ForkedPython(
        ["-m", "tests.hostile.planted", "--writer", "degeneracy --output", "--most", "4", "--seed", "6"]
    )
    out, err = done.communicate()
    assert done.returncode == 0, out + err
    assert sum(int(number) for number in re.findall(r": ([0-9]+) held, 0 fell", out)) == 4


def test_no_server_leads_astray(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs aiohttp (the extra http), with which fsspec reads http://")
    outcomes = [outcome for outcome in servers.campaign(tmp_path, 30, seed=2) if outcome[0] != "silence"]
    assert [outcome for outcome in outcomes if outcome[1]] == []


def test_a_log_that_changed_in_any_way_is_read_as_it_is(tmp_path: Path) -> None:
    outcomes = list(grown.campaign(tmp_path, 3, 12, seed=1))
    assert [outcome for outcome in outcomes if outcome[1]] == []
    assert len({done for done, _ in outcomes}) > 7


def test_no_model_takes_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscope.outside.limits._MAX_CPU_SECONDS", 1)
    names = ["intermediate_size 1000000", "template: endless loops", "code of the hub"]
    assert {outcome.name: (outcome.code, outcome.why) for outcome in inputs.models(tmp_path, names)} == dict.fromkeys(
        names, (2, "")
    )


def test_a_large_folder_takes_no_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a folder of 20,000 texts"
    monkeypatch.setitem(inputs.WORST, name, (partial(inputs.write_texts, number=2_000), inputs.WORST[name][1]))
    assert [outcome.why for outcome in inputs.logs(tmp_path, [name])] == [""]


def test_what_was_recorded_stays_when_its_trainer_ends() -> None:
    assert list(ended.campaign(["on_step_end"], ["raise"], ["alone"])) == [("alone, on_step_end, raise", "")]


def test_a_recipe_that_does_not_change_fails_no_gate_by_chance() -> None:
    assert gate.months(1, populations=2, weeks=26).mean() <= 0.03
    assert gate.months(1, populations=2, weeks=4, fallen=0.1).mean() >= 0.9


def test_each_defect_of_the_attack_has_its_tests() -> None:
    page = (REPOSITORY / "docs" / "research" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([0-9]+) \| [^|]+ \| (.+) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 17))
    for _, cells in rows:
        named = re.findall(r"\[`(test_\w+)`\]\(\.\./\.\./(tests/\S+\.py)\)", cells)
        assert named
        for test, file in named:
            assert f"def {test}(" in (REPOSITORY / file).read_text(encoding="utf-8"), test


def test_the_page_has_the_gate_as_it_is() -> None:
    assert gate.table_of(gate.codes()) in (REPOSITORY / "docs" / "research" / "security.md").read_text(encoding="utf-8")
