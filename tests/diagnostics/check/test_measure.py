from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradscope.catalog.lookup import CATALOG
from gradscope.diagnostics.check.measure import check_run, parse_requirement, read_requirements
from gradscope.diagnostics.check.metric_values import MetricValues
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.results.check import CheckReport, Requirement
from gradscope.results.rank import RankCurvePoint, RankReport, StepGeometry
from gradscope.results.replay import Quantity, ReplayReport, StepReplay
from gradscope.results.source import Source
from gradscope.rollouts.read_options import ReadOptions
from tests.diagnostics.made_up_runs import group_of, run_of

SOURCE = Source(path="made-up", format="made-up", recognized="made up for a test")


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Two dead groups of four: pass@1 = .5."""
    path = tmp_path / "my samples.jsonl"
    path.write_text('{"task_id": "a", "n": 4, "c": 4}\n{"task_id": "b", "n": 4, "c": 0}\n')
    return path


def checked(path: Path, *texts: str) -> CheckReport:
    return check_run(path, requirements=[parse_requirement(text) for text in texts])


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        ("frac_reward_zero_std <= 0.5", Requirement(metric="frac_reward_zero_std", op="<=", limit=0.5)),
        (" pass@8>.25 ", Requirement(metric="pass@8", op=">", limit=0.25)),
        ("rewards/acc/mean != -1e-3", Requirement(metric="rewards/acc/mean", op="!=", limit=-0.001)),
        ("sparsity.gini==0", Requirement(metric="sparsity.gini", op="==", limit=0.0)),
    ],
)
def test_grammar(text: str, requirement: Requirement) -> None:
    assert parse_requirement(text) == requirement


@pytest.mark.parametrize("text", ["", "pass@8", "pass@8 0.5", "<= 0.5", "a <= 0.5 0.6"])
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not '<metric> <op> <number>'"):
        parse_requirement(text)


@pytest.mark.parametrize(
    ("op", "hint"), [("=", "Equality is '=='."), ("=>", "The operators are <, <=, >, >=, ==, !=.")]
)
def test_unknown_operator_is_refused(op: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"There is no operator '{op}'") as caught:
        parse_requirement(f"pass@8 {op} 1")
    assert caught.value.hint == hint


@pytest.mark.parametrize("limit", ["half", "50%", "nan", "inf"])
def test_limit_is_a_finite_number(limit: str) -> None:
    with pytest.raises(UsageError, match=f"The limit '{limit}' .* is not a finite number"):
        parse_requirement(f"pass@8 > {limit}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[tool.gradscope.check]\nrequire = ['pass@1 > 0']"),
        ("gradscope.toml", "[tool.gradscope.check]\nrequire = ['pass@1 > 0']"),
        ("gradscope.toml", "[check]\nrequire = ['pass@1 > 0']"),
    ],
)
def test_requirements_of_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_requirements(tmp_path / name) == (Requirement(metric="pass@1", op=">", limit=0.0),)


def test_file_without_the_table_requires_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[check]\nrequire = ['pass@1 > 0']\n[tool.ruff]\n")
    assert read_requirements(tmp_path / "pyproject.toml") == ()


@pytest.mark.parametrize("value", ["'pass@1 > 0'", "[1]"])
def test_require_is_a_list_of_strings(tmp_path: Path, value: str) -> None:
    (tmp_path / "gradscope.toml").write_text(f"[check]\nrequire = {value}")
    with pytest.raises(UsageError, match=r"`require` in .* is not a list of strings"):
        read_requirements(tmp_path / "gradscope.toml")


def test_unreadable_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gradscope\.toml cannot be read: No such file"):
        read_requirements(tmp_path / "gradscope.toml")
    (tmp_path / "gradscope.toml").write_text("[check\n")
    with pytest.raises(InputError, match=r"gradscope\.toml is not TOML"):
        read_requirements(tmp_path / "gradscope.toml")


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


def test_logged_metric_is_that_of_the_last_step_that_has_it() -> None:
    run = run_of(group_of([1, 0], step=1), metrics={1: {"kl": 0.1}, 2: {"kl": 0.2}, 3: {"loss": 1.0}})
    values = MetricValues(run=run)
    assert "kl" in values.names()
    value = values.value("kl")
    assert (value.estimate.value, value.subject) == (0.2, "kl as the trainer logged it at step 2")


def test_log_of_several_steps_has_no_pass_at_k() -> None:
    value = MetricValues(run=run_of(group_of([1, 0], step=1), group_of([1, 0], step=2))).value("pass@1")
    assert "logs 2 training steps" in value.estimate.undefined
    assert value.hint


def test_every_catalogue_metric_has_a_value_or_a_reason() -> None:
    values = MetricValues(run=run_of(group_of([1, 0], step=1)))
    for name in CATALOG:
        value = values.value(name)
        assert value.estimate.is_defined or (value.estimate.undefined and value.hint), name


def test_failure_is_found_once() -> None:
    values = MetricValues(run=run_of(group_of([None], step=1)))
    first, second = values.value("pass_rate"), values.value("jensen_gap")
    assert first.estimate.undefined == second.estimate.undefined
    assert list(values.cache) == ["degeneracy"]


def rank_report() -> RankReport:
    def point(step: int, advantage: str, size: int, rank: float) -> RankCurvePoint:
        estimate = Estimate(value=rank, low=rank - 1, high=rank + 1, num_units=6)
        return RankCurvePoint(
            step=step,
            advantage=advantage,
            group_size=size,
            num_groups=6,
            num_dead=0,
            effective_rank=estimate,
            given_prompts=estimate,
            stable_rank=estimate,
            participation_ratio=estimate,
        )

    geometry = StepGeometry(
        step=6,
        weights="checkpoint-5",
        num_rollouts=16,
        num_inferred_ids=0,
        grad_norm=Estimate.exact(0.7),
        logged_grad_norm=0.7,
        cancellation=Estimate.exact(0.4),
        class_subspace_energy=Estimate.because("no mixed group"),
        sparsity={"gini": Estimate.exact(0.3)},
        verification={},
    )
    curve = (
        point(1, "logged", 8, 9.0),
        point(6, "logged", 4, 2.0),
        point(6, "logged", 8, 5.0),
        point(6, "sign", 8, 7.0),
    )
    return RankReport(
        source=SOURCE,
        rows="rollout",
        spectra=(),
        curve=curve,
        steps=(geometry,),
        skipped={},
        refused={},
        gram={},
        engine={},
    )


@pytest.mark.parametrize(
    ("name", "expected", "subject"),
    [
        ("effective_rank", 5.0, "effective_rank at step 6, G = 8"),
        ("grad_norm", 0.7, "grad_norm at step 6"),
        ("cancellation", 0.4, "cancellation at step 6"),
        ("sparsity.gini", 0.3, "sparsity.gini at step 6"),
        ("class_subspace_energy", None, "class_subspace_energy at step 6"),
    ],
)
def test_gradient_metrics_are_those_of_the_last_step(name: str, expected: float | None, subject: str) -> None:
    values = MetricValues(run=run_of(group_of([1, 0], step=6)), cache={"rank": rank_report()})
    value = values.value(name)
    assert (value.estimate.value, value.subject) == (expected, subject)


@pytest.mark.parametrize(
    ("errors", "expected", "reason"),
    [({"grad_norm": 1e-7}, 1e-7, None), ({}, None, "the weights of that step were not saved")],
)
def test_replay_error_of_the_last_step(errors: dict[str, float], expected: float | None, reason: str | None) -> None:
    step = StepReplay(
        step=6,
        weights=None,
        verdict="match" if errors else "cannot",
        cause=None if errors else reason,
        quantities=(),
        logged={},
        recomputed={},
        relative_error=errors,
        num_inferred_ids=0,
        frac_kl=None,
    )
    report = ReplayReport(source=SOURCE, steps=(step,), verdict=step.verdict, tolerance=1e-4, engine={})
    values = MetricValues(run=run_of(group_of([1, 0], step=6)), cache={"replay": report})
    value = values.value("replay_grad_norm_error")
    assert (value.estimate.value, value.estimate.undefined) == (expected, reason)


def test_an_undecided_replay_names_the_cause_of_its_own_quantity() -> None:
    causes = {"reward": "the trainer logged no mean reward", "grad_norm": "no weights are on disk"}
    step = StepReplay(
        step=6,
        weights=None,
        verdict="cannot",
        cause=causes["reward"],
        quantities=tuple(Quantity(name=name, verdict="cannot", cause=cause) for name, cause in causes.items()),
        logged={},
        recomputed={},
        relative_error={},
        num_inferred_ids=0,
        frac_kl=None,
    )
    report = ReplayReport(source=SOURCE, steps=(step,), verdict="cannot", tolerance=1e-4, engine={})
    values = MetricValues(run=run_of(group_of([1, 0], step=6)), cache={"replay": report})
    assert values.value("replay_grad_norm_error").estimate.undefined == causes["grad_norm"]


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


def test_parts_of_a_report_are_named_by_their_path() -> None:
    run = run_of(group_of([1, 1], prompt="a"), group_of([1, 0], prompt="b"))
    values = MetricValues(run=run)
    assert values.value("starvation.dilution").estimate.value == 0.5
    assert "no other deal" in values.value("overdispersion.z").estimate.undefined
    assert values.value("starvation.frac_tokens").estimate.undefined == "token ids of the completions were not logged"
