import json
import shutil
from pathlib import Path

import pytest

from gradscope.diagnostics.check.measure import check_run, parse_requirement
from gradscope.diagnostics.check.requirements import CheckSettings
from gradscope.errors import UsageError
from gradscope.results.verdicts import CheckReport
from gradscope.rollouts.run_folder import checkpoint_path
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.rollouts.readers.lines import write_lines
from tests.trained import MakeRun


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


def test_a_number_that_is_the_limit_but_for_rounding_holds_it(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "m.jsonl", *({"step": step, "frac_reward_zero_std": 0.3} for step in range(30)))
    texts = ("<= 0.3", ">= 0.3", "== 0.3", "< 0.3", "!= 0.3", "< 0.300001")
    verdicts = checked(log, *(f"frac_reward_zero_std {text}" for text in texts)).verdicts
    assert [verdict.outcome for verdict in verdicts] == ["pass"] * 3 + ["fail"] * 2 + ["pass"]


def test_a_verdict_says_number_limit_and_next_step(samples: Path) -> None:
    failed, close, unknown = checked(samples, "frac_reward_zero_std <= 0.5", "pass@1 >= 0.4", "pass@8 >= 0").verdicts
    assert failed.meaning.startswith("frac_reward_zero_std of 2 groups is 1 [")
    assert "required is <= 0.5" in failed.meaning
    assert failed.next_step.endswith(f"gradscope degeneracy '{samples}'")
    assert "The interval holds the limit" in close.meaning
    assert (close.outcome, close.next_step, unknown.outcome) == ("pass", "", "unknown")
    assert "k = 8 exceeds the 4 samples of a prompt. What is not known does not pass." in unknown.meaning
    assert unknown.next_step


