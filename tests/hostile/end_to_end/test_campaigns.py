"""A small part of each campaign, whose whole is run by hand; docs/security.md has what that came to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradscope.rollouts.readers.scan import reduction
from tests.conftest import REPOSITORY
from tests.hostile import gate
from tests.hostile.campaign import Tally
from tests.hostile.cases import BYTES, called, run_case, subjects
from tests.hostile.oracle import counted, write_log


@pytest.mark.slow
def test_damaged_logs_are_read_refused_or_set_aside(tmp_path: Path) -> None:
    outcomes = [run_case(1, case, tmp_path / "case", None) for case in range(30)]
    assert [outcome for outcome in outcomes if outcome.wrong] == []
    assert {0, 2} <= {outcome.code for outcome in outcomes}
    assert len({outcome.subject for outcome in outcomes}) > 15


@pytest.mark.slow
def test_a_case_can_be_made_again(tmp_path: Path) -> None:
    outcomes = [run_case(7, 3, tmp_path / "case", None) for _ in range(2)]
    assert len({(one.subject, one.damage, one.command, one.code) for one in outcomes}) == 1
    assert len(subjects()) > 30


def test_a_tally_finds_what_did_not_hold() -> None:
    tally = Tally()
    for case, wrong, size in ((0, "", 1), (1, "exit 3", 1), (2, "", BYTES + 1)):
        tally.add({"case": case, "code": 0, "seconds": 1.0, "wrong": wrong, "bytes": size})
    assert [one["case"] for one in tally.wrong] == [1, 2]
    assert str(tally) == "3 cases (exit 0: 3); 2 did not hold; slowest 1.0 s; largest process 2048 MiB"


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
def test_no_row_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    monkeypatch.setattr(reduction, "MIN_BYTES", 0 if large else 1 << 60)
    log = tmp_path / "log.jsonl"
    for seed in range(12):
        write_log(log, seed)
        code, out, err = called(["degeneracy", str(log), "--json"])
        expected = counted(log)
        if not expected["groups"]:
            assert (code, out) == (2, ""), err
            continue
        result = json.loads(out)["result"]
        used, groups = result["source"]["num_rows"], result["num_groups"]
        found = {"rows": used + result["quarantined"]["num_rows"], "used": used, "groups": groups}
        assert found | {"dead": round(result["frac_reward_zero_std"]["value"] * groups)} == expected, seed


@pytest.mark.slow
def test_what_is_written_is_whole_whatever_happens() -> None:
    arguments = ["--writer", "check --update-baseline", "--writer", "degeneracy --output", "--most", "4", "--seed", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.writes", *arguments], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed at write: " in done.stdout


def test_the_page_has_the_gate_as_it_is() -> None:
    codes = gate.codes()
    assert gate.table_of(codes) in (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8")
    passed = {name for name, code in codes.items() if code == 0}
    assert passed == {
        "none, and the requirement holds",
        "1 line of 33 is garbage",
        "a file of values that nothing requires is damaged",
    }
