"""A report on runs whose answers are known: every section has an answer or says what to log."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gradscope.diagnostics.report import measure as report
from gradscope.diagnostics.report.measure import report_run
from gradscope.errors import InputError
from gradscope.results.report import ReportSection, RunReport
from gradscope.results.source import Source
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.run import Run, WeightsRef
from gradscope.rollouts.types import Rollout, RolloutGroup

pytestmark = pytest.mark.slow  # a run of shared/data, recomputed

NAMES = (
    *(
        "signal",
        "zero-loss",
        "replay",
        "rank",
        "contributions",
        "tokens",
        "length",
        "rewards",
        "dilution",
        "agreement",
        *("staleness", "entropy", "generation"),
        "coverage",
    ),
    *("formulations", "claims"),
)


def sections_of(found: RunReport) -> dict[str, ReportSection]:
    return {section.name: section for section in found.sections}


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three steps of a dead and a live group of four; longer completions are right."""
    rows: list[dict[str, object]] = [
        {"prompt_id": f"{name}{step}", "step": step, "reward": reward, "completion": "x" * (3 + 4 * int(reward))}
        for step in (1, 2, 3)
        for name, rewards in (("easy", (1, 1, 1, 1)), ("mixed", (1, 0, 1, 0)))
        for reward in rewards
    ]
    return write_rows(tmp_path / "log.jsonl", rows)


def test_a_plain_log_answers_what_it_can_and_says_what_it_lacks(log: Path) -> None:
    sections = sections_of(report_run(log))
    assert tuple(sections) == NAMES
    for section in sections.values():
        assert (section.missing is None) == bool(section.findings)
        assert section.headline
    answered = [name for name, section in sections.items() if section.missing is None]
    assert answered == ["signal", "replay", "length", "rewards", "dilution", "claims"]
    assert "logging_steps=1" in str(sections["zero-loss"].missing)
    assert "--samples BEFORE" in str(sections["coverage"].missing)


def test_the_signal_section_repeats_the_words_of_degeneracy(log: Path) -> None:
    signal = sections_of(report_run(log))["signal"]
    assert signal.findings[0].startswith("3 of 6 groups (50.0 %")
    assert any(finding.startswith("Signal lost: 50.0 % of rollouts") for finding in signal.findings)
    assert signal.command == f"gradscope degeneracy {log}"
    assert signal.charts[0].series[0].values == (0.5, 0.5, 0.5)


def test_length_that_decides_the_reward_is_found(log: Path) -> None:
    length = sections_of(report_run(log))["length"]
    assert "correlate at +1.00" in length.findings[0]
    rows = length.tables[0].rows
    assert [row[1].split(" to ")[0] for row in (rows[0], rows[-1])] == ["-2.0", "+2.0"]  # type: ignore[union-attr]
    assert rows[0][2] < 0 < rows[-1][2]  # type: ignore[operator]


def test_gradients_are_left_out_when_asked(log: Path) -> None:
    sections = sections_of(report_run(log, gradients=False))
    assert "--no-gradients" in str(sections["contributions"].missing)
    assert "--no-gradients" in str(sections["formulations"].missing)


def test_lost_problems_are_named(tmp_path: Path, log: Path) -> None:
    before = write_rows(tmp_path / "before.jsonl", [{"task_id": f"t{n}", "n": 4, "c": n % 3} for n in range(6)])
    after = write_rows(tmp_path / "after.jsonl", [{"task_id": f"t{n}", "n": 4, "c": 4 * (n % 2)} for n in range(6)])
    coverage = sections_of(report_run(log, samples=[before, after]))["coverage"]
    assert coverage.tables[-1].rows == (("t2", "2/4", "0/4"), ("t4", "1/4", "0/4"))
    assert coverage.findings[-1].startswith("Of 6 prompts, 2 that before.jsonl solved are no longer solved, and 1")


def test_a_step_that_is_not_there_is_refused(log: Path) -> None:
    with pytest.raises(InputError, match="has no rollouts of step 9"):
        report_run(log, steps=[9])