def test_each_number_says_what_it_is_of(tmp_path: Path) -> None:
    """The reward of the last step stood beside the pass rate of all steps, and nothing told them apart."""
    rows = [{"step": s, "prompt_id": "ab"[n // 2], "reward": float(n < s)} for s in (1, 2, 3) for n in range(4)]
    log = write_lines(tmp_path / "log.jsonl", *rows)
    texts = ["reward", "pass_rate", "reward@1", "reward@max", "pass_rate@2-3", "reward@1,3", "reward@9"]
    verdicts = checked(log, *(f"{text} > 0" for text in texts)).verdicts
    assert [(verdict.metric, verdict.estimate.value, verdict.of) for verdict in verdicts] == [
        ("reward", 0.75, "step 3"),
        ("pass_rate", 0.5, "6 groups"),
        ("reward@1", 0.25, "step 1"),
        ("reward@max", 0.75, "steps 1 to 3"),
        ("pass_rate@2-3", 0.625, "steps 2 to 3"),
        ("reward@1,3", 0.5, "steps 1,3"),
        ("reward@9", None, ""),
    ]
    norms = ({"step": step, "grad_norm": 9.0 if step == 4 else 1.0 + step % 3} for step in range(12))
    (furthest,) = checked(write_lines(tmp_path / "norms.jsonl", *norms), "deviation > 0").verdicts
    assert furthest.of == "step 4"


@pytest.mark.parametrize(
    ("metric", "hint"),
    [
        ("frac_reward_zero_sdt", "'frac_reward_zero_std'"),
        ("pass@0", ""),
        ("xyzzy", "See `gradscope explain` for the list."),
        ("pass_rate@lst20%", "metric@last20%"),
    ],
)
def test_an_unknown_metric_gets_a_suggestion(samples: Path, metric: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"There is no metric '{metric}'") as caught:
        checked(samples, f"{metric} > 0")
    assert hint in str(caught.value.hint)


def test_nothing_required_is_refused(samples: Path) -> None:
    for baseline, hint in ((None, "Add --require "), ("baseline.json", "Add --track ")):
        with pytest.raises(UsageError, match="No requirement was given") as caught:
            check_run(samples, CheckSettings(baseline=baseline), update_baseline=baseline is not None)
        assert str(caught.value.hint).startswith(hint)


def test_a_baseline_alone_asks_for_all_that_it_holds(samples: Path, tmp_path: Path) -> None:
    settings = CheckSettings(track=["pass@1", "pass@2"], baseline=tmp_path / "baseline.json")
    check_run(samples, settings, update_baseline=True)
    verdicts = check_run(samples, CheckSettings(baseline=settings.baseline)).verdicts
    assert [verdict.metric for verdict in verdicts] == ["pass@1", "pass@2"]
    empty = {**json.loads((tmp_path / "baseline.json").read_text()), "metrics": {}}
    (tmp_path / "baseline.json").write_text(json.dumps(empty))
    with pytest.raises(UsageError, match="No requirement was given"):
        check_run(samples, CheckSettings(baseline=settings.baseline))


def test_gradients_are_those_of_the_last_step_that_has_weights(short_run: MakeRun, tmp_path: Path) -> None:
    run = shutil.copytree(short_run(), tmp_path / "run")
    shutil.rmtree(checkpoint_path(run, 2))
    report = checked(run, "replay_grad_norm_error <= 1e-5", "stable_rank >= 1")
    assert report.outcome == "pass"
    assert "at step 1" in report.verdicts[0].meaning


def test_a_logged_nan_fails_and_no_allowance_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(group_of([1, 0], step=1), metrics={1: {"grad_norm": float("nan")}})
    monkeypatch.setattr("gradscope.diagnostics.check.measure.read_run", lambda *_, **__: run)
    for requirement in ("grad_norm <= 5", "grad_norm != 3"):
        report = check_run(tmp_path, CheckSettings(allow_unknown=["grad_norm"]), requirements=[requirement])
        assert report.outcome == "fail"
        meaning = "grad_norm is not a finite number: it is NaN at step 1. No requirement holds for that."
        assert report.verdicts[0].meaning == meaning
        assert report.verdicts[0].next_step == "Look at that step in the trainer's own log."


def test_what_to_try_follows_from_the_runs_own_groups(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", {"live": [1, 0, 1, 0], **{f"p{n}": [1] * 4 for n in range(5)}})
    (verdict,) = check_run(log, requirements=["frac_reward_zero_std <= 0.5"]).verdicts
    assert "try harder prompts" in verdict.next_step
    live = write_log(tmp_path / "live.jsonl", {f"p{n}": [1, 0] * 10 for n in range(30)})
    settings = CheckSettings(track=["frac_reward_zero_std", "pass@1"], baseline=tmp_path / "baseline.json")
    check_run(live, settings, update_baseline=True)
    dead = write_log(tmp_path / "dead.jsonl", {f"p{n}": [0] * 4 for n in range(30)})
    share, rate = check_run(dead, settings).verdicts
    assert (share.outcome, rate.outcome) == ("fail", "fail")
    assert "Every rollout fails: look at the reward function" in share.next_step
    assert rate.next_step.startswith("Look closer: gradscope passk")


def write_log(path: Path, rewards_of: dict[str, list[int]]) -> Path:
    rows = [
        {"prompt_id": name, "step": 1, "reward": reward} for name, rewards in rewards_of.items() for reward in rewards
    ]
    return write_lines(path, *rows)


def test_a_limit_that_holds_of_the_mean_and_not_of_the_end_is_said(tmp_path: Path) -> None:
    """A run whose groups were all dead from step 17 on passed a limit of one half, and nothing was said."""
    for is_dead_at_end in (True, False):
        rows = [
            {"step": step, "prompt": f"{step}/{n}", "reward": float(is_dead or k)}
            for step in range(20)
            for n in range(12)
            for is_dead in [step >= 16 if is_dead_at_end else n < 3]
            for k in range(2)
        ]
        log = write_lines(tmp_path / f"{is_dead_at_end}.jsonl", *rows)
        report = check_run(log, requirements=["frac_reward_zero_std <= 0.5", "pass_rate >= 0.1"])
        assert report.outcome == "pass"
        assert [text.partition(":")[0] for text in report.findings] == is_dead_at_end * [
            "frac_reward_zero_std <= 0.5 holds of all steps and not of the last fifth",
            "No group has had a gradient since step 16, for 4 steps; before, most had one.",
        ]


@pytest.mark.parametrize("between", ["\n\n", "\r\n\r\n", "\n \n", "\n\n\n\n"])
def test_blank_lines_are_no_rollouts_that_were_lost(tmp_path: Path, between: str) -> None:
    log = write_log(tmp_path / "log.jsonl", {"live": [1, 0, 1, 0]})
    log.write_bytes(log.read_text().replace("\n", between).encode())
    report = check_run(log, requirements=["frac_reward_zero_std <= 0.5", "frac_set_aside <= 0"])
    assert report.outcome == "pass"
    assert [reason.reason for reason in report.source.quarantined.reasons] == ["the line is blank"]
