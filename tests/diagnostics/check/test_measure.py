from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradscope.diagnostics.check.measure import check_run, parse_requirement
from gradscope.errors import UsageError
from gradscope.results.verdicts import CheckReport
from gradscope.rollouts.read_options import ReadOptions
from tests.diagnostics.check.logs import write_log
from tests.diagnostics.made_up_runs import group_of, run_of


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Two dead groups of four: pass@1 = .5."""
    path = tmp_path / "my samples.jsonl"
    path.write_text('{"task_id": "a", "n": 4, "c": 4}\n{"task_id": "b", "n": 4, "c": 0}\n')
    return path


def checked(path: Path, *texts: str) -> CheckReport:
    return check_run(path, requirements=[parse_requirement(text) for text in texts])


@pytest.mark.parametrize(
    ("texts", "outcomes", "overall"),
    [
        (["pass@1 >= 0.5", "frac_reward_zero_std == 1"], ["pass", "pass"], "pass"),
        (["pass@1 > 0.5", "pass@1 != 0.5", "pass@1 < 0.6"], ["fail", "fail", "pass"], "fail"),
        (["pass@1 <= 0.5", "pass@8 > 0"], ["pass", "unknown"], "unknown"),
        (["pass@8 > 0", "pass^4 > 0.5"], ["unknown", "fail"], "fail"),
    ],
)
def test_outcomes(samples: Path, texts: list[str], outcomes: list[str], overall: str) -> None:
    report = checked(samples, *texts)
    assert [verdict.outcome for verdict in report.verdicts] == outcomes
    assert report.outcome == overall


def test_verdict_says_number_limit_and_next_step(samples: Path) -> None:
    (verdict,) = checked(samples, "frac_reward_zero_std <= 0.5").verdicts
    assert verdict.meaning.startswith("frac_reward_zero_std of 2 groups is 1 [")
    assert "required is <= 0.5" in verdict.meaning
    assert verdict.next_step.endswith(f"gradscope degeneracy '{samples}'")


def test_interval_around_the_limit_is_pointed_out(samples: Path) -> None:
    (verdict,) = checked(samples, "pass@1 >= 0.4").verdicts
    assert verdict.outcome == "pass"
    assert "The interval holds the limit" in verdict.meaning
    assert verdict.next_step == ""


def test_undefined_never_passes_and_says_why(samples: Path) -> None:
    (verdict,) = checked(samples, "pass@8 >= 0").verdicts
    assert verdict.outcome == "unknown"
    assert "k = 8 exceeds the 4 samples of a prompt. What is not known does not pass." in verdict.meaning
    assert verdict.next_step


def test_unknown_metric_gets_a_suggestion(samples: Path) -> None:
    with pytest.raises(UsageError, match="There is no metric 'frac_reward_zero_sdt'") as caught:
        checked(samples, "frac_reward_zero_sdt <= 0.5")
    assert "'frac_reward_zero_std'" in caught.value.hint
    with pytest.raises(UsageError, match="There is no metric 'pass@0'"):
        checked(samples, "pass@0 > 0")
    with pytest.raises(UsageError, match="There is no metric 'xyzzy'") as caught:
        checked(samples, "xyzzy > 0")
    assert caught.value.hint == "See `gradscope explain` for the list."


def test_nothing_required_is_refused(samples: Path) -> None:
    with pytest.raises(UsageError, match="Nothing is required of the run"):
        check_run(samples, requirements=[])


@pytest.mark.slow
def test_real_run_with_gradients(shared_data: Path) -> None:
    runs = shared_data / "runs" / "trl_full"
    report = check_run(
        runs / "run",
        requirements=[parse_requirement("replay_grad_norm_error <= 1e-5"), parse_requirement("stable_rank >= 1")],
        read=ReadOptions(trainer_args=runs / "RUN.json", completion_ids=runs / "true_completion_ids.parquet"),
    )
    assert report.outcome == "pass"
    assert "at step 16" in report.verdicts[0].meaning


@pytest.mark.slow
def test_logs_never_load_torch(shared_data: Path) -> None:
    code = (
        "import sys; from gradscope import check_run, measure_degeneracy, measure_pass_at_k\n"
        "from gradscope.diagnostics.check.measure import parse_requirement as need\n"
        "texts = ['frac_reward_zero_std <= 0.5', 'pass@4 > 0', 'grad_norm < 10', 'gap_over_time < 1']\n"
        f"report = check_run({str(shared_data / 'runs/trl_full/run')!r}, requirements=[need(text) for text in texts])\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
        "assert [verdict.outcome for verdict in report.verdicts] == ['pass', 'unknown', 'pass', 'pass']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Twenty prompts: every second group is dead."""
    return write_log(tmp_path / "log.jsonl", {f"p{n}": [1, n % 2, 1, 1] for n in range(20)})


def test_a_mistyped_selector_is_explained(log: Path) -> None:
    with pytest.raises(UsageError, match="There is no metric 'pass_rate@lst20%'") as caught:
        check_run(log, requirements=["pass_rate@lst20% > 0"])
    assert "metric@last20%" in str(caught.value.hint)


def test_allowing_the_unknown_never_allows_a_failure(log: Path) -> None:
    report = check_run(log, requirements=["pass_rate > 1"], allow_unknown=["pass_rate"])
    assert report.outcome == "fail"


@pytest.mark.parametrize("options", [{"update_baseline": True}, {"track": ["pass_rate"]}])
def test_a_baseline_needs_a_file(log: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="A baseline is asked for, and no file is named"):
        check_run(log, requirements=["pass_rate > 0"], **options)


def test_a_logged_nan_fails_and_no_allowance_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(group_of([1, 0], step=1), metrics={1: {"grad_norm": float("nan")}})
    monkeypatch.setattr("gradscope.diagnostics.check.measure.read_run", lambda *_, **__: run)
    for requirement in ("grad_norm <= 5", "grad_norm != 3"):
        report = check_run(tmp_path, requirements=[requirement], allow_unknown=["grad_norm"])
        assert report.outcome == "fail"
        meaning = "grad_norm is not a finite number: the trainer logged NaN at step 1. No requirement holds for that."
        assert report.verdicts[0].meaning == meaning
        assert report.verdicts[0].next_step == "Look at that step in the trainer's own log."


@pytest.mark.parametrize(
    ("rewards", "advice"), [([1, 1, 1, 1], "try harder prompts"), ([0, 0, 0, 0], "try easier prompts")]
)
def test_what_to_try_follows_from_the_runs_own_groups(tmp_path: Path, rewards: list[int], advice: str) -> None:
    log = write_log(tmp_path / "log.jsonl", {"live": [1, 0, 1, 0], **{f"p{n}": rewards for n in range(5)}})
    (verdict,) = check_run(log, requirements=["frac_reward_zero_std <= 0.5"]).verdicts
    assert advice in verdict.next_step
    live = write_log(tmp_path / "live.jsonl", {f"p{n}": [1, 0] * 10 for n in range(30)})
    baseline = tmp_path / "baseline.json"
    check_run(live, track=["frac_reward_zero_std"], baseline=baseline, update_baseline=True)
    dead = write_log(tmp_path / "dead.jsonl", {f"p{n}": rewards for n in range(30)})
    (verdict,) = check_run(dead, track=["frac_reward_zero_std"], baseline=baseline).verdicts
    assert verdict.outcome == "fail"
    assert advice in verdict.next_step
