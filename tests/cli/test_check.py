from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.contract import missing_fields


def test_what_holds_passes(cli: Cli, log: Path) -> None:
    done = cli("check", log, "--require", "frac_reward_zero_std <= 0.7")
    assert done.code == 0
    assert "PASS  frac_reward_zero_std <= 0.7" in done.out


def test_what_does_not_hold_exits_1_with_the_next_step(cli: Cli, log: Path) -> None:
    done = cli("check", log, "--require", "frac_reward_zero_std <= 0.5", "--json")
    assert done.code == 1
    document = json.loads(done.out)
    assert missing_fields("check", document) == []
    (verdict,) = document["result"]["verdicts"]
    assert verdict["outcome"] == "fail"
    assert verdict["next_step"]
    assert list(document["definitions"]) == ["frac_reward_zero_std"]


def test_what_cannot_be_decided_exits_1(cli: Cli, log: Path) -> None:
    done = cli("check", log, "--require", "frac_reward_zero_std <= 1", "--require", "effective_rank >= 2")
    assert done.code == 1
    assert "UNKNOWN  effective_rank >= 2, is —" in done.out
    assert done.out.startswith("Check: unknown")


def test_an_unknown_metric_is_a_usage_error_with_a_suggestion(cli: Cli, log: Path) -> None:
    done = cli("check", log, "--require", "frac_reward_zero_sdt <= 0.5")
    assert (done.code, done.out) == (2, "")
    assert "frac_reward_zero_std" in done.err


def test_nothing_required_is_a_usage_error(cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(log.parent)
    done = cli("check", log)
    assert (done.code, done.out) == (2, "")
    assert "hint: " in done.err


@pytest.mark.parametrize(
    ("name", "table"),
    [("gradscope.toml", "check"), ("pyproject.toml", "tool.gradscope.check"), ("ci.toml", "check")],
)
def test_requirements_come_from_a_file(
    cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch, name: str, table: str
) -> None:
    monkeypatch.chdir(log.parent)
    Path(name).write_text(f'[{table}]\nrequire = ["frac_all_pass >= 0.9"]\n')
    named = ("--config", name) if name == "ci.toml" else ()
    done = cli("check", log, *named)
    assert done.code == 1
    assert "FAIL  frac_all_pass >= 0.9" in done.out


def test_a_pyproject_without_our_table_does_not_hide_gradscope_toml(
    cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(log.parent)
    Path("pyproject.toml").write_text("[project]\nname = 'x'\n")
    Path("gradscope.toml").write_text('[check]\nrequire = ["frac_all_pass <= 0.9"]\n')
    assert cli("check", log).code == 0


def test_files_of_a_failed_check_are_kept(cli: Cli, log: Path, tmp_path: Path) -> None:
    assert cli("check", log, "--require", "pass_rate > 0.9", "--output", tmp_path / "out").code == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["check.json", "check_verdicts.csv"]
