import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.conftest import REPOSITORY

LOGS = REPOSITORY / "fixtures/logs/metrics"
STATE = str(LOGS / "trainer_state.json")
KINDS = {
    "trainer_state.json": [],
    "console_trl.log": [],
    "console_verl.log": [],
    "trackio.db": ["--metric-run", "quiet-sea-1"],
    "own.csv": ["--step-column", "update", "--metric-column", "frac_reward_zero_std=groups/dead,grad_norm=gnorm"],
}


def result_of(out: str) -> dict[str, Any]:
    return json.loads(out)["result"]  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), KINDS.items(), ids=KINDS)
def test_metrics_are_answered(cli: Cli, tmp_path: Path, name: str, options: list[str]) -> None:
    """Of the kinds that tests/rollouts/readers/metrics_alone holds: with the share, with a NaN, without, by options."""
    chosen = [str(LOGS / name), *options]
    done = cli("degeneracy", *chosen, "--json")
    result = result_of(done.out)
    assert (done.code, result["source"]["kind"]) == (0, "metrics")
    assert (result["frac_reward_zero_std"]["value"] is None) == (name == "console_verl.log")
    assert all(row["frac_reward_zero_std"]["low"] is None for row in result["by_step"])
    assert result["jensen_gap"]["undefined"] == "the log holds metrics and no rollouts"
    shown = cli("degeneracy", *chosen)
    assert (shown.code, "As the trainer logged it" in shown.out) == (0, True)
    assert max(len(line) for line in shown.out.splitlines() if not line.startswith("$ ")) <= 80
    assert "rollouts would add" in shown.err
    page = tmp_path / "page.html"
    assert cli("report", *chosen, "--output", str(page)).code == 0
    assert "What would rollouts add?" in page.read_text(encoding="utf-8")


def test_the_three_lines_that_an_owner_needs(cli: Cli) -> None:
    out = " ".join(cli("degeneracy", STATE).out.split())
    assert out.startswith("99.7 % of a step's groups gave no gradient")
    assert "Every completion was cut off at the length limit, at each of 10 logged steps." in out
    assert "Step 180 stands out: grad_norm 2.93, 118 times the 0.0248 of the 9 steps around it" in out


def test_spike_names_the_step_and_why_nothing_is_recomputed(cli: Cli) -> None:
    done = cli("spike", STATE, "--json")
    result = result_of(done.out)
    assert (done.code, result["step"]) == (0, 180)
    assert result["grad_norm"]["undefined"] == "the log holds metrics and no rollouts"
    other = cli("spike", STATE, "--step", "7")
    assert other.code == 2
    assert "It has steps 20 to 200, the nearest 20 and 40." in other.err


@pytest.mark.parametrize(
    ("requirement", "code", "outcome"),
    [
        ("frac_reward_zero_std <= 0.9", 1, "fail"),
        ("frac_reward_zero_std@last <= 1", 0, "pass"),
        ("grad_norm@max <= 5", 0, "pass"),
        ("completions/clipped_ratio@last20% <= 0.5", 1, "fail"),
        ("jensen_gap <= 1", 1, "unknown"),
        ("eval_reward@max <= 1", 1, "unknown"),
    ],
)
def test_a_gate_holds_metrics_to_requirements(cli: Cli, requirement: str, code: int, outcome: str) -> None:
    done = cli("check", STATE, "--require", requirement, "--json")
    assert (done.code, result_of(done.out)["outcome"]) == (code, outcome)


def test_a_gate_never_names_what_needs_rollouts_as_the_next_step(cli: Cli) -> None:
    out = " ".join(cli("check", STATE, "--require", "grad_norm@max <= 1").out.split())
    assert "$ gradscope spike" in out
    assert "gradscope rank" not in out


def test_runs_of_metrics_are_set_side_by_side(cli: Cli, tmp_path: Path) -> None:
    two = [str(LOGS / "log_history.json"), str(LOGS / "tinker_metrics.jsonl")]
    done = cli("compare", *two, "--json")
    (pair, *_) = [pair for pair in result_of(done.out)["pairs"] if pair["metric"] == "mean_frac_reward_zero_std"]
    assert (done.code, pair["p_value"]) == (0, None)
    assert pair["difference"]["value"] == pytest.approx(0.15)  # over steps 1 to 9, which both have
    only_norms = tmp_path / "norms.csv"
    only_norms.write_text("step,grad_norm\n1,0.5\n2,0.5\n")
    assert cli("compare", two[0], str(only_norms), "--json").code == 0
    page = tmp_path / "two.html"
    assert cli("report", *two, "--output", str(page)).code == 0
    assert "Groups without a gradient" in page.read_text(encoding="utf-8")
    assert cli("report", two[0], str(only_norms), "--output", str(page), "--force").code == 0
    beside_rollouts = cli("report", two[0], str(LOGS.parent / "generic.csv"), "--output", str(page), "--force")
    assert beside_rollouts.code == 0


@pytest.mark.parametrize("command", ["rank", "replay", "claims", "passk"])
def test_other_commands_say_what_answers(cli: Cli, command: str) -> None:
    done = cli(command, STATE)
    assert (done.code, done.out) == (2, "")
    assert "holds metrics and no rollouts" in done.err
    assert "degeneracy, spike, check, compare and report" in done.err