@pytest.fixture(scope="module")
def trl_lora(shared_data: Path) -> dict[str, ReportSection]:
    folder = shared_data / "runs" / "trl_lora"
    found = report_run(
        folder / "run",
        steps=[1, 6],
        read=ReadOptions(
            initial_weights=folder / "init_adapter", trainer_args=folder / "RUN.json", model=str(folder / "base_model")
        ),
    )
    assert found.recomputed == (1, 6)
    return sections_of(found)


def test_a_real_run_has_every_section_that_its_log_feeds(trl_lora: dict[str, ReportSection]) -> None:
    missing = [name for name, section in trl_lora.items() if section.missing]
    assert missing == ["agreement", "staleness", "coverage"]


def test_the_kinds_of_steps_of_a_real_run(trl_lora: dict[str, ReportSection]) -> None:
    findings = trl_lora["zero-loss"].findings
    assert findings[0].startswith("1 of 20 steps (first: step 7): a gradient although every group is dead")
    assert findings[1] == "19 of 20 steps have a gradient from live groups."


def test_shares_of_reward_functions_add_up(trl_lora: dict[str, ReportSection]) -> None:
    rewards = trl_lora["rewards"]
    shares = [row[3] for row in rewards.tables[0].rows]
    assert sum(share.value for share in shares) == pytest.approx(1.0, abs=1e-6)  # type: ignore[union-attr]
    assert rewards.findings[0].startswith("'format_reward' alone decides 5.0 %")
    assert rewards.findings[1].startswith("'accuracy_reward' makes 83.1 %")


def test_parts_of_the_gradient_add_up(trl_lora: dict[str, ReportSection]) -> None:
    _, groups, top = trl_lora["contributions"].tables
    assert sum(float(str(row[2])) for row in groups.rows) == pytest.approx(1.0)
    assert len(top.rows) == 10


def test_the_logged_advantage_is_the_formulation_that_trained(trl_lora: dict[str, ReportSection]) -> None:
    rows = {row[0]: row for row in trl_lora["formulations"].tables[0].rows}
    assert rows["grpo"][2].value == pytest.approx(1.0, abs=1e-5)  # type: ignore[union-attr]
    assert rows["grpo"][1].value == pytest.approx(rows["logged"][1].value, rel=1e-3)  # type: ignore[union-attr]
    assert rows["sign"][2].undefined  # type: ignore[union-attr]


def test_the_kl_part_is_that_of_replay(trl_lora: dict[str, ReportSection]) -> None:
    assert "at step 6" in trl_lora["dilution"].findings[1]


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [(None, "The log has no advantages"), (np.zeros((2, 2)), "every recomputed step (3, 3) is zero")],
)
def test_recomputed_steps_without_a_gradient_say_why(matrix: np.ndarray | None, reason: str) -> None:
    grams = [SimpleNamespace(step=3, policy_gram=matrix)] * 2
    assert not any(report._has_gradient(gram) for gram in grams)  # type: ignore[arg-type]
    assert reason in report._without_gradient(grams).reason  # type: ignore[arg-type]


@pytest.mark.parametrize("spike", [9.0, float("nan"), float("inf")])
def test_the_largest_logged_gradient_is_among_the_steps_that_are_recomputed(spike: float) -> None:
    """Eight checkpoints, the spike at step 5: it takes the place of the step next to it, the ends stay."""
    weights = tuple(WeightsRef(num_updates=step - 1, path=Path("w"), kind="full") for step in range(1, 9))
    rollout = Rollout(group_id="g", sample=0, row=0, prompt="", completion="", reward=1.0)
    run = Run(
        path=Path("r"),
        source=Source(path="r", format="trl", recognized="a run"),
        groups=tuple(RolloutGroup(step=s, group_id="g", prompt_id="p", rollouts=(rollout,)) for s in range(1, 9)),
        metrics={step: {"grad_norm": spike if step == 5 else 1.0} for step in range(1, 9)},
        weights=weights,
    )
    assert report._usable_steps(run, None) == (1, 3, 5, 8)
    assert report._usable_steps(run, "all") == tuple(range(1, 9))
